#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes promtool's rule tests: one <Alert>.test.yml for each alert, from the cases in cases.py.

  write.py          writes the files beside this script
  write.py --check  1 if the committed files are not what the cases give
  write.py --run    writes them and runs promtool on them
"""
import json
import pathlib
import subprocess
import sys

import cases
from series import with_sums

FOLDER = pathlib.Path(__file__).resolve().parent
GROUPS = ["ncclscope.progress", "ncclscope.window", "ncclscope.recent", "ncclscope.baseline", "ncclscope.drop", "ncclscope.hang", "ncclscope.late",
          "ncclscope.bandwidth", "ncclscope.telemetry"]


def quoted(value):
    return json.dumps(value, ensure_ascii=False)


def test(case):
    lines = [f"  - name: {quoted(case.name)}", f"    interval: {case.interval}", "    input_series:"]
    for series, values in (with_sums(case.series) if case.sums else case.series).items():
        lines += [f"      - series: {quoted(series)}", f"        values: {quoted(values)}"]
    if case.values:
        lines.append("    promql_expr_test:")
    for time, expression, samples in case.values:
        lines += [f"      - expr: {quoted(expression)}", f"        eval_time: {time}",
                  "        exp_samples:" if samples else "        exp_samples: []"]
        for labels, value in samples:
            lines += [f"          - labels: {quoted(labels)}", f"            value: {value}"]
    lines.append("    alert_rule_test:")
    for time, alert, expected in case.alerts:
        lines += [f"      - eval_time: {time}", f"        alertname: {alert}",
                  "        exp_alerts:" if expected else "        exp_alerts: []"]
        for labels, annotations in expected:
            lines.append("          - exp_labels:")
            lines += [f"              {key}: {quoted(str(value))}" for key, value in labels.items()]
            lines.append("            exp_annotations:")
            lines += [f"              {key}: {quoted(value)}" for key, value in annotations.items()]
    return lines


def document(subject, tests):
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Written by write.py from cases.py: change that, not this.",
             f"# {subject}", "rule_files: [../recording.yml, ../alerts.yml]",
             f"evaluation_interval: {tests[0].interval}", f"group_eval_order: [{', '.join(GROUPS)}]", "tests:"]
    for case in tests:
        lines += test(case)
    return "\n".join(lines) + "\n"


def main() -> int:
    drifted, paths = [], []
    for subject, tests in cases.collect().items():
        path = FOLDER / f"{subject}.test.yml"
        text = document(subject, tests)
        paths.append(path)
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            drifted.append(path.name)
    strays = [p.name for p in FOLDER.glob("*.test.yml") if p not in paths]
    if drifted or strays:
        print(f"not what cases.py gives: {drifted}; of no case: {strays}; run deploy/prometheus/tests/write.py")
        return 1
    if sys.argv[1:] == ["--run"]:
        return subprocess.run(["promtool", "test", "rules", *paths], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
