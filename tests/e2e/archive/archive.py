#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The archive end to end: emulated jobs through the real plugin into agents that keep them, read back with
ncclscope-archive-dump, recorded with `ncclscope record`, replayed with `ncclscope replay`.

  archive.py --build DIR SCENARIO
"""
import collections
import json
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (JOB, PLUGIN, Agent, Failure, Job, Processes, require, run_scenarios, running, sum_of,  # noqa: E402
                     wait_until)

TRACES = pathlib.Path(__file__).resolve().parents[2] / "data" / "nccl-traces"


def dump(build, folder):
    """What is in the segments below `folder`: {"operations": {(comm, rank, collective): (count, bytes)}, ...}."""
    result = subprocess.run([build.folder / "tests" / "ncclscope-archive-dump", folder], capture_output=True, text=True, timeout=60,
                            check=False)
    require(result.returncode == 0, f"archive-dump ended with {result.returncode}: {result.stderr}")
    content = json.loads(result.stdout)
    content["operations"] = {(o["comm"], o["rank"], o["collective"]): (o["count"], o["bytes"]) for o in content["operations"]}
    return content


def of_agent(agent):
    """{(comm, collective, size): (operations, bytes)} of the agent's metrics."""
    samples, sums = agent.scrape(), collections.defaultdict(lambda: [0, 0])
    for place, kind in enumerate(("operations", "bytes")):
        for name, label in (("collective", "collective"), ("p2p", "operation")):
            for labels, number in samples[f"ncclscope_{name}_{kind}_total"]:
                sums[labels["comm"], labels[label], labels["size"]][place] += int(number)
    return {key: tuple(value) for key, value in sums.items()}


def records_received(agent):
    return sum(p["operations_received"] for p in agent.books())


def keeping(build, folder, *arguments):
    return Agent(build, folder, "node0", ["--archive-directory", str(folder / "archive"), "--archive-flush-seconds", "1", *arguments])


