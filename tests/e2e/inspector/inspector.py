#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: emulated jobs with NCCL Inspector's environment -> its files and its page, as its readers take them.

  inspector.py --build DIR SCENARIO

What must be in the files comes from elsewhere than the plugin: the same job is run once more with the recorder plugin, and its
callbacks are counted here. In some scenarios every kernel of the emulated machine takes equally long, so that the rank which
came last into a collective must show just that.
"""
import collections
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time

from prometheus_client.openmetrics import parser as openmetrics

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import monitoring  # noqa: E402
import rules  # noqa: E402
from support import CLUSTER, JOB, PLUGIN, Failure, Job, node_agents, parse_samples, require, run_scenarios, wait_until  # noqa: E402

TYPE_BYTES = {"ncclInt8": 1, "ncclUint8": 1, "Unknown": 1, "ncclInt32": 4, "ncclUint32": 4, "ncclInt64": 8,
              "ncclUint64": 8, "ncclFloat16": 2, "ncclFloat32": 4, "ncclFloat64": 8, "ncclBfloat16": 2}
LAYOUT = "megatron:tp=2,pp=2"
NODES, GPUS, STEPS = 2, 2, 12
KERNEL_US = 800
MIN_BYTES = 8192
# On a machine that emulates several, the governor would leave operations without GPU times.
COMMON = ["SLURM_CLUSTER_NAME=" + CLUSTER, "NCCLSCOPE_OVERHEAD_BUDGET=1"]


def truth(build, folder, layout=LAYOUT, steps=STEPS, least=MIN_BYTES):
    """Counter of (comm, rank, function, number, bytes), numbers of transfers left out, as the job's callbacks say."""
    records = folder / "truth"
    records.mkdir()
    ranks = NODES * GPUS
    # One GPU per node: a file per rank. Who talks to whom, and how much, is the same as on fuller nodes.
    outcome = Job(build, ranks, 1, layout, steps, records=records, compute_ms=1).wait()
    require(outcome["finished"], f"the recorded job did not finish: {outcome}")
    found = collections.Counter()
    for path in sorted(records.glob("*.jsonl")):
        communicators = {}
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["cb"] == "init":
                communicators[event["ctx"]] = (int(event["commId"], 16), event["rank"])
            elif event["cb"] == "start" and event["type"] in ("Coll", "P2p"):
                size = event["count"] * TYPE_BYTES[event["datatype"]]
                if size >= least:
                    number = event["seqNumber"] if event["type"] == "Coll" else None
                    found[(*communicators[event["ctx"]], event["func"], number, size)] += 1
    require(found, "the recording holds no operation")
    return found


def run_job(build, folder, environment=(), sockets=(), layout=LAYOUT, steps=STEPS, **options):
    settings = [f"NCCL_INSPECTOR_DUMP_DIR={folder}", *COMMON, *environment]
    job = Job(build, NODES, GPUS, layout, steps, PLUGIN, sockets, env=settings, compute_ms=2, kernel_us=KERNEL_US, **options)
    outcome = job.wait()
    require(outcome["finished"], f"the job did not finish: {outcome}")
    return outcome


def lines_of(trees, part):
    return [data for objects in trees.values() for data in objects if part in data]


def counted(lines, part="coll_perf"):
    prefix = part.removesuffix("perf")
    found = collections.Counter()
    for data in lines:
        body = data[part]
        number = body["coll_sn"] if part == "coll_perf" else None
        found[int(data["header"]["id"], 16), data["header"]["rank"], body[prefix.rstrip("_")], number,
              body[prefix + "msg_size_bytes"]] += 1
    return found


def require_equal(found, expected, what):
    if found == expected:
        return
    missing, surplus = expected - found, found - expected
    raise Failure(f"{what}: {sum(missing.values())} missing, such as {list(missing)[:3]}; "
                  f"{sum(surplus.values())} too many, such as {list(surplus)[:3]}")


def require_kernel_times(lines):
    """The rank that comes last into a collective has the kernel's own time, and no rank less."""
    least = collections.defaultdict(lambda: math.inf)
    ranks = collections.Counter()
    for data in lines:
        header, body = data["header"], data["coll_perf"]
        key = header["id"], body["coll"], body["coll_sn"]
        least[key] = min(least[key], body["coll_exec_time_us"])
        ranks[key] += 1
        require(body["coll_exec_time_us"] >= KERNEL_US - 1, f"less than a kernel takes: {data}")
    synchronous = [us for key, us in least.items() if key[1] in ("AllReduce", "AllGather", "ReduceScatter")]
    wrong = [us for us in synchronous if abs(us - KERNEL_US) > 1]
    require(synchronous and not wrong, f"{len(wrong)} of {len(synchronous)} collectives are not {KERNEL_US} us long for the last "
            f"rank: {wrong[:5]}")
    print(f"{len(synchronous)} collectives of {KERNEL_US} us for the rank that came last, {len(lines)} lines")


