#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: an emulated job with a fault -> plugins -> agents -> Prometheus with the rules -> Alertmanager -> webhook.

  alerts.py --build DIR SCENARIO

A real Prometheus scrapes the agents of two emulated nodes every second and evaluates the rules every second; a real
Alertmanager with the shipped routes and inhibitions delivers to a webhook of this test. Rules are rendered from the shipped
templates with shorter windows and thresholds (WINDOWS below); the shipped files are held to the same templates elsewhere.
Each scenario says which alerts must arrive, naming whom, and that no other warning or critical one fired at any time.
"""
import contextlib
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (CLUSTER, JOB, PLUGIN, ROOT, Failure, Job, Processes, free_ports, http_get, node_agents,  # noqa: E402
                     require, run_scenarios, wait_until)

RULES = ROOT / "deploy" / "prometheus"
# Three windows must fit into a test. The plugin reports every 100 ms, so ranks' counts over 10 s differ by some percent;
# emulated ranks share few cores with everything else, so lateness counts from a tenth of the time.
WINDOWS = {"window": "10s", "window_interval": "1s", "baseline_interval": "2s", "baseline_samples": "300",
           "hang_seconds": "8", "stalled_seconds": "4", "lost_offset": "6s", "operations_tolerance": "0.1",
           "late_seconds": "0.1"}
NODES, GPUS = 2, 2
LIMIT_S = 50


class Webhook:
    """Keeps what Alertmanager delivers: (receiver's path, alert)."""

    def __init__(self):
        self.received = []
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802 (the library's name)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.extend((self.path, alert) for alert in body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Monitoring:
    """Prometheus and Alertmanager over some agents."""

    def __init__(self, folder, agents, webhook):
        self.folder, self.webhook = folder, webhook
        self.processes = Processes(folder)
        self.prometheus, self.alertmanager = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        settings = [part for name, value in WINDOWS.items() for part in ("--set", f"{name}={value}")]
        subprocess.run([sys.executable, "-B", RULES / "render.py", "--out", folder, *settings], check=True, timeout=30)
        configuration = yaml.safe_load((RULES / "alertmanager.yml").read_text())
        configuration["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        for receiver in configuration["receivers"]:
            for hook in receiver.get("webhook_configs", []):
                hook["url"] = hook["url"].replace("127.0.0.1:9095", webhook.address)
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
        (folder / "prometheus.yml").write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["recording.yml", "alerts.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager.removeprefix("http://")]}]}]},
            "scrape_configs": [{"job_name": "ncclscope", "static_configs": [{"targets": [a.address for a in agents]}]}]}))

    def start(self):
        self.processes.start("alertmanager", [
            shutil.which("prometheus-alertmanager") or "alertmanager", f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/am", f"--web.listen-address={self.alertmanager.removeprefix('http://')}",
            "--cluster.listen-address="])
        self.processes.start("prometheus", [
            "prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
            f"--web.listen-address={self.prometheus.removeprefix('http://')}"])
        for name, address in (("prometheus", self.prometheus), ("alertmanager", self.alertmanager)):
            wait_until(f"{name} ready", lambda address=address: self.answers(f"{address}/-/ready"))

    def answers(self, url):
        self.processes.check()
        with contextlib.suppress(OSError):
            return http_get(url)
        return None

    def get(self, url, **parameters):
        return json.loads(http_get(url, **parameters)[1])

    def query(self, expression):
        return self.get(f"{self.prometheus}/api/v1/query", query=expression)["data"]["result"]

    def fired(self):
        """Labels of every alert that fired at any time so far."""
        return [r["metric"] for r in self.query('max_over_time(ALERTS{alertstate="firing"}[5m])')]

    def failed_rules(self):
        groups = self.get(f"{self.prometheus}/api/v1/rules")["data"]["groups"]
        return [f"{r['name']}: {r['lastError']}" for g in groups for r in g["rules"] if r.get("lastError")]

    def alerts(self):
        return self.get(f"{self.alertmanager}/api/v2/alerts")


def text_of(labels):
    return " ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__")