def replay(build, agent, *arguments, status=0):
    result = subprocess.run([build.command_line, "replay", "--agent", agent.api, *map(str, arguments)], capture_output=True, text=True,
                            timeout=90, check=False)
    require(result.returncode == status, f"replay ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout, result.stderr


def end_of(job, agent):
    """Waits for it; how many operations it had, all of which have come."""
    operations = job.wait()["operations"]
    wait_until("all records at the agent", lambda: records_received(agent) == operations)
    return operations


def clean_end(build, folder):
    """Everything that was received is in the archive, whole, once the agent has ended."""
    agent = keeping(build, folder)
    with running([agent]):
        job = Job(build, 1, 4, "megatron:tp=2,pp=2,dp=1", 20, plugin=PLUGIN, sockets=[agent.socket])
        operations = end_of(job, agent)
        wait_until("batches settled", lambda: sum(v[0] for v in of_agent(agent).values()) == operations)
        counted = collections.Counter()
        for (comm, collective, _), (count, _) in of_agent(agent).items():
            counted[comm, collective] += count
        metrics = agent.scrape()
        require(sum_of(metrics, "ncclscope_agent_archive_operations_dropped_total") == 0, "operations were dropped")
    content = dump(build, folder / "archive")
    require(content["cut"] == 0, f"{content['cut']} segments have no end")
    kept = collections.Counter()
    for (comm, _, collective), (count, _) in content["operations"].items():
        kept[comm, collective] += count
    require(kept == counted, f"kept {kept}, counted {counted}")
    require(content["books"] >= 4 and content["finalizes"] > 0, f"books or ends of communicators are missing: {content}")
    require(content["jobs"] == [JOB], f"jobs {content['jobs']}")
    require(not list((folder / "archive").rglob("*.part")), "a segment was not completed")


def killed_agent(build, folder):
    """kill -9: what was received a flush interval (1 s) and a moment before is there; the next agent goes on."""
    agent = keeping(build, folder)
    with running([agent]):
        job = Job(build, 1, 2, "ddp", 0, plugin=PLUGIN, sockets=[agent.socket], seconds=20, pace="real")
        seen = []

        def enough():
            seen.append((time.monotonic(), records_received(agent)))
            return seen[-1][1] > 200 and seen[-1][0] - seen[0][0] > 4
        wait_until("operations", enough)
        agent.kill()
        # The books are read some time before the kill: only what is older than that counts.
        killed = time.monotonic()
        due = max((count for at, count in seen if at < killed - 2.5), default=0)
        require(due > 0, f"nothing was received early enough: {seen}")
        parts = list((folder / "archive").rglob("*.part"))
        require(len(parts) == 1, f"segments that were written to: {parts}")
        content = dump(build, folder / "archive")
        kept = sum(count for count, _ in content["operations"].values())
        require(content["cut"] == 1, f"{content['cut']} segments without an end")
        require(kept >= due, f"{kept} operations were kept, {due} were received more than a flush interval before")
        agent.start()
        require(not list((folder / "archive").rglob("*.part"))[1:], "the segment of the killed agent was not taken up")
        wait_until("the next agent keeps operations", lambda: sum(
            count for count, _ in dump(build, folder / "archive")["operations"].values()) > kept)
        job.stop()


def hang(build, folder):
    """While a job hangs, the archive holds all that completed, and where everybody stands."""
    agent = keeping(build, folder)
    with running([agent]):
        job = Job(build, 1, 2, "ddp", 40, plugin=PLUGIN, sockets=[agent.socket], fault="missing:rank=1,from=10",
                  hang_seconds=20)

        def stuck():
            last = dump(build, folder / "archive")["progress"] if list((folder / "archive").rglob("*.ncsa*")) else []
            return [p for p in last if p["oldest_index"] >= 0 and p["enqueued"] > p["completed"]]
        found = wait_until("a rank that waits, in the archive", stuck)
        require(all(p["signature"] != 0 for p in found), f"no signature: {found}")
        job.stop()


def replay_archive(build, folder):
    """An archive into a second agent: the same sums per communicator, collective and size."""
    agent = keeping(build, folder)
    with running([agent]):
        job = Job(build, 1, 4, "megatron:tp=2,pp=1,dp=2", 12, plugin=PLUGIN, sockets=[agent.socket])
        operations = end_of(job, agent)
        wait_until("batches settled", lambda: sum(v[0] for v in of_agent(agent).values()) == operations)
        first = of_agent(agent)
    (folder / "second").mkdir()
    second = Agent(build, folder / "second", "node0")
    with running([second]):
        out, _ = replay(build, second, folder / "archive")
        require(f"{operations} operations" in out, f"replay said {out}")
        require("not" not in out.lower(), f"replay said {out}")
        wait_until("the same sums", lambda: of_agent(second) == first)
        require(all(p["balanced"] and p["final"] for p in second.books()), f"books: {second.books()}")
        # Once more under another name: counted again, as a job of its own.
        replay(build, second, folder / "archive", "--job", "again")
        wait_until("twice as much", lambda: records_received(second) == 2 * operations)
        jobs = {p["job_id"] for p in second.books()}
        require(jobs == {JOB, "again"}, f"jobs {jobs}")


def record_replay(build, folder):
    """What `record` writes of a live agent, replayed into another one: the same sums."""
    agent = Agent(build, folder, "node0")
    processes = Processes(folder)
    with running([agent]):
        recorder = processes.start("record", [build.command_line, "record", "--agent", agent.api, "--output", folder / "mine", "--held"])
        job = Job(build, 1, 2, "fsdp", 15, plugin=PLUGIN, sockets=[agent.socket])
        operations = end_of(job, agent)

        def recorded():
            return sum(count for count, _ in dump(build, folder / "mine")["operations"].values()) if list(
                (folder / "mine").glob("*.ncsa*")) else 0
        wait_until("all operations recorded", lambda: recorded() == operations)
        recorder.send_signal(signal.SIGINT)
        require(recorder.wait(timeout=15) == 0, f"record ended with {recorder.returncode}: {processes.output('record')}")
        require(f"recorded {operations} operations in 1 segment, " in processes.output("record")
                and "nothing was skipped" in processes.output("record"), processes.output("record"))
        wait_until("the agent's sums have settled", lambda: sum(v[0] for v in of_agent(agent).values()) == operations)
        first = of_agent(agent)
    require(dump(build, folder / "mine")["cut"] == 0, "the recording has no end")
    (folder / "second").mkdir()
    second = Agent(build, folder / "second", "node0")
    with running([second]):
        replay(build, second, folder / "mine")
        try:
            wait_until("the same sums", lambda: of_agent(second) == first)
        except Failure as failure:
            raise Failure(f"{failure}: {of_agent(second)} after replay, {first} before") from None


def replay_others(build, folder):
    """Inspector logs and a recording of NCCL into an agent; what cannot be replayed is refused with its place."""
    logs = folder / "logs"
    logs.mkdir()

    def line(rank, number, **more):
        return json.dumps({
            "header": {"id": "0x7f3c", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1764000000000000 + number * 1000,
                         "hostname": f"h{rank}", "pid": 100 + rank},
            "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1048576, "coll_exec_time_us": 250,
                          "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 4.2, "coll_busbw_gbs": 4.2, **more}})
    for rank in range(2):
        text = "".join(line(rank, n) + "\n" for n in range(500))
        (logs / f"h{rank}-pid{100 + rank}.log").write_text(text + (line(rank, 500)[:100] if rank else ""))
    agent = Agent(build, folder, "node0")
    with running([agent]):
        out, err = replay(build, agent, logs, "--job", "inspector")
        require("1000 operations" in out, out)
        require("h1-pid101.log:501: the last line is not complete" in err, err)
        sums = {k: v for k, v in of_agent(agent).items() if k[0] == "0000000000007f3c"}
        require(sums == {("0000000000007f3c", "AllReduce", "<=1MiB"): (1000, 1000 << 20)}, f"sums {sums}")
        replay(build, agent, TRACES / "allreduce2-net-full-v5", "--job", "recorded")
        expected = json.loads((TRACES / "allreduce2-net-full-v5" / "expected.json").read_text())
        operations = sum(len(c["ops"]) for p in expected["processes"] for c in p["communicators"])
        received = sum(p["operations_received"] for p in agent.books() if p["job_id"] == "recorded")
        require(received == operations, f"{received} operations of the recording came, it has {operations}")
        (logs / "bad.ncsa").write_bytes(b"nothing")
        _, err = replay(build, agent, logs / "bad.ncsa", status=2)
        require("bad.ncsa: at offset 0: not a segment" in err, err)
        (logs / "bad.log").write_text(line(0, 1) + "\n{}\n")
        _, err = replay(build, agent, logs / "bad.log", status=2)
        require("bad.log:2: " in err, err)
    result = subprocess.run([build.command_line, "replay", "--agent", folder / "nobody.sock", logs / "h0-pid100.log"], capture_output=True,
                            text=True, timeout=60, check=False)
    require(result.returncode == 3, f"without an agent replay ended with {result.returncode}: {result.stderr}")


def replay_pace(build, folder):
    """At real pace as the operations happened, two times as fast in half the time. Only too fast is wrong: a test may be slow."""
    span_s = 3
    (folder / "logs").mkdir()
    for rank in range(2):
        (folder / "logs" / f"h{rank}-pid{rank + 1}.log").write_text("".join(json.dumps({
            "header": {"id": "0x7f3c", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1764000000000000 + number * span_s * 10_000,
                         "hostname": f"h{rank}", "pid": rank + 1},
            "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 1048576, "coll_exec_time_us": 250,
                          "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 4.2, "coll_busbw_gbs": 4.2}}) + "\n" for number in range(101)))
    agent = Agent(build, folder, "node0")
    with running([agent]):
        for pace, least in (("real", span_s), ("2", span_s / 2)):
            process = subprocess.Popen([build.command_line, "replay", "--agent", agent.api, folder / "logs", "--job", f"pace{pace}", "--pace", pace],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            began = time.monotonic()

            def received(pace=pace):
                return sum(p["operations_received"] for p in agent.books() if p["job_id"] == f"pace{pace}")
            try:
                # The agent sees them come one after another, not all at the end.
                wait_until("the first half", lambda: received() > 20)
                require(received() < 202 or time.monotonic() - began >= least * 0.9, f"pace {pace}: all came at once")
                require(process.wait(timeout=60) == 0, f"pace {pace}: ended with {process.returncode}")
            finally:
                process.kill()
                process.wait()
            took = time.monotonic() - began
            require(took >= least * 0.9, f"pace {pace}: {took:.2f} s, the operations span {least} s")
            wait_until("all", lambda: received() == 202)


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, [clean_end, killed_agent, hang, replay_archive, record_replay, replay_others, replay_pace]))
