# SPDX-License-Identifier: Apache-2.0
"""The cases of promtool's rule tests: what agents expose, which alerts must come of it, word by word, and when.

Each alert has cases in which it fires (exact labels and annotations), does not fire, recovers, lacks data, and has
telemetry that is partly blind where that matters.
"""
import collections
import dataclasses
import re

from series import CLUSTER, JOB, Job, age, counter, gauge, shown

RUNBOOKS = "docs/runbooks"


@dataclasses.dataclass
class Case:
    subject: str
    name: str
    interval: str
    series: dict
    alerts: list = dataclasses.field(default_factory=list)  # (time, alert, [(labels, annotations)])
    values: list = dataclasses.field(default_factory=list)  # (time, expression, [(labels, value)])
    sums: bool = True  # agents add up over a GPU's communicators, and over a communicator's ranks


def of_before(series):
    """As agents wrote it that lack what the rules read a GPU's communicators from."""
    without = {"ncclscope_gpu_info": ("stage", "expert", "nnodes"),
               "ncclscope_stalled_rank_operations": ("global_rank", "node", "gpu", "state", "signature")}
    out = {}
    for name, values in series.items():
        for label in without.get(name.split("{")[0], ()):
            name = re.sub(rf', {label}="[^"]*"', "", name)
        if not name.startswith("ncclscope_gpu_communicators"):
            out[name] = values
    return out


def notes(alert, summary, description):
    return {"summary": summary, "description": description, "runbook_url": f"{RUNBOOKS}/{alert}.md"}


def at(seconds):
    return f"1970-01-01 {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} +0000 UTC"


# ---- late GPUs: one sample a minute, four ranks on two nodes, ten AllReduces a second --------------------------------

PER_MINUTE = 600


