#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: `ncclscope doctor` and `diagnose` about the configuration of emulated jobs, what their runs show, and installations
that are wrong, each with its cure.

  doctor.py --build DIR SCENARIO

The nodes are copies of machines (tests/data/topology), which the agents are given as /sys; the RDMA ports' counters are moved by
this script, since an emulated network moves none.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (JOB, PLUGIN, ROOT, Agent, Job, node_agents, require, run_scenarios, running, sum_of, wait_until)  # noqa: E402

MACHINE_DATA = ROOT / "tests" / "data" / "topology"
DOMINANT = "NCCLSCOPE_OVERHEAD_BUDGET=0.5"  # else the governor times only slices of operations where cores are busy


def machine(build, folder, name, copy="machine"):
    """A copy of a machine, whose files may be changed."""
    root = folder / copy
    shutil.copytree(build.folder / "tests" / "machines" / name, root, symlinks=True)
    return root


def subfolder(folder, name):
    (folder / name).mkdir()
    return folder / name


def run(build, *arguments, status, environment=None, **options):
    """Runs the command line with no setting of NCCL but those given; returns what it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLURM_"))}
    result = subprocess.run([build.command_line, *arguments], capture_output=True, text=True, timeout=60, check=False,
                            env=clean | (environment or {}), **options)
    require(result.returncode in (status if isinstance(status, tuple) else (status,)),
            f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def findings(build, *arguments, **options):
    """What `ncclscope doctor --json` finds: [{check, level, subject, reason, evidence, fix}]."""
    return json.loads(run(build, "doctor", "--json", *arguments, status=(0, 1), **options))["findings"]


def of(found, check, subject=None):
    return [f for f in found if f["check"] == check and (subject is None or f["subject"] == subject)]


def one(found, check, level, *texts):
    """The only finding of a check, with its cure; each text is in it."""
    matching = of(found, check)
    require(len(matching) == 1, f"{check}: {matching or found}")
    finding = matching[0]
    whole = " | ".join(finding.values())
    require(finding["level"] == level and all(t in whole for t in texts), f"{check}: {finding}")
    require(level == "ok" or finding["fix"], f"no cure: {finding}")
    return finding


@contextlib.contextmanager
def job(build, agents, **options):
    options.setdefault("env", [])
    options["env"] = [DOMINANT, *options["env"]]
    started = Job(build, len(agents), options.pop("gpus", 2), options.pop("layout", "ddp"), 1000000, PLUGIN,
                  [a.socket for a in agents], hang_seconds=120, **options)
    try:
        yield started
    finally:
        started.stop()


def wait_for_operations(agents, least=20):
    wait_until("operations at all agents", lambda: all(
        sum_of(a.scrape(), "ncclscope_collective_operations_total") >= least for a in agents))


def diagnose_healthy(build, *arguments):
    """What diagnose says of a healthy job. In so short a window nobody may be comparable (4): it is asked again until somebody is."""
    healthy = []

    def asked():
        said = run(build, "diagnose", "--job", JOB, "--window", "1s", "--late-share", "1", *arguments, status=(0, 4))
        if (json.loads(said)["outcome"] == "healthy" if "--json" in arguments else f"Job {JOB}: healthy" in said):
            healthy.append(said)
        return healthy
    return wait_until("a healthy job", asked)[0]


class MovingPorts:
    """Counters of RDMA ports that move, as those of a job that uses them."""

    def __init__(self, root, bytes_per_second):
        self.counters = sorted(root.glob("sys/class/infiniband/mlx5_*/ports/1/counters/port_xmit_data"))
        require(self.counters, f"{root}: no counters")
        self.step = int(bytes_per_second / 4 / len(self.counters) / 10)  # they count words of 4 bytes
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.move)

    def move(self):
        words = 0
        while not self.end.wait(0.1):
            words += self.step
            for counter in self.counters:
                fresh = counter.with_name("fresh")
                fresh.write_text(f"{words}\n")
                fresh.rename(counter)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


def settings(build, folder):
    """Ranks with other NCCL_* variables: the agent judges them against its node, doctor tells it, diagnose compares them."""
    rail8 = machine(build, folder, "rail8")
    arguments = ("--sysfs-root", rail8 / "sys", "--proc-root", rail8 / "proc", "--doctor-interval-seconds", "1")
    with node_agents(build, folder, 2, arguments=arguments) as agents:
        options = {
            "env": ["NCCL_DEBUG=INFO", "NCCL_TEST_TOKEN=hidden"],
            "node_env": ["0:NCCL_IB_HCA=mlx5_0,mlx5_1", "1:NCCL_IB_HCA=mlx5_9", "1:NCCL_ALGO=Ring"],
        }
        with job(build, agents, compute_ms=50, **options):
            wait_for_operations(agents)
            where = [part for a in agents for part in ("--agent", a.api)]
            report = json.loads(diagnose_healthy(build, *where, "--json"))
            differences = {d["what"]: [(v["value"], v["ranks"], v["nodes"]) for v in d["values"]]
                           for d in report["configuration"]["differences"]}
            require(differences == {
                "NCCL_ALGO": [(None, [0, 1], ["node0"]), ("Ring", [2, 3], ["node1"])],
                "NCCL_IB_HCA": [("mlx5_0,mlx5_1", [0, 1], ["node0"]), ("mlx5_9", [2, 3], ["node1"])],
            }, f"{differences}")
            problems = {(p["variable"], p["level"]): p for p in report["configuration"]["problems"]}
            require(("NCCL_IB_HCA", "problem") in problems and problems["NCCL_IB_HCA", "problem"]["ranks"] == [2, 3], f"{problems}")
            require(problems["NCCL_DEBUG", "warning"]["ranks"] == [0, 1, 2, 3], f"{problems}")
            text = diagnose_healthy(build, *where)
            print(text, flush=True)
            for line in ("  NCCL_ALGO: unset on ranks 0-1 (node0); Ring on ranks 2-3 (node1)\n",
                         "  NCCL_IB_HCA: mlx5_0,mlx5_1 on ranks 0-1 (node0); mlx5_9 on ranks 2-3 (node1)\n",
                         "  problem: NCCL_IB_HCA=mlx5_9 (environment) on ranks 2-3 (node1): no RDMA device of this node is called mlx5_9"):
                require(line in text, f"{line!r} is not in {text}")
            require("hidden" not in text + json.dumps(report), "a secret is told")

            found = findings(build, "--root", rail8, "--agent", agents[1].api, "--window", "0s", "--job", JOB)
            told = {(f["reason"].split(":")[0], f["level"]) for f in of(found, "job-env")}
            require(told == {("NCCL_IB_HCA", "problem"), ("NCCL_ALGO", "warning"), ("NCCL_DEBUG", "warning")}, f"{of(found, 'job-env')}")
            require(all(f["subject"] == f"job {JOB}, ranks 2-3" for f in of(found, "job-env")), f"{of(found, 'job-env')}")
            found = findings(build, "--root", rail8, "--agent", agents[1].api, "--window", "0s", "--job", "no-such-job")
            one(found, "job", "unknown", "no-such-job")
            wait_until("the settings counted in metrics", lambda: sum_of(
                agents[1].scrape(), "ncclscope_agent_node_findings", check="job-env", level="problem") == 1)
            require("NCCL_IB_HCA" not in agents[1].get("/metrics")[1], "a variable is a label")


def silent_settings(build, folder):
    """A process that tells nothing is not taken for one without variables."""
    with node_agents(build, folder, 2) as agents:
        with job(build, agents, compute_ms=50, node_env=["0:NCCL_ALGO=Ring", "1:NCCLSCOPE_ENVIRONMENT=0"]):
            wait_for_operations(agents)
            where = [part for a in agents for part in ("--agent", a.api)]
            report = json.loads(diagnose_healthy(build, *where, "--json"))
            require(report["configuration"]["differences"] == [], f"{report['configuration']}")
            require(report["configuration"]["untold"]["ranks"] == [2, 3], f"{report['configuration']}")
            found = findings(build, "--agent", agents[1].api, "--window", "0s", "--job", JOB)
            one(found, "job-env", "unknown", f"job {JOB}, ranks 2-3", "NCCLSCOPE_ENVIRONMENT")


def small_messages(build, folder):
    """Many small AllReduces, launched one by one; and the same job with large ones, of which none of it is said."""
    with node_agents(build, folder, 1) as agents:
        look = ("--agent", agents[0].api, "--window", "4s", "--job", JOB)
        with job(build, agents, compute_ms=4, message_scale=0.001):
            wait_for_operations(agents, 1500)
            found = findings(build, *look)
            one(found, "small-messages", "warning", f"job {JOB}", "of 1 MiB or less", "bucket_cap_mb")
            one(found, "launches", "warning", f"job {JOB}", "no CUDA graph")
    with node_agents(build, subfolder(folder, "large"), 1) as agents:
        look = ("--agent", agents[0].api, "--window", "4s", "--job", JOB)
        with job(build, agents, compute_ms=4, kernel_us=500):
            wait_for_operations(agents, 200)
            found = findings(build, *look)
            require(not of(found, "small-messages") and not of(found, "launches"), f"{found}")


def protocol(build, folder):
    """Large messages by LL, as a forced protocol makes NCCL send them."""
    with node_agents(build, folder, 1) as agents, job(build, agents, compute_ms=20, protocol="LL", kernel_us=300):
        wait_for_operations(agents, 100)
        found = findings(build, "--agent", agents[0].api, "--window", "2s", "--job", JOB)
        one(found, "algorithm", "warning", f"job {JOB}", "by LL", "NCCL_PROTO")


def bandwidth(build, folder):
    """AllReduces far below what NVLink allows; and as fast as it."""
    rail8 = machine(build, folder, "rail8")
    look = ("--root", rail8, "--nvidia-smi", MACHINE_DATA / "rail8.smi", "--window", "3s", "--job", JOB)
    with node_agents(build, folder, 1) as agents:
        with job(build, agents, compute_ms=5, kernel_us=3000):
            wait_for_operations(agents, 50)
            one(findings(build, "--agent", agents[0].api, *look), "bandwidth", "warning", f"job {JOB}", "the paths allow 371")
    with node_agents(build, subfolder(folder, "fast"), 1) as agents:
        with job(build, agents, compute_ms=5, kernel_us=100):
            wait_for_operations(agents, 50)
            found = findings(build, "--agent", agents[0].api, *look)
            require(not of(found, "bandwidth"), f"{found}")


def network(build, folder):
    """A job of two nodes that goes over sockets, whatever the RDMA ports do; and on nodes without any. That a job uses them can
    be shown with real ones only (here: tests/unit/cli/running_test.cc)."""
    rail8, nonic = machine(build, folder, "rail8"), machine(build, folder, "nonic", "nonic")
    with node_agents(build, folder, 2) as agents, job(build, agents, compute_ms=20):
        wait_for_operations(agents, 50)
        look = ("--agent", agents[0].api, "--window", "3s", "--job", JOB)
        one(findings(build, "--root", rail8, *look), "network", "problem", f"job {JOB}", "sockets although there are RDMA devices")
        with MovingPorts(rail8, 1e9):  # others' traffic: emulated ranks have no device open, and the plugin says so
            finding = one(findings(build, "--root", rail8, *look), "network", "problem", "none of its processes has one open")
            moved = finding["evidence"].split("RDMA ports: ")[1].split(";")[0]
            require(moved.endswith("GiB"), f"{finding}")
        one(findings(build, "--root", nonic, *look), "network", "warning", "the node has no RDMA device")


def installation(build, folder):
    """What can be wrong with an installation, each named with its cure; and that looking disturbs no agent."""
    library = build.plugin / PLUGIN
    loader = folder / "lib"
    loader.mkdir()

    def look(**environment):
        return findings(build, "--no-agent", environment={"LD_LIBRARY_PATH": str(loader), "NCCL_PROFILER_PLUGIN": PLUGIN,
                                                          "NCCLSCOPE_SOCKET": str(folder / "node0" / "run" / "agent.sock"), **environment})

    one(look(), "plugin", "problem", "not on the loader's path", "LD_LIBRARY_PATH")
    one(look(NCCL_PROFILER_PLUGIN=""), "plugin", "problem", "not on the loader's path")
    whole = library.read_bytes()
    (loader / PLUGIN).write_bytes(whole[:len(whole) // 2])
    one(look(), "plugin", "problem", "cannot be loaded", "cut off")
    foreign = bytearray(whole)
    foreign[18:20] = (0xF3).to_bytes(2, "little")  # RISC-V: of the ELF header, e_machine
    (loader / PLUGIN).write_bytes(foreign)
    one(look(), "plugin", "problem", "another architecture", "install the package for")
    (loader / PLUGIN).write_text("not a library\n")
    one(look(), "plugin", "problem", "cannot be loaded")
    (loader / PLUGIN).unlink()
    shutil.copy(library, loader / PLUGIN)
    one(look(), "plugin", "ok", "can be loaded")
    one(look(NCCL_PROFILER_PLUGIN=""), "plugin", "warning", "does not load it", f"NCCL_PROFILER_PLUGIN={PLUGIN}")
    one(look(NCCL_PROFILER_PLUGIN="none"), "plugin", "warning", "switched off", f"NCCL_PROFILER_PLUGIN={PLUGIN}")

    one(look(NCCLSCOPE_SOCKET=str(folder / "nowhere" / "agent.sock")), "agent-socket", "problem", "directory is missing", "mount")
    agent = Agent(build, folder, "node0")
    one(look(), "agent-socket", "problem", "agent is not running", "systemctl status")
    with running([agent]):
        folder.chmod(0o755)
        run_folder = agent.socket.parent
        one(look(), "agent-socket", "ok", "an agent listens")
        for mode, text in ((0o777, "others can write"), (0o775, "others can write"), (0o700, "directory is closed")):
            run_folder.chmod(mode)
            one(look(), "agent-socket", "problem", text, "chmod 0755")
        run_folder.chmod(0o755)
        agent.socket.chmod(0o600)
        one(look(), "agent-socket", "problem", "cannot write to the socket", "0666")
        agent.socket.chmod(0o666)
        for _ in range(5):
            one(look(), "agent-socket", "ok", "an agent listens")
        samples = agent.scrape()
        require(sum_of(samples, "ncclscope_agent_decode_errors_total") == 0 and
                sum_of(samples, "ncclscope_agent_connections_refused_total") == 0, "doctor's look is taken for a fault")
        agent.kill()
        one(look(), "agent-socket", "problem", "nobody listens", "restart")
        agent.start()


def claimed(build, folder):
    """Without a proof whose process it is, as in a pod without hostPID."""
    with node_agents(build, folder, 1) as agents, job(build, agents, compute_ms=20):
        wait_for_operations(agents)
        source = agents[0].scrape()["ncclscope_job_info"][0][0]["identity_source"]
        found = findings(build, "--agent", agents[0].api, "--window", "0s", "--job", JOB)
        if source == "claimed":
            one(found, "identity", "warning", f"job {JOB}", 'identity_source="claimed"', "hostPID: true")
        else:
            require(not of(found, "identity"), f"{of(found, 'identity')}")
        one(found, "agent-version", "ok")


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (settings, silent_settings, small_messages, protocol, bandwidth, network, installation, claimed)))
