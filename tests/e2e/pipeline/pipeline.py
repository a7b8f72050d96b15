#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: emulated NCCL processes -> plugin -> sockets -> agents -> scrape, compared with the truth.

  pipeline.py --build DIR SCENARIO

The truth comes from elsewhere than the plugin: the same job (same seed, layout and number of steps) is run once more
with the recorder plugin, and its callbacks are counted here. Counts and bytes must then agree exactly, in every scenario
in which nothing may be lost. Waits have deadlines; nothing is compared with the wall clock.
"""
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import (CLUSTER, JOB, PLUGIN, Agent, Failure, Job, Skipped, node_agents, require, run_scenarios,  # noqa: E402
                     running, sum_of, value, wait_until)

TYPE_BYTES = {"ncclInt8": 1, "ncclUint8": 1, "Unknown": 1, "ncclInt32": 4, "ncclUint32": 4, "ncclInt64": 8,
              "ncclUint64": 8, "ncclFloat16": 2, "ncclFloat32": 4, "ncclFloat64": 8, "ncclBfloat16": 2}


def truth(build, folder, ranks, layout, steps, **options):
    """{(comm, function): [operations, bytes]} and {comm: nranks}, counted from recorded callbacks."""
    records = folder / "truth"
    records.mkdir()
    # One GPU per node: a file per rank. Who talks to whom, and how much, is the same as on fuller nodes.
    outcome = Job(build, ranks, 1, layout, steps, records=records, compute_ms=1, **options).wait()
    require(outcome["finished"], f"the recorded job did not finish: {outcome}")
    counts = collections.defaultdict(lambda: [0, 0])
    sizes = {}
    for path in sorted(records.glob("*.jsonl")):
        communicators = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["cb"] == "init":
                communicators[event["ctx"]] = (int(event["commId"], 16), event["nranks"])
                sizes[int(event["commId"], 16)] = event["nranks"]
            elif event["cb"] == "start" and event["type"] in ("Coll", "P2p"):
                comm, nranks = communicators[event["ctx"]]
                function, count = event["func"], event["count"]
                size = count * TYPE_BYTES[event["datatype"]]
                if function in ("AllGather", "ReduceScatter"):
                    size *= nranks
                counts[comm, function][0] += 1
                counts[comm, function][1] += size
    require(counts, "the recording holds no operation")
    return counts, sizes


def totals(scrapes):
    """{(comm, function): [operations, bytes]} as the agents tell them."""
    sums = collections.defaultdict(lambda: [0, 0])
    for samples in scrapes:
        for kind, label in (("collective", "collective"), ("p2p", "operation")):
            for place, suffix in enumerate(("operations_total", "bytes_total")):
                for labels, value in samples[f"ncclscope_{kind}_{suffix}"]:
                    require(labels["job_id"] == JOB and labels["cluster"] == CLUSTER, f"labels {labels}")
                    sums[int(labels["comm"], 16), labels[label]][place] += int(value)
    return sums


def difference(expected, got):
    lines = []
    for key in sorted(set(expected) | set(got)):
        want, have = expected.get(key, [0, 0]), got.get(key, [0, 0])
        if want != have:
            lines.append(f"comm {key[0]:016x} {key[1]}: expected {want[0]} operations and {want[1]} bytes, got {have}")
    return lines


def unrecorded(scrapes):
    """The processes whose books say that operations are still under way."""
    lines = []
    for samples in scrapes:
        for labels, seen in samples["ncclscope_plugin_events_seen_total"]:
            recorded = value(samples, "ncclscope_plugin_events_recorded_total", pid=labels["pid"])
            if recorded != seen:
                lines.append(f"pid {labels['pid']}: seen {seen}, recorded {recorded}")
    return lines


def expect_exact(agents, expected):
    """Waits until the agents' sums are the truth and the last books, which come after the last records, say the same;
    returns the scrapes."""
    last = {}

    def equal():
        scrapes = [agent.scrape() for agent in agents]
        last["lines"] = difference(expected, totals(scrapes)) + unrecorded(scrapes)
        return scrapes if not last["lines"] else None
    try:
        return wait_until("sums and books equal to the recorded truth", equal)
    except Failure as failure:
        raise Failure(f"{failure}: " + "; ".join(last["lines"][:6])) from None


def expect_nothing_lost(scrapes, processes):
    seen = 0
    for samples in scrapes:
        seen += len(samples["ncclscope_plugin_events_seen_total"])
        dropped = sum_of(samples, "ncclscope_plugin_events_dropped_total")
        require(dropped == 0, f"{dropped} operations dropped: {samples['ncclscope_plugin_events_dropped_total']}")
        lost = sum_of(samples, "ncclscope_operations_unobserved_total", reason="lost_in_transit")
        require(lost == 0, f"{lost} operations lost in transit")
        for labels, ratio in samples["ncclscope_telemetry_coverage_ratio"]:
            require(ratio == 1, f"coverage {ratio} of {labels}")
        errors = {labels["reason"]: count for labels, count in samples["ncclscope_agent_decode_errors_total"] if count > 0}
        require(not errors, f"frames could not be decoded: {errors}")
    require(seen == processes, f"{seen} processes in the plugins' books, started {processes}")


def expect_books(agents, processes):
    """Both sides of every process's books."""
    books = [book for agent in agents for book in agent.books()]
    require(len(books) == processes, f"{len(books)} books, started {processes} processes")
    for book in books:
        book = {k: int(v) if isinstance(v, str) and v.lstrip("-").isdigit() else v for k, v in book.items()}
        dropped = sum(int(d.get("value", 0)) for d in book.get("dropped", []) if d["reason"] != "overwritten")
        require(book.get("balanced"), f"books that do not balance: {book}")
        require(book["seen"] == book["recorded"] + dropped + book.get("open", 0), f"plugin's side: {book}")
        got = book.get("records_received", 0) + book.get("records_before", 0) + book.get("records_lost", 0)
        require(book["records_written"] == got, f"agent's side, {got} accounted for: {book}")
    return books


