#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: an emulated job with a fault on two nodes -> plugins -> agents -> `ncclscope diagnose`.

  diagnose.py --build DIR SCENARIO

Each scenario says which verdict must come, about whom and how sure, and what the command ends with. Thresholds are short,
so that a wait is a hang within seconds.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (JOB, PLUGIN, ROOT, Agent, Failure, Job, Processes, free_ports, http_get, node_agents, require,  # noqa: E402
                     run_scenarios, running, wait_until)

NODES, GPUS = 2, 2
HANG_S = 8  # a wait is a hang from here on
LATE_BY_S = 5  # a hang is told so long after the threshold at the latest
HEALTHY, FINDING, USAGE, UNREACHABLE, PARTIAL = range(5)


class Cluster:
    def __init__(self, build, agents, job):
        self.build, self.agents, self.job = build, agents, job

    def command(self, *arguments):
        where = [part for agent in self.agents for part in ("--agent", agent.api)]
        return [self.build.command_line, "diagnose", "--job", JOB, *where, *arguments]

    def diagnose(self, *arguments, status, prefix=()):
        """Runs the command; returns what it printed, as JSON where it is."""
        result = subprocess.run([*prefix, *self.command(*arguments)], capture_output=True, text=True, timeout=60, check=False)
        require(result.returncode == status, f"ended with {result.returncode}, not {status}: {result.stdout}{result.stderr}")
        return json.loads(result.stdout) if "--json" in arguments else result.stdout + result.stderr

    def watch(self, what, wanted, seconds=60, arguments=("--late-share", "1")):
        """Reads reports of --watch until one is wanted; returns it."""
        process = subprocess.Popen(self.command("--watch", "--json", "--hang", f"{HANG_S}s", "--interval", "1s", *arguments),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        try:
            last = None
            for line in process.stdout:
                last = json.loads(line)
                if wanted(last):
                    return last
            raise Failure(f"{what}: not within {seconds} s; the last report: {json.dumps(last)[:3000]}")
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            process.stdout.close()

    def hang(self, hang_class, ranks, confidence="high", answering=True):
        """The hang is told in time, with class and ranks; its text names them too. answering: all agents do."""
        if answering:
            self.wait_until_running()
        report = self.watch(f"a hang of class {hang_class}", lambda r: r["outcome"] == "finding")
        finding = report["findings"][0]
        told = {key: finding.get(key) for key in ("kind", "class", "ranks", "confidence")}
        wanted = {"kind": "hang", "class": hang_class, "ranks": ranks, "confidence": confidence}
        require(told == wanted, f"told {told}, not {wanted}: {finding}")
        require(finding["threshold_seconds"] >= HANG_S, f"threshold {finding}")
        late = finding["waiting_seconds"] - finding["threshold_seconds"]
        require(0 <= late <= LATE_BY_S, f"told {late:.1f} s after the threshold")
        text = self.diagnose("--hang", f"{HANG_S}s", status=FINDING)
        require(text.startswith(f"Job {JOB}: hang ({hang_class}): "), text)
        print(f"{late:.1f} s after the threshold:\n{text}")
        return report, text

    def wait_until_running(self):
        wait_until("operations of all ranks", lambda: sum(
            labels["stage"] == "completed" and value > 3 for agent in self.agents
            for labels, value in agent.scrape()["ncclscope_communicator_operations_total"]) >= NODES * GPUS)


@contextlib.contextmanager
def cluster(build, folder, layout="ddp", **options):
    with node_agents(build, folder, NODES) as agents:
        job = Job(build, NODES, GPUS, layout, 100000, PLUGIN, [a.socket for a in agents], compute_ms=50, hang_seconds=120,
                  # On busy cores the plugin's governor would time only slices of operations, each rank its own.
                  env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5"], **options)
        try:
            yield Cluster(build, agents, job)
        finally:
            job.stop()


def members(report, communicator="dp_group"):
    """{rank: row} of a communicator."""
    comm = next(c["comm"] for c in report["communicators"] if c["name"] == communicator)
    return {r["rank"]: r for r in report["ranks"] if r["comm"] == comm}


def healthy(build, folder):
    """Nobody is accused, also by JSON; strangers learn nothing; unknown jobs and absent agents have their own statuses."""
    with cluster(build, folder) as c:
        c.wait_until_running()
        text = c.diagnose("--window", "9s", "--late-share", "0.2", status=HEALTHY)
        print(text)
        require(text.startswith(f"Job {JOB}: healthy\n"), text)
        require("2 of 2 agents answered, 2 know the job: 4 GPUs, 1 communicator" in text, text)
        report = c.diagnose("--window", "3s", "--late-share", "0.3", "--json", status=HEALTHY)
        require(report["outcome"] == "healthy" and not report["missing"], f"{report['outcome']}, {report['missing']}")
        require(len(report["windows"]) == 3 and all(w["compared_collectives"] == 1 for w in report["windows"]),
                f"windows {report['windows']}")
        require(len(report["gpus"]) == NODES * GPUS and all(g["judged"] for g in report["gpus"]), f"{report['gpus']}")
        rows = members(report)
        require(sorted(rows) == [0, 1, 2, 3] and all(r["last"]["collective"] == "AllReduce" for r in rows.values()), f"{rows}")

        result = subprocess.run([build.command_line, "diagnose", "--job", "4712", "--agent", c.agents[0].api],
                                capture_output=True, text=True, timeout=30, check=False)
        require(result.returncode == USAGE and "no job 4712" in result.stderr, f"unknown job: {result}")
        result = subprocess.run([build.command_line, "diagnose", "--job", JOB, "--agent", folder / "nowhere.sock"],
                                capture_output=True, text=True, timeout=30, check=False)
        require(result.returncode == UNREACHABLE and "cannot be reached" in result.stderr, f"no agent: {result}")
        if os.geteuid() != 0:
            print("not root: another user's view is not tested")
            return
        # The job is root's: another user may not see it, and is told what he would be told of no job.
        for path in (folder, *(a.folder for a in c.agents)):
            path.chmod(0o755)
        text = c.diagnose(status=USAGE, prefix=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        require(f"no job {JOB} at the 2 of 2 agents that answered (you see your own jobs" in text, text)


def late_gpu(build, folder):
    """One rank's host comes late to every step."""
    with cluster(build, folder, fault="late:rank=2,ms=80") as c:
        c.wait_until_running()
        report = c.watch("a late GPU, for sure", lambda r: r["findings"] and r["findings"][0]["confidence"] == "high",
                         arguments=("--window", "9s", "--late-share", "0.2"))
        finding = report["findings"][0]
        require(finding["kind"] == "late_gpu", f"{finding}")
        require(finding["gpus"] == [{"node": "node1", "gpu": 0, "global_rank": "2"}], f"{finding}")
        require(finding["comm_name"] == "dp_group" and finding["collective"] == "AllReduce", f"{finding}")
        require([f for f in report["findings"] if f["fault"]] == [finding], f"{report['findings']}")
        text = c.diagnose("--window", "3s", "--late-share", "0.2", status=FINDING)
        print(text)
        require(text.startswith(f"Job {JOB}: GPU 0 of node1 (global rank 2) is late\n"), text)


def never_called(build, folder):
    """A rank never calls again."""
    with cluster(build, folder, fault="missing:rank=2,from=30") as c:
        report, text = c.hang("rank_never_called", [2])
        rows = members(report)
        require(rows[2]["called"] < rows[0]["called"] and rows[2]["inflight_seconds"] == 0, f"{rows[2]}")
        require(rows[0]["oldest"]["collective"] == "AllReduce" and rows[0]["oldest_index"] == rows[2]["called"], f"{rows[0]}")
        require("GPU 0 of node1" in text and "outside NCCL" in text, text)


def mismatch(build, folder):
    """A rank calls with another count."""
    with cluster(build, folder, fault="mismatch:rank=1,from=30") as c:
        c.hang("argument_mismatch", [1])


def gone(build, folder):
    """A process is killed."""
    with cluster(build, folder, fault="crash:rank=3,from=30") as c:
        report, text = c.hang("process_gone", [3])
        require([m["kind"] for m in report["missing"]] == ["vanished_process"], f"{report['missing']}")
        require("Missing answers:" in text and "its connection ended" in text, text)


def stuck(build, folder):
    """The network of a node moves nothing any more: nobody is accused."""
    with cluster(build, folder, fault="stuck:node=1,from=30") as c:
        c.hang("network_stuck", [])


def never_started(build, folder):
    """A rank's GPU computes for ever: its collective is called and never starts."""
    with cluster(build, folder, fault="slow-gpu:rank=1,factor=2000,from=30") as c:
        c.hang("gpu_never_started", [1])


def stopped(build, folder):
    """A rank's process is stopped: it is there, and says nothing."""
    with cluster(build, folder) as c:
        c.wait_until_running()
        report = c.watch("a report", lambda r: sorted(members(r)) == [0, 1, 2, 3])
        pid = members(report)[2]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            report, text = c.hang("process_stopped", [2])
            require([m["kind"] for m in report["missing"]] == ["silent_process"], f"{report['missing']}")
            require(f"pid {pid} on node1" in text and "told nothing for" in text, text)
        finally:
            os.kill(pid, signal.SIGCONT)


def outside(build, folder):
    """Everybody stays outside NCCL."""
    with cluster(build, folder, fault=["pause:node=0,ms=90000,step=30", "pause:node=1,ms=90000,step=30"]) as c:
        c.wait_until_running()
        report = c.watch("a hang of class outside_nccl", lambda r: r["outcome"] == "finding", arguments=("--outside", "5s", "--late-share", "1"))
        finding = report["findings"][0]
        require((finding["kind"], finding["class"], finding["ranks"]) == ("hang", "outside_nccl", []), f"{finding}")
        text = c.diagnose("--outside", "5s", status=FINDING)
        print(text)
        require(text.startswith(f"Job {JOB}: hang (outside_nccl): nobody is in NCCL"), text)


def unreachable_agent(build, folder):
    """An agent that does not answer: what it would tell is named as missing, and the verdict is made with doubt."""
    with cluster(build, folder, fault="missing:rank=1,from=150") as c:
        c.wait_until_running()
        c.agents[1].send(signal.SIGSTOP)
        try:
            report = c.diagnose("--window", "1s", "--late-share", "1", "--timeout", "1s", "--json", status=PARTIAL)
            require([m["kind"] for m in report["missing"]] == ["agent", "ranks"], f"{report['missing']}")
            require(report["missing"][1]["who"].startswith("ranks 2, 3 of communicator dp_group"), f"{report['missing']}")
            require("no answer within 1" in report["missing"][0]["why"], f"{report['missing']}")
            report, text = c.hang("rank_never_called", [1], confidence="low", answering=False)
            require(report["findings"][0]["unreported_ranks"] == 2, f"{report['findings']}")
            require("Missing answers:\n  agent at " in text, text)
        finally:
            c.agents[1].send(signal.SIGCONT)


def certificates(folder):
    """An authority, and a certificate for 127.0.0.1 and 127.0.0.2."""
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, timeout=30, capture_output=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=test authority",
            "-days", "2")
    openssl("req", *key, "-keyout", folder / "agent.key", "-out", folder / "agent.csr", "-subj", "/CN=agent")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,IP:127.0.0.2\n")
    openssl("x509", "-req", "-in", folder / "agent.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", folder / "names", "-out", folder / "agent.crt")


def remote(build, folder):
    """Agents on other nodes, over TLS with a token: named by hand, by SLURM (its commands are stand-ins here; the real ones
    are used in the tests of SLURM), and by a real Prometheus."""
    certificates(folder)
    token = "4f" * 32
    (folder / "token").write_text(token)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (folder / "access.toml").write_text(f'[[token]]\nname = "viewer"\nsha256 = "{digest}"\nrole = "viewer"\n')
    for name in ("agent.key", "access.toml"):
        (folder / name).chmod(0o600)
    hosts = ["127.0.0.1", "127.0.0.2"]
    port, prometheus_port = free_ports(2)
    agents = [Agent(build, folder, f"node{n}", [
        "--api-listen", f"{host}:{port}", "--api-cert-file", folder / "agent.crt", "--api-key-file", folder / "agent.key",
        "--api-access-file", folder / "access.toml"]) for n, host in enumerate(hosts)]
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("squeue", '[ "$2 $3" = "--jobs 4711" ] && echo "127.0.0.[1-2]"'),
                       ("scontrol", '[ "$3" = "127.0.0.[1-2]" ] && printf "%s\\n" 127.0.0.1 127.0.0.2')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    with running(agents):
        targets = [{"targets": [a.address], "labels": {"instance": f"{host}:9464"}} for a, host in zip(agents, hosts, strict=True)]
        (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                                                           "scrape_configs": [{"job_name": "ncclscope", "static_configs": targets}]}))
        processes = Processes(folder)
        job = Job(build, NODES, GPUS, "ddp", 100000, PLUGIN, [a.socket for a in agents], compute_ms=50, hang_seconds=120)
        try:
            processes.start("prometheus", ["prometheus", f"--config.file={folder}/prometheus.yml",
                                           f"--storage.tsdb.path={folder}/tsdb",
                                           f"--web.listen-address=127.0.0.1:{prometheus_port}"])
            cluster = Cluster(build, agents, job)
            cluster.wait_until_running()
            url = f"http://127.0.0.1:{prometheus_port}/"

            def diagnose(*arguments, status):
                result = subprocess.run(
                    [build.command_line, "diagnose", "--job", JOB, "--window", "1s", "--late-share", "1", *arguments],
                    capture_output=True, text=True, timeout=60, check=False,
                    env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"})
                require(result.returncode == status, f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
                return result.stdout + result.stderr
            trusted = ["--ca", folder / "ca.crt", "--token-file", folder / "token"]
            all_of_them = "2 of 2 agents answered, 2 know the job: 4 GPUs, 1 communicator"
            text = diagnose("--nodes", f"127.0.0.1:{port},127.0.0.2:{port}", *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            text = diagnose("--slurm", "--port", str(port), *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            wait_until("both agents scraped", lambda: len(json.loads(http_get(
                f"{url}api/v1/query", query="ncclscope_job_info")[1])["data"]["result"]) == 2)
            text = diagnose("--prometheus", url, "--port", str(port), *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            text = diagnose("--nodes", f"127.0.0.1:{port}", status=USAGE)
            require("--ca" in text, text)
            text = diagnose("--nodes", f"127.0.0.1:{port},127.0.0.2:{port}", "--ca", folder / "ca.crt", status=UNREACHABLE)
            text = diagnose("--prometheus", f"http://127.0.0.1:{free_ports(1)[0]}", *trusted, status=USAGE)
            require("Prometheus at" in text, text)
        finally:
            job.stop()
            processes.stop()


def dumps(build, folder):
    """No agent at all: dumps of the Flight Recorder and samples of RAS, from files and from a program in ncclras' place."""
    data = ROOT / "tests" / "data"

    def diagnose(*arguments, status):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        result = subprocess.run([build.command_line, "diagnose", *arguments], capture_output=True, text=True, timeout=30, check=False,
                                env=environment)
        require(result.returncode == status, f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    program = folder / "ncclras"
    program.write_text(f"#!/bin/sh\ncat {data}/ras/stuck_1.json\n")
    program.chmod(0o700)
    report = json.loads(diagnose("--flight-recorder", data / "flight_recorder" / "never_called", "--ncclras", "local",
                                 "--ncclras-program", program, "--ras-interval", "0", "--json", status=FINDING))
    hang = report["flight_recorder"]["findings"][0]
    require((hang["class"], hang["ranks"], hang["confidence"]) == ("rank_never_called", [2], "high"), f"dumps: {hang}")
    behind = {rank["pid"] for f in report["ras"]["findings"] for rank in f["ranks"]}
    require(behind == {201}, f"RAS: {report['ras']}")
    text = diagnose("--ras", data / "ras" / "moving_0.json", "--ras", data / "ras" / "moving_1.json", status=HEALTHY)
    require("Nothing stands out." in text, text)
    cut = folder / "trace_0"
    cut.write_text('{"entries": [')
    text = diagnose("--flight-recorder", cut, status=USAGE)
    require(f"{cut}:1:14: no JSON: it ends too early" in text, text)


SCENARIOS = (healthy, dumps, late_gpu, never_called, mismatch, gone, stuck, never_started, stopped, outside, unreachable_agent, remote)

if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, SCENARIOS))