def expect(monitoring, alert, severity="warning", told=(), alone=True, also=(), **labels):
    """Waits for one notification with these labels; `told` must be in its description. `also`: other alerts that may fire."""
    path = "/page" if severity == "critical" else "/ticket"
    wanted = {"alertname": alert, "severity": severity, "job_id": JOB, "cluster": CLUSTER} | {
        k: str(v) for k, v in labels.items()}

    def delivered():
        for where, notification in list(monitoring.webhook.received):
            have = notification["labels"]
            if where == path and notification["status"] == "firing" and all(have.get(k) == v for k, v in wanted.items()):
                return notification
        return None
    begin = time.monotonic()
    try:
        notification = wait_until(f"a notification {text_of(wanted)}", delivered, LIMIT_S)
    except Failure as failure:
        fired = "; ".join(text_of(f) for f in monitoring.fired()) or "none"
        raise Failure(f"{failure}; fired: {fired}; rules failed: {monitoring.failed_rules()}") from None
    print(f"{alert} after {time.monotonic() - begin:.1f} s: {notification['annotations']['description']}")
    for piece in told:
        require(piece in notification["annotations"]["description"], f"'{piece}' is not in the description")
    require(notification["annotations"]["runbook_url"].endswith(f"{alert}.md"), f"runbook {notification['annotations']}")
    if alone:
        time.sleep(2)  # what comes with it, or just after
        others(monitoring, wanted, also)


def others(monitoring, wanted, also=()):
    """No other alert than the wanted one fired; informative ones may have."""
    strays = [text_of(f) for f in monitoring.fired() if f["severity"] != "info" and f["alertname"] not in also and
              not all(f.get(k) == v for k, v in wanted.items())]
    require(not strays, f"other alerts fired: {strays}")
    failed = monitoring.failed_rules()
    require(not failed, f"rules failed: {failed}")