def expect_end_without_loss(job, agents, expected, processes):
    require(job.wait()["finished"], "the job did not finish")
    expect_nothing_lost(expect_exact(agents, expected), processes)
    expect_books(agents, processes)


def check_exposition(agent):
    """promtool's lint, the strict OpenMetrics parser, and the same series in both formats."""
    kind, text = agent.get("/metrics")
    require(kind.startswith("text/plain"), f"Content-Type {kind}")
    promtool = shutil.which("promtool")
    require(promtool is not None, "promtool is not installed (Debian's package prometheus)")
    lint = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=20, check=False)
    require(lint.returncode == 0, f"promtool check metrics: {lint.stdout}{lint.stderr}")
    kind, strict = agent.get("/metrics", "application/openmetrics-text; version=1.0.0")
    require(kind.startswith("application/openmetrics-text"), f"Content-Type {kind}")
    families = {f.name: f for f in openmetrics.text_string_to_metric_families(strict)}
    require("ncclscope_collective_operations" in families, f"families: {sorted(families)}")
    classic = {s.name for f in text_string_to_metric_families(text) for s in f.samples}
    modern = {s.name for f in families.values() for s in f.samples}
    require(classic == modern, f"series in one format only: {sorted(classic ^ modern)}")


LAYOUT = "megatron:tp=2,pp=2,dp=2"


def exact(build, folder):
    """Two nodes of four GPUs: every number of the scrape that the truth knows."""
    expected, sizes = truth(build, folder, 8, LAYOUT, 20)
    with node_agents(build, folder, 2) as agents:
        outcome = Job(build, 2, 4, LAYOUT, 20, PLUGIN, [a.socket for a in agents], compute_ms=5).wait()
        require(outcome["finished"], f"the job did not finish: {outcome}")
        scrapes = expect_exact(agents, expected)
        expect_nothing_lost(scrapes, 8)
        for agent, samples in zip(agents, scrapes):
            pids = {str(r["pid"]) for r in outcome["ranks"] if agent.node == f"node{r['node']}"}
            require({labels["pid"] for labels, _ in samples["ncclscope_rank_info"]} == pids, f"pids of {agent.node}")
            for labels, _ in samples["ncclscope_communicator_info"]:
                want = sizes[int(labels["comm"], 16)]
                require(labels["nranks"] == str(want), f"{labels}: {want} ranks expected")
            check_exposition(agent)
        # The same index on every rank of a communicator, over both nodes: all have done the same collectives.
        stages = collections.defaultdict(set)
        for samples in scrapes:
            for labels, count in samples["ncclscope_communicator_operations_total"]:
                stages[labels["comm"]].add(int(count))
        for comm, counts in stages.items():
            total = sum(v[0] for (c, f), v in expected.items() if c == int(comm, 16) and f not in ("Send", "Recv"))
            want = total // sizes[int(comm, 16)]
            require(counts == {want}, f"comm {comm}: stages {counts}, every rank made {want} collectives")
        for samples in scrapes:
            busy = sum_of(samples, "ncclscope_collective_busy_seconds_total")
            require(busy > 0, "no collective has a GPU time")
            series = value(samples, "ncclscope_agent_series")
            require(sum_of(samples, "ncclscope_agent_series_folded") == 0, "series were folded")
            print(f"{int(series)} series for 4 GPUs in {LAYOUT}")
        expect_books(agents, 8)