def lines(build, folder):
    """v4.0: every byte by the rules, every operation once, times as emulated, and NVIDIA's exporter takes all of it."""
    began = time.time_ns() // 1000
    files = folder / "files"
    files.mkdir()
    layout = "megatron:tp=2,dp=2"  # tensor parallel within nodes, data parallel between them
    run_job(build, files / "step", layout=layout)
    tree = rules.check_tree(files)
    require(len(tree) == NODES * GPUS, f"files {list(tree)}")
    got = lines_of(tree, "coll_perf")
    collectives = collections.Counter({k: n for k, n in truth(build, folder, layout).items() if k[2] not in ("Send", "Recv")})
    require_equal(counted(got), collectives, "collectives")
    require_kernel_times(got)
    stamps = [data["metadata"]["dump_timestamp_us"] for data in got]
    require(began <= min(stamps) and max(stamps) <= time.time_ns() // 1000, "operations are not done at the time they say")

    rows = rules.exporter_rows(files)
    require(len(rows) == len(got), f"the exporter has {len(rows)} of {len(got)} lines")
    groups = rules.exporter_groups(rows)
    print({f"{kind} {function}": len(group) for (kind, function), group in groups.items()})
    require({kind for kind, _ in groups} >= {"nvlink-only", "hca-only"}, f"communicators of {list(groups)}")
    for group in groups.values():
        for (_, _, _), members in group.items():
            require(len(members) == members[0]["n_ranks"], f"{len(members)} of {members[0]['n_ranks']} ranks: {members[0]}")


def newer_lines(build, folder):
    """v4.2, with event traces, transfers and counters of loss."""
    files = folder / "files"
    run_job(build, files, ["NCCLSCOPE_INSPECTOR_FORMAT=v4.2", "NCCL_INSPECTOR_DUMP_VERBOSE=1", "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0",
                           "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000"])
    tree = rules.check_tree(files, "v4.2", ("coll_perf", "p2p_perf", "dump_stats"))
    expected = truth(build, folder, least=0)
    for part, functions in (("coll_perf", False), ("p2p_perf", True)):
        wanted = collections.Counter({k: n for k, n in expected.items() if (k[2] in ("Send", "Recv")) == functions})
        require_equal(counted(lines_of(tree, part), part), wanted, part)
    for data in lines_of(tree, "coll_perf"):
        require(data["coll_perf"]["event_trace_sn"]["kernel_events"], f"no channel: {data}")
    records = collections.Counter()
    for data in lines_of(tree, "dump_stats"):
        require(data["dump_stats"]["coll_dropped_total"] == 0 and data["dump_stats"]["p2p_dropped_total"] == 0, f"{data}")
        records["coll"] += data["dump_stats"]["coll_records"]
        records["p2p"] += data["dump_stats"]["p2p_records"]
    have = {"coll": len(lines_of(tree, "coll_perf")), "p2p": len(lines_of(tree, "p2p_perf"))}
    require(dict(records) == have, f"counted {records}, there are {have}")


def lint(text, names):
    """promtool's opinion, but for units: the names are NVIDIA's."""
    promtool = shutil.which("promtool")
    require(promtool, "promtool is not installed")
    result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False)
    said = [line for line in (result.stdout + result.stderr).splitlines()
            if not re.fullmatch(r"(" + "|".join(names) + r")_microseconds use base unit \"seconds\" instead of \"microseconds\"", line)]
    require(not said, f"promtool: {said}")


TIMES = ("nccl_collective_exec_time", "nccl_p2p_exec_time")
COLLECTIVE = ["version", "cluster", "slurm_job_id", "node", "hostname", "gpu", "comm_name", "n_nodes", "nranks", "collective",
              "message_size", "algo_proto"]
TRANSFER = [*COLLECTIVE[:9], "p2p_operation", "message_size"]
NAMES = {"nccl_bus_bandwidth_gbs": COLLECTIVE, "nccl_collective_exec_time_microseconds": COLLECTIVE,
         "nccl_p2p_bus_bandwidth_gbs": TRANSFER, "nccl_p2p_exec_time_microseconds": TRANSFER}