def late_job(samples, pieces, late=(1,), nodes=2, gpus=2, job_id=JOB, coverage=None, operations=None, queue=1e-5, comm="aa",
             dimension=""):
    """pieces: (samples, seconds by which the `late` ranks come late to each operation)."""
    job = Job(samples, job_id)
    names = [f"n{n}" for n in range(nodes)]
    job.communicator(comm, nodes * gpus, names, coverage=coverage, dimension=dimension)
    for rank in range(nodes * gpus):
        node, gpu = names[rank // gpus], rank % gpus
        mean = [(n, 0.001 if rank in late else 0.001 + delay) for n, delay in pieces]
        job.rank(comm, rank, node, gpu)
        job.collective(comm, rank, node, gpu, counter(*((n, PER_MINUTE * m) for n, m in mean)),
                       operations(rank) if operations else counter((samples, PER_MINUTE)),
                       counter((samples, PER_MINUTE * 1e8)))
        known = PER_MINUTE if queue is not None else 0
        job.queue(comm, rank, node, gpu, counter((samples, known * ((queue or 0) if rank in late else 0.002))),
                  counter((samples, known)))
        job.add("ncclscope_communicator_operations_total", counter((samples, PER_MINUTE)), comm=comm, rank=rank, gpu=gpu,
                stage="enqueued", instance=f"{node}:9400", job="ncclscope")
    return job


def late_gpu(since, reason="host", value="60ms", rank=1, gpu=1, node="n0", job_id=JOB):
    why = {"host": "late on the host (data loader, Python, CPU): its operations queue for less time than the others'.",
           "gpu": "its GPU was still computing when the operation was called.",
           "unknown": "host or GPU is not known, its clocks could not be matched.",
           "same": "host or GPU cannot be told: its operations queue for as long as the others'."}[reason]
    return ({"cluster": CLUSTER, "job_id": job_id, "node": node, "gpu": gpu, "global_rank": rank, "severity": "warning"},
            notes("NcclscopeLateGpu", f"GPU {gpu} of node {node} is late and slows job {job_id} down",
                  f"Job {job_id}: rank {rank} (GPU {gpu} of node {node}) comes late to collectives since {since} or longer, in "
                  f"three windows of 5m running. It works {value} per second longer than its peers, and the others wait for it "
                  f"(AllReduce of communicator aa, dp_group, in which it is rank {rank}). Reason: {why}"))


def uneven(gpus, since, job_id=JOB):
    return ({"cluster": CLUSTER, "job_id": job_id, "severity": "info"},
            notes("NcclscopeImbalance", f"The work of job {job_id} is unevenly spread",
                  f"Job {job_id}: some GPUs work longer than others, in three windows of 5m running: {gpus} (since {at(since)} or "
                  "longer). They are a whole pipeline stage or expert, may have more tokens, or always worked as long: uneven work, no "
                  "fault."))


def late_cases():
    alert = "NcclscopeLateGpu"
    yield Case(alert, "fires after three windows, and recovers", "1m",
               late_job(80, [(30, 0), (25, 0.006), (25, 0)]).series,
               [("25m", alert, []), ("39m", alert, []), ("48m", alert, [late_gpu(at(1800))]), ("62m", alert, [])])
    yield Case(alert, "late because of its GPU", "1m", late_job(40, [(40, 0.006)], queue=0.02).series,
               [("20m", alert, [late_gpu(at(60), "gpu")])])
    yield Case(alert, "its operations queue as long as others'", "1m", late_job(40, [(40, 0.006)], queue=0.0023).series,
               [("20m", alert, [late_gpu(at(60), "same")])])
    yield Case(alert, "nobody knows how long its operations queued", "1m", late_job(40, [(40, 0.006)], queue=None).series,
               [("20m", alert, [late_gpu(at(60), "unknown")])])
    yield Case(alert, "late from the job's beginning: no baseline makes it normal", "1m", late_job(90, [(90, 0.006)]).series,
               [("85m", alert, [late_gpu(at(60))])])
    yield Case(alert, "too little to matter", "1m", late_job(40, [(40, 0.0009)]).series, [("35m", alert, [])])
    yield Case(alert, "telemetry is blind", "1m", late_job(40, [(40, 0.006)], coverage=gauge((40, 0.98))).series,
               [("35m", alert, [])])
    yield Case(alert, "one rank's counters are absent", "1m",
               late_job(40, [(40, 0.006)]).drop(rank="3", collective="AllReduce").series, [("35m", alert, [])])
    yield Case(alert, "the ranks' counts differ by more than 1 %", "1m",
               late_job(40, [(40, 0.006)], operations=lambda r: counter((40, PER_MINUTE * (0.98 if r == 2 else 1)))).series,
               [("35m", alert, [])])
    yield Case(alert, "agents of before, that do not add up over a GPU's communicators", "1m",
               of_before(late_job(40, [(40, 0.006)]).series), [("35m", alert, [])], sums=False)
    yield Case(alert, "no data at all", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x40"}, [("35m", alert, [])])

    # What its GPUs wait in all-to-alls has no times: NCCL's counters have drifted.
    blind = late_job(40, [(40, 0.006)])
    blind.communicator("cc", 4, ["n0", "n1"], name="ep_group", dimension="ep")
    for rank in range(4):
        blind.rank("cc", rank, f"n{rank // 2}", rank % 2)
    for node in ("n0", "n1"):
        blind.add("ncclscope_collective_operations_total", counter((40, PER_MINUTE)), comm="cc", collective="AlltoAll", size="<=1MiB",
                  algorithm="", protocol="", timing="none", instance=f"{node}:9400", job="ncclscope")
    yield Case(alert, "nothing is known of what its GPUs wait in all-to-alls", "1m", blind.series, [("35m", alert, [])])

    # Each GPU is alone with its expert; GPU 1 of n0 works 60 ms per second longer.
    def experts(tokens):
        """tokens: relative bytes that rank 1 moves in an all-to-all; None: nobody knows, the tokens go another way."""
        job = late_job(40, [(40, 0.006)])
        job.communicator("cc", 4, ["n0", "n1"], name="ep_group", dimension="ep")
        for rank in range(4):
            job.rank("cc", rank, f"n{rank // 2}", rank % 2)
            if tokens:
                job.collective("cc", rank, f"n{rank // 2}", rank % 2, counter((40, PER_MINUTE * 0.0001)), counter((40, PER_MINUTE)),
                               counter((40, PER_MINUTE * 1e8 * (tokens if rank == 1 else 1))), "AlltoAll")
        return job.series
    # It takes 1.15 times the tokens: 3 * 1.15, where the others move 2 + 1.15.
    yield Case(alert, "an expert with 15 % more tokens works 7 % longer", "1m", experts(3.45 / 3.15),
               [("35m", alert, []), ("35m", "NcclscopeImbalance", [uneven("GPU 1 of n0", 660)])])
    yield Case(alert, "an expert with 5 % more tokens works 7 % longer", "1m", experts(3.15 / 3.05),
               [("35m", alert, [late_gpu(at(240))])])  # windows that data do not fill yet excuse more
    yield Case(alert, "nobody knows how many tokens an expert has", "1m", experts(None),
               [("35m", alert, []), ("35m", "NcclscopeImbalance", [uneven("GPU 1 of n0", 660)])])

    # A GPU whose input comes late waits as long as the others do: it is a victim, however much it causes.
    victim = late_job(40, [(40, 0.006)])
    victim.add("ncclscope_rank_p2p_seconds_total", counter((40, PER_MINUTE * 0.006)), comm="bb", rank=0, gpu=1,
               operation="Recv", instance="n0:9400", job="ncclscope")
    yield Case(alert, "a GPU that waits for its input is not accused", "1m", victim.series, [("35m", alert, [])])

    alert = "NcclscopeLateNode"
    # Two communicators over three nodes; the node's member is the late one in each.
    node = Job(40)
    names = ["n0", "n1", "n2"]
    for comm, gpu in (("aa", 0), ("bb", 1)):
        node.communicator(comm, 3, names)
        for rank, name in enumerate(names):
            node.rank(comm, rank, name, gpu, global_rank=2 * rank + gpu)
            node.collective(comm, rank, name, gpu, counter((40, PER_MINUTE * (0.001 if name == "n1" else 0.007))),
                            counter((40, PER_MINUTE)))
    described = notes(alert, "Node n1 is late and slows job 4711 down",
                      "Job 4711: all GPUs that come late to collectives are on node n1 (GPU 0 of n1, GPU 1 of n1), since "
                      f"{at(60)} or longer, in three windows of 5m running. They work up to 60ms per second longer "
                      "than their peers, and the others wait for them.")
    yield Case(alert, "all late GPUs are on one node", "1m", node.series,
               [("5m", alert, []), ("30m", alert, [({"cluster": CLUSTER, "job_id": JOB, "node": "n1", "severity": "warning"},
                                                    described)]),
                ("30m", "NcclscopeLateGpu", [])])
    ends = {s: counter((30, PER_MINUTE * (0.001 if "n1:" in s else 0.007)), (40, PER_MINUTE * 0.001)) if "seconds_total" in s
            else counter((70, PER_MINUTE)) if "operations_total" in s else gauge((70, int(v.split("+")[0])))
            for s, v in node.series.items()}
    yield Case(alert, "ends with the lateness", "1m", ends,
               [("28m", alert, [({"cluster": CLUSTER, "job_id": JOB, "node": "n1", "severity": "warning"}, described)]),
                ("65m", alert, [])])
    yield Case(alert, "a single late GPU is not its node; the alert ends with its cause", "1m",
               late_job(70, [(30, 0.006), (40, 0)]).series,
               [("20m", alert, []), ("20m", "NcclscopeLateGpu", [late_gpu(at(60))]), ("65m", alert, [])])
    yield Case(alert, "telemetry is blind", "1m", {
        name: gauge((40, 0.5)) if "coverage" in name else values for name, values in node.series.items()},
               [("35m", alert, [])])


# ---- hangs: a sample every 15 s, 150 operations each; at 5:00 something happens ---------------------------------------

RUN = 21        # samples that all is well: 0:00 to 5:00
SAMPLES = 61    # to 15:00


def progress(enqueued=0, started=0, completed=0, waits=True, state=""):
    """What a rank shows after 5:00: how far beyond operation 3000 it got, and whether something is in flight."""
    def stage(more):
        return counter((RUN, 150), (1, more), (SAMPLES - RUN - 1, 0))
    inflight = gauge((RUN, 0)) + " " + (age((SAMPLES - RUN, 15, 15)) if waits else gauge((SAMPLES - RUN, 0)))
    return {"enqueued": stage(enqueued), "started": stage(started), "completed": stage(completed), "inflight": inflight}


def still(job, comm, rank, node, gpu, shown_as, signature=None, until=SAMPLES, global_rank=None):
    """The same rank as one that does not get on, from 5:30 on, when it has been so for more than 20 s."""
    state = shown_as.get("state") or (
        "idle" if not shown_as.get("waits", True) else
        "started" if shown_as.get("started", 0) > shown_as.get("completed", 0) else
        "called" if shown_as.get("enqueued", 0) > shown_as.get("completed", 0) else "point_to_point")
    samples = until - RUN - 1
    rest = [(SAMPLES - until, None)] if until < SAMPLES else []
    seconds = (samples, 0) if state == "idle" else (samples, 30, 15)
    job.stalled(comm, rank, node, gpu, state, shown((RUN + 1, None), seconds, *rest),
                shown((RUN + 1, None), (samples, 3000 + shown_as.get("completed", 0)), *rest),
                f"{signature or 34675851943568:x}" if state in ("called", "queued", "started") or "unobserved" in state else "",
                global_rank)


WAITING = {"enqueued": 4, "started": 1}


def hang_job(ranks, comm="aa", coverage=None, nranks=4, signatures=None, name="dp_group", until=SAMPLES):
    """ranks: what each shows, or None for one that never reported."""
    job = Job(SAMPLES)
    job.communicator(comm, nranks, ["n0", "n1"], coverage=coverage, name=name)
    for rank, what in enumerate(ranks):
        if what is None:
            continue
        node, gpu = f"n{rank // 2}", rank % 2
        job.rank(comm, rank, node, gpu)
        signature = None
        if what.get("waits", True):
            signature = gauge((RUN, 0), (SAMPLES - RUN, (signatures or {}).get(rank, 34675851943568)))
        job.progress(comm, rank, node, gpu, **progress(**what), signature=signature)
        still(job, comm, rank, node, gpu, what, (signatures or {}).get(rank), until)
    return job


def hang(kind, text, value, rank=None, comm="aa", name="dp_group", since=300):
    where = {"cluster": CLUSTER, "job_id": JOB, "comm": comm, "nranks": 4, "class": kind, "severity": "critical"}
    if name:
        where["comm_name"] = name
    if rank is not None:
        where |= {"rank": rank, "global_rank": rank, "node": f"n{rank // 2}", "gpu": rank % 2}
    called = name or comm
    summary = {"process_gone": f"rank {rank} of {called} is gone" if rank is not None else f"ranks of {called} do not report",
               "argument_mismatch": f"rank {rank} of {called} calls something else than the others",
               "rank_never_called": f"rank {rank} of {called} has not called what the others wait in",
               "gpu_never_started": f"the GPU of rank {rank} of {called} never started",
               "network_stuck": f"the network of {called} is stuck", "unknown": f"a GPU or the network of {called} is stuck"}[kind]
    if rank is not None:
        summary += f" (GPU {rank % 2} of node n{rank // 2})"
    named = f"{name}, 4 ranks" if name else "4 ranks"
    return (where, notes("NcclscopeHang", f"Job 4711 hangs: {summary}",
                         f"Job 4711, communicator {comm} ({named}) waits since {at(since)}, for {value}. {text}"))


def who(rank):
    return f"rank {rank} (global rank {rank}, GPU {rank % 2} of node n{rank // 2})"


def never_called(rank):
    return f"The others wait in an operation that {who(rank)} has not called: it is outside NCCL."


def differs(rank):
    return f"At the same index, {who(rank)} calls another operation, size, datatype or root than the others."


def gone_rank(rank):
    return f"Gone: {who(rank)}. Its process ended, or node and agent report no more."


OUTSIDE = {"waits": False}
# Nobody sees whether its operations end: they count as completed when they are launched.
UNSEEN = {"enqueued": 0, "started": 0, "completed": 0, "waits": False, "state": "unobserved"}
UNSEEN_AHEAD = UNSEEN | {"enqueued": 1, "started": 1, "completed": 1}


def hang_cases():
    alert = "NcclscopeHang"
    missing = hang_job([WAITING, WAITING, OUTSIDE, WAITING])
    yield Case(alert, "agents of before, that do not say in what a rank is beside its operations", "15s", of_before(missing.series),
               [("15m", alert, [])])
    yield Case(alert, "a rank never called", "15s", missing.series,
               [("5m", alert, []), ("5m45s", alert, []),
                ("6m", alert, [hang("rank_never_called", never_called(2), "1m 0s", 2)]),
                ("14m", alert, [hang("rank_never_called", never_called(2), "9m 0s", 2)])])
    yield Case(alert, "a communicator without a name is called by its hash", "15s",
               hang_job([WAITING, WAITING, OUTSIDE, WAITING], name="").series,
               [("6m", alert, [hang("rank_never_called", never_called(2), "1m 0s", 2, name="")])])
    over = hang_job([WAITING, WAITING, OUTSIDE, WAITING], until=RUN + 20)
    for series, values in list(over.series.items()):
        if "inflight" in series:
            over.series[series] = gauge((RUN, 0)) + " " + (
                age((20, 15, 15)) if 'rank="2"' not in series else gauge((20, 0))) + " " + gauge((SAMPLES - RUN - 20, 0))
    yield Case(alert, "ends when the operation does", "15s", over.series,
               [("8m", alert, [hang("rank_never_called", never_called(2), "3m 0s", 2)]), ("10m15s", alert, [])])
    yield Case(alert, "telemetry is blind", "15s",
               hang_job([WAITING, WAITING, OUTSIDE, WAITING], coverage=gauge((SAMPLES, 0.9))).series,
               [("8m", alert, []), ("8m", "NcclscopeWaitingForRank", [])])
    yield Case(alert, "operations that take long, but end: 3 times the longest of them is waited for", "15s",
               {series: (gauge((11, 0)) + " " + age((3, 15, 15)) + " " + gauge((7, 0)) + " " + age((40, 15, 15))
                         if "inflight" in series and 'rank="2"' not in series else
                         shown((12, None), (2, 30, 15), (8, None), (39, 30, 15))
                         if "stalled_rank_seconds" in series and 'rank="2"' not in series else values)
                for series, values in hang_job([WAITING, WAITING, OUTSIDE, WAITING]).series.items()},
               [("7m", alert, []),
                ("7m15s", alert, [hang("rank_never_called", never_called(2), "2m 15s", 2)])])

    called = {"enqueued": 4}
    text = f"The GPU of {who(1)} never started the operation, which has been called."
    yield Case(alert, "a GPU never started what was called", "15s", hang_job([WAITING, called, WAITING, WAITING]).series,
               [("7m", alert, [hang("gpu_never_started", text, "2m 0s", 1)])])
    # The same in an all-to-all, of Sends and Receives; where nobody is seen to have begun, nothing is known.
    for name, not_begun, told in (("a GPU never started its Sends", "1", [hang("gpu_never_started", text, "2m 0s", 1)]),
                                  ("nobody knows who has started his Sends", "0123", [])):
        job = hang_job([{}] * 4)
        yield Case(alert, name, "15s", {
            series.replace('"point_to_point"', '"point_to_point_called"') if any(f'rank="{rank}"' in series for rank in not_begun)
            else series: values for series, values in job.series.items()}, [("7m", alert, told)])

    text = "All ranks have called and started, and nothing moves: the network is stuck. No rank is accused. Nodes: n0, n1."
    yield Case(alert, "the network is stuck", "15s", hang_job([WAITING] * 4).series,
               [("7m", alert, [hang("network_stuck", text, "2m 0s")])])

    text = differs(3)
    yield Case(alert, "an argument differs", "15s", hang_job([WAITING] * 4, signatures={3: 99}).series,
               [("7m", alert, [hang("argument_mismatch", text, "2m 0s", 3)])])

    gone = hang_job([WAITING, WAITING, WAITING, OUTSIDE])
    state = next(s for s in gone.series if s.startswith("ncclscope_rank_state") and 'rank="3"' in s)
    gone.series[state] = gauge((RUN, 1))
    gone.series[state.replace("running", "vanished")] = gauge((RUN, None), (SAMPLES - RUN, 1))
    gone.drop(state="idle")
    gone.stalled("aa", 3, "n1", 1, "vanished", shown((RUN, None), (SAMPLES - RUN - 20, 0), (20, None)),
                 shown((RUN, None), (SAMPLES - RUN - 20, 3000), (20, None)))
    text = gone_rank(3)
    yield Case(alert, "a process is gone", "15s", gone.series, [("7m", alert, [hang("process_gone", text, "2m 0s", 3)]), ("14m", alert, [hang("process_gone", text, "9m 0s", 3)])])

    dead = hang_job([WAITING, WAITING, OUTSIDE, OUTSIDE])
    for series, values in dead.series.items():
        if "n1:9400" in series:
            dead.series[series] = (f"_x{SAMPLES}" if "stalled" in series else
                                   values.split(" ", 1)[0].replace(f"+0x{SAMPLES - 1}", f"+0x{RUN - 1}") + " stale")
    yield Case(alert, "a node is dead", "15s", dead.series,
               [("7m", alert, [hang("process_gone", gone_rank(2), "2m 0s", 2), hang("process_gone", gone_rank(3), "2m 0s", 3)]),
                ("14m", alert, [hang("process_gone", gone_rank(2), "9m 0s", 2),
                                hang("process_gone", gone_rank(3), "9m 0s", 3)])])
    yield Case(alert, "ranks that never reported", "15s", hang_job([WAITING, WAITING, None, WAITING]).series,
               [("7m", alert, [hang("process_gone",
                                    "Fewer ranks report than the communicator has, and the missing ones never reported. "
                                    "Nodes that do: n0, n1.",
                                    "2m 0s")])])

    # Where GPU times are not asked for.
    text = (f"The others wait in an operation that {who(2)} has not called. GPU times of its last operations were not asked for: it "
            "may be outside NCCL, or in one of them that does not end.")
    unseen = hang_job([UNSEEN_AHEAD, UNSEEN_AHEAD, UNSEEN, UNSEEN_AHEAD])
    yield Case(alert, "nobody sees operations end: a rank never called", "15s", unseen.series,
               [("5m45s", alert, []), ("6m", alert, [hang("rank_never_called", text, "1m 0s", 2)]),
                ("15m", "NcclscopeJobOutsideNccl", [])])
    yield Case(alert, "nobody sees operations end: telemetry is blind", "15s",
               hang_job([UNSEEN_AHEAD, UNSEEN_AHEAD, UNSEEN, UNSEEN_AHEAD], coverage=gauge((SAMPLES, 0.9))).series,
               [("8m", alert, [])])
    rooted = UNSEEN_AHEAD | {"state": "unobserved_other"}
    yield Case(alert, "nobody sees operations end: who called a Broadcast need not wait for those who did not", "15s",
               hang_job([rooted, UNSEEN, UNSEEN, UNSEEN]).series, [("8m", alert, [])])
    text = differs(3)
    yield Case(alert, "nobody sees operations end: an argument differs", "15s",
               hang_job([UNSEEN_AHEAD] * 4, signatures={3: 99}).series,
               [("7m", alert, [hang("argument_mismatch", text, "2m 0s", 3)])])
    yield Case(alert, "nobody sees operations end: all called the same", "15s", hang_job([UNSEEN_AHEAD] * 4).series,
               [("14m", alert, [])])
    text = ("All ranks have called, and GPU times of their last operations were not asked for: a GPU or the network is stuck, "
            "but which cannot be told. Nodes: n0, n1.")
    queued = {"enqueued": 4, "state": "queued"}
    yield Case(alert, "queued behind operations that nobody sees end", "15s", hang_job([queued] * 4).series,
               [("7m", alert, [hang("unknown", text, "2m 0s")])])
    yield Case(alert, "one waits, and of the others nobody sees whether they do", "15s",
               hang_job([WAITING, UNSEEN_AHEAD, UNSEEN_AHEAD, UNSEEN_AHEAD]).series,
               [("7m", alert, [hang("unknown", text, "2m 0s")])])
    text = (f"The others wait in an operation that {who(2)} has not called. GPU times of its last operations were not asked for: it "
            "may be outside NCCL, or in one of them that does not end.")
    yield Case(alert, "a rank never called, and nobody sees its operations end", "15s",
               hang_job([WAITING, WAITING, UNSEEN, WAITING]).series,
               [("7m", alert, [hang("rank_never_called", text, "2m 0s", 2)])])

    # A victim: communicator bb waits for rank 0 of aa, which itself waits for rank 2. Only rank 2 is accused.
    chain = hang_job([WAITING, WAITING, OUTSIDE, WAITING])
    chain.communicator("bb", 2, ["n0", "n2"], name="tp_group")
    for rank, node, what in ((0, "n0", OUTSIDE), (1, "n2", WAITING)):
        chain.rank("bb", rank, node, 0, global_rank=4 * rank)
        chain.progress("bb", rank, node, 0, **progress(**what))
        still(chain, "bb", rank, node, 0, what, global_rank=4 * rank)
    yield Case(alert, "who waits for a victim is not told", "15s", chain.series,
               [("7m", alert, [hang("rank_never_called", never_called(2), "2m 0s", 2)])])
    # A victim on the same GPU: bb is queued behind the stuck operation of aa and cannot start.
    behind = hang_job([WAITING] * 4)
    behind.communicator("bb", 2, ["n0", "n1"], name="tp_group")
    for rank, node in ((0, "n0"), (1, "n1")):
        behind.rank("bb", rank, node, 0, global_rank=2 * rank)
        behind.progress("bb", rank, node, 0, **progress(enqueued=1))
        still(behind, "bb", rank, node, 0, {"enqueued": 1}, global_rank=2 * rank)
    yield Case(alert, "what is queued behind a stuck operation is not told", "15s", behind.series,
               [("7m", alert, [hang("network_stuck", "All ranks have called and started, and nothing moves: the network is "
                                    "stuck. No rank is accused. Nodes: n0, n1.", "2m 0s")])])
    yield Case(alert, "no data", "15s", {'up{instance="n0:9400", job="ncclscope"}': "1x60"}, [("7m", alert, [])])

    alert = "NcclscopeWaitingForRank"
    told = notes(alert, "Job 4711 waits for rank 2 of dp_group (outside NCCL)",
                 f"Job 4711, communicator aa (dp_group, 4 ranks) waits since {at(300)} for rank 2 (global rank 2, GPU 0 of node "
                 "n1), which is outside NCCL: a checkpoint, an evaluation, a data loader. 45s so far; not yet longer than this "
                 "job's waits that ended by themselves.")
    labels = hang("rank_never_called", "", "", 2)[0] | {"severity": "info"}
    yield Case(alert, "told until it is a hang", "15s", missing.series,
               [("5m15s", alert, []), ("5m45s", alert, [(labels, told)]), ("6m", alert, [])])
    yield Case(alert, "ends with the wait", "15s", over.series, [("10m15s", alert, [])])
    yield Case(alert, "telemetry is blind", "15s",
               hang_job([WAITING, WAITING, OUTSIDE, WAITING], coverage=gauge((SAMPLES, 0.9))).series, [("5m45s", alert, [])])

    alert = "NcclscopeJobOutsideNccl"
    idle = hang_job([OUTSIDE] * 4)
    told = notes(alert, "Job 4711 has not called NCCL for 10m",
                 "Job 4711: all processes run, nothing is in flight in any communicator, and nobody has called NCCL for 10m or "
                 f"longer, since {at(300)}. Everybody is outside NCCL: a long checkpoint or evaluation, a deadlock in the program, or a job that "
                 "waits for input.")
    labels = {"cluster": CLUSTER, "job_id": JOB, "severity": "warning", "class": "outside_nccl"}
    yield Case(alert, "nobody calls for ten minutes", "15s", idle.series,
               [("14m30s", alert, []), ("15m", alert, [(labels, told)])])
    unknown = (labels | {"class": "unknown"},
               notes(alert, "Job 4711 has not called NCCL for 10m, and may hang",
                     "Job 4711: all processes run, all ranks have called the same, and nobody has called NCCL for 10m or longer, "
                     f"since {at(300)}. GPU times of the last operations were not asked for, so it is not known whether these ended (then everybody "
                     "is outside NCCL) or a GPU or the network is stuck in one."))
    yield Case(alert, "nobody calls, and nobody sees whether the last operations end", "15s", hang_job([UNSEEN] * 4).series,
               [("14m30s", alert, []), ("15m", alert, [unknown])])
    yield Case(alert, "ends with the next call", "15s",
               {s: (v + " " + counter((20, 150)).replace("0+", "3000+", 1) if "_total" in s
                    else v + " stale" if "stalled" in s else v + " " + v.rsplit(" ", 1)[-1].split("x")[0] + "x19")
                for s, v in idle.series.items()},
               [("15m", alert, [(labels, told)]), ("17m", alert, [])])
    yield Case(alert, "a job at work", "15s",
               {s: counter((SAMPLES, 150)) if "_total" in s else v for s, v in idle.series.items() if "stalled" not in s},
               [("15m", alert, [])])
    yield Case(alert, "a job in a hang is told by the hang", "15s", missing.series, [("15m", alert, [])])


# ---- who else is late: groups, stages, several jobs -------------------------------------------------------------------

def grid(samples, columns, late=(), dimension="", pairs=False, late_from=0, delay=0.006, job_id=JOB, over=0):
    """Six GPUs on six nodes; `columns` communicators d0, d1 over every second of them, of the dimension; `pairs`: also the
    communicators t0..t2 of neighbours. `late` GPUs come late by `delay` seconds to each operation of their column."""
    job = Job(samples, job_id)
    for column in range(2):
        members = [g for g in range(6) if g % 2 == column]
        job.communicator(f"d{column}", 3, [f"n{g}" for g in members], name=columns, dimension=dimension)
        for rank, gpu in enumerate(members):
            node = f"n{gpu}"
            others = any(g in late for g in members if g != gpu)
            mean = 0.001 + (delay if others and gpu not in late else 0)
            pieces = [(late_from, PER_MINUTE * 0.001), (samples - late_from - over, PER_MINUTE * mean), (over, PER_MINUTE * 0.001)]
            job.rank(f"d{column}", rank, node, 0, global_rank=gpu)
            job.collective(f"d{column}", rank, node, 0, counter(*[p for p in pieces if p[0]]), counter((samples, PER_MINUTE)))
    for pair in range(3) if pairs else ():
        job.communicator(f"t{pair}", 2, [f"n{2 * pair}", f"n{2 * pair + 1}"], name="tp_group", dimension="tp")
        for rank in range(2):
            job.rank(f"t{pair}", rank, f"n{2 * pair + rank}", 0, global_rank=2 * pair + rank)
    return job


def steps(job, *pieces):
    """(samples, seconds per step); a step per second, told by one process."""
    where = {"instance": "n0:9400", "job": "ncclscope"}
    job.add("ncclscope_step_seconds_sum", counter(*((n, 60 * s) for n, s in pieces)), **where)
    job.add("ncclscope_step_seconds_count", counter((job.samples, 60)), **where)
    return job


def group_cases():
    alert = "NcclscopeLateGroup"
    tail = (f"(GPU 0 of n2, GPU 0 of n3), since {at(60)} or longer, in three windows of 5m running. They work up to 60ms per second "
            "longer than their peers, and the others wait for them.")
    tensor = ({"cluster": CLUSTER, "job_id": JOB, "kind": "group", "id": "t1", "dimension": "tp", "severity": "warning"},
              notes(alert, "The members of tp communicator t1 are late and slow job 4711 down",
                    f"Job 4711: the GPUs that come late to collectives are exactly the members of tp communicator t1 {tail}"))
    replica = ({"cluster": CLUSTER, "job_id": JOB, "kind": "replica", "id": "1", "dimension": "dp", "severity": "warning"},
               notes(alert, "The GPUs of data-parallel replica 1 are late and slow job 4711 down",
                     f"Job 4711: the GPUs that come late to collectives are exactly the GPUs of data-parallel replica 1 {tail}"))
    yield Case(alert, "all members of a tensor group, on two nodes", "1m",
               grid(40, "dp_group", (2, 3), "dp", pairs=True).series,
               [("5m", alert, []), ("30m", alert, [tensor]), ("30m", "NcclscopeLateGpu", []), ("30m", "NcclscopeLateNode", [])])
    yield Case(alert, "ends with the lateness", "1m", grid(70, "dp_group", (2, 3), "dp", pairs=True, over=40).series,
               [("28m", alert, [tensor]), ("65m", alert, [])])
    yield Case(alert, "a replica", "1m", grid(40, "dp_group", (2, 3), "dp").series,
               [("30m", alert, [replica]), ("30m", "NcclscopeLateGpu", [])])
    yield Case(alert, "two GPUs of different groups are told one by one, and the alerts end", "1m",
               grid(40, "dp_group", (2, 5), "dp", pairs=True).series,
               [("30m", alert, []),
                ("30m", "NcclscopeLateGpu", [
                    ({"cluster": CLUSTER, "job_id": JOB, "node": f"n{g}", "gpu": 0, "global_rank": g, "severity": "warning"},
                     notes("NcclscopeLateGpu", f"GPU 0 of node n{g} is late and slows job 4711 down",
                           f"Job 4711: rank {g} (GPU 0 of node n{g}) comes late to collectives since {at(60)} or longer, in three "
                           f"windows of 5m running. It works 60ms per second longer than its peers, and the others wait for it "
                           f"(AllReduce of communicator d{g % 2}, dp_group, in which it is rank {g // 2}). Reason: host or GPU is not known, its clocks "
                           "could not be matched.")) for g in (2, 5)])])
    yield Case(alert, "telemetry is blind", "1m",
               {n: gauge((40, 0.5)) if "coverage" in n else v
                for n, v in grid(40, "dp_group", (2, 3), "dp", pairs=True).series.items()}, [("30m", alert, [])])

    alert = "NcclscopeImbalance"
    told = uneven("GPU 0 of n2, GPU 0 of n3", 660)
    for dimension, what in (("pp", "a whole stage"), ("ep", "the same experts of all groups")):
        yield Case(alert, what, "1m", grid(40, "g", (2, 3), dimension).series,
                   [("5m", alert, []), ("30m", alert, [told]), ("30m", "NcclscopeLateGroup", []),
                    ("30m", "NcclscopeLateGpu", [])])
    yield Case(alert, "ends with the imbalance", "1m", grid(70, "g", (2, 3), "pp", over=40).series,
               [("28m", alert, [told]), ("65m", alert, [])])
    yield Case(alert, "one late GPU is no imbalance", "1m", late_job(40, [(40, 0.006)]).series, [("30m", alert, [])])
    yield Case(alert, "balanced", "1m", grid(40, "g", (), "pp").series, [("30m", alert, [])])
    # Always a little late, below what is told; then a little more: no more than this job always had.
    yield Case(alert, "no later than ever", "1m", late_job(100, [(70, 0.00095), (30, 0.0013)]).series,
               [("65m", alert, []),
                ("95m", alert, [uneven("GPU 1 of n0", 4800)]),
                ("95m", "NcclscopeLateGpu", [])])
    yield Case(alert, "telemetry is blind", "1m",
               {n: gauge((40, 0.5)) if "coverage" in n else v for n, v in grid(40, "g", (2, 3), "pp").series.items()},
               [("30m", alert, [])])

    alert = "NcclscopeLateButHidden"
    told = ({"cluster": CLUSTER, "job_id": JOB, "node": "n0", "gpu": 1, "global_rank": 1, "severity": "info"},
            notes(alert, "GPU 1 of node n0 is late in job 4711, and steps are not slower",
                  f"Job 4711: rank 1 (GPU 1 of node n0) comes late to collectives since {at(3600)} or longer (60ms per second), but a "
                  "step takes no longer than before: the waiting is hidden behind computing."))
    hidden = steps(late_job(110, [(60, 0), (30, 0.006), (20, 0)]), (110, 1)).series
    yield Case(alert, "late, and no slower", "1m", hidden,
               [("55m", alert, []), ("80m", alert, [told]), ("80m", "NcclscopeLateGpu", []), ("108m", alert, [])])
    yield Case(alert, "late, and slower: a warning instead", "1m",
               steps(late_job(90, [(60, 0), (30, 0.006)]), (60, 1), (30, 1.1)).series,
               [("80m", alert, []), ("80m", "NcclscopeLateGpu", [late_gpu(at(3600))])])
    yield Case(alert, "late from the beginning: nobody knows what it would be without", "1m",
               steps(late_job(90, [(90, 0.006)]), (90, 1)).series,
               [("80m", alert, []), ("80m", "NcclscopeLateGpu", [late_gpu(at(60))])])
    yield Case(alert, "telemetry is blind", "1m", {n: gauge((110, 0.5)) if "coverage" in n else v for n, v in hidden.items()},
               [("80m", alert, [])])

    alert = "NcclscopeSlowAcrossJobs"
    both = late_job(60, [(40, 0.006), (20, 0)]).series | late_job(60, [(40, 0.006), (20, 0)], job_id="4712").series
    told = ({"cluster": CLUSTER, "node": "n0", "gpu": 1, "severity": "warning"},
            notes(alert, "GPU 1 of node n0 was the late one in 2 jobs",
                  "GPU 1 of node n0 was the culprit in 2 jobs within the last 1w: 4711, 4712. The hardware or the node's set-up is "
                  "more likely than any of these programs."))
    yield Case(alert, "the same GPU in two jobs, also when it is over", "1m", both,
               [("5m", alert, []), ("40m", alert, [told]), ("59m", alert, [told])])
    yield Case(alert, "one job", "1m", late_job(40, [(40, 0.006)]).series, [("39m", alert, [])])
    yield Case(alert, "another GPU in each job", "1m",
               late_job(40, [(40, 0.006)]).series | late_job(40, [(40, 0.006)], late=(2,), job_id="4712").series,
               [("39m", alert, [])])
    yield Case(alert, "telemetry is blind", "1m", {n: gauge((60, 0.5)) if "coverage" in n else v for n, v in both.items()},
               [("40m", alert, [])])


# ---- bandwidth, links, steps ------------------------------------------------------------------------------------------

def transfer_job(pieces, job_id=JOB, algorithm=None, late=0.0, coverage=None):
    """pieces: (samples, seconds of an operation, bus bytes of it). Four ranks on two nodes, AllReduce."""
    samples = sum(p[0] for p in pieces)
    job = Job(samples, job_id)
    job.communicator("aa", 4, ["n0", "n1"], dimension="dp", coverage=coverage)
    for rank in range(4):
        node, gpu = f"n{rank // 2}", rank % 2
        job.rank("aa", rank, node, gpu)
        job.collective("aa", rank, node, gpu, counter(*((n, PER_MINUTE * (s + late * (rank != 1))) for n, s, _ in pieces)),
                       counter((samples, PER_MINUTE)), counter(*((n, PER_MINUTE * b) for n, _, b in pieces)))
    for node in ("n0", "n1"):
        where = {"comm": "aa", "collective": "AllReduce", "size": "<=256MiB", "protocol": "Simple", "job": "ncclscope",
                 "instance": f"{node}:9400"}
        names = algorithm or [("Ring", None)]
        for name, shown in names:
            mask = shown or (lambda values: values)
            job.add("ncclscope_collective_bus_bytes_total",
                    mask(counter(*((n, 2 * PER_MINUTE * b) for n, _, b in pieces))), algorithm=name, **where)
            job.add("ncclscope_collective_busy_seconds_total",
                    mask(counter(*((n, 2 * PER_MINUTE * s) for n, s, _ in pieces))), algorithm=name,
                    holds_rank="0" if node == "n0" else "", **where)
    return job


def bandwidth_cases():
    alert = "NcclscopeTransferBelowOwnBaseline"
    labels = {"cluster": CLUSTER, "job_id": JOB, "comm": "aa", "comm_name": "dp_group", "collective": "AllReduce",
              "size": "<=256MiB", "algorithm": "Ring", "dimension": "dp", "nranks": 4, "nnodes": 2, "severity": "warning"}
    told = (labels, notes(
        alert, "AllReduce of communicator dp_group in job 4711 transfers at 50% of what it did",
        "Job 4711, communicator aa (dp_group, 4 ranks on 2 nodes), AllReduce <=256MiB Ring: even the rank that waits least gets "
        f"50GB/s of bus bandwidth, 50% of the job's median over the last 6h, since {at(3600)}. The mix of messages is the same and "
        "nobody is late, so the transfer itself is slower. Suspects: GPU 0 of n0, GPU 1 of n0, GPU 0 of n1, GPU 1 of n1."))
    drop = transfer_job([(60, 0.001, 1e8), (20, 0.002, 1e8), (20, 0.001, 1e8)]).series
    yield Case(alert, "half the bandwidth, and back", "1m", drop,
               [("59m", alert, []), ("75m", alert, [told]), ("95m", alert, [])],
               [("50m", "job:ncclscope_transfer_bus_bytes_per_second:baseline / 1e9 > bool 99.9",
                 [('{cluster="c1", job_id="4711", collective="AllReduce", size="<=256MiB", dimension="dp", nranks="4", nnodes="2", '
                   'algorithm="Ring"}', 1)]),
                # As users see it: the same, since nobody waits.
                ("50m", "round(job:ncclscope_user_bus_bytes_per_second:rate5m / 1e9)",
                 [('{cluster="c1", job_id="4711", collective="AllReduce", size="<=256MiB"}', 100)]),
                ("75m", "round(comm:ncclscope_user_bus_bytes_per_second:rate5m / 1e9)",
                 [('{cluster="c1", job_id="4711", comm="aa", collective="AllReduce", size="<=256MiB"}', 50)])])
    yield Case(alert, "a drop of 5 % is within what varies", "1m",
               transfer_job([(60, 0.001, 1e8), (20, 0.00105, 1e8)]).series, [("75m", alert, [])])
    yield Case(alert, "smaller messages are slower, and not worse", "1m",
               transfer_job([(60, 0.001, 1e8), (20, 0.0008, 5e7)]).series, [("75m", alert, [])])
    yield Case(alert, "a rank that comes late is no slow transfer", "1m",
               late_job(80, [(60, 0), (20, 0.006)]).series |
               {n: v for n, v in drop.items() if n.startswith("ncclscope_collective_")}, [("75m", alert, [])])
    yield Case(alert, "no time before to hold it against", "1m", transfer_job([(10, 0.001, 1e8), (20, 0.002, 1e8)]).series,
               [("29m", alert, [])])
    other = [("Ring", lambda v: v.split(" ")[0] + " stale"), ("Tree", lambda v: "_x60 " + " ".join(v.split(" ")[1:]))]
    yield Case(alert, "another algorithm is another shape", "1m",
               transfer_job([(60, 0.001, 1e8), (20, 0.002, 1e8)], algorithm=other).series, [("78m", alert, [])])
    yield Case(alert, "telemetry is blind", "1m",
               transfer_job([(60, 0.001, 1e8), (20, 0.002, 1e8)], coverage=gauge((55, 1), (25, 0.9))).series, [("75m", alert, [])])

    alert = "NcclscopeTransferDrop"
    # A sample every 15 s: 90 minutes as always, then a twentieth less.
    before, slow = 360, 0.001 / 0.95

    def release(series, *pieces):
        """With the release of NCCL that processes load: (version, samples)."""
        for version, values in pieces:
            series = series | {f'ncclscope_plugin_info{{cluster="{CLUSTER}", job_id="{JOB}", pid="1", version="0.1.0", '
                               f'nccl_version="{version}", interface="5", mask="0x646", instance="n0:9400", job="ncclscope"}}': values}
        return series

    def drop_job(pieces, **options):
        samples = sum(p[0] for p in pieces)
        return release(transfer_job(pieces, **options).series, ("2.28.9", gauge((samples, 1))))
    dropped = [(before, 0.001, 1e8), (12, slow, 1e8), (20, 0.001, 1e8)]
    told = (labels | {"nccl_version": "2.28.9"}, notes(
        alert, "AllReduce of communicator dp_group in job 4711 has dropped to 95% of its transfer bandwidth",
        "Job 4711, communicator aa (dp_group, 4 ranks on 2 nodes), AllReduce <=256MiB Ring: within the last 89s the rank that waits "
        f"least got 95% of the job's median of bus bandwidth, which is further below it than this job's noise explains, since "
        f"{at(5430)}. Sizes, algorithm and NCCL's release are the same. Nodes: n0, n1."))
    begin = before * 15 - 15
    yield Case(alert, "five percent less, found within five scrapes, and back", "15s", drop_job(dropped),
               [(f"{begin}s", alert, []), (f"{begin + 75}s", alert, [told]), (f"{begin + 300}s", alert, [])])
    partly = drop_job([(before, 0.001, 1e8), (12, slow, 1e8), (20, 0.001 / 0.975, 1e8), (20, 0.001, 1e8)])
    yield Case(alert, "lasts until it is nearly over", "15s", partly,
               [(f"{begin + 75}s", alert, [told]),
                (f"{begin + 400}s", alert, [(told[0], {k: v.replace("95%", "97.5%") for k, v in told[1].items()})]),
                (f"{begin + 700}s", alert, [])])
    # Two kinds of collectives whose bandwidths vary by turns: neither of them is further down than it often is, both together are.
    # The noise of both together is known later than that of each.
    long, late = 620, 620 * 15 + 60

    def turns(phase, after):
        return [(1, PER_MINUTE * 0.001 / (1 if i < long else after) * (0.93 if (i + phase) % 2 else 1.07)) for i in range(long + 20)]

    def two_kinds(after):
        series = release(transfer_job([(long + 20, 0.001, 1e8)]).series, ("2.28.9", gauge((long + 20, 1))))
        return {name.replace("AllReduce", kind): counter(*turns(phase, after)) if "seconds_total" in name else values
                for phase, kind in enumerate(("AllGather", "ReduceScatter")) for name, values in series.items()}
    shape = "cluster, job_id, collective, size, dimension, nranks, nnodes, algorithm, nccl_version"
    single = (f"count(comm:ncclscope_transfer_bus_bytes_per_second:recent_share < on ({shape}) group_left () "
              "job:ncclscope_transfer_bus_bytes_per_second:recent_floor)")
    yield Case(alert, "all collectives of a job together, each of which is within its own noise", "15s", two_kinds(0.96),
               [(f"{long * 15 - 15}s", alert, [])],
               [(f"{late}s", single, []), (f"{late}s", 'count(ALERTS{alertname="NcclscopeTransferDrop"})', [("{}", 1)])])
    yield Case(alert, "all collectives of a job vary, and nothing is slower", "15s", two_kinds(1),
               [(f"{long * 15 + s}s", alert, []) for s in (0, 75, 150, 285)])
    yield Case(alert, "two percent are within what is told", "15s",
               drop_job([(before, 0.001, 1e8), (20, 0.00102, 1e8)]), [(f"{begin + 200}s", alert, [])])
    yield Case(alert, "messages are smaller from the same moment on", "15s",
               drop_job([(before, 0.001, 1e8), (20, 0.00100, 9.5e7)]), [(f"{begin + s}s", alert, []) for s in (30, 75, 200)])
    switched = [("Ring", lambda v: v.split(" ")[0] + " stale"), ("Tree", lambda v: f"_x{before} " + " ".join(v.split(" ")[1:]))]
    yield Case(alert, "another algorithm from the same moment on", "15s",
               drop_job([(before, 0.001, 1e8), (40, slow, 1e8)], algorithm=switched),
               [(f"{begin + s}s", alert, []) for s in (15, 45, 75, 300, 590)])
    yield Case(alert, "another release of NCCL from the same moment on", "15s",
               release(transfer_job([(before, 0.001, 1e8), (20, slow, 1e8)]).series, ("2.28.9", gauge((before, 1)) + " stale"),
                       ("2.29.1", gauge((before, None), (20, 1)))), [(f"{begin + s}s", alert, []) for s in (30, 75, 280)])
    yield Case(alert, "its noise is not known yet", "15s", drop_job([(120, 0.001, 1e8), (20, slow, 1e8)]), [("34m", alert, [])])
    yield Case(alert, "telemetry is blind", "15s",
               drop_job([(before, 0.001, 1e8), (20, slow, 1e8)], coverage=gauge((before - 20, 1), (40, 0.9))),
               [(f"{begin + 100}s", alert, [])])
    yield Case(alert, "no data", "15s", {'up{instance="n0:9400", job="ncclscope"}': "1x40"}, [("8m", alert, [])])

    alert = "NcclscopeTransferBelowFleet"
    shape = {"collective": "AllReduce", "size": "<=256MiB", "algorithm": "Ring", "dimension": "dp", "nranks": 4, "nnodes": 2}
    told = ({"cluster": CLUSTER, "job_id": "4714", **shape, "severity": "warning"}, notes(
        alert, "AllReduce in job 4714 transfers at 50% of what jobs of this shape do",
        "Job 4714, AllReduce <=256MiB Ring in dp communicators of 4 ranks on 2 nodes: transfer bus bandwidth is 50% of the median "
        f"over jobs of the same shape in the last 1w, since {at(3600)}. Nodes of this job: n0, n1."))
    fleet = {}
    for number, seconds in ((4711, 0.001), (4712, 0.001), (4713, 0.001), (4714, 0.002)):
        fleet |= transfer_job([(80, seconds, 1e8)], job_id=str(number)).series
    yield Case(alert, "slower than three other jobs of its shape", "1m", fleet, [("55m", alert, []), ("75m", alert, [told])])
    yield Case(alert, "too few jobs to compare with", "1m",
               {n: v for n, v in fleet.items() if "4714" in n or "4711" in n}, [("75m", alert, [])])
    yield Case(alert, "recovers", "1m",
               {n: v for n, v in fleet.items() if "4714" not in n} |
               {n: v for n, v in transfer_job([(75, 0.002, 1e8), (35, 0.001, 1e8)], job_id="4714").series.items()} |
               {n: v for n, v in fleet.items() if "4714" not in n},
               [("74m", alert, [told]), ("100m", alert, [])])
    yield Case(alert, "telemetry is blind", "1m",
               {n: gauge((80, 0.9)) if "coverage" in n and "4714" in n else v for n, v in fleet.items()}, [("75m", alert, [])])

    alert = "NcclscopeSlowLink"

    def network(sends, receives, until=40, slow_gpus=(2,), gpus=4, operations=60, small=(), usual=lambda gpu: 1):
        """The ring is in the order of ranks. `small`: GPUs that send only small messages. `usual`: how GPUs differ always."""
        job = late_job(40, [(40, 0)], nodes=gpus // 2)
        for gpu in range(gpus):
            where = {"gpu": gpu % 2, "instance": f"n{gpu // 2}:9400", "job": "ncclscope"}
            job.peer("aa", gpu, (gpu + 1) % gpus, gauge((40, 1)), **where)
            for direction, phase, factor in (("send", "wire", sends), ("receive", "data_wait", receives)):
                slow = factor if gpu in slow_gpus else 1
                seconds, size = (0.001, 6e3) if gpu in small else (0.06 * usual(gpu), 6e8)
                job.add("ncclscope_network_phase_seconds_total",
                        counter((until, seconds * slow), (41 - until, seconds)), direction=direction, phase=phase, **where)
                job.add("ncclscope_network_bytes_total", counter((41, size)), direction=direction, **where)
                job.add("ncclscope_network_operations_total", counter((41, operations)), direction=direction, **where)
        return job.series

    def slow_link(nic):
        what, why = ("NIC", "What it receives takes long as well: the NIC, not one direction.") if nic else (
            "egress link", "What it receives is as fast as others': the way out of it.")
        return ({"cluster": CLUSTER, "job_id": JOB, "node": "n1", "gpu": 0, "direction": "send", "severity": "warning"},
                notes(alert, f"The {what} of GPU 0 of node n1 is slow in job 4711",
                      f"Job 4711: a byte sent by GPU 0 of node n1 is on the wire 3 times as long as the median of the job's GPUs, "
                      f"since {at(60)}. {why}"))
    yield Case(alert, "the way out of a GPU", "1m", network(3, 1), [("5m", alert, []), ("20m", alert, [slow_link(False)])])
    yield Case(alert, "both directions: its NIC", "1m", network(3, 3), [("20m", alert, [slow_link(True)])])
    yield Case(alert, "what is sent to it is slow as well: its NIC, and not who sends to it", "1m",
               network(3, 1, slow_gpus=(1, 2), gpus=6), [("5m", alert, []), ("20m", alert, [slow_link(True)])])
    yield Case(alert, "recovers", "1m", network(3, 1, until=25), [("20m", alert, [slow_link(False)]), ("38m", alert, [])])
    yield Case(alert, "as fast as the others", "1m", network(1.2, 1.2), [("20m", alert, [])])
    yield Case(alert, "only receives wait: a victim", "1m", network(1, 3), [("20m", alert, [])])
    yield Case(alert, "few operations are known", "1m", network(3, 1, operations=3), [("20m", alert, [])])
    yield Case(alert, "half of the GPUs send only small messages, which take long for their bytes", "1m",
               network(3, 1, gpus=8, small=(0, 3, 4, 7)), [("20m", alert, [slow_link(False)])])
    yield Case(alert, "all GPUs' times differ", "1m",
               network(1.5, 1, slow_gpus=(6,), gpus=8, usual=lambda gpu: 0.4 + 0.2 * gpu % 1.4), [("20m", alert, [])])
    yield Case(alert, "no network phases (one node)", "1m", late_job(40, [(40, 0)]).series, [("20m", alert, [])])

    alert = "NcclscopeSocketsInsteadOfRdma"

    def sockets(devices, ports=gauge((40, 1)), nodes=2):
        job = late_job(40, [(40, 0)], nodes=nodes, gpus=4 // nodes)
        for rank in range(4):
            if devices:
                job.add("ncclscope_plugin_rdma_devices", devices if rank > 1 else gauge((40, 2)), pid=1000 + rank,
                        instance=f"n{rank * nodes // 4}:9400", job="ncclscope")
        return job.series | {f'ncclscope_agent_rdma_ports{{instance="n{n}:9400", job="ncclscope"}}': ports for n in range(nodes)}
    told = ({"cluster": CLUSTER, "job_id": JOB, "node": "n1", "severity": "warning"}, notes(
        alert, "Job 4711 does not use the RDMA network of node n1",
        f"Job 4711 spans several nodes, node n1 has active RDMA ports, and 2 of the job's processes there have no RDMA device open, "
        f"since {at(300)}. Their traffic between nodes goes over TCP sockets, unless a vendor's own transport carries it."))
    yield Case(alert, "one node's processes have no device open, and open one", "1m", sockets(gauge((5, 2), (20, 0), (15, 2))),
               [("9m", alert, []), ("15m", alert, [told]), ("30m", alert, [])])
    yield Case(alert, "all have devices open", "1m", sockets(gauge((40, 2))), [("20m", alert, [])])
    yield Case(alert, "the node has no active port", "1m", sockets(gauge((40, 0)), gauge((40, 0))), [("20m", alert, [])])
    yield Case(alert, "a job on one node", "1m", sockets(gauge((40, 0)), nodes=1), [("20m", alert, [])])
    yield Case(alert, "nobody knows what is open", "1m", sockets(None), [("20m", alert, [])])

    alert = "NcclscopeStepTimeAboveBaseline"
    told = ({"cluster": CLUSTER, "job_id": JOB, "severity": "warning"}, notes(
        alert, "Steps of job 4711 take 120% of what they took",
        "Job 4711: a training step takes 1.2s, which is 120% of the job's median over the last 6h, since "
        f"{at(3600 + 60)}. NCCL kernels run 30% of the time."))
    slow = steps(late_job(110, [(110, 0)]), (60, 1), (25, 1.2), (25, 1))
    for gpu in range(4):
        slow.add("ncclscope_gpu_communication_seconds_total", counter((110, 18)), gpu=gpu % 2, instance=f"n{gpu // 2}:9400",
                 job="ncclscope")
    yield Case(alert, "slower than before, and back", "1m", slow.series,
               [("59m", alert, []), ("75m", alert, [told]), ("105m", alert, [])])
    yield Case(alert, "as before", "1m", steps(late_job(90, [(90, 0)]), (60, 1), (30, 1.03)).series, [("80m", alert, [])])
    yield Case(alert, "no step times", "1m", late_job(90, [(90, 0)]).series, [("80m", alert, [])])


# ---- telemetry --------------------------------------------------------------------------------------------------------

def telemetry_cases():
    alert = "NcclscopeLowCoverage"

    def covered(*pieces):
        job = late_job(20, [(20, 0)], coverage=gauge(*pieces))
        for rank in range(4):
            job.add("ncclscope_communicator_missing_operations_total", gauge((20, 40 if rank == 2 else 0)), comm="aa", rank=rank,
                    gpu=rank % 2, instance=f"n{rank // 2}:9400", job="ncclscope")
        return job.series
    told = ({"cluster": CLUSTER, "job_id": JOB, "comm": "aa", "severity": "warning"}, notes(
        alert, "Telemetry of job 4711 is partly blind, communicator aa",
        f"Job 4711, communicator aa: 95% of the operations were recorded, since {at(300)}. No verdict about this communicator is "
        "made meanwhile. Ranks that miss most: rank 2 on n1:9400 (40 operations)."))
    yield Case(alert, "below 99 %, and back", "1m", covered((5, 1), (10, 0.95), (5, 1)),
               [("5m", alert, []), ("10m", alert, [told]), ("18m", alert, [])])
    yield Case(alert, "99.5 % will do", "1m", covered((20, 0.995)), [("10m", alert, [])])
    yield Case(alert, "no data", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x20"}, [("10m", alert, [])])

    alert = "NcclscopePluginOverhead"

    def overhead(ratios, levels, budget=0.001):
        where = {"pid": 1001, "instance": "n0:9400", "job": "ncclscope"}
        return Job(30).add("ncclscope_plugin_overhead_ratio", ratios, **where).add(
            "ncclscope_plugin_overhead_budget_ratio", gauge((30, budget)), **where).add(
            "ncclscope_plugin_governor_level", levels, **where).series

    def over_budget(ratio, governor):
        return ({"cluster": CLUSTER, "job_id": JOB, "instance": "n0:9400", "pid": 1001, "severity": "warning"}, notes(
            alert, "The plugin in process 1001 on n0:9400 is at its overhead budget",
            f"Job 4711, process 1001 on n0:9400, since {at(300)}: the plugin's own time is {ratio} of wall time; its budget is 0.1%. "
            + governor))
    yield Case(alert, "above the budget, and back", "1m", overhead(gauge((5, 1e-4), (12, 0.002), (13, 1e-4)), gauge((30, 0))),
               [("9m", alert, []), ("12m", alert, [over_budget("0.2%", "Its governor gave nothing up.")]), ("20m", alert, [])])
    yield Case(alert, "the governor gave something up to stay within it", "1m",
               overhead(gauge((30, 8e-4)), gauge((5, 0), (25, 1))), [("12m", alert, [over_budget(
                   "0.08%", "To stay within it, its governor gave something up: level 1 of 3 (no network phases).")])])
    yield Case(alert, "within the budget", "1m", overhead(gauge((30, 8e-4)), gauge((30, 0))), [("12m", alert, [])])
    yield Case(alert, "its user allowed more", "1m", overhead(gauge((30, 0.002)), gauge((30, 0)), 0.01), [("12m", alert, [])])
    yield Case(alert, "no data", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x20"}, [("12m", alert, [])])

    alert = "NcclscopeAgentDown"

    def agent(up, known=gauge((5, 1)) + " stale"):
        job = late_job(5, [(5, 0)])
        series = {n: v + " stale" for n, v in job.series.items()}
        series['up{instance="n0:9400", job="ncclscope"}'] = up
        series['up{instance="n1:9400", job="ncclscope"}'] = gauge((40, 1))
        series['up{instance="elsewhere:9100", job="node"}'] = gauge((40, 0))
        if known:
            series['ncclscope_agent_build_info{instance="n0:9400", job="ncclscope", version="0.1.0", schema="1"}'] = known
        return series
    told = ({"instance": "n0:9400", "job": "ncclscope", "severity": "warning"}, notes(
        alert, "The agent at n0:9400 does not answer",
        f"Prometheus cannot scrape the ncclscope agent at n0:9400 since {at(300)}. Nothing is known of the GPUs of this node, and "
        "no verdict is made about communicators with ranks on it. Jobs concerned: 4711 (node n0)."))
    yield Case(alert, "down, and back", "1m", agent(gauge((5, 1), (15, 0), (20, 1))),
               [("5m", alert, []), ("10m", alert, [told]), ("25m", alert, [])])
    crowded = agent(gauge((5, 1), (15, 0)))
    for job_id in range(4712, 4721):
        crowded |= {n: v + " stale" for n, v in late_job(5, [(5, 0)], job_id=str(job_id)).series.items()}
    many = ", ".join(f"{job_id} (node n0)" for job_id in range(4711, 4719)) + " and others, 10 in all"
    yield Case(alert, "down, with more jobs than a text can list", "1m", crowded, [("10m", alert, [(told[0], told[1] | {
        "description": told[1]["description"].replace("4711 (node n0)", many)})])])
    yield Case(alert, "a target that never was an agent", "1m", agent(gauge((40, 0)), None), [("10m", alert, [])])
    yield Case(alert, "up", "1m", agent(gauge((40, 1))), [("10m", alert, [])])
    yield Case(alert, "no data", "1m", Job(5).add("ncclscope_job_info", gauge((5, 1))).series, [("10m", alert, [])])

    alert = "NcclscopeVersionSkew"

    def versions(plugin, agent_pieces):
        job = Job(150)
        for pid in (1, 2):
            job.add("ncclscope_plugin_info", gauge((150, 1)), pid=pid, version=plugin, nccl_version="2.28.9", interface=5,
                    mask="0x646", instance="n0:9400", job="ncclscope")
        for version, values in agent_pieces:
            job.series[f'ncclscope_agent_build_info{{instance="n0:9400", job="ncclscope", version="{version}", schema="1"}}'] = values
        return job.series
    told = ({"cluster": CLUSTER, "job_id": JOB, "instance": "n0:9400", "version": "0.1.0", "severity": "info"}, notes(
        alert, "Plugins of version 0.1.0 report to another version's agent at n0:9400",
        "Job 4711: 2 processes on n0:9400 load plugin 0.1.0; the agent there is 0.2.0. That works within a major protocol "
        "version; fields that only one of them knows are missing."))
    yield Case(alert, "for an hour, until the agent is of the same version", "1m",
               versions("0.1.0", [("0.2.0", gauge((100, 1)) + " stale"), ("0.1.0", gauge((100, None), (50, 1)))]),
               [("59m", alert, []), ("61m", alert, [told]), ("110m", alert, [])])
    yield Case(alert, "the same version", "1m", versions("0.1.0", [("0.1.0", gauge((150, 1)))]), [("120m", alert, [])])
    yield Case(alert, "no data", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x150"}, [("120m", alert, [])])

    alert = "NcclscopeSeriesFolded"

    def folded(values):
        where = '{instance="n0:9400", job="ncclscope"}'
        return {f"ncclscope_agent_series_folded{where}": values, f"ncclscope_agent_series{where}": gauge((40, 3900)),
                f'ncclscope_agent_series_limit{where[:-1]}, level="agent"}}': gauge((40, 50000)),
                f'ncclscope_agent_series_limit{where[:-1]}, level="job"}}': gauge((40, 4000))}
    told = ({"instance": "n0:9400", "severity": "info"}, notes(
        alert, "The agent at n0:9400 folds series to stay within its limit",
        f"The agent at n0:9400 folded 12 communicators, processes or rows into others since {at(300)}: sums stay right, details are missing, "
        "and folded communicators get no verdict. Series: 3900 of 50000."))
    yield Case(alert, "folds, and no longer", "1m", folded(gauge((5, 0), (15, 12), (20, 0))),
               [("9m", alert, []), ("15m", alert, [told]), ("30m", alert, [])])
    yield Case(alert, "nothing folded", "1m", folded(gauge((40, 0))), [("15m", alert, [])])
    yield Case(alert, "no data", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x20"}, [("15m", alert, [])])

    alert = "NcclscopeArchiveLosses"

    def archive(queue, disk):
        where = 'instance="n0:9400", job="ncclscope"'
        return {"ncclscope_agent_archive_operations_total{" + where + "}": counter((40, 12000)),
                f'ncclscope_agent_archive_operations_dropped_total{{{where}, reason="queue"}}': queue,
                f'ncclscope_agent_archive_operations_dropped_total{{{where}, reason="disk"}}': disk}

    def lost(reason, why, count, since):
        return ({"instance": "n0:9400", "reason": reason, "severity": "warning"}, notes(
            alert, "The archive of the agent at n0:9400 loses operations",
            f"The agent at n0:9400 lost {count} operations of its archive in 5m, since {at(since)}: {why}. Metrics and alerts have "
            "them; reports and replays of the archive will not. Kept meanwhile: 60k."))
    yield Case(alert, "a slow disk, which recovers", "1m", archive(counter((10, 0), (10, 600), (20, 0)), counter((40, 0))),
               [("9m", alert, []), ("18m", alert, [lost("queue", "the disk is too slow for them", "3k", 600)]), ("30m", alert, [])])
    yield Case(alert, "a full disk", "1m", archive(counter((40, 0)), counter((10, 0), (30, 12000))),
               [("18m", alert, [lost("disk", "the disk refuses them", "60k", 600)])])
    yield Case(alert, "nothing lost", "1m", archive(counter((40, 0)), counter((40, 0))), [("30m", alert, [])])
    yield Case(alert, "no data", "1m", {'up{instance="n0:9400", job="ncclscope"}': "1x20"}, [("15m", alert, [])])


def absent_cases():
    """Nothing but targets that are up: agents that know of no job."""
    up = {f'up{{instance="n{n}:9400", job="ncclscope"}}': "1x40" for n in range(2)}
    for alert in ("NcclscopeWaitingForRank", "NcclscopeJobOutsideNccl", "NcclscopeLateNode", "NcclscopeLateGroup",
                  "NcclscopeImbalance", "NcclscopeSlowAcrossJobs", "NcclscopeTransferBelowOwnBaseline",
                  "NcclscopeTransferBelowFleet"):
        yield Case(alert, "no data", "1m", up, [("35m", alert, [])])


def collect():
    grouped = collections.defaultdict(list)
    for source in (late_cases, hang_cases, group_cases, bandwidth_cases, telemetry_cases, absent_cases):
        for case in source():
            grouped[case.subject].append(case)
    return grouped
