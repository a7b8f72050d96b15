#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end with a real SLURM: its jobs run the emulator with the plugin, and the labels of their series are checked.

  slurm.py --build DIR [--keep] [--proctrack linuxproc]

A controller and two nodes run on this machine, on loopback and free ports, with a munge of their own; everything lies
in a temporary folder. Jobs: an array of an ordinary user, two side by side, a heterogeneous one, a requeued one. The
node's agent hears of them from prolog and epilog (deploy/slurm), from squeue, from the kernel (cgroup) and from the
processes themselves. Waits have deadlines. Exit status: 0 good, 1 failed, 77 skipped: SLURM cannot run here.
"""
import argparse
import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (DEADLINE_S, ROOT, SKIPPED_STATUS, Agent, Build, Failure, Processes, Skipped, api_listener,  # noqa: E402
                     free_ports, remote_access, require, running, trusting, wait_until)

WHOLE_TEST_S = 60  # about 10 s where nobody else computes
FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


def jobs_of(agent):
    """{job_id: labels of job_info} of jobs that have done operations."""
    samples = agent.scrape()
    done = {labels["job_id"] for labels, count in samples["ncclscope_collective_operations_total"] if count > 0}
    return {labels["job_id"]: labels for labels, _ in samples["ncclscope_job_info"] if labels["job_id"] in done}


class Slurm:
    """slurmctld and a slurmd for each node. Use as a context."""

    def __init__(self, folder, processes, nodes, scripts, proctrack=None):
        self.folder, self.processes, self.nodes = folder, processes, nodes
        self.environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
        for name in [n for n in self.environment if n.startswith(("SLURM_", "SBATCH_")) and n != "SLURM_CONF"]:
            del self.environment[name]
        self.proctrack = f"proctrack/{proctrack or ('cgroup' if self.freezer_works() else 'linuxproc')}"
        for name in ("state", "spool", "munge", *(f"spool/{n}" for n in nodes)):
            (folder / name).mkdir()
        self.write_configuration(scripts)

    @staticmethod
    def freezer_works():
        probe = FREEZER / f"ncclscope-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError:
            return False
        return True

    def write_configuration(self, scripts):
        folder, munge = self.folder, self.folder / "munge"
        ports = free_ports(1 + len(self.nodes))
        lines = [
            "ClusterName=ncclscope-test", "SlurmctldHost=localhost(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
            "AuthType=auth/munge", "CredType=cred/munge", f"AuthInfo=socket={munge}/socket",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny", f"SlurmctldPort={ports[0]}", "MpiDefault=none", "ReturnToService=2",
            f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"SlurmdSpoolDir={folder}/spool/%n", f"StateSaveLocation={folder}/state", f"PlugStackConfig={folder}/plugstack.conf",
            f"ProctrackType={self.proctrack}", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides", "JobRequeue=1", "KillWait=2",
            # Heterogeneous jobs are started by the backfill scheduler, which looks every 30 s by default.
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1",
            *(f"{name}={path}" for name, path in scripts.items())]
        for node, port in zip(self.nodes, ports[1:]):
            lines.append(f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 CoresPerSocket=8 "
                         "RealMemory=1000 State=UNKNOWN")
        lines.append("PartitionName=test Nodes=ALL Default=YES MaxTime=5 State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n")
        (folder / "plugstack.conf").write_text("")
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge.chmod(0o755)

    def start(self):
        munge = self.folder / "munge"
        start = self.processes.start
        start("munged", ["munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                         f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log"])
        try:
            wait_until("munged", lambda: self.processes.check() or (munge / "socket").exists(), 10)
            start("slurmctld", ["slurmctld", "-D", "-c"], env=self.environment)
            for node in self.nodes:
                start(f"slurmd-{node}", ["slurmd", "-D", "-N", node], env=self.environment)

            def all_idle():
                self.processes.check()
                states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
                return states and all(state == "idle" for state in states) and len(states) == len(self.nodes)
            wait_until("SLURM's nodes idle", all_idle, 20)
        except Failure as failure:
            if self.proctrack == "proctrack/cgroup":
                raise
            raise Skipped(f"SLURM does not start here: {failure}") from None

    def run(self, *command, user=None, check=True, timeout=DEADLINE_S):
        if user:
            command = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command)
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
                                stdin=subprocess.DEVNULL, cwd="/")
        require(not check or result.returncode == 0, f"{command} ended with {result.returncode}: {result.stderr}{result.stdout}")
        return result.stdout

    def submit(self, name, *arguments, user=None, account="physics"):
        out = self.run("sbatch", "--parsable", "-n1", "-D", "/", "-J", name, "-A", account, "-o", f"{self.folder}/out/{name}.%j",
                       *map(str, arguments), user=user)
        return out.strip().split(";")[0]

    def queue(self):
        return [line.split() for line in self.run("squeue", "-h", "-a", "-o", "%A %i %T").splitlines()]

    def cgroups(self):
        return [FREEZER / f"slurm_{node}" for node in self.nodes if (FREEZER / f"slurm_{node}").exists()]

    def stop(self):
        """Ends jobs, then daemons; leaves neither processes nor cgroups."""
        with contextlib.suppress(Failure, subprocess.TimeoutExpired):
            for job in {line[0] for line in self.queue()}:
                self.run("scancel", "--signal=KILL", job, check=False)
                self.run("scancel", job, check=False)
            wait_until("jobs ended", lambda: all(state not in ("RUNNING", "COMPLETING") for _, _, state in self.queue()), 10)
        self.processes.stop()
        for top in self.cgroups():
            for folder, _, _ in os.walk(top, topdown=False):
                for pid in (pathlib.Path(folder) / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                group = pathlib.Path(folder)

                def removed():
                    with contextlib.suppress(OSError):
                        group.rmdir()
                    return not group.exists()
                wait_until(f"{group} removed", removed, 5)


def write_script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def install(build, folder):
    """What tasks and prologs run, where any user can read it: a clone may lie below a closed home folder."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for path in ("tests/ncclscope-run-job", "sim/ncclscope-sim-rank", "cli/ncclscope",
                 "plugin/libnccl-profiler-ncclscope.so"):
        shutil.copy(build / path, bin_folder)
    for script in ("prolog.sh", "epilog.sh", "task_prolog.sh"):
        shutil.copy(ROOT / "deploy" / "slurm" / script, bin_folder)
    scripts = {}
    for name in ("prolog", "epilog"):
        # A prolog's environment is SLURM's alone. What it warns of is looked at below.
        scripts[name.capitalize()] = write_script(
            folder / f"{name}.sh",
            f"export NCCLSCOPE_PROGRAM={bin_folder}/ncclscope NCCLSCOPE_API_SOCKET={folder}/$SLURMD_NODENAME/run/api.sock\n"
            f"exec {bin_folder}/{name}.sh 2>>{folder}/{name}.warnings\n")
    scripts["TaskProlog"] = write_script(
        folder / "task_prolog.sh",
        f"echo export NCCLSCOPE_SOCKET={folder}/$SLURMD_NODENAME/run/agent.sock\n"
        f"NCCLSCOPE_PLUGIN={bin_folder}/libnccl-profiler-ncclscope.so exec {bin_folder}/task_prolog.sh\n")
    run_job = (f"exec {bin_folder}/ncclscope-run-job nodes=1 gpus=2 layout=ddp compute_ms=5 "
               f"rank_program={bin_folder}/ncclscope-sim-rank plugin=\"$NCCL_PROFILER_PLUGIN\"")
    write_script(folder / "job.sh", f"{run_job} steps=20\n")
    # Says nothing of itself: name and account must come from squeue.
    write_script(folder / "silent.sh", f"unset SLURM_JOB_NAME SLURM_JOB_ACCOUNT SLURM_JOB_PARTITION\n{run_job} seconds=6\n")
    # The first run lasts until it is requeued.
    write_script(folder / "wide.sh", f"{run_job} seconds=60\n")
    write_script(folder / "requeue.sh", f"[ -n \"$SLURM_RESTART_COUNT\" ] || {{ {run_job} seconds=120; }}\n{run_job} steps=20\n")
    return scripts


