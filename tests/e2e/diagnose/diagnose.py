#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: emulated jobs with faults on two nodes -> plugins -> agents -> `ncclscope diagnose`.

  diagnose.py --build DIR SCENARIO

Each job says which verdict must come, about whom and how sure, and what the command ends with. Jobs of a scenario run side by
side on the same agents, each watched by a thread. Thresholds are short, so that a wait is a hang within seconds.
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import monitoring  # noqa: E402
from support import (JOB, PLUGIN, ROOT, Agent, Failure, Job, answering, api_listener, free_ports, node_agents,  # noqa: E402
                     remote_access, require, run_scenarios, running, sum_of, trusting, wait_until)

NODES, GPUS = 2, 2
HANG_S = 6  # a wait is a hang from here on
LATE_BY_S = 5  # a hang is told so long after the threshold at the latest
STRANGER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
HEALTHY, FINDING, USAGE, UNREACHABLE, PARTIAL = range(5)


class Watched:
    """One job, and the command about it."""

    def __init__(self, build, agents, job_id=JOB):
        self.build, self.agents, self.job_id = build, agents, job_id

    def command(self, *arguments):
        where = [part for agent in self.agents for part in ("--agent", agent.api)]
        return [self.build.command_line, "diagnose", "--job", self.job_id, *where, *arguments]

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
        require(text.startswith(f"Job {self.job_id}: hang ({hang_class}): "), text)
        print(f"{self.job_id}, {late:.1f} s after the threshold:\n{text}", flush=True)
        return report, text

    def wait_until_running(self):
        wait_until("operations of all ranks", lambda: sum(
            labels["job_id"] == self.job_id and labels["stage"] == "completed" and value > 3 for agent in self.agents
            for labels, value in agent.scrape()["ncclscope_communicator_operations_total"]) >= NODES * GPUS)


def watch_all(build, agents, cases):
    """cases: [(job_id, faults, what to do with it, environment if any)]. All at once; failures are raised after all have ended."""
    with contextlib.ExitStack() as stack:
        watched = []
        for job_id, faults, _, *environment in cases:
            job = Job(build, NODES, GPUS, "ddp", 100000, PLUGIN, [a.socket for a in agents], job_id=job_id, compute_ms=50,
                      hang_seconds=120, fault=faults,
                      # On busy cores the plugin's governor would time only slices of operations, each rank its own.
                      env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5", *environment])
            stack.callback(job.stop)
            watched.append(Watched(build, agents, job_id))
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
            running_cases = [pool.submit(judge, w) for w, (_, _, judge, *_) in zip(watched, cases, strict=True)]
        failures = [f"{w.job_id}: {f.exception()}" for w, f in zip(watched, running_cases, strict=True) if f.exception()]
    require(not failures, "\n".join(failures))


def members(report, communicator="dp_group"):
    """{rank: row} of a communicator."""
    comm = next(c["comm"] for c in report["communicators"] if c["name"] == communicator)
    return {r["rank"]: r for r in report["ranks"] if r["comm"] == comm}


def healthy(c):
    """Nobody is accused, also by JSON; unknown jobs and absent agents have their own statuses."""
    c.wait_until_running()
    text = c.diagnose("--window", "9s", "--late-share", "0.2", status=HEALTHY)
    print(text, flush=True)
    require(text.startswith(f"Job {c.job_id}: healthy\n"), text)
    require("2 of 2 agents answered, 2 know the job: 4 GPUs, 1 communicator" in text, text)
    report = c.diagnose("--window", "3s", "--late-share", "0.3", "--json", status=HEALTHY)
    require(report["outcome"] == "healthy" and not report["missing"], f"{report['outcome']}, {report['missing']}")
    require(len(report["windows"]) == 3 and all(w["compared_collectives"] == 1 for w in report["windows"]),
            f"windows {report['windows']}")
    require(len(report["gpus"]) == NODES * GPUS and all(g["judged"] for g in report["gpus"]), f"{report['gpus']}")
    rows = members(report)
    require(sorted(rows) == [0, 1, 2, 3] and all(r["last"]["collective"] == "AllReduce" for r in rows.values()), f"{rows}")

    result = subprocess.run([c.build.command_line, "diagnose", "--job", "4712", "--agent", c.agents[0].api],
                            capture_output=True, text=True, timeout=30, check=False)
    require(result.returncode == USAGE and "no job 4712" in result.stderr, f"unknown job: {result}")
    result = subprocess.run([c.build.command_line, "diagnose", "--job", c.job_id, "--agent", "/nowhere.sock"],
                            capture_output=True, text=True, timeout=30, check=False)
    require(result.returncode == UNREACHABLE and "cannot be reached" in result.stderr, f"no agent: {result}")


def strangers(c):
    """The job is root's: another user may neither see it nor speak for it, and is told what he would be told of no job."""
    if os.geteuid() != 0:
        print("not root: another user's view is not tested")
        return
    c.wait_until_running()
    for path in (c.agents[0].folder.parent, *(a.folder for a in c.agents)):
        path.chmod(0o755)
    text = c.diagnose(status=USAGE, prefix=STRANGER)
    require(f"no job {c.job_id} at the 2 of 2 agents that answered (you see your own jobs" in text, text)

    def report(prefix, number):
        command = [c.build.command_line, "throughput", "--agent", c.agents[0].api, "--job", c.job_id, "--unit", "tokens", str(number)]
        return subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=30, check=False)
    require(report([], 91000).returncode == 0, "a job's throughput is not taken")
    result = report(STRANGER, 5)
    require(result.returncode == 1 and f'no job "{c.job_id}"' in result.stderr, f"a stranger reports of another's job: {result}")
    wait_until("the throughput shown", lambda: [v for labels, v in c.agents[0].scrape()["ncclscope_job_throughput"] if (
        labels["job_id"], labels["unit"]) == (c.job_id, "tokens")] == [91000])