def budget(build, folder):
    """One node of eight GPUs in TP2 x PP2 x DP2 stays within 4,000 series with nothing folded."""
    with node_agents(build, folder, 1) as agents:
        outcome = Job(build, 1, 8, LAYOUT, 5, PLUGIN, [agents[0].socket], compute_ms=1).wait()
        require(outcome["finished"], f"the job did not finish: {outcome}")
        wait_until("final books", lambda: [b.get("final") for b in agents[0].books()] == [True] * 8)
        time.sleep(0.2)  # the next snapshot
        samples = agents[0].scrape()
        series = int(value(samples, "ncclscope_agent_series"))
        print(f"{series} series for 8 GPUs in {LAYOUT}")
        require(0 < series <= 4000, f"{series} series; the budget is 4000")
        require(sum_of(samples, "ncclscope_agent_series_folded") == 0, "series were folded")


def absent_at_start(build, folder):
    """The agents come when the job already runs: nothing is lost, since the plugins keep their records."""
    expected, _ = truth(build, folder, 4, "fsdp", 60)
    with node_agents(build, folder, 2, start=False) as agents:
        job = Job(build, 2, 2, "fsdp", 60, PLUGIN, [a.socket for a in agents], compute_ms=50)
        time.sleep(1)
        require(job.process.poll() is None, "the job ended before the agents were started: give it more steps")
        for agent in agents:
            agent.start()
        require(job.process.poll() is None, "the job ended before the agents were ready: give it more steps")
        expect_end_without_loss(job, agents, expected, 4)


def stopped_agent(build, folder):
    """An agent that hangs (SIGSTOP) for some seconds: the job goes on, and nothing is lost."""
    expected, _ = truth(build, folder, 4, "fsdp", 80)
    with node_agents(build, folder, 2) as agents:
        job = Job(build, 2, 2, "fsdp", 80, PLUGIN, [a.socket for a in agents], compute_ms=50)
        wait_until("operations at the agent", lambda: sum_of(agents[0].scrape(), "ncclscope_collective_operations_total") > 0)
        agents[0].send(signal.SIGSTOP)
        time.sleep(2)
        require(job.process.poll() is None, "the job ended while the agent was stopped: give it more steps")
        agents[0].send(signal.SIGCONT)
        expect_end_without_loss(job, agents, expected, 4)