def expect_labels(agents, expected):
    """Waits until the agents show the expected jobs. expected: {(node, job_id): labels}."""
    problems = []

    def shown():
        problems.clear()
        jobs = {agent.node: jobs_of(agent) for agent in agents}
        for (node, job_id), labels in expected.items():
            found = [jobs[n][job_id] for n in ([node] if node else jobs) if job_id in jobs[n]]
            if not found:
                problems.append(f"job {job_id} is not on {node or 'any node'}, which shows "
                                f"{ {n: sorted(j) for n, j in jobs.items()} }")
                continue
            problems.extend(f"job {job_id}: {name}={have[name]!r}, expected {value!r}"
                            for have in found for name, value in labels.items() if have[name] != value)
        return not problems
    try:
        wait_until("labels as expected", shown)
    except Failure as failure:
        raise Failure(f"{failure}: " + "; ".join(problems[:8])) from None


def diagnose(slurm, agents, folder, port):
    """The command finds the nodes of a job over both of them with squeue and scontrol. Only there do the nodes' names mean
    loopback; where /etc/hosts cannot be covered, that the right ones were asked is all that is seen."""
    job = slurm.submit("wide", "-N2", "-n2", folder / "wide.sh")
    wait_until("the job over both nodes", lambda: any(job in jobs_of(agent) for agent in agents))
    command = [folder / "bin" / "ncclscope", "diagnose", "--job", job, "--slurm", "--port", str(port), "--window", "1s",
               "--late-share", "1", *trusting(folder)]
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.{i} {n}\n" for i, n in enumerate(slurm.nodes, 1)))
    covered = ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    can_cover = subprocess.run([*covered, "true"], capture_output=True, check=False).returncode == 0
    result = subprocess.run([*(covered if can_cover else []), *command], env=slurm.environment, capture_output=True, text=True,
                            timeout=DEADLINE_S, check=False)
    said = result.stdout + result.stderr
    if can_cover:
        require(result.returncode == 0 and f"Job {job}: healthy" in said and "2 of 2 agents answered, 1 knows the job" in said,
                f"ended with {result.returncode}: {said}")
    else:
        print("/etc/hosts cannot be covered: only whom diagnose --slurm asks is tested")
        require(result.returncode == 3 and all(f"{node}:{port}" in said for node in slurm.nodes), f"{result.returncode}: {said}")
    slurm.run("scancel", "--signal=KILL", "--full", job)


