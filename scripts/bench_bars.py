#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns Google Benchmark's JSON files into the bars of the project, one JSON line per bar.

  bench_bars.py [--partial] FOLDER   FOLDER holds <program>.json; --partial: bars without a figure are not an error
  bench_bars.py --markdown FILE      the lines of FILE (bench.sh --json) as the table of the README

A line: name, what, value, unit, bar, ok, machine. Bars without a limit (bar null) are figures beside the bars, cold
caches for instance: they are printed, and never miss. BARS is the only place that knows which benchmark and which of
its counters a bar comes from. Repetitions and several rows that match: the worst counts.
"""
import dataclasses
import json
import os
import pathlib
import platform
import re
import sys


@dataclasses.dataclass(frozen=True)
class Bar:
    name: str
    what: str
    benchmark: str          # regular expression, whole name of the benchmark
    figure: str             # a counter of it, or "real_time" / "cpu_time" (in nanoseconds)
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    scale: float = 1.0      # value = figure * scale


BARS = [
    # tests/bench/plugin_bench.cc
    Bar("plugin_pair_p50", "startEvent(Coll) with all fields and its stopEvent, median",
        r"LaunchPair/.*", "p50_ns", "ns", at_most=60),
    Bar("plugin_pair_p999", "the same, 99.9th percentile", r"LaunchPair/.*", "p999_ns", "ns", at_most=250),
    Bar("plugin_pair_cold_p50", "the same with cold caches, median", r"LaunchPairColdCaches/.*", "p50_ns", "ns"),
    Bar("plugin_allreduce16", "the 58 calls of an AllReduce of 16 channels, record written, CPU time",
        r"SixteenChannelAllReduce/.*", "cpu_ns", "us", at_most=1.2, scale=1e-3),
    Bar("plugin_allreduce16_cold", "the same with cold caches", r"SixteenChannelAllReduceColdCaches/.*", "p50_ns", "us",
        scale=1e-3),
    Bar("plugin_own_time", "what the plugin estimates that its calls for an AllReduce of 16 channels take, divided by what they "
        "take", r"OwnTimeEstimate/.*", "estimated_by_true", ""),
    Bar("plugin_own_time_error", "the factor by which that estimate is off, either way", r"OwnTimeEstimate/.*", "off_by_factor",
        "", at_most=2),
    Bar("plugin_governor", "time over the overhead budget after a tenfold burst, on the governor's clock",
        r"GovernorBurst/.*", "worst_seconds", "s", at_most=2),
    Bar("plugin_memory", "rings, slabs and tables of a rank with 64 communicators",
        r"Memory/.*", "bytes_per_rank", "KiB", at_most=1024, scale=1 / 1024),
    Bar("wire_record", "an operation record, header included", r"WireBytes/.*", "record_bytes", "bytes", at_most=64),
    Bar("wire_bytes", "on the socket for each operation, frame headers and state included",
        r"WireBytes/.*", "bytes_per_operation", "bytes"),
    # tests/bench/agent_ingest_bench.cc
    Bar("agent_ingest", "operation records from frames to sums, one core",
        r"SessionToSums", "items_per_second", "million/s", at_least=2, scale=1e-6),
    Bar("agent_ingest_socket", "operation records from the Unix socket to sums, for each second of the reactor's CPU time",
        r"SocketToSums/.*", "records_per_cpu_second", "million/s", at_least=2, scale=1e-6),
    # tests/bench/agent_archive_bench.cc
    Bar("archive_cpu", "keeping an operation in the archive, reactor and writer together, CPU time",
        r"ArchiveCost/.*", "ns_per_operation", "us", at_most=0.5, scale=1e-3),
    Bar("archive_bytes", "an operation in the archive, steady training traffic of 8 processes",
        r"ArchiveCost/.*", "bytes_per_operation", "bytes", at_most=8),
    # tests/bench/agent_load.py
    Bar("agent_cpu", "agent at 8 ranks x 1,000 collectives/s each, /metrics with gzip every 15 s",
        r"AgentLoad", "cpu_percent", "% of a core", at_most=1),
    Bar("agent_memory", "the same, resident memory", r"AgentLoad", "rss_mb", "MiB", at_most=40),
    Bar("agent_churn_memory", "most resident memory under short jobs at the hard caps (100 at once, 64 communicators each), "
        "default limits", r"AgentChurn", "peak_mb", "MB", at_most=40),
    # tests/bench/export_bench.cc
    Bar("scrape_10k", "scrape of 10,000 series with gzip, CPU time", r"BM_ScrapeGzip/10000", "cpu_time", "ms", at_most=20,
        scale=1e-6),
    Bar("scrape_100k", "scrape of 100,000 series with gzip, CPU time", r"BM_ScrapeGzip/100000", "cpu_time", "ms",
        at_most=250, scale=1e-6),
    # tests/bench/health_bars.py
    Bar("step_period", "synthetic schedules of which the step period is exact", r"StepPeriod", "exact_percent", "%", at_least=99),
    Bar("dimension_known", "communicators without a name whose dimension is right or unknown", r"Dimension", "right_or_unknown_percent",
        "%", at_least=99),
    Bar("dimension_wrong", "the same, wrong", r"Dimension", "wrong_percent", "%", at_most=0.1),
    Bar("hang_alert", "from a hang's threshold to its alert, scraped every second, the slowest class", r"HangAlert", "worst_seconds", "s",
        at_most=5),
    Bar("hang_right", "hangs of which class and ranks are right", r"Diagnosis", "hang_right", "%", at_least=100),
    Bar("culprit_top1", "jobs with a delay of 3 sigma or more in which the culprit is named within 60 steps", r"Diagnosis",
        "culprit_top1", "%", at_least=99),
    Bar("healthy_accused", "healthy jobs in which anybody is accused", r"Diagnosis", "healthy_accused", "jobs", at_most=0),
    Bar("drop_found_operations", "drops of 5 % found within 5 scrapes, single operations vary by 2 %, 60 of them in an interval",
        r"BandwidthDrop/operations", "found_percent", "%", at_least=95),
    Bar("drop_found_two_kinds", "the same, whole intervals vary by 2 %, two kinds of collectives", r"BandwidthDrop/two_kinds",
        "found_percent", "%", at_least=95),
    Bar("drop_found_one_kind", "the same, one kind of collective", r"BandwidthDrop/one_kind", "found_percent", "%", at_least=95),
    Bar("drop_best_possible_one_kind", "the same, by the best possible test", r"BandwidthDrop/one_kind", "best_possible_percent", "%"),
    Bar("drop_false", "false alerts of that rule in 1,000 job-days", r"BandwidthDrop/.*", "false_per_1000_days", "", at_most=1),
    # tests/bench/rules_cost.py
    Bar("rules_healthy", "one evaluation of all rules by Prometheus 3, 1,000 ranks in six communicators each", r"RulesCost/healthy", "seconds", "s",
        at_most=1),
    Bar("rules_hung", "the same while the job hangs", r"RulesCost/hung", "seconds", "s", at_most=1),
    # tests/bench/report/report_bench.py
    Bar("report_pandas", "ncclscope report against pandas, the same Parquet and statistics of 2 million Inspector lines: times faster",
        r"Report", "times_pandas", "x", at_least=20),
    Bar("report_duckdb", "the same against DuckDB's own read_json", r"Report", "times_duckdb", "x"),
    Bar("report_seconds", "the same, wall time", r"Report", "seconds", "s"),
    Bar("report_pictures_seconds", "the same with what stands out and the pictures, wall time", r"Report", "pictures_seconds", "s"),
    Bar("report_memory", "most resident memory of both", r"Report", "peak_mb", "MB", at_most=500),
    Bar("report_numbers", "numbers of its tables that differ from pandas' or DuckDB's by more than 1e-9", r"Report",
        "numbers_differing", "", at_most=0),
]


def machine() -> str:
    model = "unknown CPU"
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = " ".join(line.split(":", 1)[1].split())
                break
    except OSError:
        pass
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def figures(folder: pathlib.Path):
    """(benchmark name, row) of all results; times are brought to nanoseconds."""
    factor = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
    for path in sorted(folder.glob("*.json")):
        try:
            rows = json.loads(path.read_text())["benchmarks"]
        except (ValueError, KeyError):
            print(f"bench_bars.py: {path.name} holds no results", file=sys.stderr)
            continue
        for row in rows:
            if row.get("run_type") == "aggregate":
                continue
            for key in ("real_time", "cpu_time"):
                if key in row:
                    row[key] *= factor[row.get("time_unit", "ns")]
            yield row["name"], row


def markdown(path: pathlib.Path) -> int:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| what | measured | bar |\n| --- | --- | --- |")
    for line in lines:
        bar = line["bar"] or {}
        text = f"≤ {bar['at_most']:g}" if "at_most" in bar else f"≥ {bar['at_least']:g}" if bar else ""
        value = "not measured" if line["value"] is None else f"{line['value']:.4g} {line['unit']}"
        print(f"| {line['what']} | {value}{' (missed)' if line['ok'] is False else ''} | {text} |")
    print(f"\n{lines[0]['machine']}; one run of `scripts/bench.sh`.")
    return 0


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--markdown":
        return markdown(pathlib.Path(sys.argv[2]))
    partial = "--partial" in sys.argv[1:]
    folders = [a for a in sys.argv[1:] if a != "--partial"]
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    rows = list(figures(pathlib.Path(folders[0])))
    code, where = 0, machine()
    for name, row in rows:
        if row.get("error_occurred"):
            code = 1
            print(f"bench_bars.py: {name}: {row.get('error_message')}", file=sys.stderr)
    for bar in BARS:
        values = [row[bar.figure] * bar.scale for name, row in rows
                  if re.fullmatch(bar.benchmark, name) and bar.figure in row and not row.get("error_occurred")]
        limit = {"at_most": bar.at_most} if bar.at_most is not None else {"at_least": bar.at_least}
        line = {"name": bar.name, "what": bar.what, "value": None, "unit": bar.unit,
                "bar": None if bar.at_most is None and bar.at_least is None else limit, "ok": None, "machine": where}
        if values:
            value = min(values) if bar.at_least is not None else max(values)
            line["value"] = float(f"{value:.6g}")
            line["ok"] = None if line["bar"] is None else (bar.at_most is None or value <= bar.at_most) and (bar.at_least is None or value >= bar.at_least)
            if line["ok"] is False:
                code = 1
        elif partial:
            continue
        else:
            code = 1
            print(f"bench_bars.py: {bar.name}: no benchmark {bar.benchmark} with {bar.figure}", file=sys.stderr)
        print(json.dumps(line))
    return code


if __name__ == "__main__":
    sys.exit(main())
