#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: emulated jobs with faults -> plugins -> agents -> Prometheus with the rules -> Alertmanager -> webhook.

  alerts.py --build DIR SCENARIO

A real Prometheus scrapes the agents of emulated nodes every second and evaluates the rules every second; a real Alertmanager
with the shipped routes and inhibitions delivers to a webhook of this test. Rules are rendered from the shipped templates with
shorter windows and thresholds (WINDOWS below); the shipped files are held to the same templates elsewhere. The jobs of a scenario
run side by side on the same nodes; each says which alerts must arrive, naming whom, and that no other warning or critical one
fired at any time. In `inhibitions` the alerts are made up: for every rule of alertmanager.yml, the cause suppresses what it
explains, and nothing of another job.
"""
import contextlib
import dataclasses
import datetime
import json
import pathlib
import re
import sys
import time
import urllib.request

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import monitoring  # noqa: E402
from monitoring import RULES  # noqa: E402
from support import PLUGIN, Agent, Failure, Job, require, run_scenarios, running, wait_until  # noqa: E402

# Three windows must fit into a test. The plugin reports every 100 ms, so ranks' counts over 10 s differ by some percent;
# emulated ranks share few cores with everything else, so lateness counts from a tenth of the time, and the noise of windows
# that short and jobs that small counts for less.
WINDOWS = {"window": "10s", "window_interval": "1s", "baseline_interval": "2s", "baseline_samples": "300",
           "hang_seconds": "8", "stalled_seconds": "4", "lost_offset": "6s", "operations_tolerance": "0.1",
           "late_seconds": "0.1", "noise_multiple": "3"}
LIMIT_S = 75
HANG_TOLD_WITHIN_S = 5


def text_of(labels):
    return " ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__")


@dataclasses.dataclass
class Alert:
    """One that must come; a label None must not be there. `told` must be in its description; informative ones are not delivered, but must have fired."""
    name: str
    labels: dict
    told: tuple = ()
    severity: str = "warning"

    def matches(self, labels):
        return labels["alertname"] == self.name and all(
            labels.get(k) == (None if v is None else str(v)) for k, v in self.labels.items())


@dataclasses.dataclass
class Case:
    """One job; its name is its job_id. Its node n is the agent `nodes[n]`."""
    name: str
    layout: str = "ddp"
    faults: list = dataclasses.field(default_factory=list)
    alerts: list = dataclasses.field(default_factory=list)
    nodes: tuple = (0, 1)
    gpus: int = 2
    environment: tuple = ()
    compute_ms: int = 100
    passing: list = dataclasses.field(default_factory=list)  # may fire on the way, and must be over in the end


def hang(kind, told=(), **labels):
    return Alert("NcclscopeHang", {"class": kind} | labels, told, "critical")


HOST, STILL_COMPUTING = "late on the host", "its GPU was still computing"
FOUR, SIX = {"nodes": (0, 1, 2, 3), "gpus": 1}, {"nodes": (5, 4, 3, 2, 1, 0), "gpus": 1}
# Members of a late group are seen to be late within a moment of each other.
BEFORE = {"passing": [Alert("NcclscopeLateGpu", {})]}
# Nobody is to be accused in these; that the work is uneven may be told.
UNEVEN = [
    Case("uneven-stages", "megatron:pp=2", ["slow-gpu:node=1,factor=1.3"]),
    Case("hot-expert", "moe:ep=4,hot=50,copy=1", compute_ms=300),
]
HEALTHY = [
    Case("healthy", "ddp:buffers=1"),
    # A checkpoint, and an evaluation.
    Case("pauses", "fsdp", ["pause:rank=0,ms=1500,step=60"] + [f"pause:rank={r},ms=2500,step=120" for r in range(4)]),
]
SLOW = [
    *HEALTHY,
    Case("late-host", "ddp:buffers=1", ["late:rank=1,ms=80"],
         [Alert("NcclscopeLateGpu", {"node": "node0", "gpu": 1, "global_rank": 1}, (HOST, "dp_group", "in which it is rank 1"))]),
    Case("slow-gpu", "ddp:buffers=1", ["slow-gpu:rank=1,factor=1.8"],
         [Alert("NcclscopeLateGpu", {"node": "node0", "gpu": 1, "global_rank": 1}, (STILL_COMPUTING,))]),
    # Six GPUs: who is late must be fewer than 60 % of a job.
    Case("late-node", "megatron:tp=2", ["late:node=1,ms=80"], [Alert("NcclscopeLateNode", {"node": "node1"})], nodes=(0, 1, 2),
         **BEFORE),
    Case("late-group", "megatron:tp=2", ["late:rank=0,ms=80", "late:rank=1,ms=80"],
         [Alert("NcclscopeLateGroup", {"kind": "group", "dimension": "tp"}, ("GPU 0 of node4, GPU 0 of node5",))], **SIX, **BEFORE),
    # Hidden behind the backward pass, with which its AllReduces overlap: it has the shortest ones.
    Case("straggler", "ddp", ["slow-gpu:rank=3,factor=1.4"],
         [Alert("NcclscopeLateGpu", {"node": "node3", "gpu": 1, "global_rank": 3})], nodes=(2, 3)),
    Case("slow-link", "ddp", ["slow-link:rank=2,factor=4"],
         [Alert("NcclscopeSlowLink", {"node": "node2", "gpu": 0, "direction": "send"}, ("the way out of it",))],
         environment=("NCCLSCOPE_NETWORK_SAMPLE=1",), **FOUR),
    # Rank 2 sends into it, and its bytes take as long.
    Case("half-nic", "ddp", ["slow-nic:rank=3,factor=2"],
         [Alert("NcclscopeSlowLink", {"node": "node2", "gpu": 0, "direction": "send"}, ("the NIC, not one direction",))],
         environment=("NCCLSCOPE_NETWORK_SAMPLE=1",), **SIX),
    Case("sockets", "fsdp", [], [Alert("NcclscopeSocketsInsteadOfRdma", {"node": f"node{n}"}) for n in (6, 7)], nodes=(6, 7)),
]
ACROSS = Alert("NcclscopeSlowAcrossJobs", {"node": "node0", "gpu": 1}, ("late-host, slow-gpu",))
NESTED = "megatron:tp=2,pp=2"
HANGS = [
    Case("missing", faults=["missing:rank=2,from=30"],
         alerts=[hang("rank_never_called", ("has not called: it is outside NCCL",), rank=2, global_rank=2, node="node1", gpu=0)]),
    Case("mismatch", faults=["mismatch:rank=1,from=30"], alerts=[hang("argument_mismatch", rank=1, node="node0", gpu=1)]),
    Case("crash", faults=["crash:rank=3,from=30"], alerts=[hang("process_gone", rank=3, node="node1", gpu=1)]),
    Case("network", faults=["stuck:node=1,from=30"], alerts=[hang("network_stuck", comm_name="dp_group", rank=None)]),
    Case("never-started", faults=["slow-gpu:rank=1,factor=10000,from=30"],
         alerts=[hang("gpu_never_started", rank=1, node="node0", gpu=1)]),
    # Nobody sees operations end: NCCL is not asked for kernel events.
    Case("unseen-missing", faults=["missing:rank=2,from=30"], environment=("NCCLSCOPE_MASK=0x606",),
         alerts=[hang("rank_never_called", ("GPU times of its last operations were not asked for",), rank=2, node="node1")]),
    Case("unseen-mismatch", faults=["mismatch:rank=1,from=30"], environment=("NCCLSCOPE_MASK=0x606",),
         alerts=[hang("argument_mismatch", rank=1, node="node0", gpu=1)]),
    # Tensor and pipeline groups within each other: who waits for a victim, or is queued behind one, is not told.
    Case("nested-missing", NESTED, ["missing:rank=1,from=60"],
         [hang("rank_never_called", ("it is outside NCCL",), global_rank=1, node="node0", gpu=1)]),
    Case("nested-network", NESTED, ["stuck:node=1,from=60"], [hang("network_stuck", comm_name="pp_group", rank=None)]),
    Case("nested-never-started", NESTED, ["slow-gpu:rank=1,factor=10000,from=60"],
         [hang("gpu_never_started", global_rank=1, node="node0", gpu=1)]),
    Case("checkpoint", faults=["pause:rank=0,ms=6000,step=60"],
         alerts=[Alert("NcclscopeWaitingForRank", {"rank": 0, "node": "node0"}, severity="info")]),
    Case("evaluation", faults=[f"pause:rank={r},ms=6000,step=60" for r in range(4)]),
    Case("node-gone", faults=["crash:rank=2,from=60", "crash:rank=3,from=60"], nodes=(4, 5),
         alerts=[hang("process_gone", rank=r, node="node5") for r in (2, 3)]),
    *UNEVEN,  # beside jobs that soon stand still and cost nothing
]


def rdma_node(folder):
    """A node with one active port, as sysfs shows it."""
    port = folder / "sysfs" / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True, exist_ok=True)
    (port / "state").write_text("4: ACTIVE\n")
    return folder / "sysfs"


@contextlib.contextmanager
def cluster(build, folder, cases):
    """Running jobs, their agents, and a Prometheus and an Alertmanager over these."""
    arguments = ["--stalled-seconds", "2"]
    agents = [Agent(build, folder, f"node{n}", [*arguments, "--sysfs-root", rdma_node(folder)] if n >= 6 else arguments)
              for n in range(8)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(agents))
        alertmanager = stack.enter_context(monitoring.alertmanager(folder))
        prometheus = stack.enter_context(monitoring.prometheus(
            folder, [monitoring.scrape("ncclscope", *(a.address for a in agents))], WINDOWS, alertmanager))
        jobs = {}
        for case in cases:
            jobs[case.name] = Job(
                build, len(case.nodes), case.gpus, case.layout, 100000, PLUGIN, [agents[n].socket for n in case.nodes],
                job_id=case.name, compute_ms=case.compute_ms, hang_seconds=200, fault=case.faults,
                # On busy cores the plugin's governor would time only slices of operations, each rank its own.
                env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5", *case.environment])
            stack.callback(jobs[case.name].stop)
        yield prometheus, alertmanager, jobs, agents


def expect(prometheus, alertmanager, cases, extra=()):
    """Waits until every alert has come, and then until nothing else can."""
    begin = time.monotonic()
    wanted = [(case.name, alert) for case in cases for alert in case.alerts] + [(None, alert) for alert in extra]

    def find(job, alert):
        if alert.severity == "info":
            return next((a for a in prometheus.fired() if alert.matches(a) and a.get("job_id") == job), None)
        path = "/page" if alert.severity == "critical" else "/ticket"
        for where, notification in list(alertmanager.received):
            have = notification["labels"]
            if where == path and notification["status"] == "firing" and alert.matches(have) and have.get("job_id") == job:
                return notification
        return None

    def all_there():
        for job, alert in list(wanted):
            notification = find(job, alert)
            if notification is None:
                continue
            wanted.remove((job, alert))
            description = notification.get("annotations", {}).get("description", "")
            print(f"{time.monotonic() - begin:5.1f} s {job}: {alert.name}: {description}", flush=True)
            for text in notification.get("annotations", {}).values():
                # What a query did not find is an empty word, a value that is missing is "<no value>".
                require(not re.search(r"  |since or|\( ?[,)]|<no value>|%!", text), f"{job}: something is missing in: {text}")
            for piece in alert.told:
                require(piece in description, f"{job}: '{piece}' is not in: {description}")
            if alert.severity != "info":
                require(notification["annotations"]["runbook_url"].endswith(f"{alert.name}.md"), f"runbook of {alert.name}")
        return not wanted
    try:
        wait_until("all alerts", all_there, LIMIT_S)
    except Failure:
        fired = "; ".join(text_of(f) for f in prometheus.fired()) or "none"
        raise Failure(f"missing: {[f'{job}: {alert.name} {alert.labels}' for job, alert in wanted]}; fired: {fired}; "
                      f"rules failed: {prometheus.failed_rules()}") from None


def nothing_else(prometheus, cases, extra=()):
    """No other warning or critical alert fired at any time, and every rule could be evaluated."""
    by_job = {case.name: case.alerts + case.passing for case in cases}
    for case in cases:
        for alert in case.passing:
            wait_until(f"the end of {case.name}: {alert.name}", lambda case=case, alert=alert: not prometheus.query(
                f'ALERTS{{alertname="{alert.name}", job_id="{case.name}", alertstate="firing"}}'), LIMIT_S)
    strays = [text_of(f) for f in prometheus.fired() if f["severity"] != "info" and not any(
        alert.matches(f) for alert in [*by_job.get(f.get("job_id"), []), *extra])]
    require(not strays, f"other alerts fired: {strays}")
    failed = prometheus.failed_rules()
    require(not failed, f"rules failed: {failed}")


def wait_until_judged(prometheus, cases):
    """Healthy jobs must have been looked at, too: three windows of inputs for all GPUs."""
    for case in cases:
        wait_until(f"three windows of {case.name}", lambda job=case.name: len(prometheus.query(
            f'gpu:ncclscope_lag_seconds:rate10s{{job_id="{job}"}} and gpu:ncclscope_lag_seconds:rate10s offset 10s '
            "and gpu:ncclscope_lag_seconds:rate10s offset 20s")) == 4, LIMIT_S)


def slow(build, folder):
    """Late hosts, GPUs, nodes and groups, links, sockets; beside healthy jobs, of which nothing is told."""
    with cluster(build, folder, SLOW) as (prometheus, alertmanager, jobs, _):
        expect(prometheus, alertmanager, SLOW, [ACROSS])
        wait_until_judged(prometheus, HEALTHY)
        require(all(job.process.poll() is None for job in jobs.values()), "a job ended")
        nothing_else(prometheus, SLOW, [ACROSS])
        values = {name: float(prometheus.query(f'max({name}{{job_id="healthy"}})')[0]["value"][1]) for name in (
            "comm:ncclscope_user_bus_bytes_per_second:rate10s", "comm:ncclscope_transfer_bus_bytes_per_second:max10s")}
        print(", ".join(f"{name} {value / 1e9:.1f} GB/s" for name, value in values.items()))
        require(list(values.values())[1] >= 0.95 * list(values.values())[0], f"transfer is below user bandwidth: {values}")


def hangs(build, folder):
    """Every class of hang, each with the ranks that are to blame; a checkpoint and an evaluation end by themselves. Beside
    them jobs that are healthy and uneven."""
    with cluster(build, folder, HANGS) as (prometheus, alertmanager, _, agents):
        wait_until("a node's processes gone", lambda: [
            labels["state"] for labels, _ in agents[5].scrape().get("ncclscope_rank_state", [])] == ["vanished"] * 2, LIMIT_S)
        agents[5].kill()
        expect(prometheus, alertmanager, HANGS)
        wait_until("the end of the checkpoint", lambda: not prometheus.query(
            'ALERTS{alertname="NcclscopeWaitingForRank", job_id="checkpoint"}'), LIMIT_S)
        wait_until("the wait remembered as one that ended", lambda: prometheus.query(
            'job:ncclscope_stalled_rank_seconds:longest_ended{job_id="checkpoint"} >= 4'))
        wait_until_judged(prometheus, UNEVEN)
        nothing_else(prometheus, HANGS, [Alert("NcclscopeAgentDown", {"instance": agents[5].address})])
        told_in_time(prometheus)


def told_in_time(prometheus):
    """Every hang was told soon after its threshold. Since when somebody waits is told by his age at a scrape."""
    begun = {}
    for series in prometheus.range('min by (job_id) (ALERTS{alertname="NcclscopeHang", alertstate="firing"})', 150):
        begun[series["metric"]["job_id"]] = min(float(at) for at, _ in series["values"])
    late = {}
    for job, at in begun.items():
        since = f'timestamp(ncclscope_stalled_rank_seconds{{job_id="{job}"}} > 0) - ncclscope_stalled_rank_seconds'
        threshold = f'job:ncclscope_hang_threshold_seconds:max{{job_id="{job}"}}'
        late[job] = float(prometheus.query(f"{at} - min({since}) - scalar({threshold})", at)[0]["value"][1])
    print("told after the threshold: " + ", ".join(f"{job} {by:.1f} s" for job, by in sorted(late.items(), key=lambda i: i[1])))
    require(late and max(late.values()) <= HANG_TOLD_WITHIN_S, f"later than {HANG_TOLD_WITHIN_S} s after the threshold: {late}")


def matched(matchers):
    """Alert names that the matchers of an inhibition stand for."""
    names = [re.search(r'alertname=~?"([^"]+)"', m)[1] for m in matchers]
    known = [r["alert"] for g in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"] for r in g["rules"]]
    return [k for k in known if any(re.fullmatch(n, k) for n in names)]


def inhibitions(_, folder):
    """Every inhibition of alertmanager.yml: what is explained is suppressed, in the same job only."""
    rules = yaml.safe_load((RULES / "alertmanager.yml").read_text())["inhibit_rules"]
    with monitoring.alertmanager(folder) as alertmanager:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        alerts, expected = [], set()
        for number, rule in enumerate(rules):
            for cause in matched(rule["source_matchers"]):
                same = {label: f"{label}-{number}-{cause}" for label in rule["equal"]}
                targets = [t for t in matched(rule["target_matchers"]) if t != cause]
                require(targets, f"inhibition {number} concerns no alert")
                alerts.append({"alertname": cause, **same})
                for target in targets:
                    alerts.append({"alertname": target, **same, "rank": "1"})
                    expected.add((target, *sorted(same.values())))
                    # Another job, node or communicator: not suppressed.
                    alerts.append({"alertname": target, **{k: f"{v}-{target}-other" for k, v in same.items()}})
        body = json.dumps([{"labels": labels | {"severity": "warning"}, "startsAt": now} for labels in alerts]).encode()
        request = urllib.request.Request(f"{alertmanager.url}/api/v2/alerts", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            require(response.status == 200, f"alertmanager answers {response.status}")

        def keys(labels):
            return (labels["alertname"], *sorted(v for k, v in labels.items() if k not in ("alertname", "severity", "rank")))
        # Statuses are those of the last notification round.
        wait_until("all that is explained is suppressed", lambda: expected <= {keys(a) for a in alertmanager.suppressed()}, 30)
        others = {keys(a) for a in alertmanager.suppressed()} - expected
        chained = {a[0] for a in others}
        require(not any(part.endswith("-other") for a in others for part in a), f"suppressed without a cause: {others}")
        print(f"{len(rules)} inhibitions, {len(alerts)} alerts, {len(expected)} suppressed; causes that are suppressed "
              f"themselves: {sorted(chained) or 'none'}")


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (slow, hangs, inhibitions)))