def late_gpu(c):
    """One rank's host comes late to every step."""
    c.wait_until_running()
    report = c.watch("a late GPU, for sure", lambda r: r["findings"] and r["findings"][0]["confidence"] == "high",
                     arguments=("--window", "9s", "--late-share", "0.2"))
    finding = report["findings"][0]
    require(finding["kind"] == "late_gpu", f"{finding}")
    require(finding["gpus"] == [{"node": "node1", "gpu": 0, "global_rank": "2"}], f"{finding}")
    require(finding["comm_name"] == "dp_group" and finding["collective"] == "AllReduce", f"{finding}")
    require([f for f in report["findings"] if f["fault"]] == [finding], f"{report['findings']}")
    text = c.diagnose("--window", "3s", "--late-share", "0.2", status=FINDING)
    print(text, flush=True)
    require(text.startswith(f"Job {c.job_id}: GPU 0 of node1 (global rank 2) is late\n"), text)


def remembering(shape, series):
    """A Prometheus with recording rules, as far as a job's transfers are concerned: labels, and {series: value}."""
    def answer(path, _):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["query"][0]
        result = [{"metric": shape, "value": [0, str(v)]} for name, v in series.items() if query.startswith(name)]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
    return answering(answer)


def slower_than_before(c):
    """Held against what a Prometheus remembers of the job, its transfers are slow; held against itself nothing is wrong."""
    c.wait_until_running()
    sums = {}

    def two_samples():
        samples = c.agents[0].scrape()
        for name in ("operations", "seconds", "bus_bytes"):
            sums.setdefault(name, []).append(sum_of(samples, f"ncclscope_rank_collective_{name}_total", job_id=c.job_id, rank="0"))
        return sums["operations"][-1] - sums["operations"][0] >= 20
    wait_until("twenty operations", two_samples)
    operations, seconds, bus_bytes = (values[-1] - values[0] for values in sums.values())
    shapes = [labels for labels, _ in c.agents[0].scrape()["ncclscope_collective_busy_seconds_total"] if labels["job_id"] == c.job_id]
    require(len(shapes) == 1, f"{shapes}")
    shape = {name: shapes[0][name] for name in ("collective", "size", "algorithm")} | {
        "dimension": "dp", "nranks": "4", "nnodes": "2"}
    with remembering(shape, {"job:ncclscope_transfer_bus_bytes_per_second:baseline": 10 * bus_bytes / seconds,
                             "job:ncclscope_bus_bytes_per_operation:baseline": bus_bytes / operations}) as before:
        report = c.diagnose("--window", "6s", "--late-share", "0.3", "--prometheus", before, "--json", status=FINDING)
        told = [(f["kind"], f["comm_name"], f["collective"]) for f in report["findings"] if f["fault"]]
        require(told == [("slow_transfer", "dp_group", "AllReduce")], f"{report['findings']}")
        require(report["findings"][0]["share"] < 0.5, f"{report['findings'][0]}")


def never_called(c):
    """A rank never calls again."""
    report, text = c.hang("rank_never_called", [2])
    rows = members(report)
    require(rows[2]["called"] < rows[0]["called"] and rows[2]["inflight_seconds"] == 0, f"{rows[2]}")
    require(rows[0]["oldest"]["collective"] == "AllReduce" and rows[0]["oldest_index"] == rows[2]["called"], f"{rows[0]}")
    require("GPU 0 of node1" in text and "outside NCCL" in text, text)