def check_jobs(slurm, agents, folder, source, user, step, port):
    """Runs the jobs and holds what the agents show of them. user: an ordinary one. step: tells how far the test is."""
    nodes = slurm.nodes
    requeued = slurm.submit("again", folder / "requeue.sh", user=user)
    array = slurm.submit("sweep", "-a", "3-4", folder / "job.sh", user=user)
    left = slurm.submit("left", "-w", nodes[0], folder / "silent.sh")
    right = slurm.submit("right", "-w", nodes[1], folder / "job.sh", user=user, account="chemistry")
    common = {"partition": "test", "identity_source": source}
    # Of a job that is only claimed nothing is taken from elsewhere: it may be another's.
    silent = {"partition": "test", "account": "physics", "job_name": "left"} if source == "cgroup" else {"job_name": ""}
    games = {**common, "user": "games", "account": "physics"}
    expect_labels(agents, {
        (None, f"{array}_3"): {**games, "job_name": "sweep", "array_task": "3", "run": "0"},
        (None, f"{array}_4"): {**games, "job_name": "sweep", "array_task": "4", "run": "0"},
        (nodes[0], left): {"identity_source": source, "user": "root", "run": "0", **silent},
        (nodes[1], right): {**common, "user": "games", "account": "chemistry", "job_name": "right", "array_task": ""},
        (None, requeued): {**games, "job_name": "again", "run": "0"},
    })
    step("array, two jobs side by side, first run of the job to be requeued")

    slurm.run("scontrol", "requeue", requeued)

    def state(*wanted):
        shown = slurm.run("scontrol", "-o", "show", "job", requeued)
        return "Restarts=1" in shown and any(f"JobState={word} " in shown for word in wanted)
    wait_until("job requeued", lambda: state("PENDING"))
    # SLURM would hold it back for two minutes. In the second of its end it refuses to start it: too early.
    slurm.run("scontrol", "update", f"JobId={requeued}", "StartTime=now+2")
    wait_until("requeued job runs again", lambda: state("RUNNING", "COMPLETED"))
    expect_labels(agents, {(None, requeued): {**games, "job_name": "again", "run": "1"}})
    step("requeued job, run 1")

    slurm.run("srun", "-D", "/", "-J", "leader", "-A", "physics", "-n1", "-w", nodes[0], folder / "job.sh", ":",
              "-J", "follower", "-A", "physics", "-n1", "-w", nodes[1], folder / "job.sh", user=user)
    het = slurm.run("scontrol", "-o", "show", "job")
    leader = next(line for line in het.splitlines() if "HetJobOffset=0" in line).split()[0].removeprefix("JobId=")
    expect_labels(agents, {(node, leader): games for node in nodes})
    step("heterogeneous job: both parts under the leader's id")

    diagnose(slurm, agents, folder, port)
    step("ncclscope diagnose --slurm asks the job's nodes")

    wait_until("all jobs over", lambda: all(state not in ("RUNNING", "COMPLETING") for _, _, state in slurm.queue()))
    for name in ("prolog", "epilog"):
        warnings = (folder / f"{name}.warnings").read_text()
        require(not warnings, f"{name}: {warnings}")
    for agent in agents:
        log = agent.log(characters=100000)
        require("begins, run" in log and "has ended" in log, f"{agent.node}: no report in the log: {agent.log()}")
        samples = agent.scrape()
        require(samples["ncclscope_agent_squeue_failures_total"][0][1] == 0, f"squeue failed: {agent.log()}")
    slurm.processes.check()
    step("prologs and epilogs warned of nothing, squeue never failed")


