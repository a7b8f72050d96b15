#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""That `ncclscope report` keeps within its memory, whatever the input's size: with pictures, and with --compare.

  report_memory.py --build DIR [--kind lines|sizes|communicators] [--lines N] [--threads N] [--json FILE] [--work DIR] [--sample]

The logs of 16 ranks, N lines in all, that all tell of the same operations: the sequence numbers go on from file to file, so that
a fifth of N operations are compared between ranks. Each line has a bus bandwidth of its own, so that no two fold into one value: the
hardest case for exact quantiles. The second run compares the first's report with the logs. Fails if a process ever
had more than 500 MB resident, or if the report does not count every line. --threads: as `ncclscope report` has it, which takes one for
each core, eight at most, by itself. --kind: sizes gives each line a message size of its own, communicators spreads the lines over
100,000 communicators (a twentieth of the lines if those are fewer); 2 million lines then. --json: the figures in a line. --sample: few lines with little
memory, for the test suite.
"""
import argparse
import collections
import gzip
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import inspector_lines  # noqa: E402

LIMIT_MB = 500  # what `ncclscope report` keeps within unless told otherwise
SAMPLE_LINES, SAMPLE_MB = 400_000, 250
NODES = 2
RANKS = NODES * inspector_lines.GPUS
STEPS = 1_500  # that are made line by line; what follows is the same with later times and numbers
FILE_LINES = 500_000
LINES_OF_KIND = {"lines": 20_000_000, "sizes": 2_000_000, "communicators": 2_000_000}
COMMUNICATORS = 100_000
SIZE = re.compile(r'(?<=_msg_size_bytes":)\d+')
IDENTITY = re.compile(r'(?<="id":")[^"]*')
LINE = re.compile(r'(.*"dump_timestamp_us":)(\d+)(.*"(?:coll|p2p)":"(\w+)".*_sn":)(\d+)(,.*_busbw_gbs":)')


class Template:
    """The lines of one rank's first steps, taken apart."""

    def __init__(self, rank: int):
        self.parts, count = [], collections.Counter()
        for text in inspector_lines.rank_lines(rank, NODES, STEPS * len(inspector_lines.STEP), 9):
            before, time_us, middle, collective, number, after = LINE.match(text).groups()
            key = (before, collective)  # the communicator is in what comes before
            count[key] += 1
            self.parts.append((key, before, int(time_us), middle, int(number), after))
        self.numbers = count

    def span_us(self) -> int:
        return self.parts[-1][2] - self.parts[0][2]


def write_file(arguments) -> None:
    """(folder, kind, rank, first line, lines, of how many of the rank, time of a round): one log; for a pool of processes."""
    folder, kind, rank, first, count, each, round_us = arguments
    communicators = min(COMMUNICATORS, each * RANKS // 20)
    rng = random.Random(f"{rank}/{first}")
    template = Template(rank)
    with gzip.open(folder / f"node{rank // inspector_lines.GPUS:04d}-pid{40000 + rank}-{first // FILE_LINES}.log.gz", "wb",
                   compresslevel=1) as file:
        lines = []
        for line in range(first, first + count):
            repeated, at = divmod(line, len(template.parts))
            key, before, time_us, middle, number, after = template.parts[at]
            if kind == "sizes":
                after = SIZE.sub(str(rng.randrange(1, 1 << 30)), after)
            elif kind == "communicators":
                before = IDENTITY.sub(f"0x{(line * communicators // each + 1) * 2654435761:x}", before)
            lines.append(f"{before}{time_us + repeated * round_us}{middle}{number + repeated * template.numbers[key]}{after}"
                         f"{rng.random() * 400:.6f}}}}}\n")
            if len(lines) == 10_000 or line + 1 == first + count:
                file.write("".join(lines).encode())
                lines.clear()


def write_logs(folder: pathlib.Path, kind: str, lines: int) -> int:
    """Returns the number of files."""
    folder.mkdir()
    round_us = 2 * Template(0).span_us()
    each = lines // RANKS
    files = [(folder, kind, rank, first, min(FILE_LINES, each - first), each, round_us)
             for rank in range(RANKS) for first in range(0, each, FILE_LINES)]
    with multiprocessing.Pool(2) as pool:
        pool.map(write_file, files, chunksize=1)
    return len(files)


def run(command: list[str], wanted: tuple[int, ...]) -> tuple[bool, float, float]:
    """(whether its status is among the wanted, its seconds, the most megabytes that were resident)"""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status) in wanted, time.monotonic() - begin, usage.ru_maxrss * 1024 / 1e6


def operations_of_report(path: pathlib.Path) -> int:
    return json.loads(path.read_text())["inputs"]["operations"]


def operations_of_comparison(path: pathlib.Path) -> int:
    made = json.loads(path.read_text())
    return min(made[side]["operations"] for side in "ab")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--kind", choices=tuple(LINES_OF_KIND), default="lines")
    parser.add_argument("--lines", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    limit_mb = SAMPLE_MB if options.sample else LIMIT_MB
    if options.lines is None:
        options.lines = SAMPLE_LINES if options.sample else LINES_OF_KIND[options.kind]
    work = pathlib.Path(tempfile.mkdtemp(prefix="report-memory-", dir=options.work))
    command = [str(options.build / "cli/ncclscope"), "report", "--quiet", "--memory", str(limit_mb)]
    if options.threads is not None:
        command += ["--threads", str(options.threads)]
    try:
        files = write_logs(work / "logs", options.kind, options.lines)
        lines = options.lines // RANKS * RANKS
        good = True

        def check(what: str, prefix: str, result: tuple[bool, float, float], path: pathlib.Path, count) -> None:
            nonlocal good
            ended_well, seconds, peak_mb = result
            figures.update({f"{prefix}peak_mb": round(peak_mb), f"{prefix}seconds": round(seconds)})
            counted = 0
            if ended_well:
                # Some 100 MB of JSON: in a process of its own, as what this one holds counts as resident in those it starts.
                with multiprocessing.Pool(1) as pool:
                    counted = pool.apply(count, (path,))
            print(f"{what}, {lines} lines in {files} files: {seconds:.1f} s, {peak_mb:.0f} MB resident at most (limit {limit_mb}), "
                  f"{counted} operations, {'done' if ended_well else 'FAILED'}", flush=True)
            good = good and ended_well and counted == lines and peak_mb <= limit_mb

        figures = {"check": "report_memory", "name": f"{options.kind}, threads: {options.threads or 'by itself'}", "lines": lines,
                   "at_most_mb": limit_mb}
        report, compared = work / "report", work / "compared"
        check("tables and pictures", "", run([*command, str(work / "logs"), "--output", str(report)], (0,)),
              report / "report.json", operations_of_report)
        check("comparison", "compare_", run([*command, "--compare", str(report), str(work / "logs"), "--output", str(compared)], (0, 1)),
              compared / "compare.json", operations_of_comparison)
        figures.update({"date": time.strftime("%Y-%m-%d", time.gmtime()), "ok": good})
        if options.json is not None:
            options.json.write_text(json.dumps(figures) + "\n")
        return 0 if good else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
