#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tracked text: licence lines, left-over work, paths of one machine, merge markers, large files.

  check_text.py             checks all tracked files
  check_text.py --selftest  proves that the rules can fail
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SELF = "tests/repo/check_text.py"
DATA = ("tests/data/", "LICENSE")
MAX_BYTES = 2 * 1024 * 1024

SOURCE = re.compile(r"\.(h|cc|c|py|sh|proto|cmake)$|(^|/)CMakeLists\.txt$")
RULES = [
    (re.compile(r"^(<{7} |>{7} |={7}$)"), "merge marker", None),
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented yet"), "left-over work: finish it or file an issue", SOURCE),
    (re.compile(r"/(home|Users)/[a-z][a-z0-9_-]*/|/root/|(?<![\w.])/work/"), "path of one machine", None),
    (re.compile(r"\b(sk|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|AKIA[0-9A-Z]{16}"),
     "looks like a secret", None),
    (re.compile(r"[ \t]+$"), "trailing white space", SOURCE),
    (re.compile(r"\t"), "tab", re.compile(r"\.(h|cc|py|proto|cmake|toml|ya?ml|json)$")),
]


def findings(name: str, text: str):
    lines = text.splitlines()
    if SOURCE.search(name) and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield 1, "no SPDX-License-Identifier: Apache-2.0 in the first three lines"
    for number, line in enumerate(lines, 1):
        for pattern, message, where in RULES:
            if (where is None or where.search(name)) and pattern.search(line):
                yield number, message


def selftest() -> int:
    head = "// SPDX-License-Identifier: Apache-2.0\n"
    bad = [
        ("a.h", "int a;\n"),
        ("a.h", head + "// TO" + "DO: later\n"),
        ("a.h", head + "int a; \n"),
        ("a.h", head + "\tint a;\n"),
        ("README.md", "see /home/" + "alice/x\n"),
        ("README.md", "<" * 7 + " HEAD\n"),
        ("a.toml", "key = 'ghp_" + "a" * 36 + "'\n"),
    ]
    good = [("a.h", head + "int a;\n"), ("README.md", "a  \n/run/ncclscope/agent.sock\n"), ("a.md", "TO" + "DO\n")]
    wrong = [c for c in bad if not list(findings(*c))] + [c for c in good if list(findings(*c))]
    print(f"{len(bad) + len(good)} cases, wrong: {wrong}")
    return 1 if wrong else 0


def main() -> int:
    if sys.argv[1:] == ["--selftest"]:
        return selftest()
    listing = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT,
                             capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        print("SKIPPED: not a git work tree")
        return 77
    count = found = 0
    for name in (n for n in listing.stdout.split("\0") if n):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        if path.stat().st_size > MAX_BYTES:
            found += 1
            print(f"{name}: {path.stat().st_size} bytes; at most {MAX_BYTES}")
            continue
        if name == SELF or name.startswith(DATA):
            continue
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        count += 1
        for number, message in findings(name, data.decode(errors="replace")):
            found += 1
            print(f"{name}:{number}: {message}")
    print(f"{count} text files, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