@contextlib.contextmanager
def cluster(build, folder, layout="ddp", fault=None, compute_ms=100, **options):
    """Agents, monitoring and a running job, whose fault begins at a step that is told with it."""
    webhook = Webhook()
    try:
        with node_agents(build, folder, NODES, arguments=["--stalled-seconds", "2"]) as agents:
            monitoring = Monitoring(folder, agents, webhook)
            job = None
            try:
                monitoring.start()
                if fault:
                    options["fault"] = fault
                job = Job(build, NODES, GPUS, layout, 100000, PLUGIN, [a.socket for a in agents],
                          compute_ms=compute_ms, hang_seconds=120,
                          # On busy cores the plugin's governor would time only slices of operations, each rank its own.
                          env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5"], **options)
                yield monitoring, job, agents
            except BaseException:
                for name in ("prometheus", "alertmanager"):
                    log = folder / f"{name}.log"
                    if log.exists():
                        warnings = [line for line in log.read_text(errors="replace").splitlines() if "level=info" not in line]
                        print(f"-- {name}: " + "\n".join(warnings[-5:]))
                raise
            finally:
                if job is not None:
                    job.stop()
                monitoring.processes.stop()
    finally:
        webhook.close()


def healthy(build, folder):
    """Nobody is accused. The rules must have had something to judge: a verdict's inputs exist for all GPUs."""
    with cluster(build, folder) as (monitoring, job, _):
        wait_until("three windows of inputs for all GPUs", lambda: len(monitoring.query(
            "gpu:ncclscope_caused_seconds:rate10s and gpu:ncclscope_caused_seconds:rate10s offset 10s "
            "and gpu:ncclscope_caused_seconds:rate10s offset 20s")) == NODES * GPUS, LIMIT_S)
        require(job.process.poll() is None, "the job ended")
        for name in ("job:ncclscope_user_bus_bytes_per_second:rate10s", "comm:ncclscope_transfer_bus_bytes_per_second:shape10s"):
            found = monitoring.query(f"{name} > 0")
            require(found, f"{name} is empty")
            print(f"{name}: {text_of(found[0]['metric'])} {float(found[0]['value'][1]) / 1e9:.1f} GB/s")
        user = float(monitoring.query("max(job:ncclscope_user_bus_bytes_per_second:rate10s)")[0]["value"][1])
        transfer = float(monitoring.query("max(comm:ncclscope_transfer_bus_bytes_per_second:max10s)")[0]["value"][1])
        require(transfer >= user, f"transfer {transfer} is below user {user}")
        others(monitoring, {"alertname": "none"})
        require(not monitoring.webhook.received, f"delivered: {monitoring.webhook.received}")


def late_host(build, folder):
    """One rank's host comes late to every step."""
    with cluster(build, folder, fault="late:rank=2,ms=80") as (monitoring, _, _):
        expect(monitoring, "NcclscopeLateGpu", node="node1", gpu=0, global_rank=2,
               told=["rank 2 (GPU 0 of node node1)", "dp_group", "in which it is rank 2"])


def slow_gpu(build, folder):
    """One GPU computes slower; its host calls in time. (Which of both it is cannot be asked for here: within seconds the
    agent cannot match the emulated GPU's clock with the host's closely enough.)"""
    with cluster(build, folder, "fsdp", "slow-gpu:rank=1,factor=1.8") as (monitoring, _, _):
        expect(monitoring, "NcclscopeLateGpu", node="node0", gpu=1, global_rank=1, told=["fsdp_group"])


def hang_missing(build, folder):
    """A rank never calls again: the hang, its class and the rank; what else the job shows is inhibited."""
    with cluster(build, folder, fault="missing:rank=2,from=30") as (monitoring, _, _):
        expect(monitoring, "NcclscopeHang", "critical", **{"class": "rank_never_called"}, rank=2, global_rank=2, node="node1",
               gpu=0, told=["has not called", "rank 2"])


def hang_mismatch(build, folder):
    """A rank calls with another count."""
    with cluster(build, folder, fault="mismatch:rank=1,from=30") as (monitoring, _, _):
        expect(monitoring, "NcclscopeHang", "critical", **{"class": "argument_mismatch"}, rank=1, node="node0", gpu=1)


def hang_crash(build, folder):
    """A process is killed."""
    with cluster(build, folder, fault="crash:rank=3,from=30") as (monitoring, _, _):
        expect(monitoring, "NcclscopeHang", "critical", **{"class": "process_gone"}, rank=3, node="node1", gpu=1)


def hang_network(build, folder):
    """The network of a node moves nothing any more: all have called and started."""
    with cluster(build, folder, fault="stuck:node=1,from=30") as (monitoring, _, _):
        expect(monitoring, "NcclscopeHang", "critical", **{"class": "network_stuck"}, comm_name="dp_group")
        accused = [a for a in monitoring.fired() if a["alertname"] == "NcclscopeHang" and "rank" in a]
        require(not accused, f"ranks accused: {accused}")


def hang_node_gone(build, folder):
    """A node goes: agent and processes at once."""
    with cluster(build, folder, fault=["crash:rank=2,from=60", "crash:rank=3,from=60"]) as (monitoring, _, agents):
        wait_until("both processes gone", lambda: [
            labels["state"] for labels, _ in agents[1].scrape()["ncclscope_rank_state"]] == ["vanished"] * 2, LIMIT_S)
        agents[1].kill()
        wait_until("the node out of sight", lambda: len(monitoring.query("ncclscope_agent_build_info")) == 1)
        for rank in (2, 3):
            expect(monitoring, "NcclscopeHang", "critical", **{"class": "process_gone"}, rank=rank, node="node1", alone=False)
        others(monitoring, {"alertname": "NcclscopeHang", "class": "process_gone", "node": "node1"})


def checkpoint(build, folder):
    """One rank is outside NCCL for longer than a moment, and comes back: information, no alarm."""
    with cluster(build, folder, fault="pause:rank=0,ms=6000,step=60") as (monitoring, job, _):
        wait_until("the information", lambda: [a for a in monitoring.fired() if a["alertname"] == "NcclscopeWaitingForRank"],
                   LIMIT_S)
        wait_until("its end", lambda: not monitoring.query('ALERTS{alertname="NcclscopeWaitingForRank"}'), LIMIT_S)
        require(job.process.poll() is None, "the job ended")
        told = [a for a in monitoring.fired() if a["alertname"] == "NcclscopeWaitingForRank"]
        require([a["rank"] for a in told] == ["0"] and told[0]["node"] == "node0", f"told: {told}")
        others(monitoring, {"alertname": "none"})
        require(not monitoring.webhook.received, f"delivered: {monitoring.webhook.received}")
        wait_until("the wait remembered as one that ended", lambda: monitoring.query(
            "job:ncclscope_stalled_rank_seconds:longest_ended >= 4"))


SCENARIOS = (healthy, late_host, slow_gpu, hang_missing, hang_mismatch, hang_crash, hang_network, hang_node_gone, checkpoint)

if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, SCENARIOS))
