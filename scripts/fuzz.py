#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every libFuzzer program of a build; one JSON line for each, with executions and coverage.

  fuzz.py [--build build/fuzz] [--seconds N] [--runs N] [--json FILE]

Each fuzzer begins with its seeds of tests/fuzz/corpus/<name>, that of frames with the golden ones of tests/data/frames; what it finds of interest grows in the build folder. It
ends after N seconds or N runs, whichever comes first. Findings stay in <build>/findings and end the script with 1.
"""
import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def seeds(name: str) -> list[pathlib.Path]:
    short = name.removeprefix("ncclscope_")
    places = [ROOT / "tests/fuzz/corpus" / place for place in (short, short.removesuffix("_fuzzer"))]
    if short == "frame_fuzzer":
        places.append(ROOT / "tests/data/frames")
    return [p for p in places if p.is_dir()]


def run(fuzzer: pathlib.Path, build: pathlib.Path, seconds: int, runs: int | None) -> dict:
    work, findings = build / "corpus" / fuzzer.name, build / "findings"
    work.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    folders = seeds(fuzzer.name)
    command = [fuzzer, f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048",
               f"-artifact_prefix={findings}/{fuzzer.name}-"]
    if runs is not None:
        command.append(f"-runs={runs}")
    log = build / f"{fuzzer.name}.log"
    with open(log, "wb") as out:
        code = subprocess.run([*command, work, *folders], stdout=out, stderr=out, check=False,
                              timeout=seconds + 300).returncode
    text = log.read_text(errors="replace")
    executed = re.search(r"^stat::number_of_executed_units: *(\d+)", text, re.MULTILINE)
    coverage = re.findall(r"cov: (\d+) ft: (\d+)", text)
    line = {"check": "fuzz", "name": fuzzer.name.removeprefix("ncclscope_"), "seconds": seconds,
            "executions": int(executed[1]) if executed else 0,
            "edges_covered": int(coverage[-1][0]) if coverage else 0,
            "features_covered": int(coverage[-1][1]) if coverage else 0,
            "seeds": sum(1 for folder in folders for p in folder.rglob("*") if p.is_file()),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    line["ok"] = code == 0 and line["executions"] > 0 and line["seeds"] > 0
    if not line["ok"]:
        print(f"{fuzzer.name} ended with {code}; its log ends:\n{text[-4000:]}", file=sys.stderr)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    fuzzers = sorted(p for p in (options.build / "fuzz").glob("*_fuzzer") if p.is_file())
    if not fuzzers:
        print(f"fuzz.py: no fuzzer in {options.build / 'fuzz'}; build the preset fuzz first", file=sys.stderr)
        return 2
    lines = []
    for fuzzer in fuzzers:
        lines.append(run(fuzzer, options.build, options.seconds, options.runs))
        print(json.dumps(lines[-1]), flush=True)
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0 if all(line["ok"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
