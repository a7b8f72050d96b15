#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ncclscope report` as a user runs it, on logs of every format in mixed and damaged folders.

  report.py --build DIR

What is right is computed here, from the lines that this test wrote: rows by json.loads, statistics by pandas.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCH = ROOT / "tests/bench/report"
sys.path.insert(0, str(BENCH))
import inspector_lines  # noqa: E402


def fetched(script: str) -> str | None:
    done = subprocess.run([ROOT / "scripts" / script], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{script}: {done.stderr.strip()}")
        return None
    return done.stdout.strip().splitlines()[-1]


def check(what: bool, message: str) -> None:
    if not what:
        raise SystemExit(f"FAILED: {message}")


def stream(lines: list[str], version: str) -> tuple[list[str], list[str]]:
    """Full lines as the stream of v4.3: a marker for each run of lines of one communicator, then payloads only; and the full lines
    that this means (the time is the marker's)."""
    out: list[str] = []
    full: list[str] = []
    at = 0
    while at < len(lines):
        first = json.loads(lines[at])
        end = at
        while end < len(lines) and end < at + 50 and json.loads(lines[end])["header"] == first["header"]:
            end += 1
        run = [json.loads(line) for line in lines[at:end]]
        first["metadata"]["inspector_output_format_version"] = version
        marker = {"header": first["header"], "metadata": first["metadata"], "dump_stats": {
            "coll_records": sum("coll_perf" in r for r in run), "coll_dropped_total": 0, "coll_dropped_since_last_dump": 0,
            "p2p_records": sum("p2p_perf" in r for r in run), "p2p_dropped_total": 0, "p2p_dropped_since_last_dump": 0}}
        if version == "v4.4":
            marker["dump_stats"]["proxy_records"] = 1
        out.append(json.dumps(marker, separators=(",", ":")))
        if version == "v4.4":
            out.append('{"proxy_trace":{"record_type":"proxy_op","peer":1,"channel_id":0}}')
        for record in run:
            record["metadata"]["dump_timestamp_us"] = first["metadata"]["dump_timestamp_us"]
            full.append(json.dumps(record))
            key = "coll_perf" if "coll_perf" in record else "p2p_perf"
            out.append(json.dumps({key: record[key]}, separators=(",", ":")))
        at = end
    return out, full


def verbose(line: str, rng: random.Random) -> str:
    """The line with traces, as NCCL_INSPECTOR_DUMP_VERBOSE=1 adds them."""
    record = json.loads(line)
    key, prefix = ("coll_perf", "coll") if "coll_perf" in record else ("p2p_perf", "p2p")
    end = record["metadata"]["dump_timestamp_us"] - rng.randrange(1000, 100000)
    start = end - record[key][prefix + "_exec_time_us"]
    events = [{"channel_id": c, "kernel_start_ts": start + c, "kernel_stop_ts": end - c, "kernel_record_ts": end - c - 1} for c in range(4)]
    record[key]["event_trace_sn"] = {prefix + "_start_sn": 1, prefix + "_stop_sn": 2, "kernel_events": [
        {"channel_id": c, "kernel_start_sn": 3 + c, "kernel_stop_sn": 9, "kernel_record_sn": 8} for c in range(4)]}
    record[key]["event_trace_ts"] = {prefix + "_start_ts": start - 40, prefix + "_stop_ts": start - 39, "kernel_events": events}
    return json.dumps(record, separators=(",", ":")).replace("/", "\\/")


class Logs:
    """Writes files and remembers what is in them: (job, file, intact full lines in the order of the file)."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.rows = folder, []

    def add(self, name: str, job: str, text: list[str], full: list[str], tail: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(line + "\n" for line in text) + tail
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(data.encode()))
        else:
            path.write_text(data)
        self.rows += [(job, name, line) for line in full]


def make_logs(folder: pathlib.Path) -> Logs:
    logs, rng = Logs(folder), random.Random(7)
    lines = [list(inspector_lines.rank_lines(rank, 2, 1500, 3, "v4.0" if rank % 2 else "v4.2")) for rank in range(8)]
    logs.add("nccl-inspector-4711/a-pid1.log", "4711", lines[0], lines[0])
    logs.add("nccl-inspector-4711/b-pid2.log.gz", "4711", lines[1], lines[1])
    stats = lines[2][:]
    marker = json.loads(lines[2][0])
    del marker["coll_perf"]
    marker["dump_stats"] = {"coll_records": 700, "coll_dropped_total": 30, "coll_dropped_since_last_dump": 30, "p2p_records": 3,
                            "p2p_dropped_total": 5, "p2p_dropped_since_last_dump": 5}
    stats.insert(700, json.dumps(marker, separators=(",", ":")))
    logs.add("88/0/c-pid3.jsonl", "88", stats, lines[2])
    logs.add("deep/er/d.jsonl.gz", "unknown", *stream(lines[3], "v4.3"))
    logs.add("deep/e.log", "unknown", *stream(lines[4], "v4.4"))
    traced = [verbose(line, rng) for line in lines[5]]
    logs.add("88/0/f-pid6.log", "88", traced[:900], traced[:900], tail=traced[900][:200])  # the process was killed
    damaged = lines[6][:]
    damaged[10] = damaged[10][:100]
    damaged[500] = '{"header":{},"metadata":{},"coll_perf":{}}'
    damaged[501] = "\x00\x00\x00"
    logs.add("deep/g.log", "unknown", damaged, [line for number, line in enumerate(lines[6]) if number not in (10, 500, 501)])
    # Other order of keys, white space, keys of somebody else's; not the first lines of its file.
    odd = lines[7][:3] + [json.dumps({k: {**v, f"x_{k}": [1, {"y": "}}"}]} for k, v in reversed(json.loads(line).items())})
                          for line in lines[7][3:]]
    for number, size in ((40, (1 << 64) - 4096), (41, -4096)):  # of ncclUint8, as NCCL Inspector 2.30 writes them
        bytes_of = json.loads(lines[7][number])
        key = "coll_perf" if "coll_perf" in bytes_of else "p2p_perf"
        prefix = key.removesuffix("perf")
        bytes_of[key] |= {prefix + "msg_size_bytes": size, prefix + "algobw_gbs": 3.2e14, prefix + "busbw_gbs": 3.2e14}
        odd[number] = json.dumps(bytes_of)
    logs.add("deep/h.log", "unknown", odd, odd)
    (folder / "slurm-1.log").write_text("srun: job 1 starts\n{}\n")
    (folder / "empty.log").write_text("")
    return logs


def expected(logs: Logs):
    """The rows as a frame, from the lines alone."""
    import pandas
    import pandas_report
    rows = []
    for job, name, line in logs.rows:
        values = dict(zip(pandas_report.COLUMNS, pandas_report.row(line, name)))
        record = json.loads(line)
        perf = record.get("coll_perf") or record["p2p_perf"]
        traces = perf.get("event_trace_ts")
        values.update(job=job, start_ns=None, end_ns=None, enqueued_ns=None)
        if traces:
            values["start_ns"] = min(e["kernel_start_ts"] for e in traces["kernel_events"]) * 1000
            values["end_ns"] = values["time_ns"] = max(e["kernel_stop_ts"] for e in traces["kernel_events"]) * 1000
            values["enqueued_ns"] = (traces.get("coll_start_ts") or traces["p2p_start_ts"]) * 1000
        rows.append(values)
    frame = pandas.DataFrame(rows)
    for column in ("start_ns", "end_ns", "enqueued_ns", "peer", "bytes", "rank_bytes"):
        frame[column] = frame[column].astype("Int64")
    return frame


def run(program: pathlib.Path, *arguments: str, environment: dict | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), "report", "--no-pictures", *arguments], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, **(environment or {})})


def check_parquet(report: pathlib.Path, want) -> None:
    """Every row and column, read by pandas and by pyarrow."""
    import pandas
    import pyarrow.dataset
    import pyarrow.parquet
    frame = pandas.read_parquet(report / "operations")
    table = pyarrow.dataset.dataset(report / "operations", partitioning="hive").to_table()
    check(len(frame) == len(want) == table.num_rows, f"{len(frame)} rows in Parquet, not {len(want)}")
    files = sorted((report / "operations").rglob("*.parquet"))
    schemas = {pyarrow.parquet.read_schema(path).remove_metadata().to_string() for path in files}
    check(len(schemas) == 1, "files of one report have the same columns")
    check(sorted(str(value) for value in frame["job"].unique()) == ["4711", "88", "unknown"], f"partitions {frame['job'].unique()}")
    frame["job"] = frame["job"].astype(str)
    keys = ["file", "communicator", "collective", "sequence"]
    frame = frame.sort_values(keys, kind="stable").reset_index(drop=True)
    want = want.sort_values(keys, kind="stable").reset_index(drop=True)
    for column in want.columns:
        got, right = frame[column], want[column]
        same = (got.isna() & right.isna()) | (got == right).fillna(False)
        check(bool(same.all()), f"Parquet column {column}: row {int((~same).idxmax())} has {got[~same].iloc[0] if not same.all() else ''!r}, "
                                f"not {right[~same].iloc[0] if not same.all() else ''!r}")
    check(set(frame["source"]) == {"inspector"}, "source")
    # Rows of one file stand together and in its order.
    for path in files:
        names = pyarrow.parquet.read_table(path, columns=["file"]).column("file").to_pylist()
        changes = sum(a != b for a, b in zip(names, names[1:]))
        check(changes + 1 == len(set(names)), f"{path}: rows of its files are mixed")


def check_documented_query(report: pathlib.Path, want) -> None:
    """The query of docs/parquet-schema.md for the time of an operation once all ranks are there."""
    import duckdb
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs/parquet-schema.md").read_text()
    query = page[page.index("```sql\n") + 7:]
    query = query[:query.index("```")].replace("REPORT/", f"{report}/")
    got = duckdb.sql(f"SELECT count(*), count(seconds_together), sum(seconds_together) FROM ({query})").fetchone()
    groups = want[want["collective"].isin(["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"])].groupby(
        ["job", "communicator", "collective", "sequence"])["seconds"]
    together = groups.transform("min")[groups.transform("count") == want["ranks"].reindex(groups.transform("count").index)]
    check(got[0] == len(want) and got[1] == len(together) and got[1] > 0 and abs(got[2] - together.sum()) <= 1e-9 * together.sum(),
          f"the documented query gives {got}, not {len(together)} with {together.sum()} s")


def check_statistics(report: pathlib.Path, want) -> int:
    """CSV and JSON against pandas; returns how many numbers were compared."""
    import pandas
    import pandas_report
    import report_bench
    document = json.loads((report / "report.json").read_text())
    compared = 0
    for name, keys in pandas_report.TABLES.items():
        right = pandas_report.statistics(want, keys)
        from_csv = pandas.read_csv(report / f"{name}.csv", dtype={"job": str}, float_precision="round_trip")
        from_json = pandas.DataFrame(document[name])
        check(list(from_csv.columns) == list(from_json.columns), f"{name}: columns of CSV and JSON")
        for got in (from_csv, from_json):
            check(report_bench.different(name, got[list(right.columns)], right, keys) == 0, f"{name} differs from pandas")
            compared += right.size
    for row in document["communicators"]:
        mine = want[(want["job"] == row["job"]) & (want["communicator"] == row["communicator"])]
        check(row["operations"] == len(mine) and row["ranks_seen"] == mine["rank"].nunique() and row["total_bytes"] == mine["bytes"].sum(),
              f"communicator {row['communicator']}")
        check(row["communication_class"] == pandas_report.communication_class(row["ranks"], row["nodes"]), "class")
    return compared


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    options = parser.parse_args()
    program = options.build / "cli/ncclscope"
    site = fetched("fetch-pandas.sh")
    if fetched("fetch-duckdb.sh") is None or site is None:
        return 1 if os.environ.get("CI") else 77
    sys.path.insert(0, site)
    work = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-report-"))
    try:
        logs = make_logs(work / "logs")
        want = expected(logs)
        done = run(program, str(work / "logs"), "--output", str(work / "out"), "--rows", "5")
        check(done.returncode == 0, f"exit status {done.returncode}: {done.stderr}")
        check_parquet(work / "out", want)
        compared = check_statistics(work / "out", want)
        check_documented_query(work / "out", want)
        inputs = json.loads((work / "out/report.json").read_text())["inputs"]
        check(inputs["operations"] == len(want) and inputs["files"] == 8 and inputs["bad_lines"] == 3 and inputs["cut_files"] == 1
              and inputs["bad_files"] == 0 and inputs["lost_by_writer"] == 35, f"account of the inputs: {inputs}")
        check(len(inputs["left_out"]) == 2, f"left out: {inputs['left_out']}")
        check("g.log:11: not JSON" in done.stderr and "g.log:501: header.id is missing" in done.stderr and "f-pid6.log:901: the last line is cut"
              in done.stderr, f"damage is told by file and line: {done.stderr}")
        check("slurm-1.log: no JSON lines of NCCL Inspector" in done.stderr, "what was left out is told")
        check(f"{len(want)} operations from 8 files, 1 of them cut at their end, 3 bad lines left out, 35 operations lost by their writer"
              in done.stdout and "COMMUNICATOR" in done.stdout, f"text: {done.stdout}")
        check(not (work / "out/.scratch").exists(), "nothing temporary is left")

        strict = run(program, str(work / "logs"), "--output", str(work / "strict"), "--strict", "--quiet")
        check(strict.returncode == 1 and (work / "strict/report.json").exists(), f"--strict: {strict.returncode}")
        again = run(program, str(work / "logs"), "--output", str(work / "out"))
        check(again.returncode == 2 and "is not empty; --overwrite" in again.stderr, f"used folder: {again.stderr}")
        over = run(program, str(work / "logs/deep"), str(work / "logs/deep/h.log"), "--output", str(work / "out"), "--overwrite", "--job", "a b/7", "-q")
        check(over.returncode == 0 and (work / "out/operations/job=a%20b%2F7").is_dir(), f"--overwrite: {over.stderr}")
        document = json.loads((work / "out/report.json").read_text())
        check({row["job"] for row in document["communicators"]} == {"a b/7"} and document["inputs"]["files"] == 4, "a file named twice counts once")
        for arguments, reason in (([str(work / "none")], "none: "), ([str(work / "logs/slurm-1.log")], "neither a log of NCCL Inspector"),
                                  ([str(work / "logs/empty.log")], "nothing to report on")):
            failed = run(program, *arguments, "--output", str(work / "failed"))
            check(failed.returncode == 2 and reason in failed.stderr, f"{arguments}: {failed.returncode} {failed.stderr}")
        missing = run(program, str(work / "logs"), "--output", str(work / "failed"), environment={"NCCLSCOPE_DUCKDB": "/none/libduckdb.so"})
        check(missing.returncode == 2 and "scripts/fetch-duckdb.sh" in missing.stderr, f"no DuckDB: {missing.stderr}")

        cut = (work / "logs/nccl-inspector-4711/b-pid2.log.gz").read_bytes()
        (work / "cut.log.gz").write_bytes(cut[:len(cut) // 2])
        half = run(program, str(work / "cut.log.gz"), "--output", str(work / "half"), "-q", "--strict")
        check(half.returncode == 0 and json.loads((work / "half/report.json").read_text())["inputs"]["cut_files"] == 1, f"cut gzip: {half.stderr}")
        print(f"{len(want)} operations, {want.size} values in Parquet and {compared} statistics as computed here")
        return 0
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