def killed_agent(build, folder):
    """kill -9 in the middle, a new agent a second later: the books balance, and nothing is lost."""
    expected, _ = truth(build, folder, 4, "fsdp", 80)
    with node_agents(build, folder, 2) as agents:
        job = Job(build, 2, 2, "fsdp", 80, PLUGIN, [a.socket for a in agents], compute_ms=50)
        wait_until("operations at the agent", lambda: sum_of(agents[0].scrape(), "ncclscope_collective_operations_total") > 0)
        time.sleep(1)  # acknowledgements come at least once a second
        agents[0].kill()
        time.sleep(1)
        require(job.process.poll() is None, "the job ended while the agent was away: give it more steps")
        agents[0].start()
        require(job.wait()["finished"], "the job did not finish")

        def final():
            books = agents[0].books()
            return len(books) == 2 and all(b.get("final") for b in books)
        wait_until("final books at the new agent", final)
        wait_until("all records at the new agent", lambda: all(
            int(b["records_written"]) == int(b.get("records_received", 0)) + int(b.get("records_before", 0)) +
            int(b.get("records_lost", 0)) for b in agents[0].books()))
        books = expect_books(agents, 4)
        lost = sum(int(b.get("records_lost", 0)) for b in books)
        require(lost == 0, f"{lost} records lost over a restart of one second")
        before = sum(int(b.get("records_before", 0)) for b in books)
        require(before > 0, "the first agent had acknowledged nothing: it was killed too early to test anything")
        # The node that kept its agent is exact; the other one's new agent has the rest of what the first had not.
        half = {key: [v // 2 for v in pair] for key, pair in expected.items()}
        lines = difference(half, totals([agents[1].scrape()]))
        require(not lines, f"node1: {lines}")
        got = sum(v[0] for v in totals([agents[0].scrape()]).values())
        require(0 < got < sum(v[0] for v in half.values()), f"the new agent has {got} operations")


def restarted_agent(build, folder):
    """A clean restart in the middle (as a package update does): nothing is lost, and nothing counts twice."""
    expected, _ = truth(build, folder, 2, "fsdp", 80)
    with node_agents(build, folder, 1) as agents:
        agent = agents[0]
        job = Job(build, 1, 2, "fsdp", 80, PLUGIN, [agent.socket], compute_ms=50)
        wait_until("operations at the agent", lambda: sum_of(agent.scrape(), "ncclscope_collective_operations_total") > 0)
        time.sleep(1)  # acknowledgements come at least once a second
        agent.terminate()
        require(job.process.poll() is None, "the job ended while the agent was away: give it more steps")
        agent.start()
        require(job.wait()["finished"], "the job did not finish")
        wait_until("final books at the new agent", lambda: [b.get("final") for b in agent.books()] == [True, True])
        operations = 0
        for book in expect_books(agents, 2):
            require(int(book["records_lost"]) == 0, f"records lost over a clean restart: {book}")
            require(int(book["records_before"]) > 0, f"the first agent had acknowledged nothing: {book}")
            operations += int(book["recorded"])
        want = sum(count for count, _ in expected.values())
        require(operations == want, f"{operations} operations recorded, {want} were called")
        require(all(int(r["missing"]) == 0 for r in agent.all_books()["ranks"]), "operations are said to be missing")


def flood(build, folder):
    """A process calls far faster than any job, and the agent is stopped half of the time: every operation is accounted
    for, by the process's books and by the communicator's indexes alike."""
    operations = int(os.environ.get("NCCLSCOPE_TEST_FLOOD", "1000000"))
    with node_agents(build, folder, 1) as agents:
        agent = agents[0]
        environment = dict(os.environ, NCCLSCOPE_SOCKET=str(agent.socket), SLURM_JOB_ID=JOB)
        with subprocess.Popen([build.plugin_job, "flood", str(operations)], env=environment) as job:
            try:
                wait_until("a connection", lambda: agent.books() or job.poll() is not None)
                agent.send(signal.SIGSTOP)
                time.sleep(0.3)
                agent.send(signal.SIGCONT)
                require(job.wait(timeout=120) == 0, f"the job ended with {job.returncode}")
            finally:
                job.kill()
        wait_until("final books", lambda: [b.get("final") for b in agent.books()] == [True])
        time.sleep(0.2)  # the next snapshot
        book = expect_books(agents, 1)[0]
        dropped = {d["reason"]: int(d["value"]) for d in book["dropped"]}
        require(int(book["seen"]) == operations, f"{operations} calls made: {book}")
        require(dropped.get("overwritten", 0) > 0, f"the ring never was full, so nothing was tested: {book}")
        ranks = agent.all_books()["ranks"]
        require(len(ranks) == 1, f"ranks {ranks}")
        missing = int(ranks[0]["missing"])
        require(missing == sum(dropped.values()), f"{missing} indexes missing, dropped {dropped}")
        samples = agent.scrape()
        counted = sum_of(samples, "ncclscope_collective_operations_total")
        require(counted + missing == operations, f"{counted} counted + {missing} missing of {operations}")
        require(value(samples, "ncclscope_communicator_missing_operations_total") == missing, "metric of missing operations")
        require(value(samples, "ncclscope_plugin_books_balanced") == 1, "metric of balance")
        require(value(samples, "ncclscope_plugin_records_lost_total") == int(book["records_lost"]), "metric of lost records")
        coverage = value(samples, "ncclscope_telemetry_coverage_ratio")
        require(abs(coverage - counted / operations) < 1e-9, f"coverage {coverage}")
        print(f"{operations} operations: {int(counted)} counted, {missing} missing, {dropped}")


def crashed_rank(build, folder):
    """A rank dies by SIGKILL: its state says so, and the others are seen waiting in one operation."""
    with node_agents(build, folder, 1) as agents:
        job = Job(build, 1, 4, "ddp", 1000, PLUGIN, [agents[0].socket], compute_ms=20, hang_seconds=20,
                  fault="crash:rank=2,from=10")
        try:
            def seen():
                samples = agents[0].scrape()
                gone = [labels["rank"] for labels, _ in samples["ncclscope_rank_state"] if labels["state"] == "vanished"]
                waiting = {labels["rank"] for labels, age in samples["ncclscope_communicator_inflight_seconds"] if age >= 1}
                return gone == ["2"] and waiting == {"0", "1", "3"}
            wait_until("rank 2 vanished, the others waiting for a second", seen)
            samples = agents[0].scrape()
            signatures = {v for labels, v in samples["ncclscope_communicator_oldest_signature"] if labels["rank"] != "2"}
            require(len(signatures) == 1 and 0 not in signatures, f"signatures of the waiting ranks: {signatures}")
            # What the dead process had told is accounted for.
            for book in agents[0].books():
                require(book["balanced"], f"books that do not balance: {book}")
                got = int(book["records_received"]) + int(book["records_before"]) + int(book["records_lost"])
                require(got == int(book["highest_index"]), f"agent's side, {got} accounted for: {book}")
            require(all(int(r["missing"]) == 0 for r in agents[0].all_books()["ranks"]), "operations are said to be missing")
        finally:
            job.stop()


def has_steps(samples, enough):
    return samples if sum(n for _, n in samples.get("ncclscope_step_seconds_count", [])) >= enough else None


def signals(build, folder):
    """Steps, dimensions, all-to-alls and communication time of jobs whose steps take a little over 0.3 s each."""
    steps, ranks = 60, 8
    # By layout: the dimension of each communicator by name.
    layouts = {
        "ddp": {"dp_group": "dp"},
        "fsdp": {"fsdp_group": "dp"},
        "megatron:tp=2,pp=2,dp=2": {"default_pg": "", "tp_group": "tp", "pp_group": "pp", "dp_group": "dp"},
        "moe:ep=4": {"dp_group": "dp", "ep_group": "ep"},
    }
    for number, (layout, dimensions) in enumerate(layouts.items()):
        own = folder / str(number)
        own.mkdir()
        with node_agents(build, own, 1) as agents:
            # In virtual time, so that steps are as long as modelled however busy the machine is.
            outcome = Job(build, 1, ranks, layout, steps, PLUGIN, [agents[0].socket], compute_ms=300, pace="fast").wait()
            require(outcome["finished"], f"{layout}: the job did not finish: {outcome}")
            wait_until("final books", lambda: [b.get("final") for b in agents[0].books()] == [True] * ranks)
            # The rhythm must have been heard some times before steps are counted.
            enough = ranks * (steps - 20)
            samples = wait_until(f"{layout}: {enough} steps in a snapshot",
                                 lambda: has_steps(agents[0].scrape(), enough))
        found = {labels["comm_name"]: labels["dimension"] for labels, _ in samples["ncclscope_communicator_info"]}
        require(found == dimensions, f"{layout}: dimensions {found}, expected {dimensions}")

        count = value(samples, "ncclscope_step_seconds_count")
        buckets = {labels["le"]: n for labels, n in samples["ncclscope_step_seconds_bucket"]}
        within = buckets["0.5"] - buckets["0.2"]
        mean = value(samples, "ncclscope_step_seconds_sum") / count
        print(f"{layout}: {int(count)} of {ranks * steps} steps, {int(within)} of them in (0.2, 0.5] s, mean {mean:.3f} s")
        require(count <= ranks * steps, f"{layout}: {count} steps")
        require(within >= 0.95 * count, f"{layout}: only {within} of {count} steps in (0.2, 0.5] s: {buckets}")

        busy = {labels["gpu"]: seconds for labels, seconds in samples["ncclscope_gpu_communication_seconds_total"]}
        require(len(busy) == ranks and min(busy.values()) > 0, f"{layout}: communication time {busy}")
        for labels, ratio in samples["ncclscope_step_communication_ratio"]:
            require(0 < ratio < 1, f"{layout}: communication ratio {ratio} of {labels}")
        operations = collections.Counter()
        for labels, n in samples["ncclscope_collective_operations_total"]:
            operations[labels["collective"]] += int(n)
        for labels, n in samples.get("ncclscope_p2p_operations_total", []):
            operations[labels["operation"]] += int(n)
        print(f"{layout}: {dict(operations)}")
        if layout.startswith("moe"):
            require(operations["AlltoAll"] == 16 * steps * ranks, f"{operations}: 16 all-to-alls per step and rank")
            require(operations["Send"] + operations["Recv"] == 0, f"{operations}: what is an all-to-all is nothing else")
        else:
            require(operations["AlltoAll"] == 0, f"{operations}: there is no all-to-all in {layout}")
        require((operations["Send"] > 0) == layout.startswith("megatron"), f"{operations}: only pipelines send")


def detail_levels(samples):
    """{(asked, in force)} over all processes, and how many there are."""
    rows = samples.get("ncclscope_plugin_detail_info", [])
    return {(labels["asked"], labels["in_force"]) for labels, _ in rows}, len(rows)


def refuse_a_stranger(build, folder, agent):
    """Who is neither the job's owner nor an administrator is told what everybody hears of a job that does not exist."""
    if os.geteuid() != 0:
        print("not root: cannot ask as another user")
        return
    # The build may lie where others cannot look.
    command_line = shutil.copy(build.command_line, folder / "ncclscope")
    os.chmod(command_line, 0o755)
    os.chmod(folder, 0o755)
    answers = {}
    for job in (JOB, "no-such-job"):
        result = subprocess.run([command_line, "detail", "--agent", agent.api, "--job", job, "--level", "full", "--for", "1m"],
                                user=54321, group=54321, extra_groups=[], capture_output=True, text=True, timeout=30, check=False)
        require(result.returncode == 1, f"a stranger asked for detail of {job}: {result.returncode} {result.stdout}{result.stderr}")
        answers[job] = (result.stdout + result.stderr).replace(job, "JOB")
    require(len(set(answers.values())) == 1, f"a stranger learns which jobs there are: {answers}")


def detail(build, folder):
    """`ncclscope detail` on a running job: takes effect, shows in tail, ends by itself; not for strangers."""
    ranks, low_seconds = 2, 5
    with node_agents(build, folder, 1) as agents:
        agent = agents[0]
        # The governor shall not take part: emulated ranks do little else than call the plugin.
        job = Job(build, 1, ranks, "ddp", 1_000_000, PLUGIN, [agent.socket], compute_ms=5, env="NCCLSCOPE_OVERHEAD_BUDGET=1")

        def wait_for_level(level, timed):
            def reached():
                samples = agent.scrape()
                shares = [share for _, share in samples.get("ncclscope_plugin_gpu_timing_ratio", [])]
                return detail_levels(samples) == ({(level, level)}, ranks) and shares == [timed] * ranks
            wait_until(f"detail {level} in force, GPU times of {timed} of the collectives", reached, 60)

        def ask(*arguments):
            result = subprocess.run([build.command_line, "detail", "--agent", agent.api, "--job", JOB, "--json", *arguments],
                                    capture_output=True, text=True, timeout=30, check=False)
            require(result.returncode == 0, f"detail {arguments} ended with {result.returncode}: {result.stderr}")
            told = [json.loads(line)["processes"] for line in result.stdout.splitlines()]
            require(told == [ranks], f"detail {arguments}: {told} processes were told")

        def channels_in_tail():
            result = subprocess.run([build.command_line, "tail", "--agent", agent.api, "--job", JOB, "--once", "--json"],
                                    capture_output=True, text=True, timeout=60, check=False)
            require(result.returncode == 0, f"tail ended with {result.returncode}: {result.stderr}")
            return sum("channel" in json.loads(line) for line in result.stdout.splitlines())
        try:
            wait_for_level("normal", 1)
            refuse_a_stranger(build, folder, agent)
            require(channels_in_tail() == 0, "times of channels before anybody asked for them")
            ask("--level", "full", "--for", "10m")
            wait_for_level("full", 1)
            print(f"{wait_until('times of channels in tail', channels_in_tail)} records of channels in tail")
            ask("--level", "low", "--for", f"{low_seconds}s")
            wait_for_level("low", 1 / 16)
            wait_for_level("normal", 1)
        finally:
            job.stop()


OWNER, COLLEAGUE, ADMINISTRATOR = 54321, 54322, 54323   # user ids nobody has
ADMINISTRATORS = 54400                                     # the group's id in the agent's /etc/group
FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def build_for_everybody(build, folder):
    """A copy of what a job and a caller need, where each user can read it."""
    copy = type(build)(folder)
    for source, target in ((build.command_line, copy.command_line), (build.run_job, copy.run_job), (build.rank, copy.rank),
                           (build.plugin / PLUGIN, copy.plugin / PLUGIN)):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return copy


def slurm_cgroup(uid, job):
    """The folder SLURM makes for a step on cgroup v1, or None where the test may not make any."""
    folder = FREEZER / f"slurm_{os.getpid()}" / f"uid_{uid}" / f"job_{job}" / "step_0"
    try:
        folder.mkdir(parents=True)
    except OSError:
        return None
    return folder


def remove_slurm_cgroup(folder):
    for group in (folder, *folder.parents):
        if group == FREEZER:
            return

        def removed():
            with contextlib.suppress(OSError):
                group.rmdir()
            return not group.exists()
        wait_until(f"{group} removed", removed)


def other_users(build, folder):
    """The agent has given up root and proves the jobs of another user; who may ask about them is a question of user and group."""
    if os.geteuid() != 0:
        raise Skipped("not root: cannot be several users")
    agents_user = "daemon"
    folder.chmod(0o755)
    everybody = build_for_everybody(build, folder / "build")
    group_file = folder / "group"
    group_file.write_text(pathlib.Path("/etc/group").read_text() + f"ncclscope-admin:x:{ADMINISTRATORS}:\n")
    everybody.agent = program(folder / "agent-with-group", f"""#!/bin/sh
mount --bind {group_file} /etc/group || exit 77
exec {build.agent} "$@"
""")
    inner = everybody.run_job
    cgroup = slurm_cgroup(OWNER, JOB)
    everybody.run_job = program(folder / "run-job-as-owner", "#!/bin/sh\n" + (f"echo $$ > {cgroup}/cgroup.procs\n" if cgroup else "")
                                + f'exec setpriv --reuid {OWNER} --regid {OWNER} --clear-groups {inner} "$@"\n')
    agent = Agent(everybody, folder, "node0", ["--user", agents_user])
    for path in (agent.folder, agent.socket.parent):
        shutil.chown(path, agents_user, agents_user)
    job = None

    def ask(uid, *groups):
        return subprocess.run([everybody.command_line, "books", "--agent", agent.api, "--json"], user=uid, group=uid,
                              extra_groups=list(groups), capture_output=True, text=True, timeout=30, check=False)

    def processes(answer):
        # 1: books of a running job need not balance at every moment.
        require(answer.returncode in (0, 1), f"books ended with {answer.returncode}: {answer.stderr}")
        return [row for row in json.loads(answer.stdout)["processes"] if row["job_id"] == JOB]
    try:
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
            raise Skipped("no mount namespace to be had: /etc/group cannot be the test's own")
        agent.launcher = ["unshare", "--mount", "--propagation", "private"]
        with running([agent]):
            status = pathlib.Path(f"/proc/{agent.process.pid}/status").read_text()
            uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
            require(set(uids) == {str(pwd.getpwnam(agents_user).pw_uid)}, f"the agent runs as {uids}")
            job = Job(everybody, 1, 2, "ddp", 1_000_000, PLUGIN, [agent.socket], compute_ms=5)

            def known():
                rows = agent.scrape().get("ncclscope_job_info", [])
                return [labels for labels, _ in rows if labels["job_id"] == JOB]
            rows = wait_until("the job is known", known)
            wanted = "cgroup" if cgroup else "claimed"
            require([row["identity_source"] for row in rows] == [wanted], f"the job is known as {rows}, not by {wanted}")
            print(f"identity by {wanted}")
            wait_until("both ranks in the owner's books", lambda: len(processes(ask(OWNER))) == 2)
            require(len(processes(ask(ADMINISTRATOR, ADMINISTRATORS))) == 2, "the group ncclscope-admin sees every job")
            require(processes(ask(COLLEAGUE)) == [], "a colleague sees nobody's jobs")
            require(processes(ask(COLLEAGUE, OWNER)) == [], "the owner's group is not the owner")
            job.stop()
    finally:
        if job:
            job.stop()
        if cgroup:
            remove_slurm_cgroup(cgroup)


class ServiceManager:
    """What systemd does for an agent: holds its socket and the connections it asks to keep, and passes them on."""

    def __init__(self, agent):
        self.agent = agent
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(str(agent.socket))
        os.chmod(agent.socket, 0o666)
        self.door.listen(64)
        self.notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notices.bind(str(agent.folder / "notify"))
        self.notices.setblocking(False)
        self.stored = {}   # {name: descriptor}
        self.states = []
        agent.environment = dict(os.environ, NOTIFY_SOCKET=str(agent.folder / "notify"), WATCHDOG_USEC="600000")

    def listen(self):
        """Takes what the agent has said since the last time."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message, fds, _, _ = socket.recv_fds(self.notices, 4096, 16)
                lines = message.decode().splitlines()
                names = [line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")]
                if "FDSTORE=1" in lines:
                    self.stored[names[0]] = fds[0]
                elif "FDSTOREREMOVE=1" in lines:
                    os.close(self.stored.pop(names[0]))
                else:
                    self.states.append(lines[0])

    def start(self):
        self.listen()
        names = ["plugins", *self.stored]
        fds = [self.door.fileno(), *self.stored.values()]
        # Out of the way of 3, 4, ... first.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
        moves = " ".join(f"{3 + i}<&{fd} {fd}<&-" for i, fd in enumerate(high))
        self.agent.launcher = ["bash", "-c", f"LISTEN_PID=$$ LISTEN_FDS={len(fds)} LISTEN_FDNAMES={':'.join(names)} "
                               f'exec "$@" {moves}', "bash"]
        self.agent.pass_fds = high
        self.agent.start()
        for fd in high:
            os.close(fd)

    def close(self):
        for fd in self.stored.values():
            os.close(fd)
        self.door.close()
        self.notices.close()
        self.agent.socket.unlink(missing_ok=True)


def kept_connections(build, folder):
    """A service manager holds socket and connections: restarts and kills of the agent are no matter to the plugins."""
    ranks = 2
    agent = Agent(build, folder, "node0")
    manager = ServiceManager(agent)
    job = None
    try:
        manager.start()
        job = Job(build, 1, ranks, "ddp", 1_000_000, PLUGIN, [agent.socket], compute_ms=2)

        def connected():
            books = [b for b in agent.books() if b["state"] == "connected" and int(b["records_written"]) > 0]
            return books if len(books) == ranks else None
        wait_until("both ranks are heard", connected)
        for end in ("terminate", "kill", "terminate"):
            manager.listen()
            require(len(manager.stored) == ranks, f"{list(manager.stored)} are kept, not {ranks} connections")
            if end == "kill":
                agent.kill()
            else:
                agent.send(signal.SIGTERM)
                require(agent.process.wait(timeout=10) == 0, f"the agent ended with {agent.process.returncode}: {agent.log()}")
            require(agent.socket.exists(), "the agent removed a socket that is not its own")
            manager.start()
            books = wait_until(f"both ranks are heard again after {end}", connected)
            require([int(b["connects"]) for b in books] == [1] * ranks, f"connected anew after {end}: {books}")
            require(all(int(b["records_lost"]) == 0 for b in books), f"records were lost after {end}: {books}")
        job.stop()
        job = None
        wait_until("the connections of the job that left are forgotten", lambda: manager.listen() or not manager.stored)
        agent.send(signal.SIGTERM)
        require(agent.process.wait(timeout=10) == 0, f"the agent ended with {agent.process.returncode}: {agent.log()}")
        manager.listen()
        for state in ("READY=1", "WATCHDOG=1", "STOPPING=1"):
            require(state in manager.states, f"the agent never said {state}: {set(manager.states)}")
    finally:
        if job:
            job.stop()
        if agent.process.poll() is None:
            agent.kill()
        manager.close()


SCENARIOS = (exact, budget, absent_at_start, stopped_agent, killed_agent, restarted_agent, flood, crashed_rank, signals,
             detail, other_users, kept_connections)

if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, SCENARIOS))