def gone(c):
    """A process is killed."""
    report, text = c.hang("process_gone", [3])
    require([m["kind"] for m in report["missing"]] == ["vanished_process"], f"{report['missing']}")
    require("Missing answers:" in text and "its connection ended" in text, text)


def stopped(c):
    """A rank's process is stopped: it is there, and says nothing."""
    c.wait_until_running()
    report = c.watch("a report", lambda r: sorted(members(r)) == [0, 1, 2, 3])
    pid = members(report)[2]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        report, text = c.hang("process_stopped", [2], answering=False)
        require([m["kind"] for m in report["missing"]] == ["silent_process"], f"{report['missing']}")
        require(f"pid {pid} on node1" in text and "told nothing for" in text, text)
    finally:
        os.kill(pid, signal.SIGCONT)


def outside(c):
    """Everybody stays outside NCCL."""
    c.wait_until_running()
    report = c.watch("a hang of class outside_nccl", lambda r: r["outcome"] == "finding",
                     arguments=("--outside", "5s", "--late-share", "1"))
    finding = report["findings"][0]
    require((finding["kind"], finding["class"], finding["ranks"]) == ("hang", "outside_nccl", []), f"{finding}")
    text = c.diagnose("--outside", "5s", status=FINDING)
    print(text, flush=True)
    require(text.startswith(f"Job {c.job_id}: hang (outside_nccl): nobody is in NCCL"), text)


def rates(build, folder):
    """Who is late and who is not, measured; beside other jobs, but not beside other tests."""
    with node_agents(build, folder, NODES) as agents:
        watch_all(build, agents, [("healthy", [], healthy), ("late-gpu", ["late:rank=2,ms=80"], late_gpu),
                                  ("strangers", [], strangers), ("slower", [], slower_than_before)])


def hangs(build, folder):
    """Each class of hang."""
    with node_agents(build, folder, NODES) as agents:
        watch_all(build, agents, [
            ("never-called", ["missing:rank=2,from=30"], never_called),
            # Another count.
            ("mismatch", ["mismatch:rank=1,from=30"], lambda c: c.hang("argument_mismatch", [1])),
            ("gone", ["crash:rank=3,from=30"], gone),
            # The network of a node moves nothing any more: nobody is accused.
            ("stuck", ["stuck:node=1,from=30"], lambda c: c.hang("network_stuck", [])),
            # A GPU computes for ever: its collective is called and never starts.
            ("never-started", ["slow-gpu:rank=1,factor=2000,from=30"], lambda c: c.hang("gpu_never_started", [1])),
            ("stopped", [], stopped),
            ("outside", ["pause:node=0,ms=90000,step=30", "pause:node=1,ms=90000,step=30"], outside)])


def unseen_never_called(c):
    """Calls tell who never called, but not where that rank is."""
    report, text = c.hang("rank_never_called", [2], confidence="low")
    require(all(r["ends_unknown"] for r in members(report).values()), f"{members(report)}")
    require("cannot be told" in text and "not seen" in text, text)


def unseen_stuck(c):
    """The network is stuck, which cannot be told from a job outside NCCL. It is not called healthy."""
    c.wait_until_running()
    report = c.watch("what is not known", lambda r: r["findings"])
    finding = report["findings"][0]
    require((finding["kind"], finding["class"], finding["fault"]) == ("waiting", "unknown", False), f"{finding}")
    require(report["outcome"] == "partial", f"{report['outcome']}")
    report = c.watch("a hang of class unknown", lambda r: r["outcome"] == "finding",
                     arguments=("--outside", "10s", "--late-share", "1"))
    finding = report["findings"][0]
    require((finding["kind"], finding["class"], finding["ranks"]) == ("hang", "unknown", []), f"{finding}")
    text = c.diagnose("--outside", "10s", status=FINDING)
    print(text, flush=True)
    require(text.startswith(f"Job {c.job_id}: hang (unknown): nobody calls NCCL"), text)


def slices_never_called(c):
    """Between two slices of operations with GPU times."""
    c.hang("rank_never_called", [2], confidence="low")
    share = [value for agent in c.agents for labels, value in agent.scrape()["ncclscope_communicator_untimed_ratio"]
             if labels["job_id"] == c.job_id]
    require(len(share) == NODES and all(0.5 < s < 1 for s in share), f"share of untimed operations: {share}")