def test(build, folder, proctrack):
    user = pwd.getpwnam("games")  # SLURM wants users that exist; Debian has this one from the beginning
    nodes = [f"nt{os.getpid()}n{i}" for i in (1, 2)]
    (folder / "logs").mkdir()
    (folder / "out").mkdir()
    (folder / "out").chmod(0o1777)
    processes = Processes(folder / "logs")
    scripts = install(build, folder)
    slurm = Slurm(folder, processes, nodes, scripts, proctrack)
    remote_access(folder, ",".join(f"DNS:{node}" for node in nodes))
    port = free_ports(1)[0]
    agents = [Agent(Build(build), folder, node, [
        "--log-level", "debug", "--squeue-command", f"{shutil.which('squeue')} --json --nodelist=%N",
        "--squeue-interval-seconds", "2", *api_listener(folder, f"127.0.0.{i}:{port}")], slurm.environment)
        for i, node in enumerate(nodes, 1)]
    source = "cgroup" if slurm.proctrack == "proctrack/cgroup" else "claimed"
    print(f"process tracking: {slurm.proctrack}; identity_source must be {source}")
    started = time.monotonic()

    def step(text):
        print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)
    try:
        slurm.start()
        step("SLURM runs")
        with running(agents):
            check_jobs(slurm, agents, folder, source, user, step, port)
    except BaseException:
        for path in [path for pattern in ("logs/*", "out/*", "*/log") for path in sorted(folder.glob(pattern))]:
            lines = [line for line in path.read_text(errors="replace").splitlines() if "pmix" not in line and "MPI" not in line]
            print(f"---- {path.relative_to(folder)}\n" + "\n".join(lines[-25:]), file=sys.stderr)
        raise
    finally:
        signal.alarm(0)
        slurm.stop()
    require(not slurm.cgroups(), f"cgroups left: {slurm.cgroups()}")
    step("stopped, nothing left")


def out_of_time(*_):
    raise Failure(f"the whole test: not within {WHOLE_TEST_S} s")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--build", required=True, type=pathlib.Path)
    arguments.add_argument("--keep", action="store_true", help="keep the folder")
    arguments.add_argument("--proctrack", choices=("cgroup", "linuxproc"), help="default: cgroup where it works")
    options = arguments.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-slurm-"))
    folder.chmod(0o755)
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"  # where the daemons are
    try:
        missing = [name for name in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(name) is None]
        if missing:
            raise Skipped(f"not installed: {', '.join(missing)} (scripts/install-deps.sh installs them)")
        if os.geteuid() != 0:
            raise Skipped("SLURM's daemons need root to run jobs of several users")
        signal.signal(signal.SIGALRM, out_of_time)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        signal.alarm(WHOLE_TEST_S)
        test(options.build.resolve(), folder, options.proctrack)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED_STATUS
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
