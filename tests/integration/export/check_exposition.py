#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Parses an exposition from standard input with the strict parser of the Prometheus client library.

  check_exposition.py openmetrics|text     prints "N families, N samples"; any error ends with a trace and rc 1
"""
import sys

from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser


def main() -> int:
    text = sys.stdin.buffer.read().decode("utf-8")  # strict: invalid UTF-8 is an error
    parse = {"openmetrics": openmetrics_parser, "text": text_parser}[sys.argv[1]].text_string_to_metric_families
    families = list(parse(text))
    seen = set()
    for family in families:
        if not family.documentation:
            raise ValueError(f"{family.name} has no HELP")
        if family.type in ("unknown", "untyped"):
            raise ValueError(f"{family.name} has no TYPE")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            if key in seen:
                raise ValueError(f"twice: {key}")
            seen.add(key)
    print(f"{len(families)} families, {len(seen)} samples")
    return 0


if __name__ == "__main__":
    sys.exit(main())
