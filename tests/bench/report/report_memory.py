#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""That `ncclscope report` keeps within its memory, whatever the input's size.

  report_memory.py --build DIR [--lines N] [--work DIR]

One rank's log is repeated until there are N lines, each with a bus bandwidth of its own, so that no two operations fold into one value:
the hardest case for exact quantiles. Fails if the process ever
had more than 500 MB resident, or if the report does not count every line.
"""
import argparse
import gzip
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import inspector_lines  # noqa: E402

LIMIT_MB = 500
FILE_LINES = 1_000_000


def write_file(arguments) -> None:
    """(folder, number, lines): one log; for a pool of processes."""
    folder, number, count = arguments
    rng = random.Random(number)
    parts = []
    for text in inspector_lines.rank_lines(0, 2, 20_000, 9):
        key = '_busbw_gbs":'
        parts.append(text[:text.index(key) + len(key)])
    with gzip.open(folder / f"node{number:04d}-pid{number}.log.gz", "wb", compresslevel=1) as file:
        for begin in range(0, count, len(parts)):
            file.write("".join(f"{part}{rng.random() * 400:.6f}}}}}\n" for part in parts[:count - begin]).encode())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int, default=20_000_000)
    parser.add_argument("--work", type=pathlib.Path)
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="report-memory-", dir=options.work))
    try:
        logs = work / "logs"
        logs.mkdir()
        sizes = [min(FILE_LINES, options.lines - begin) for begin in range(0, options.lines, FILE_LINES)]
        with multiprocessing.Pool(2) as pool:
            pool.map(write_file, [(logs, number, count) for number, count in enumerate(sizes)], chunksize=1)
        begin = time.monotonic()
        process = subprocess.Popen([str(options.build / "cli/ncclscope"), "report", str(logs), "--output", str(work / "out"), "--quiet",
                                    "--no-pictures"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        peak_mb = usage.ru_maxrss * 1024 / 1e6
        seconds = time.monotonic() - begin
        code = os.waitstatus_to_exitcode(status)
        counted = json.loads((work / "out/report.json").read_text())["inputs"]["operations"] if code == 0 else 0
        print(f"{options.lines} lines in {len(sizes)} files: {seconds:.1f} s, {peak_mb:.0f} MB resident at most (limit {LIMIT_MB}), "
              f"{counted} operations, status {code}")
        return 0 if code == 0 and counted == options.lines and peak_mb <= LIMIT_MB else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
