#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the rules cost: a real Prometheus scrapes 1,000 ranks in 6 communicators each, and evaluates all rules.

  rules_cost.py [--out FILE] [--prometheus FILE] [--nodes 125] [--profile] [--brief]

The exposition is synthetic (125 nodes of 8 GPUs in TP8 x PP5 x DP25, one late GPU), in the agent's format and with its
labels. It is scraped every 15 s: for five minutes, so that the window is full; without rules for a while (what scraping costs); then
with them: of a healthy job, then of one that hangs, which is when most rules have something to do. Six hours of recorded series lie
in the database, so that baselines cost what they cost. The groups' intervals are shortened to be evaluated often enough; the rules
themselves are the shipped ones.

The figure is the sum of prometheus_rule_group_last_duration_seconds over all groups (the quickest evaluation of each group,
since other work on the machine can only add; the median is printed too), for each part; beside it the CPU time of Prometheus for
one evaluation of all, garbage collection included, less what it takes without rules. Writes Google Benchmark's JSON (rows
RulesCost/healthy and RulesCost/hung). Beside it the seconds of evaluation per minute that the shipped intervals make of it (groups
without an interval: every 15 s), and how many samples an evaluation reads, which no other work on the machine changes. --prometheus
is the server's program (scripts/fetch-prometheus.sh builds a current one, which costs half of what Debian's costs). --profile
prints the slowest rules. --brief takes three minutes instead of eight: scrapes every 5 s, and rules with a window a third as long, so
that they read as many samples; scraping takes three times as much beside them.
"""
import argparse
import collections
import dataclasses
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPUS = 8
SCRAPES = 20  # in a window


@dataclasses.dataclass(frozen=True)
class Pace:
    scrape_s: int
    idle_s: int
    healthy_s: int
    hung_s: int

    @property
    def window_s(self):
        return SCRAPES * self.scrape_s

    def window(self):
        return f"{self.window_s // 60}m" if self.window_s % 60 == 0 else f"{self.window_s}s"

    def settings(self):
        """Of the rules: as many samples in all ranges as at the shipped ones."""
        return [f"window={self.window()}", f"recent={6 * self.scrape_s - 1}s", f"lost_offset={self.window_s}s"]


SHIPPED = Pace(scrape_s=15, idle_s=30, healthy_s=33, hung_s=51)
BRIEF = Pace(scrape_s=5, idle_s=15, healthy_s=27, hung_s=36)
EVALUATE_S = 6
BAR_S = 1
JOB = {"cluster": "c1", "job_id": "4711"}
SIZES = ("<=1MiB", "<=256MiB")


def communicators(rank, world):
    """(name, hash, rank in it, size, nodes, dimension, collectives) of the six communicators of a rank."""
    tensor, stage_size = 8, max(8, world // 5)
    stage, inside = divmod(rank, stage_size)
    pipeline = [r for r in range(world) if r % stage_size == inside]
    data = [r for r in range(stage * stage_size, min(world, (stage + 1) * stage_size)) if r % tensor == rank % tensor]
    model = [r for r in range(world) if (r % stage_size) // tensor == inside // tensor]
    expert = [r for r in data if (r // 40) == (rank // 40)]
    yield "default_pg", 0x1000, rank, list(range(world)), "", ("AllReduce",)
    yield "tp_group", 0x2000 + rank // tensor, rank % tensor, [r for r in range(rank - rank % tensor, rank - rank % tensor + 8)], \
        "tp", ("AllReduce", "ReduceScatter")
    yield "pp_group", 0x3000 + inside, pipeline.index(rank), pipeline, "pp", ()
    yield "dp_group", 0x4000 + stage * tensor + rank % tensor, data.index(rank), data, "dp", ("AllGather", "ReduceScatter")
    yield "mp_group", 0x5000 + inside // tensor, model.index(rank), model, "", ("AllReduce",)
    yield "ep_group", 0x6000 + expert[0], expert.index(rank), expert, "ep", ("AlltoAll",)


class Node:
    """Text of one node's exposition: "name{labels} " with what the value is made of."""

    def __init__(self, node, world):
        self.lines = []    # (prefix, constant, per second, more while hung)
        self.stalled = []  # the same, shown only while hung
        self.name = f"n{node}"
        local, seconds, first = collections.defaultdict(list), collections.defaultdict(float), set()
        for gpu in range(GPUS):
            rank = node * GPUS + gpu
            late = rank == 3
            of_gpu, stage, expert = [], "", ""
            self.process(rank, gpu)
            for name, number, place, members, dimension, collectives in communicators(rank, world):
                comm = f"{number:016x}"
                nodes = len({m // GPUS for m in members})
                local[comm, name, len(members), nodes, dimension, collectives].append(rank)
                labels = {"comm": comm, "rank": place}
                if place == 0:
                    first.add(comm)
                self.add("ncclscope_rank_info", 1, global_rank=rank, local_rank=gpu, node=self.name, gpu=gpu,
                         gpu_uuid=f"GPU-{rank:032x}", pci_bus_id=f"0000:{gpu:02x}:00.0", pid=10000 + gpu, dimension=dimension,
                         **labels)
                self.add("ncclscope_rank_state", 1, state="running", **labels)
                if nodes > 1:
                    self.add("ncclscope_network_peer_info", 1, gpu=gpu, peer=(place + 1) % len(members), **labels)
                of_gpu.append(f"{comm}:{place}:{(place + 1) % len(members) if nodes > 1 else ''}")
                stage = place if dimension == "pp" else stage
                expert = place if dimension == "ep" else expert
                for stage, ahead in (("enqueued", 4), ("started", 1), ("completed", 0)):
                    self.add("ncclscope_communicator_operations_total", 1000 + (ahead if rank != 5 else 0), 20, stage=stage,
                             gpu=gpu, **labels)
                self.add("ncclscope_communicator_inflight_seconds", 0.01 if rank != 5 else 0, 0,
                         100 if rank != 5 and 5 in members else 0, gpu=gpu, **labels)
                self.add("ncclscope_communicator_oldest_signature", 12345678901 if rank != 5 else 0, **labels)
                self.add("ncclscope_rank_queue_seconds_total", 1, 0.01, gpu=gpu, **labels)
                self.add("ncclscope_rank_queue_operations_total", 1000, 20, gpu=gpu, **labels)
                waits = rank != 5 and 5 in members
                self.add("ncclscope_stalled_rank_seconds", 0, hung=100 if waits else 0, into=self.stalled, global_rank=rank,
                         node=self.name, gpu=gpu, state="started" if waits else "idle",
                         signature="1f8a2b3c4d5e" if waits else "", **labels)
                self.add("ncclscope_stalled_rank_operations", 1000, into=self.stalled, global_rank=rank, node=self.name, gpu=gpu,
                         state="started" if waits else "idle", signature="1f8a2b3c4d5e" if waits else "", **labels)
                self.add("ncclscope_communicator_missing_operations_total", 0, gpu=gpu, **labels)
                for collective in collectives:
                    each = 0.02 if late else 0.06 + rank * 1e-6
                    self.add("ncclscope_rank_collective_seconds_total", 1, each, gpu=gpu, collective=collective, **labels)
                    seconds[comm, collective] += each
                    self.add("ncclscope_rank_collective_operations_total", 1000, 10, gpu=gpu, collective=collective, **labels)
                    self.add("ncclscope_rank_collective_bus_bytes_total", 1e9, 1e9, gpu=gpu, collective=collective, **labels)
                if name == "pp_group":
                    for operation in ("Send", "Recv"):
                        self.add("ncclscope_rank_p2p_seconds_total", 1, 0.03, gpu=gpu, operation=operation, **labels)
                        self.add("ncclscope_rank_p2p_operations_total", 1000, 10, gpu=gpu, operation=operation, **labels)
                        self.add("ncclscope_rank_p2p_bus_bytes_total", 1e9, 1e9, gpu=gpu, operation=operation, **labels)
            self.add("ncclscope_gpu_communication_seconds_total", 1, 0.3, gpu=gpu)
            self.add("ncclscope_gpu_info", 1, gpu=gpu, node=self.name, global_rank=rank, gpu_uuid=f"GPU-{rank:032x}",
                     pci_bus_id=f"0000:{gpu:02x}:00.0", stage=stage, expert=expert, nnodes=world // GPUS)
            self.add("ncclscope_gpu_communicators", 1, gpu=gpu, node=self.name, global_rank=rank, part=0, members=" ".join(of_gpu))
            each = 0.02 if late else 0.06 + rank * 1e-6
            self.add("ncclscope_gpu_collective_seconds_total", 7, 7 * each, gpu=gpu)
            self.add("ncclscope_gpu_blocking_seconds_total", 8, 7 * each + 0.03, gpu=gpu)
            for direction, phases in (("send", ("gpu_wait", "peer_wait", "wire")), ("receive", ("data_wait", "flush", "gpu_wait"))):
                for phase in phases:
                    self.add("ncclscope_network_phase_seconds_total", 1, 0.01, gpu=gpu, direction=direction, phase=phase)
                self.add("ncclscope_network_bytes_total", 1e9, 1e8, gpu=gpu, direction=direction)
                self.add("ncclscope_network_operations_total", 1000, 10, gpu=gpu, direction=direction)
        for (comm, name, nranks, nodes, dimension, collectives), ranks in local.items():
            self.add("ncclscope_communicator_info", 1, comm=comm, comm_name=name, nranks=nranks, nnodes=nodes,
                     dimension=dimension, local_ranks=len(ranks))
            self.add("ncclscope_telemetry_coverage_ratio", 1, comm=comm)
            self.add("ncclscope_communicator_local_ranks", len(ranks), comm=comm)
            for collective in collectives:
                self.add("ncclscope_communicator_collective_seconds_total", len(ranks), seconds[comm, collective], comm=comm,
                         collective=collective)
                for size, weight in zip(SIZES, (1, 30)):
                    labels = {"comm": comm, "collective": collective, "size": size, "algorithm": "Ring", "protocol": "Simple"}
                    share = len(ranks) * weight
                    self.add("ncclscope_collective_operations_total", 1000, share, timing="gpu", **labels)
                    self.add("ncclscope_collective_bytes_total", 1000, share * 1e6, timing="gpu", **labels)
                    self.add("ncclscope_collective_bus_bytes_total", 1000, share * 1e7, **labels)
                    self.add("ncclscope_collective_busy_seconds_total", 1, share * 1e-3, holds_rank="0" if comm in first else "",
                             **labels)
        for collective in ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll"):
            for size in SIZES:
                for bound in [f"{1e-5 * 4 ** i:g}" for i in range(12)] + ["+Inf"]:
                    self.add("ncclscope_collective_duration_seconds_bucket", 1000, 10, collective=collective, size=size, le=bound)
                self.add("ncclscope_collective_duration_seconds_sum", 1, 0.1, collective=collective, size=size)
                self.add("ncclscope_collective_duration_seconds_count", 1000, 10, collective=collective, size=size)
        self.add("ncclscope_step_seconds_sum", 1, 1)
        self.add("ncclscope_step_seconds_count", 1, 1)
        self.add("ncclscope_job_info", 1, user="u", partition="p", account="a", job_name="j", array_task="", run=0, namespace="",
                 pod="", identity_source="cgroup")
        for name, value in (("ncclscope_agent_series", 1900), ("ncclscope_agent_series_limit", 4000),
                            ("ncclscope_agent_series_folded", 0)):
            self.lines.append((f"{name} ", value, 0, 0))
        self.lines.append(('ncclscope_agent_build_info{version="0.1.0",schema="1"} ', 1, 0, 0))

    def process(self, rank, gpu):
        del rank
        where = {"pid": 10000 + gpu}
        self.add("ncclscope_plugin_info", 1, version="0.1.0", nccl_version="2.28.9", interface=5, mask="0x646", **where)
        for name in ("events_seen_total", "events_recorded_total", "records_written_total", "records_received_total",
                     "callbacks_total"):
            self.add(f"ncclscope_plugin_{name}", 1000, 100, **where)
        for reason in ("no_operation_slot", "no_communicator", "ring_busy", "overwritten", "abandoned", "disabled"):
            self.add("ncclscope_plugin_events_dropped_total", 0, reason=reason, **where)
        self.add("ncclscope_plugin_overhead_ratio", 0.0001, **where)
        self.add("ncclscope_plugin_governor_level", 0, **where)

    def add(self, name, constant, per_second=0, hung=0, into=None, **labels):
        text = ",".join(f'{key}="{value}"' for key, value in (JOB | labels).items())
        (self.lines if into is None else into).append((f"{name}{{{text}}} ", constant, per_second, hung))

    def text(self, seconds, hung):
        lines = self.lines + self.stalled if hung else self.lines
        return "\n".join(f"{prefix}{constant + rate * seconds + more * hung:.9g}"
                         for prefix, constant, rate, more in lines) + "\n"


class State:
    def __init__(self, nodes):
        self.nodes = nodes
        self.begin = time.monotonic()
        self.stopped = None  # seconds at which the job began to hang


def handler(state):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802 (the library's name)
            seconds = time.monotonic() - state.begin
            hung = state.stopped is not None
            body = state.nodes[int(self.path[2:])].text(state.stopped if hung else seconds, hung).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    return Handler


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def history(folder, world, now, window):
    """Six hours of the series that baselines are made of, and the baselines of 50 earlier jobs, as blocks of the database."""
    shape = 'collective="{}",size="<=256MiB",dimension="dp",nranks="25",nnodes="25",algorithm="Ring"'
    lines, step = [], 60
    for rank in range(world):
        for second in range(now - 6 * 3600, now - 600, step):
            if rank == 0:
                lines.append(f'job:ncclscope_lag_seconds:unaccused{window}{{cluster="c1",job_id="4711"}} {world} {second}')
            if second % 300 < step:
                lines.append(f'gpu:ncclscope_lag_seconds:unaccused{window}{{cluster="c1",job_id="4711",node="n{rank // GPUS}",'
                             f'gpu="{rank % GPUS}"}} 0.001 {second}')
    for collective in ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll"):
        for metric in ("transfer_bus_bytes_per_second", "bus_bytes_per_operation"):
            for second in range(now - 6 * 3600, now - 600, step):
                lines.append(f'job:ncclscope_{metric}:shape{window}{{cluster="c1",job_id="4711",{shape.format(collective)}}} 1e9 {second}')
            for job in range(50):
                for second in range(now - 6 * 3600, now - 600, 300):
                    lines.append(f'job:ncclscope_{metric}:baseline{{cluster="c1",job_id="{job}",{shape.format(collective)}}} 1e9 '
                                 f"{second}")
    text = folder / "history"
    # One block of lines per metric name, as OpenMetrics wants it.
    lines.sort(key=lambda line: line.split("{", 1)[0])
    text.write_text("\n".join(lines) + "\n# EOF\n")
    result = subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"],
                            capture_output=True, text=True, timeout=120, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"promtool tsdb create-blocks-from: {result.stderr[-500:]}")
    return len(lines)


def query(address, expression):
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)["data"]["result"]


def samples_read(address):
    """By one evaluation of all rules."""
    read = 0
    for group in rules(address):
        for rule in group["rules"]:
            url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": rule["query"], "stats": "all"})
            with urllib.request.urlopen(url, timeout=60) as response:
                read += json.load(response)["data"]["stats"]["samples"]["totalQueryableSamples"]
    return read


def version_of(prometheus):
    """Such as 3.16.0; Debian's has a suffix."""
    said = subprocess.run([prometheus, "--version"], capture_output=True, text=True, check=True, timeout=20)
    return re.search(r"version (\S+)", said.stdout + said.stderr)[1]


def shipped_intervals():
    """{group: seconds}"""
    unit = {"s": 1, "m": 60, "h": 3600}
    text = "".join((ROOT / "deploy" / "prometheus" / name).read_text() for name in ("recording.yml", "alerts.yml"))
    found = re.findall(r"^  - name: (\S+)\n(?:    interval: (\d+)([smh])\n)?", text, re.MULTILINE)
    return {name: int(number) * unit[of] if number else SHIPPED.scrape_s for name, number, of in found}


def rules(address):
    with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=60) as response:
        return json.load(response)["data"]["groups"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--brief", action="store_true", help="three times as fast")
    options = parser.parse_args()
    world = options.nodes * GPUS
    pace = BRIEF if options.brief else SHIPPED
    rows, server, prometheus = [], None, None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-"))
    try:
        version = version_of(options.prometheus)
        state = State([Node(n, world) for n in range(options.nodes)])
        series = sum(len(n.lines) for n in state.nodes)
        catalogue = (ROOT / "docs" / "metrics.md").read_text()
        names = {re.sub(r"_(bucket|sum|count)$", "", line[0].split("{")[0].strip()) for n in state.nodes[:1] for line in n.lines}
        unknown = [n for n in names if f"`{n}`" not in catalogue]
        print(f"{series} series of {world} ranks; not in the catalogue: {sorted(unknown) or 'none'}", file=sys.stderr)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        samples = history(folder, world, int(time.time()), pace.window())
        settings = [f"window_interval={EVALUATE_S}s", f"baseline_interval={EVALUATE_S}s", *pace.settings()]
        subprocess.run([sys.executable, "-B", ROOT / "deploy" / "prometheus" / "render.py", "--out", folder,
                        *(word for setting in settings for word in ("--set", setting))], check=True)
        target = f"127.0.0.1:{server.server_address[1]}"

        def configure(rule_files, target=target):
            (folder / "prometheus.yml").write_text(json.dumps({
                "global": {"scrape_interval": f"{pace.scrape_s}s", "scrape_timeout": f"{pace.scrape_s}s",
                           "evaluation_interval": f"{EVALUATE_S}s"},
                "rule_files": rule_files,
                "scrape_configs": [{"job_name": "ncclscope", "static_configs": [
                    {"targets": [target], "labels": {"__metrics_path__": f"/n{n}", "instance": f"n{n}"}}
                    for n in range(options.nodes)]}]}))
        configure([])
        address = f"127.0.0.1:{free_port()}"
        state.begin = time.monotonic()
        with open(folder / "log", "w", encoding="utf-8") as log:
            prometheus = subprocess.Popen(
                [options.prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 "--storage.tsdb.retention.time=30d", f"--web.listen-address={address}", "--log.level=warn"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        durations = {"healthy": collections.defaultdict(list), "hung": collections.defaultdict(list)}
        last, slowest, failures, cpu = {}, {}, set(), {}

        def reload(*arguments):
            configure(*arguments)
            prometheus.send_signal(signal.SIGHUP)

        def cpu_seconds():
            fields = pathlib.Path(f"/proc/{prometheus.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        def observe(part, seconds):
            """Watches evaluations for so long; `part` None: without counting them."""
            begin, cpu_begin = time.monotonic(), cpu_seconds()
            while time.monotonic() < begin + seconds:
                time.sleep(1)
                if prometheus.poll() is not None:
                    raise RuntimeError(f"prometheus ended: {(folder / 'log').read_text()[-1000:]}")
                for group in rules(address):
                    first = group["name"] not in last
                    if last.get(group["name"]) == group["lastEvaluation"] or group["lastEvaluation"].startswith("0001"):
                        continue
                    last[group["name"]] = group["lastEvaluation"]
                    failures.update(f"{r['name']}: {r['lastError']}" for r in group["rules"] if r.get("lastError"))
                    if part is None or first:
                        continue
                    durations[part][group["name"]].append(group["evaluationTime"])
                    for rule in group["rules"]:
                        key = (part, rule["name"])
                        slowest[key] = min(slowest.get(key, 1e9), rule["evaluationTime"])
            cpu[part] = (cpu_seconds() - cpu_begin) / (time.monotonic() - begin)

        time.sleep(pace.window_s)
        filled = query(address, f"min(count_over_time(ncclscope_communicator_inflight_seconds[{pace.window()}]))")
        if not filled or float(filled[0]["value"][1]) < 0.8 * SCRAPES:
            raise RuntimeError(f"the window holds {filled} samples of each series; wanted {SCRAPES}: too slow a machine")
        begin, cpu_begin = time.monotonic(), cpu_seconds()
        time.sleep(pace.idle_s)
        idle = (cpu_seconds() - cpu_begin) / (time.monotonic() - begin)
        reload(["recording.yml", "alerts.yml"])
        observe(None, EVALUATE_S)
        observe("healthy", pace.healthy_s)
        late = query(address, f"gpu:ncclscope_lag_seconds:late{pace.window()}")
        read = samples_read(address)
        state.stopped = time.monotonic() - state.begin
        observe(None, pace.scrape_s + 2)  # every target scraped once
        observe("hung", pace.hung_s - pace.scrape_s - 2)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response:
            own = sum(float(v) for v in re.findall(r"^prometheus_rule_group_last_duration_seconds\{.*\} (\S+)$",
                                                   response.read().decode(), re.MULTILINE))
        accused = query(address, 'ALERTS{alertname="NcclscopeHang"}')
        scraped = query(address, 'count({__name__=~"ncclscope_.+"})')
        if failures:
            raise RuntimeError(f"rules failed: {sorted(failures)}")
        if not accused or not late:
            raise RuntimeError(f"the rules found {len(accused)} hangs and {len(late)} late GPUs; the figures would mean nothing")
        count = int(scraped[0]["value"][1])
        print(f"{samples} samples of history; {count} of {series} series in the last scrape; load {os.getloadavg()[0]:.1f}; "
              f"last durations as Prometheus exports them: {own:.3f} s", file=sys.stderr)
        intervals = shipped_intervals()
        print(f"Prometheus {version}: {read} samples read by one evaluation of all rules")
        for part, groups in durations.items():
            if not groups:
                raise RuntimeError(f"no evaluation while {part}")
            total = sum(min(values) for values in groups.values())
            median = sum(statistics.median(values) for values in groups.values())
            detail = ", ".join(f"{name.split('.')[1]} {min(v):.3f}" for name, v in sorted(groups.items()))
            print(f"{part}: {total:.3f} s per evaluation ({detail}; median {median:.3f} s of "
                  f"{min(len(v) for v in groups.values())} evaluations)")
            used = (cpu[part] - idle) * EVALUATE_S
            print(f"    CPU time of Prometheus for it: {used:.2f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            print(f"    bar {BAR_S:g} s: {'met' if total <= BAR_S else 'missed'}")
            per_minute = sum(min(values) * 60 / intervals[name] for name, values in groups.items())
            print(f"    at the shipped intervals {per_minute:.2f} s of evaluation a minute")
            rows.append({"name": f"RulesCost/{part}", "run_type": "iteration", "time_unit": "ns", "prometheus": version, "seconds": total,
                         "median_seconds": median, "cpu_seconds": used, "seconds_a_minute": per_minute, "samples_read": read,
                         "load": os.getloadavg()[0], "series": count})
            if options.profile:
                for (where, name), value in sorted(slowest.items(), key=lambda item: -item[1])[:60]:
                    if where == part and value > 0.01:
                        print(f"    {value:.3f} {name}")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"rules_cost.py: {error}", file=sys.stderr)
        rows.append({"name": "RulesCost", "run_type": "iteration", "error_occurred": True, "error_message": str(error)})
    finally:
        if prometheus is not None:
            prometheus.terminate()
            try:
                prometheus.wait(timeout=20)
            except subprocess.TimeoutExpired:
                prometheus.kill()
                prometheus.wait()
        if server is not None:
            server.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    if options.out:
        options.out.write_text(json.dumps({"context": {"num_cpus": os.cpu_count()}, "benchmarks": rows}))
    return 1 if any("error_occurred" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
