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
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from cluster import (DEADLINE_S, Failure, Slurm, free_ports, require, run_test, show_logs, wait_until,  # noqa: E402
                     write_script)
from support import ROOT, Agent, Build, Processes, api_listener, remote_access, running, trusting  # noqa: E402

WHOLE_TEST_S = 60  # about 10 s where nobody else computes


def jobs_of(agent):
    """{job_id: labels of job_info} of jobs that have done operations."""
    samples = agent.scrape()
    done = {labels["job_id"] for labels, count in samples["ncclscope_collective_operations_total"] if count > 0}
    return {labels["job_id"]: labels for labels, _ in samples["ncclscope_job_info"] if labels["job_id"] in done}


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
    # All operations are timed, so that diagnose can compare its ranks.
    write_script(folder / "wide.sh", f"export NCCLSCOPE_OVERHEAD_BUDGET=0.5\n{run_job} seconds=60\n")
    # The first run lasts until it is requeued.
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

    def ask():
        result = subprocess.run([*(covered if can_cover else []), *command], env=slurm.environment, capture_output=True, text=True,
                                timeout=DEADLINE_S, check=False)
        # In so short a window nobody may be comparable: it is asked again until somebody is.
        undecided = result.returncode == 4 and "who is late cannot be told" in result.stdout
        return None if undecided else result
    result = wait_until("an answer of diagnose", ask)
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
        show_logs(folder)
        raise
    finally:
        signal.alarm(0)
        slurm.stop()
    require(not slurm.cgroups(), f"cgroups left: {slurm.cgroups()}")
    step("stopped, nothing left")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--build", required=True, type=pathlib.Path)
    arguments.add_argument("--keep", action="store_true", help="keep the folder")
    arguments.add_argument("--proctrack", choices=("cgroup", "linuxproc"), help="default: cgroup where it works")
    options = arguments.parse_args()
    return run_test(options, WHOLE_TEST_S, lambda folder: test(options.build.resolve(), folder, options.proctrack))


if __name__ == "__main__":
    sys.exit(main())
