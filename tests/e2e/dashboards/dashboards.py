#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboards of dashboards/grafana on a live Prometheus of an emulated cluster.

  dashboards.py --build DIR have_data

Four emulated jobs on two nodes (one with a late GPU, a healthy one of the same shape, one that hangs, and one in virtual time
whose steps are many), real plugins and agents, the shipped recording rules with short windows, and what others would add:
DCGM's exporter and the job's throughput, made up here. Every expression of every panel, and the query of every variable, must
return data. Where Grafana's panels were fetched (scripts/fetch-grafana.sh) and a browser is there, the dashboards are drawn
too; NCCLSCOPE_SCREENSHOTS=DIR keeps the pictures. The scenario `pictures` makes those of docs/dashboards.
"""
import contextlib
import json
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import drawing  # noqa: E402
import monitoring  # noqa: E402
from monitoring import RULES  # noqa: E402
from support import (CLUSTER, PLUGIN, ROOT, Failure, Job, answering, node_agents, parse_samples, require,  # noqa: E402
                     run_scenarios, wait_until)

DASHBOARDS = ROOT / "dashboards" / "grafana"
# Three windows, a baseline and what comes after it must fit into a test.
SHIPPED_WINDOW = json.loads((RULES / "thresholds.json").read_text())["window"]["value"]
WINDOW = "5s"
SETTINGS = {"window": WINDOW, "window_interval": "1s", "baseline_interval": "1s", "baseline_samples": "5", "fleet_jobs": "1",
            "fleet_range": "20s", "fleet_step": "1s", "hang_seconds": "8", "stalled_seconds": "4", "lost_offset": "6s",
            "operations_tolerance": "0.2", "late_seconds": "0.1", "noise_multiple": "3"}
LATE, HEALTHY, HUNG, STEPS = "4711", "4712", "4713", "4714"
LIMIT_S = 75
# Of the job in real time, as its pictures show: in virtual time clocks match by themselves.
OF_LATE = {("job", "Late on the host, or still computing")}


def documented_report():
    """report_throughput() of docs/metrics.md."""
    code = re.search(r"```python\n(import os\n.+?)```", (ROOT / "docs" / "metrics.md").read_text(), re.S)[1]
    names = {}
    exec(compile(code, "docs/metrics.md", "exec"), names)  # noqa: S102 (of the repository)
    return names["report_throughput"]


def others(agents, folder):
    """A server of what other exporters say: DCGM of the GPUs that our agents know, and the throughput that jobs report."""
    report = documented_report()
    textfiles = folder / "textfiles"
    textfiles.mkdir()

    def text():
        lines, seen = [], set()
        for agent in agents:
            for labels, _ in parse_samples(agent.get("/metrics")[1])["ncclscope_rank_info"]:
                if not labels["gpu_uuid"] or labels["gpu_uuid"] in seen:
                    continue
                seen.add(labels["gpu_uuid"])
                where = f'gpu="{labels["gpu"]}",UUID="{labels["gpu_uuid"]}",Hostname="{labels["node"]}"'
                for name, number in (("DCGM_FI_PROF_SM_ACTIVE", 0.8), ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.4),
                                     ("DCGM_FI_DEV_SM_CLOCK", 1755), ("DCGM_FI_DEV_GPU_TEMP", 61),
                                     ("DCGM_FI_DEV_POWER_USAGE", 540), ("DCGM_FI_PROF_NVLINK_TX_BYTES", 42e9),
                                     ("DCGM_FI_PROF_PCIE_TX_BYTES", 9e9), ("DCGM_FI_DEV_XID_ERRORS", 0)):
                    # No two GPUs are alike, and nothing stands still.
                    wobble = 1 + 0.03 * ((hash(labels["gpu_uuid"]) + int(time.monotonic())) % 5)
                    lines.append(f"{name}{{{where}}} {number / wobble}")
        for job in (LATE, HEALTHY, STEPS):
            report(textfiles, CLUSTER, job, "tokens", 91000 + 500 * (int(time.monotonic()) % 7))
        for number, path in enumerate(sorted(textfiles.glob("*.prom"))):
            # One HELP and TYPE for a metric, as the textfile collector makes of them.
            lines += [line for line in path.read_text().splitlines() if number == 0 or not line.startswith("#")]
        return "\n".join(lines) + "\n"

    def answer(*_):
        try:
            return 200, text()
        except OSError:
            return 503, ""
    return answering(answer)


def expand(text, variables):
    """As Grafana and a shorter window would: recorded names, built-in variables, the dashboard's own."""
    text = re.sub(rf"(\w+:ncclscope_\w+:\w+?){SHIPPED_WINDOW}\b", rf"\g<1>{WINDOW}", text)
    built_in = {"__rate_interval": WINDOW, "__interval": "1s", "__range": "20s"}
    for name, value in {**built_in, **variables}.items():
        text = re.sub(rf"\$(?:{name}\b|{{{name}}})", lambda _, v=value: v, text)
    require(not re.search(r"\$(?!\d)", text), f"variables left in {text}")
    return text