def unseen_hangs(build, folder):
    """Nobody sees operations end: NCCL is not asked for kernel events at all, or for one block of 16 operations in 16."""
    no_kernels = "NCCLSCOPE_MASK=0x606"
    with node_agents(build, folder, NODES) as agents:
        watch_all(build, agents, [
            ("never-called", ["missing:rank=2,from=30"], unseen_never_called, no_kernels),
            ("mismatch", ["mismatch:rank=1,from=30"], lambda c: c.hang("argument_mismatch", [1]), no_kernels),
            ("stuck", ["stuck:node=1,from=30"], unseen_stuck, no_kernels),
            ("slices", ["missing:rank=2,from=30"], slices_never_called, "NCCLSCOPE_DETAIL=low")])


def unreachable_agent(build, folder):
    """An agent that does not answer: what it would tell is named as missing, and the verdict is made with doubt."""
    def judge(c):
        c.wait_until_running()
        c.agents[1].send(signal.SIGSTOP)
        try:
            report = c.diagnose("--window", "1s", "--late-share", "1", "--timeout", "0.5s", "--json", status=PARTIAL)
            require([m["kind"] for m in report["missing"]] == ["agent", "ranks"], f"{report['missing']}")
            require(report["missing"][1]["who"].startswith("ranks 2, 3 of communicator dp_group"), f"{report['missing']}")
            require("no answer within 500" in report["missing"][0]["why"], f"{report['missing']}")
            report, text = c.hang("rank_never_called", [1], confidence="low", answering=False)
            require(report["findings"][0]["unreported_ranks"] == 2, f"{report['findings']}")
            require("Missing answers:\n  agent at " in text, text)
        finally:
            c.agents[1].send(signal.SIGCONT)
    with node_agents(build, folder, NODES) as agents:
        watch_all(build, agents, [("blind", ["missing:rank=1,from=100"], judge)])


def remote(build, folder):
    """Agents on other nodes, over TLS with a token: named by hand, by SLURM (its commands are stand-ins here; with the real
    ones tests/e2e/slurm asks), and by a real Prometheus."""
    remote_access(folder, "IP:127.0.0.1,IP:127.0.0.2")
    hosts = ["127.0.0.1", "127.0.0.2"]
    port = free_ports(1)[0]
    agents = [Agent(build, folder, f"node{n}", api_listener(folder, f"{host}:{port}")) for n, host in enumerate(hosts)]
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("squeue", '[ "$2 $3" = "--jobs 4711" ] && echo "127.0.0.[1-2]"'),
                       ("scontrol", '[ "$3" = "127.0.0.[1-2]" ] && printf "%s\\n" 127.0.0.1 127.0.0.2')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    with running(agents):
        targets = [{"targets": [a.address], "labels": {"instance": f"{host}:9464"}} for a, host in zip(agents, hosts, strict=True)]
        job = Job(build, NODES, GPUS, "ddp", 100000, PLUGIN, [a.socket for a in agents], compute_ms=50, hang_seconds=120,
                  env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5"])
        with job, monitoring.prometheus(folder, [{"job_name": "ncclscope", "static_configs": targets}]) as prometheus:
            Watched(build, agents).wait_until_running()

            def diagnose(*arguments, status):
                def ended():
                    result = subprocess.run(
                        [build.command_line, "diagnose", "--job", JOB, "--window", "1s", "--late-share", "1", *arguments],
                        capture_output=True, text=True, timeout=60, check=False,
                        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"})
                    said = result.stdout + result.stderr
                    # In so short a window nobody may be comparable: it is asked again until somebody is.
                    if status == HEALTHY and result.returncode == PARTIAL and "who is late cannot be told" in said:
                        return None
                    require(result.returncode == status, f"{arguments}: ended with {result.returncode}: {said}")
                    return said
                return wait_until(f"status {status} of {arguments}", ended)
            trusted = trusting(folder)
            all_of_them = "2 of 2 agents answered, 2 know the job: 4 GPUs, 1 communicator"
            text = diagnose("--nodes", f"127.0.0.1:{port},127.0.0.2:{port}", *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            text = diagnose("--slurm", "--port", str(port), *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            wait_until("both agents scraped", lambda: len(prometheus.query("ncclscope_job_info")) == 2)
            text = diagnose("--prometheus", prometheus.url + "/", "--port", str(port), *trusted, status=HEALTHY)
            require(all_of_them in text, text)
            text = diagnose("--nodes", f"127.0.0.1:{port}", status=USAGE)
            require("--ca" in text, text)
            text = diagnose("--nodes", f"127.0.0.1:{port},127.0.0.2:{port}", "--ca", folder / "ca.crt", status=UNREACHABLE)
            text = diagnose("--prometheus", f"http://127.0.0.1:{free_ports(1)[0]}", *trusted, status=USAGE)
            require("Prometheus at" in text, text)


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


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (rates, hangs, unseen_hangs, unreachable_agent, remote, dumps)))
