#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints passed, failed, skipped and the failed names of a ctest --output-junit file, separated by tabs."""
import sys
import xml.etree.ElementTree as ElementTree


def verdict(case) -> str:
    status = case.get("status")
    if status == "run":
        return "passed"
    message = case.find("skipped")
    # A test that skipped itself says SKIP_...; one whose program is missing is "notrun" too, and has failed.
    skipped_itself = message is not None and message.get("message", "").startswith("SKIP_")
    return "skipped" if status == "disabled" or skipped_itself else "failed"


def main() -> int:
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    if not cases:
        print(f"ctest_counts.py: {sys.argv[1]} holds no test case", file=sys.stderr)
        return 1
    verdicts = [verdict(case) for case in cases]
    names = [case.get("name") for case, result in zip(cases, verdicts) if result == "failed"]
    print(*(verdicts.count(v) for v in ("passed", "failed", "skipped")), " ".join(names), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
