#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ncclscope report` against pandas and against DuckDB's own read_json, on the same NCCL Inspector logs.

  report_bench.py --build DIR [--lines N] [--ranks N] [--out FILE] [--work DIR] [--rounds N] [--sample]

The logs (gzip, one per rank, seeded) are made once, read once so that all sides find them in the file cache, and then each
side does the same: Parquet of all operations, and the three tables of statistics. Every number of all sides is compared to 1e-9.
  pandas   tests/bench/report/pandas_report.py: a pool of 2 processes, json.loads per line, DataFrame, to_parquet, groupby
  duckdb   read_json with the columns given, COPY TO Parquet, GROUP BY with quantile_cont: 2 threads
  ours     ncclscope report --threads 2
Wall time is the best of the rounds for duckdb and ours, one round for pandas; peak resident memory of the whole process (pandas: the
largest of its processes; ours: the largest of all rounds and of one with pictures). --sample: a small input, equality only, no time is judged (for the test suite). --out writes the figures
in the form of Google Benchmark, for scripts/bench_bars.py.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import inspector_lines  # noqa: E402

READ_JSON = """
CREATE VIEW lines AS SELECT * FROM read_json('{logs}/*.log.gz', format = 'newline_delimited', filename = true, columns = {{
  header: 'STRUCT(id VARCHAR, comm_name VARCHAR, rank INTEGER, n_ranks INTEGER, nnodes INTEGER)',
  metadata: 'STRUCT(git_rev VARCHAR, dump_timestamp_us BIGINT, hostname VARCHAR, pid BIGINT)',
  coll_perf: 'STRUCT(coll VARCHAR, coll_algo VARCHAR, coll_proto VARCHAR, coll_sn BIGINT, coll_msg_size_bytes BIGINT, coll_exec_time_us BIGINT, coll_timing_source VARCHAR, coll_algobw_gbs DOUBLE, coll_busbw_gbs DOUBLE)',
  p2p_perf: 'STRUCT(p2p VARCHAR, p2p_sn BIGINT, p2p_peer INTEGER, p2p_msg_size_bytes BIGINT, p2p_exec_time_us BIGINT, p2p_timing_source VARCHAR, p2p_algobw_gbs DOUBLE, p2p_busbw_gbs DOUBLE)'}});
COPY (SELECT filename AS file, metadata.hostname AS node, metadata.pid AS pid, header.id AS communicator,
    nullif(header.comm_name, 'unknown') AS communicator_name, header.rank AS rank, header.n_ranks AS ranks, header.nnodes AS nodes,
    CASE WHEN header.n_ranks = 1 THEN 'single-rank' WHEN header.nnodes = 1 THEN 'nvlink-only'
         WHEN header.n_ranks = header.nnodes THEN 'hca-only' ELSE 'mixed' END AS communication_class,
    coalesce(coll_perf.coll, p2p_perf.p2p) AS collective, coalesce(coll_perf.coll_sn, p2p_perf.p2p_sn) AS sequence,
    coll_perf.coll_algo AS algorithm, coll_perf.coll_proto AS protocol, p2p_perf.p2p_peer AS peer,
    coalesce(coll_perf.coll_msg_size_bytes, p2p_perf.p2p_msg_size_bytes) AS rank_bytes,
    coalesce(coll_perf.coll_msg_size_bytes, p2p_perf.p2p_msg_size_bytes)
      * CASE WHEN coll_perf.coll IN ('AllGather', 'ReduceScatter') THEN header.n_ranks ELSE 1 END AS bytes,
    metadata.dump_timestamp_us * 1000 AS time_ns, coalesce(coll_perf.coll_exec_time_us, p2p_perf.p2p_exec_time_us) / 1e6 AS seconds,
    coalesce(coll_perf.coll_algobw_gbs, p2p_perf.p2p_algobw_gbs) * 1e9 AS algbw,
    coalesce(coll_perf.coll_busbw_gbs, p2p_perf.p2p_busbw_gbs) * 1e9 AS busbw,
    coalesce(coll_perf.coll_timing_source, p2p_perf.p2p_timing_source) AS timing, metadata.git_rev AS plugin_version
  FROM lines WHERE coll_perf IS NOT NULL OR p2p_perf IS NOT NULL)
TO '{output}/parquet' (FORMAT parquet, COMPRESSION snappy, PER_THREAD_OUTPUT true);
CREATE VIEW operations AS SELECT *, 'unknown' AS job FROM read_parquet('{output}/parquet/*.parquet');
"""