def check_exposition(text):
    """{name: [(labels, value)]}: Inspector's four metrics with Inspector's labels in its order, typed, none twice."""
    samples = parse_samples(text)
    for name, labels in NAMES.items():
        if name not in samples:
            continue
        require(f"# TYPE {name} gauge" in text and f"# HELP {name} " in text, f"{name} has no type or help")
        sets = [tuple(have.items()) for have, _ in samples[name]]
        require(len(sets) == len(set(sets)), f"{name}: a series twice")
        for line in text.splitlines():
            if line.startswith(name + "{"):
                have = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', line)
                require(have == labels, f"{name}: labels {have}")
        for have, number in samples[name]:
            require(number > 0, f"{name}{have} {number}")
            require(have["version"] == "v5.1" and have["slurm_job_id"] == JOB and have["cluster"] == CLUSTER, f"{have}")
            require(have["node"] == have["hostname"] and re.fullmatch(r"GPU\d+", have["gpu"]), f"{have}")
            require(re.fullmatch(r"\d+-\d+([KMGT]?B)", have["message_size"]), f"{have}")
    lint(text, TIMES)
    return samples


def range_of(name):
    """The bytes [from, to) of a message size's name."""
    k, _, unit = re.fullmatch(r"(\d+)-(\d+)([KMGT]?B)", name).groups()
    scale = 1024 ** ["B", "KB", "MB", "GB", "TB"].index(unit)
    return int(k) * scale, (int(k) + 1) * scale


def require_values(samples):
    """Bandwidths are those of the sizes and times beside them, and no time is less than a kernel takes."""
    require(samples["nccl_bus_bandwidth_gbs"], "no bandwidth")
    times = {tuple(labels.items()): us for labels, us in samples["nccl_collective_exec_time_microseconds"]}
    require(len(times) == len(samples["nccl_bus_bandwidth_gbs"]), "not every bandwidth has its time")
    for labels, bandwidth in samples["nccl_bus_bandwidth_gbs"]:
        us = times[tuple(labels.items())]
        require(us >= KERNEL_US - 1, f"{us} us: {labels}")
        whole, share = rules.factor(labels["collective"], int(labels["nranks"]))
        # Of the shortest time, which is the largest bandwidth there can be: the mean is not above it.
        most = range_of(labels["message_size"])[1] * whole * share / (KERNEL_US - 1) / 1000
        require(0 < bandwidth <= most, f"{bandwidth} GB/s, at most {most}: {labels}")


def textfiles(build, folder):
    """.prom files while the job runs: whole at any time, right, and gone with the job."""
    files = folder / "files"
    settings = [f"NCCL_INSPECTOR_DUMP_DIR={files}", "NCCL_INSPECTOR_PROM_DUMP=1", *COMMON,
                "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000", f"LD_PRELOAD={fake_cuda(build)}"]
    job = Job(build, NODES, GPUS, LAYOUT, 100_000, PLUGIN, env=settings, compute_ms=2, kernel_us=KERNEL_US, seconds=8,
              node_env=[f"{n}:SLURMD_NODENAME=node{n}" for n in range(NODES)])
    try:
        looks, names, seen = 0, set(), collections.Counter()
        end = time.monotonic() + 60
        while len(seen) < NODES * GPUS or looks < 40:
            require(time.monotonic() < end, f"after a minute only {seen}, {looks} looks")
            require(job.process.poll() is None, f"the job ended after {looks} looks at {seen}")
            for path in files.glob("*.prom") if files.is_dir() else ():
                try:
                    text = path.read_text()
                except FileNotFoundError:
                    continue
                looks += 1
                names.add(path.name)
                if seen[path.name] < 2:
                    require_values(check_exposition(text))
                    seen[path.name] += 1
                require(text.endswith("\n") and "nccl_bus_bandwidth_gbs" in text, f"{path.name} is cut: {text[-200:]}")
            time.sleep(0.02)
        for name in names:
            require(re.fullmatch(r"nccl_inspector_metrics_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.prom", name), name)
        require(job.wait()["finished"], "the job did not finish")
    finally:
        job.stop()
    left = list(files.iterdir())
    require(not left, f"the job is gone, and {left} are not")
    print(f"{looks} looks at {sorted(names)}")


def fake_cuda(build):
    return build.folder / "tests" / "libcuda.so.1"


