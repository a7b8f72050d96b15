#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the recording rules against verdict/: both must accuse the same GPUs of the same jobs.

  rules_agree.py BENCH [--faulty N] [--healthy N] [--most-ranks N] [--seed N] [--keep DIR]

BENCH, the program diagnosis_bench, plays seeded jobs and writes what Prometheus would have scraped every 15 s for 20
minutes, and whom verdict/ accuses. promtool, which has Prometheus' own engine, evaluates the shipped rules over it.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "prometheus" / "recording.yml"
SCRAPE_SECONDS = 15
MINUTES = 20
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def series_of(path, wanted):
    """{series: {scrape: value}} of the metrics that the rules read."""
    found, number, node = {}, 0, ""
    with path.open() as lines:
        for line in lines:
            if line.startswith("# scrape "):
                _, _, text, node = line.split()
                number = int(text)
            elif not line.startswith("#"):
                match = SAMPLE.match(line.rstrip("\n"))
                if match and match[1] in wanted:
                    labels = f'{match[2]},' if match[2] else ""
                    key = f'{match[1]}{{{labels}instance="{node}:9464",job="ncclscope"}}'
                    found.setdefault(key, {})[number] = match[3]
    return found


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_of(path, wanted, culprits):
    accused = [line.split() for line in path.with_suffix(".verdict").read_text().splitlines()]
    lines = [f"  - name: {path.stem}", f"    interval: {SCRAPE_SECONDS}s", "    input_series:"]
    scrapes = MINUTES * 60 // SCRAPE_SECONDS + 1
    for key, values in series_of(path, wanted).items():
        text = " ".join(values.get(i, "_") for i in range(scrapes))
        lines += [f"      - series: {quoted(key)}", f"        values: {quoted(text)}"]
    lines += ["    promql_expr_test:", f"      - expr: {quoted(f'group by (node, gpu) ({culprits})')}",
              f"        eval_time: {MINUTES}m", "        exp_samples:" + ("" if accused else " []")]
    for node, gpu in accused:
        labels = f'{{gpu="{gpu}", node="{node}"}}'
        lines += [f"          - labels: {quoted(labels)}", "            value: 1"]
    return lines, len(accused)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=pathlib.Path)
    parser.add_argument("--faulty", type=int, default=8)
    parser.add_argument("--healthy", type=int, default=4)
    parser.add_argument("--most-ranks", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="the test's files stay there")
    options = parser.parse_args()
    rules = RULES.read_text()
    wanted = set(re.findall(r"\bncclscope_\w+", rules))
    culprits = re.search(r"record: (gpu:\S+:culprit)\b", rules)[1]
    groups = re.findall(r"^  - name: (\S+)", rules, re.M)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([options.bench, "--series", folder, "--faulty", str(options.faulty), "--healthy",
                        str(options.healthy), "--most-ranks", str(options.most_ranks), "--seed", str(options.seed)],
                       check=True)
        failed, accusations = 0, 0
        for path in sorted(folder.glob("*.series")):
            test, accused = test_of(path, wanted, culprits)
            accusations += accused
            file = path.with_suffix(".test.yml")
            file.write_text("\n".join([f"rule_files: [{RULES}]", "evaluation_interval: 1m",
                                       f"group_eval_order: [{', '.join(groups)}]", "tests:"] + test) + "\n")
            run = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
            agree = run.returncode == 0
            failed += not agree
            print(f"{path.stem}: {accused} accused, {'rules and verdict agree' if agree else 'DISAGREE'}")
            if not agree:
                print(run.stdout[-3000:], run.stderr[-3000:])
        if options.faulty and not accusations:
            print("nobody is accused in any of the jobs: nothing was compared")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
