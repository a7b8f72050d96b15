#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ncclscope report` on what agents kept of emulated jobs.

  archives.py --build DIR SCENARIO

paths: two nodes; who used the network is told by communicator, and nobody else's; every statistic is what pandas makes of the
rows. The same job with the ranks of both nodes on one agent: NCCL takes one node for two, and the report says so.

both: the plugin writes Inspector's lines, too; a report of them is one of the archives.
"""
import csv
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "report"))
sys.dont_write_bytecode = True
from support import PLUGIN, ROOT, Agent, Job, Skipped, require, run_scenarios, running, wait_until  # noqa: E402

NODES, GPUS = 2, 2


def kept_job(build, folder, nodes, sockets_of, environment=()):
    """The archives of a job on agents of `nodes` nodes. sockets_of(agents): the socket of each emulated node."""
    folder.mkdir()
    agents = [Agent(build, folder, f"node{n}", ["--archive-directory", folder / f"node{n}" / "archive", "--archive-flush-seconds", "1"])
              for n in range(nodes)]
    with running(agents):
        job = Job(build, NODES, GPUS, "megatron:tp=2,dp=2", 25, plugin=PLUGIN, sockets=sockets_of(agents), compute_ms=5,
                  env=["NCCLSCOPE_OVERHEAD_BUDGET=1", "NCCLSCOPE_DETAIL=full", *environment])
        operations = job.wait()["operations"]
        wait_until("all records", lambda: sum(p["operations_received"] for a in agents for p in a.books()) == operations)
    return [agent.folder / "archive" for agent in agents], operations


def report(build, out, *arguments):
    result = subprocess.run([build.command_line, "report", *map(str, arguments), "--output", out, "--no-pictures"], capture_output=True,
                            text=True, timeout=120, check=False)
    if "DuckDB is needed" in result.stderr:
        raise Skipped("no DuckDB here; scripts/fetch-duckdb.sh brings it")
    require(result.returncode == 0, f"ended with {result.returncode}: {result.stdout}{result.stderr}")
    with open(out / "communicators.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    require(rows == [{k: "" if v is None else str(v) for k, v in r.items()} for r in
                     json.loads((out / "report.json").read_text())["communicators"]], "CSV and JSON differ")
    return result.stdout, rows


def check_statistics(out, operations):
    """The tables against pandas over the Parquet files."""
    done = subprocess.run([ROOT / "scripts" / "fetch-pandas.sh"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skipped(f"no pandas: {done.stderr.strip()}")
    sys.path.insert(0, done.stdout.strip().splitlines()[-1])
    import pandas
    import pandas_report
    import report_bench
    frame = pandas.read_parquet(out / "operations")
    frame["job"] = frame["job"].astype(str)
    require(len(frame) == operations, f"{len(frame)} rows, {operations} operations")
    compared = 0
    for name, keys in pandas_report.TABLES.items():
        right = pandas_report.statistics(frame, keys)
        got = pandas.read_csv(out / f"{name}.csv", dtype={"job": str}, float_precision="round_trip")
        require(report_bench.different(name, got[list(right.columns)], right, keys) == 0, f"{name} differs from pandas")
        compared += right.size
    print(f"{compared} statistics of {operations} operations as pandas has them")


def paths(build, folder):
    archives, operations = kept_job(build, folder / "two", NODES, lambda agents: [a.socket for a in agents])
    text, rows = report(build, folder / "out", *archives)
    check_statistics(folder / "out", operations)
    by_class = {}
    for row in rows:
        by_class.setdefault(row["communication_class"], []).append(row)
    require(sorted(by_class) == ["hca-only", "mixed", "nvlink-only"], f"classes {sorted(by_class)}")
    for row in by_class["nvlink-only"]:
        require((row["paths_seen"], row["network_ranks"], row["network_bytes"]) == ("", "", ""), f"within a node: {row}")
    for row in by_class["hca-only"]:
        require(row["paths_seen"] == "network" and row["network_ranks"] == row["ranks"] == row["ranks_seen"], f"between nodes: {row}")
        require(int(row["network_bytes"]) > 0, f"{row}")
    for row in by_class["mixed"]:
        require(row["paths_seen"] == "network" and 1 <= int(row["network_ranks"]) <= int(row["ranks"]), f"over all: {row}")
    require(not any(row["remark"] for row in rows) and "What stands out" not in text, f"remarks on a healthy job: {rows}")
    require("PATHS" in text and "network" in text, text)

    archives, _ = kept_job(build, folder / "one", 1, lambda agents: [agents[0].socket] * NODES)
    text, rows = report(build, folder / "hidden", *archives)
    for row in rows:
        require(row["remark"] == ("" if row["nodes"] == "1" else "node_as_several"), f"{row}")
    require("communicators, such as " in text and "have ranks on one node that NCCL takes for several nodes." in text, text)


def both(build, folder):
    """One job that leaves Inspector's lines and archives: the same operations with the same numbers, and nothing has changed."""
    archives, operations = kept_job(build, folder / "job", NODES, lambda agents: [a.socket for a in agents],
                                    [f"NCCL_INSPECTOR_DUMP_DIR={folder}/nccl-inspector-4711", "NCCLSCOPE_INSPECTOR_FORMAT=v4.2",
                                     "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0"])
    report(build, folder / "lines", folder / "nccl-inspector-4711")
    report(build, folder / "kept", *archives)
    check_statistics(folder / "lines", operations)
    import numpy
    import pandas
    key = ["communicator", "rank", "collective", "sequence"]
    lines, kept = (pandas.read_parquet(folder / name / "operations").sort_values(key).reset_index(drop=True) for name in ("lines", "kept"))
    for column in (*key, "ranks", "nodes", "communication_class", "communicator_name", "algorithm", "protocol", "bytes", "rank_bytes",
                   "plugin_version"):
        require((lines[column] == kept[column]).all(), f"{column} differs between lines and archive")
    # Lines have whole microseconds, and bandwidths of six decimals of GB/s.
    require((lines["seconds"] - kept["seconds"]).abs().max() <= 1e-6, "times differ between lines and archive")
    for column in ("algbw", "busbw"):
        # An algorithm bandwidth that rounds to 0 there counts as none, and then there is no bus bandwidth either.
        off = ~numpy.isclose(lines[column].fillna(0), kept[column], rtol=1e-9, atol=1001)
        require(not off.any(), f"{column} differs between lines and archive: {lines[off].head(3).to_dict('records')}, "
                               f"{kept[off].head(3).to_dict('records')}")
    out = folder / "difference"
    result = subprocess.run([build.command_line, "report", "--compare", folder / "lines", folder / "kept", "--output", out, "--no-pictures"],
                            capture_output=True, text=True, timeout=120, check=False)
    require(result.returncode == 0 and "Nothing changed" in result.stdout, f"a job against itself: {result.stdout}{result.stderr}")
    shapes = json.loads((out / "compare.json").read_text())["shapes"]
    bulk = [s for s in shapes if s["bytes"] > 1000]
    require(bulk and all(s["operations_a"] == s["operations_b"] > 0 for s in bulk), f"shapes {shapes}")


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, [paths, both]))
