#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The bars of job health, each from the test or benchmark that measures it.

  health_bars.py --build DIR --out FILE [--jobs 300] [--days 200]

Runs them one after another and writes their figures in the form of Google Benchmark, for scripts/bench_bars.py:
  StepPeriod, Dimension   a thousand synthetic schedules (tests/unit/agent/step_schedules_test.cc)
  Diagnosis               emulated jobs: culprits, accusations, hangs (tests/bench/diagnosis); scripts/soak.sh plays a thousand each
  BandwidthDrop           the rule for drops on simulated days (tests/bench/bandwidth_drop.py)
  HangAlert               from the threshold to the alert in a real Prometheus that scrapes every second (tests/e2e/alerts)
What the rules cost is measured by tests/bench/rules_cost.py. A program that fails leaves its rows out: the bars are then not measured.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command):
    """What a program prints, passed on to stderr; a failed bar of its own is no reason to stop."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, check=False)
    sys.stderr.write(result.stdout[-2000:] + result.stderr[-2000:])
    return result.stdout


def schedules(build):
    text = run(build / "tests" / "agent_step_schedules_test")
    if found := re.search(r"step period exact in (\d+) of (\d+) schedules", text):
        yield {"name": "StepPeriod", "exact_percent": 100 * int(found[1]) / int(found[2]), "schedules": int(found[2])}
    if found := re.search(r"dimension without a name: wrong in (\d+) of (\d+) communicators", text):
        wrong, all_of_them = int(found[1]), int(found[2])
        yield {"name": "Dimension", "wrong_percent": 100 * wrong / all_of_them,
               "right_or_unknown_percent": 100 * (all_of_them - wrong) / all_of_them, "communicators": all_of_them}


def diagnosis(build, jobs):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "lines.json"
        run(build / "tools" / "diagnosis_bench", "--faulty", jobs, "--healthy", jobs, "--hangs", jobs, "--most-ranks", 256, "--json", out)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    wanted = {"hang_right", "culprit_top1", "culprit_false", "healthy_accused"}
    figures = {line["name"]: line["value"] for line in lines if line.get("name") in wanted}
    if figures:
        yield {"name": "Diagnosis", "jobs": jobs, **figures}


def bandwidth_drop(days):
    for name, options in (("one_kind", ()), ("operations", ("--operations", 60)), ("two_kinds", ("--kinds", 2))):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "line.json"
            run(sys.executable, ROOT / "tests" / "bench" / "bandwidth_drop.py", "--days", days, "--drops", 500, *options, "--out", out)
            if not out.exists():
                continue
            line = json.loads(out.read_text())
        yield {"name": f"BandwidthDrop/{name}", "found_percent": 100 * line["found_within_5"], "days": days,
               "best_possible_percent": 100 * line["best_possible_within_5"],
               "false_per_1000_days": 1000 * line["false_alerts"] / days}


def hang_alert(build):
    text = run("/usr/bin/python3", ROOT / "tests" / "e2e" / "alerts" / "alerts.py", "--build", build, "hangs")
    if found := re.search(r"told after the threshold: (.+)", text):
        yield {"name": "HangAlert", "worst_seconds": max(map(float, re.findall(r" (-?[\d.]+) s", found[1])))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--days", type=int, default=200)
    options = parser.parse_args()
    rows = [*schedules(options.build), *diagnosis(options.build, options.jobs), *bandwidth_drop(options.days), *hang_alert(options.build)]
    options.out.write_text(json.dumps({"benchmarks": rows}) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