def panels_of(board):
    return [p for p in board["panels"] if p["type"] != "row"]


def variables_of(board, job, prometheus):
    """Values of a dashboard's variables for a job; several choices where one of them will have the data."""
    choices = [{"cluster": CLUSTER, "job": job, "other": HEALTHY if job == LATE else LATE, "before": "10s", "collective": ".*",
                "rank": ".*", "gpu": ".*", "datasource": "prometheus", "runbooks": "runbooks"}]
    names = [v["name"] for v in board["templating"]["list"]]
    for name, label, metric in (("comm", "comm", "ncclscope_communicator_info"), ("node", "node", "ncclscope_rank_info")):
        if name in names:
            found = {r["metric"][label] for r in prometheus.query(f'{metric}{{job_id="{job}"}}')}
            choices = [{**c, name: value} for c in choices for value in sorted(found)]
    return [{k: v for k, v in c.items() if k in names} for c in choices]


class Expressions:
    """All of all dashboards; each is done once it has returned data for one of the jobs."""

    def __init__(self, prometheus):
        self.prometheus, self.done = prometheus, {}
        self.boards = {p.stem: json.loads(p.read_text()) for p in sorted(DASHBOARDS.glob("*.json"))}
        require(len(self.boards) == 6, f"dashboards: {sorted(self.boards)}")
        self.left = {}
        for name, board in self.boards.items():
            for panel in panels_of(board):
                for target in panel["targets"]:
                    self.left[name, panel["title"], target["refId"]] = target
        self.total = len(self.left)

    def try_all(self):
        """True once nothing is left."""
        time.sleep(1)  # nothing changes faster than scrapes come
        for job in (LATE, HUNG, STEPS):
            sets = {name: variables_of(board, job, self.prometheus) for name, board in self.boards.items()}
            for key, target in list(self.left.items()):
                if job != LATE and key[:2] in OF_LATE:
                    continue
                for variables in sets[key[0]]:
                    expression = expand(target["expr"], variables)
                    if target.get("instant"):
                        result = self.prometheus.query(expression)
                    else:
                        result = self.prometheus.range(expression, 15)
                    if any(is_number(v) for r in result for v in r.get("values", [r.get("value")])):
                        self.done[key] = expression
                        del self.left[key]
                        break
        return not self.left

    def check_variables(self):
        for name, board in self.boards.items():
            for variable in board["templating"]["list"]:
                if variable["type"] != "query":
                    continue
                text = expand(variable["query"], variables_of(board, LATE, self.prometheus)[0])
                if match := re.fullmatch(r"label_values\((.+), (\w+)\)", text):
                    found = {r["metric"].get(match[2]) for r in self.prometheus.query(match[1])}
                else:
                    inner = re.fullmatch(r"query_result\((.+)\)", text)[1]
                    pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
                    # As Grafana writes a result before it applies the pattern.
                    lines = ["{" + ",".join(f'{k}="{v}"' for k, v in r["metric"].items()) + "} 1" for r in
                             self.prometheus.query(inner)]
                    found = {m["value"] for m in map(pattern.search, lines) if m}
                require(found - {None, ""}, f"{name}: variable {variable['name']} has no values: {text}")


def is_number(sample):
    return sample is not None and sample[1] != "NaN"


