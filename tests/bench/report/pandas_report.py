#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The statistics of `ncclscope report` as one would write them with pandas: the independent computation of the tests, and the
other side of the benchmark.

  pandas_report.py LOGS OUTPUT [--processes N]   reads LOGS/**/*.log[.gz], writes OUTPUT/parquet/*.parquet and OUTPUT/<table>.parquet

One process per file of a pool: json.loads per line, a DataFrame, to_parquet; then one groupby per table over all of it.
"""
import argparse
import gzip
import json
import multiprocessing
import pathlib
import time

import pandas

MEASURES = ("seconds", "algbw", "busbw")
COLUMNS = ["file", "node", "pid", "communicator", "communicator_name", "rank", "ranks", "nodes", "communication_class",
           "collective", "sequence", "algorithm", "protocol", "peer", "bytes", "rank_bytes", "time_ns", "seconds", "algbw", "busbw",
           "timing", "plugin_version"]
TABLES = {
    "statistics": ["job", "communicator", "collective", "bytes", "algorithm", "protocol", "communication_class"],
    "statistics_by_rank": ["job", "communicator", "collective", "bytes", "algorithm", "protocol", "rank"],
    "statistics_by_class": ["job", "communication_class", "collective", "bytes", "algorithm", "protocol"],
}
TIMINGS = {"kernel_gpu": "gpu", "kernel_cpu": "host_callback", "collective_cpu": "host"}


def communication_class(ranks, nodes):
    if ranks == 1:
        return "single-rank"
    if nodes == 1:
        return "nvlink-only"
    return "hca-only" if ranks == nodes else "mixed"


def row(line: str, file: str) -> tuple | None:
    """The columns of one line; None for lines that are no operation."""
    record = json.loads(line)
    header, metadata = record["header"], record["metadata"]
    perf, prefix = record.get("coll_perf"), "coll"
    if perf is None:
        perf, prefix = record.get("p2p_perf"), "p2p"
        if perf is None:
            return None
    size, time_us, ranks = perf[prefix + "_msg_size_bytes"], perf[prefix + "_exec_time_us"], header["n_ranks"]
    collective = perf[prefix]
    algbw, busbw = perf[prefix + "_algobw_gbs"], perf[prefix + "_busbw_gbs"]
    sized = 0 <= size < 1 << 63  # Inspector writes about 2^64 for ncclUint8, and a bandwidth of that
    timed = time_us > 0 and algbw not in ("nan", 0) and sized
    name = header.get("comm_name", "unknown")
    return (file, metadata["hostname"], metadata["pid"], header["id"], None if name == "unknown" else name, header["rank"],
            ranks, header["nnodes"], communication_class(ranks, header["nnodes"]), collective, perf[prefix + "_sn"],
            perf.get("coll_algo"), perf.get("coll_proto"), perf.get("p2p_peer"),
            (size * ranks if collective in ("AllGather", "ReduceScatter") else size) if sized else None, size if sized else None,
            metadata["dump_timestamp_us"] * 1000, time_us / 1e6, algbw * 1e9 if timed else None, busbw * 1e9 if timed else None,
            TIMINGS.get(perf.get(prefix + "_timing_source")), metadata["git_rev"])


def convert(arguments) -> int:
    """One log into one Parquet file; returns its operations."""
    path, output, number = arguments
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    rows = []
    with opened as file:
        for line in file:
            values = row(line, path.name)
            if values is not None:
                rows.append(values)
    frame = pandas.DataFrame(rows, columns=COLUMNS)
    frame.to_parquet(output / f"{number:05d}.parquet", compression="snappy")
    return len(frame)


def statistics(frame: pandas.DataFrame, keys: list[str]) -> pandas.DataFrame:
    groups = frame.groupby(keys, dropna=False, sort=False, observed=True)
    result = pandas.DataFrame({"operations": groups.size(), "timed": groups["seconds"].count(),
                               "total_bytes": groups["bytes"].sum(min_count=1), "first_ns": groups["time_ns"].min(),
                               "last_ns": groups["time_ns"].max(), "total_seconds": groups["seconds"].sum()})
    for measure in MEASURES:
        values = groups[measure]
        result[measure + "_mean"] = values.mean()
        result[measure + "_median"] = values.median()
        for percent in (5, 95, 99):
            result[f"{measure}_p{percent}"] = values.quantile(percent / 100)
        result[measure + "_min"] = values.min()
        result[measure + "_max"] = values.max()
        result[measure + "_stddev"] = values.std()
    return result.reset_index()


def report(logs: pathlib.Path, output: pathlib.Path, processes: int, job: str = "unknown") -> dict[str, pandas.DataFrame]:
    parquet = output / "parquet"
    parquet.mkdir(parents=True)
    files = sorted(p for p in logs.rglob("*") if p.name.endswith((".log", ".log.gz")))
    with multiprocessing.Pool(processes) as pool:
        pool.map(convert, [(path, parquet, number) for number, path in enumerate(files)], chunksize=1)
    frame = pandas.read_parquet(parquet)
    frame["job"] = job
    tables = {}
    for table, keys in TABLES.items():
        tables[table] = statistics(frame, keys)
        tables[table].to_parquet(output / f"{table}.parquet")
    return tables


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    begin = time.monotonic()
    report(options.logs, options.output, options.processes)
    print(f"{time.monotonic() - begin:.3f}")


if __name__ == "__main__":
    main()
