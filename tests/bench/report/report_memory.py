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
        rng, written, number = random.Random(3), 0, 0
        template = list(inspector_lines.rank_lines(0, 2, 20_000, 9))
        while written < options.lines:
            count = min(options.lines - written, 1_000_000)
            with gzip.open(logs / f"node{number:04d}-pid{number}.log.gz", "wt", compresslevel=1, encoding="utf-8") as file:
                for line in range(count):
                    text = template[line % len(template)]
                    key = '_busbw_gbs":'
                    at = text.index(key) + len(key)
                    file.write(f"{text[:at]}{rng.random() * 400:.6f}}}}}\n")
            written += count
            number += 1
        begin = time.monotonic()
        process = subprocess.Popen([str(options.build / "cli/ncclscope"), "report", str(logs), "--output", str(work / "out"), "--quiet",
                                    "--no-pictures"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        peak_mb = usage.ru_maxrss * 1024 / 1e6
        seconds = time.monotonic() - begin
        code = os.waitstatus_to_exitcode(status)
        counted = json.loads((work / "out/report.json").read_text())["inputs"]["operations"] if code == 0 else 0
        print(f"{options.lines} lines in {number} files: {seconds:.1f} s, {peak_mb:.0f} MB resident at most (limit {LIMIT_MB}), "
              f"{counted} operations, status {code}")
        return 0 if code == 0 and counted == options.lines and peak_mb <= LIMIT_MB else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