# What Inspector's dashboards ask, NVIDIA's first: 20 panels of which these are the kinds; then those of RCCL's and Nebius'.
def queries():
    select = f'cluster="{CLUSTER}", slurm_job_id="{JOB}"'
    for kind, label, metrics in (("p2p_operation", ("Send", "Recv"), ("nccl_p2p_bus_bandwidth_gbs", "nccl_p2p_exec_time_microseconds")),
                                 ("collective", ("ReduceScatter", "AllReduce", "AllGather"),
                                  ("nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"))):
        for value in label:
            for metric in metrics:
                yield f'avg by(message_size, nranks) ({metric}{{{select}, {kind}="{value}", n_nodes="1"}})'
                yield f'avg by(message_size, nranks, n_nodes) ({metric}{{{select}, {kind}="{value}", n_nodes!="1"}})'
                yield (f'avg by(message_size, nranks, n_nodes, hostname, slurm_job_id) '
                       f'({metric}{{slurm_job_id=~"{JOB}", {kind}="{value}", hostname=~"node0|node1"}})')


# Nodes, GPUs of each: Send and Recv between nodes, ReduceScatter and AllGather within them; AllReduce within, the others between;
# AllReduce between; Send and Recv within.
LAYOUTS = ((2, 2, "megatron:tp=1,pp=2,dp=2"), (2, 2, "megatron:tp=2,dp=2"), (2, 1, "ddp"), (1, 2, "megatron:tp=1,pp=2"))


def page(build, folder):
    """/metrics/inspector: Inspector's dashboards get data from a real Prometheus; nothing is left once the job is gone."""
    with node_agents(build, folder, NODES, arguments=["--inspector-window-seconds", "1"]) as agents:
        jobs = [Job(build, nodes, gpus, layout, 100_000, PLUGIN, [a.socket for a in agents][:nodes], compute_ms=20,
                    kernel_us=KERNEL_US, seconds=120, env=COMMON, seed=n) for n, (nodes, gpus, layout) in enumerate(LAYOUTS, 1)]
        scrapes = [monitoring.scrape("inspector", *(a.address for a in agents), metrics_path="/metrics/inspector")]
        with monitoring.prometheus(folder, scrapes) as prometheus:
            try:
                def window():
                    found = check_exposition(agents[0].get("/metrics/inspector")[1])
                    return found if all(name in found for name in NAMES) else None
                samples = wait_until("a window with all kinds of operations", window)
                require_values(samples)
                require(samples["ncclscope_inspector_left_out_operations_total"] == [({}, 0.0)], "operations were left out")
                require({labels["gpu"] for labels, _ in samples["nccl_bus_bandwidth_gbs"]} == {"GPU0", "GPU1"}, "GPUs of the node")
                kind, text = agents[1].get("/metrics/inspector", "application/openmetrics-text; version=1.0.0")
                require(kind.startswith("application/openmetrics-text"), kind)
                require(list(openmetrics.text_string_to_metric_families(text)), "no family in OpenMetrics")

                asked = list(queries())
                answers = {}

                def all_answer():
                    for expression in asked:
                        if not answers.get(expression):
                            answers[expression] = prometheus.query(expression)
                    return all(answers[e] for e in asked)
                try:
                    wait_until("data for the dashboards' queries", all_answer, 60)
                except Failure:
                    print("\n".join(f"no data: {e}" for e in asked if not answers[e]))
                    raise
                for name in ("cluster", "slurm_job_id"):
                    have = prometheus.ask(f"label/{name}/values")
                    require(have == [{"cluster": CLUSTER, "slurm_job_id": JOB}[name]], f"{name}: {have}")
                print(f"{len(asked)} queries, {sum(bool(a) for a in answers.values())} with data")
            finally:
                for job in jobs:
                    job.stop()
            wait_until("no series of a job that is gone", lambda: not prometheus.query("nccl_bus_bandwidth_gbs"), 30)
            require(prometheus.query('max_over_time(up{job="inspector"}[5m])')[0]["value"][1] == "1", "the scrapes failed")
        # Nobody has asked for it: there is no such page.
    (folder / "off").mkdir()
    with node_agents(build, folder / "off", 1) as agents:
        try:
            agents[0].get("/metrics/inspector")
        except OSError as error:
            require("404" in str(error), f"without a window: {error}")
        else:
            raise Failure("the page is there though it is off")


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, [lines, newer_lines, textfiles, page]))