def start_jobs(build, agents, late_from=0):
    library = build.folder / "tests" / "libcuda.so.1"
    sockets = [a.socket for a in agents]

    def start(job_id, layout, name, nodes=2, steps=1000000, **options):
        own = [f"{n}:{k}={v}" for n in range(nodes) for k, v in (
            ("SLURM_JOB_ID", job_id), ("SLURM_JOB_NAME", name), ("LD_PRELOAD", library), ("NCCLSCOPE_NETWORK_SAMPLE", 1),
            # On busy cores the governor would time only slices of operations, each rank its own.
            ("NCCLSCOPE_OVERHEAD_BUDGET", 0.5), ("NCCLSCOPE_COST_SAMPLE", 0))]
        return Job(build, nodes, 2, layout, steps, PLUGIN, sockets[:nodes], hang_seconds=1000, node_env=own, **options)

    # Buffers are broadcast when GPUs are idle: only such operations let the clocks of host and GPU be matched.
    return [
        start(LATE, "ddp:buffers=1", name="llama-7b", compute_ms=100, fault=f"late:rank=2,ms=80,from={late_from}"),
        start(HEALTHY, "ddp:buffers=1", name="llama-7b", compute_ms=100),
        start(HUNG, "megatron:tp=2,pp=2", name="pipeline", compute_ms=100, fault="missing:rank=1,from=60"),
        Bursts(lambda: start(STEPS, "ddp", name="virtual", nodes=1, steps=150, compute_ms=1000, pace="fast"))]


class Bursts:
    """A job in virtual time, where steps are as long as modelled and there are hundreds in a second: again and again, with
    pauses, as it would keep a core busy otherwise."""

    def __init__(self, start):
        self.ending = threading.Event()

        def run():
            while not self.ending.wait(1):
                job = start()
                while job.process.poll() is None and not self.ending.wait(0.1):
                    pass
                job.stop()
        self.thread = threading.Thread(target=run)
        self.thread.start()

    def stop(self):
        self.ending.set()
        self.thread.join()


@contextlib.contextmanager
def emulated_cluster(build, folder, **options):
    """A Prometheus over the agents of two nodes on which the jobs run."""
    with contextlib.ExitStack() as stack:
        agents = stack.enter_context(node_agents(build, folder, 2))
        others_url = stack.enter_context(others(agents, folder))
        prometheus = stack.enter_context(monitoring.prometheus(
            folder, [monitoring.scrape("ncclscope", *(a.address for a in agents)),
                     monitoring.scrape("others", others_url.removeprefix("http://"), honor_labels=True)], SETTINGS))
        for job in start_jobs(build, agents, **options):
            stack.callback(job.stop)
        yield prometheus


def have_data(build, folder):
    begin = time.monotonic()
    with emulated_cluster(build, folder) as prometheus:
        expressions = Expressions(prometheus)
        try:
            wait_until("data for every expression", expressions.try_all, LIMIT_S)
        except Failure as failure:
            for key in expressions.left:
                print("no data:", " / ".join(key), ":", expressions.left[key]["expr"])
            raise Failure(f"{failure}: {len(expressions.left)} of {expressions.total} expressions without data") from None
        expressions.check_variables()
        print(f"{expressions.total} expressions of {len(expressions.boards)} dashboards have data after {time.monotonic() - begin:.0f} s")
        drawing.draw(folder, prometheus, expressions.boards, expand,
                     {name: variables_of(board, LATE, prometheus)[0] for name, board in expressions.boards.items()})


def pictures(build, folder):
    """No test: for docs. The late GPU becomes late only after a while, so that there is a past to hold it against."""
    require(drawing.missing() is None, drawing.missing())
    with emulated_cluster(build, folder, late_from=300) as prometheus:
        boards = Expressions(prometheus).boards
        wait_until("a culprit", lambda: prometheus.query(f'gpu:ncclscope_lag_seconds:culprit{{job_id="{LATE}"}}'), 150)
        time.sleep(20)
        choices = {name: variables_of(board, LATE, prometheus)[-1] for name, board in boards.items()}
        drawing.draw(folder, prometheus, boards, expand, choices, seconds=100)
        hung = {"job-hang": variables_of(boards["job"], HUNG, prometheus)[0]}
        drawing.draw(folder, prometheus, {"job-hang": boards["job"]}, expand, hung, seconds=100)
        for what in ("ALERTS", "gpu:ncclscope_lag_seconds:culprit", "gpu:ncclscope_culprit_timestamp_seconds:min"):
            for result in prometheus.query(what):
                print(result["metric"], result["value"][1])


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (have_data, pictures)))