def duckdb_side(logs: str, output: str) -> None:
    """Runs in a process of its own; writes the tables as Parquet."""
    import duckdb
    import pandas_report
    pathlib.Path(output).mkdir()
    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(READ_JSON.format(logs=logs, output=output))
    for table, keys in pandas_report.TABLES.items():
        aggregates = ["count(*) AS operations", "count(seconds) AS timed", "sum(bytes)::BIGINT AS total_bytes", "min(time_ns) AS first_ns",
                      "max(time_ns) AS last_ns", "sum(seconds) AS total_seconds"]
        for measure in pandas_report.MEASURES:
            aggregates += [f"{function}({measure}) AS {measure}_{name}" for function, name in
                           (("avg", "mean"), ("min", "min"), ("max", "max"), ("stddev_samp", "stddev"))]
            aggregates += [f"quantile_cont({measure}, {p}) AS {measure}_{name}" for p, name in
                           ((0.05, "p5"), (0.5, "median"), (0.95, "p95"), (0.99, "p99"))]
        connection.execute(f"COPY (SELECT {', '.join(keys)}, {', '.join(aggregates)} FROM operations GROUP BY {', '.join(keys)}) "
                           f"TO '{output}/{table}.parquet' (FORMAT parquet)")


def timed(command: list[str], environment: dict, label: str) -> tuple[float, float]:
    """Wall seconds and peak resident megabytes (10^6 bytes) of a command and its largest child."""
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"report_bench.py: {label} failed: {' '.join(command)}")
    return seconds, usage.ru_maxrss * 1024 / 1e6


def different(name: str, ours, theirs, keys: list[str]) -> int:
    """Numbers that differ by more than 1e-9; both sides' groups must be the same."""
    import numpy
    ours = ours.sort_values(keys, na_position="first").reset_index(drop=True)
    theirs = theirs.sort_values(keys, na_position="first").reset_index(drop=True)
    if len(ours) != len(theirs):
        print(f"{name}: {len(ours)} groups, not {len(theirs)}", file=sys.stderr)
        return 1
    wrong = 0
    for column in theirs.columns:
        a, b = ours[column], theirs[column]
        if column in keys and column not in ("bytes", "rank"):
            bad = (a.fillna("").astype(str) != b.fillna("").astype(str)).to_numpy()
        else:
            a, b = a.astype(float).to_numpy(), b.astype(float).to_numpy()
            # A deviation is as exact as the values that it is of.
            scale = numpy.abs(theirs[column.replace("_stddev", "_mean")].astype(float).to_numpy()) if column.endswith("_stddev") else numpy.abs(b)
            bad = ~((numpy.abs(a - b) <= 1e-9 * scale) | (numpy.isnan(a) & numpy.isnan(b)))
        if bad.any():
            wrong += int(bad.sum())
            print(f"{name}.{column}: {int(bad.sum())} differ, first ours {ours[column][bad].iloc[0]!r}, not {theirs[column][bad].iloc[0]!r}",
                  file=sys.stderr)
    return wrong


def compare(ours: pathlib.Path, theirs: pathlib.Path) -> tuple[int, int]:
    """(numbers compared, numbers that differ) between our CSV and the tables of another side."""
    import pandas
    import pandas_report
    compared = wrong = 0
    for table, keys in pandas_report.TABLES.items():
        other = pandas.read_parquet(theirs / f"{table}.parquet")
        own = pandas.read_csv(ours / f"{table}.csv", dtype={"job": str}, float_precision="round_trip")[list(other.columns)]
        compared += other.size
        wrong += different(table, own, other, keys)
    return compared, wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    if options.sample:
        options.lines, options.rounds = 40_000, 1

    fetched = subprocess.run([HERE.parents[2] / "scripts/fetch-pandas.sh"], capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        print(f"SKIPPED: no pandas: {fetched.stderr.strip()}")
        return 1 if os.environ.get("CI") or not options.sample else 77
    site = fetched.stdout.strip()
    sys.path.insert(0, site)
    environment = {**os.environ, "PYTHONPATH": f"{site}:{HERE}"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # set for old libraries; they slow new ones
        environment.pop(name, None)
    import duckdb
    import numpy
    import pandas
    import pyarrow

    work = pathlib.Path(tempfile.mkdtemp(prefix="report-bench-", dir=options.work))
    try:
        logs = work / "logs"
        logs.mkdir()
        nodes = options.ranks // inspector_lines.GPUS
        each = options.lines // options.ranks
        with multiprocessing.Pool(2) as pool:
            pool.map(inspector_lines.write_rank, [(logs, rank, nodes, each, 1) for rank in range(options.ranks)], chunksize=1)
        size = sum(path.stat().st_size for path in logs.iterdir())
        for path in logs.iterdir():
            path.read_bytes()
        lines = each * options.ranks
        program = options.build / "cli/ncclscope"

        ours, duck = [], []
        for number in range(options.rounds):
            ours.append(timed([str(program), "report", str(logs), "--output", str(work / f"ours{number}"), "--threads", "2", "--quiet", "--no-pictures"],
                              environment, "ours"))
            duck.append(timed(["/usr/bin/python3", "-c",
                               f"import report_bench; report_bench.duckdb_side({str(logs)!r}, {str(work / f'duckdb{number}')!r})"],
                              environment, "duckdb"))
        theirs = timed(["/usr/bin/python3", str(HERE / "pandas_report.py"), str(logs), str(work / "pandas"), "--processes", "2"],
                       environment, "pandas")
        # As people run it: with what stands out and the pictures.
        drawn = ours[0] if options.sample else timed(
            [str(program), "report", str(logs), "--output", str(work / "drawn"), "--threads", "2", "--quiet"], environment, "ours")
        compared, wrong = 0, 0
        for side in ("pandas", "duckdb0"):
            numbers, differing = compare(work / "ours0", work / side)
            compared, wrong = compared + numbers, wrong + differing
        own_seconds, duck_seconds = min(ours)[0], min(duck)[0]
        own_mb = max(peak for _, peak in [*ours, drawn])
        print(f"{lines} lines in {options.ranks} files, {size / 1e6:.0f} MB gzip; load {os.getloadavg()[0]:.1f}; python {platform.python_version()}, "
              f"pandas {pandas.__version__}, pyarrow {pyarrow.__version__}, numpy {numpy.__version__}, duckdb {duckdb.__version__}")
        print(f"pandas  {theirs[0]:8.2f} s  {theirs[1]:6.0f} MB")
        print(f"duckdb  {duck_seconds:8.2f} s  {max(peak for _, peak in duck):6.0f} MB")
        print(f"ours    {own_seconds:8.2f} s  {own_mb:6.0f} MB   {theirs[0] / own_seconds:.1f} x pandas, {duck_seconds / own_seconds:.1f} x duckdb")
        if not options.sample:
            print(f"ours    {drawn[0]:8.2f} s  {drawn[1]:6.0f} MB   with pictures")
        print(f"{compared} numbers compared, {wrong} differ by more than 1e-9")
        if options.out:
            options.out.write_text(json.dumps({"benchmarks": [{
                "name": "Report", "run_type": "iteration", "lines": lines, "times_pandas": theirs[0] / own_seconds,
                "times_duckdb": duck_seconds / own_seconds, "seconds": own_seconds, "pandas_seconds": theirs[0],
                "duckdb_seconds": duck_seconds, "peak_mb": own_mb, "pictures_seconds": drawn[0],
                "numbers_compared": compared, "numbers_differing": wrong,
                **({"error_occurred": True, "error_message": f"{wrong} numbers differ"} if wrong else {})}]}) + "\n")
        return 1 if wrong else 0
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
