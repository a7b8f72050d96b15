#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy-14 over the project's sources, several at a time.

Sources that were clean before and have not changed since (they, the project's headers they include, their
compile command, the rules) are not looked at again. Tests are left out: they are checked by running them.
Usage: tidy.py [--build DIR] [--jobs N] [--all] [PATH ...]   PATH: only sources below it
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GCC_ONLY = {"-fno-gnu-unique", "-Wduplicated-cond", "-Wlogical-op", "-Wno-restrict"}
FOLDERS = ("plugin", "proto", "verdict", "topology", "archive", "agent", "cli", "sim", "deploy")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ncclscope" / "tidy"
TIDY = "clang-tidy-14"


def sources(build: pathlib.Path, below: list[str]):
    """(source, command without compiler launcher and outputs) of each of our sources, once."""
    seen = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or path in seen:
            continue
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in FOLDERS or path.is_relative_to(build):
            continue
        if below and not any(relative.is_relative_to(p) for p in below):
            continue
        seen[path] = (entry["directory"], shlex.split(entry["command"]))
    return seen


def key(path: pathlib.Path, directory: str, command: list[str], rules: bytes) -> str | None:
    """Hash of all that decides the outcome, system headers excepted; None if it cannot be told."""
    arguments, skip = [], False
    for word in command:
        if skip or word.endswith("ccache"):
            skip = False
        elif word in ("-o", "-MF", "-MT", "-MQ"):
            skip = True
        elif word not in ("-c", "-MD", "-MMD"):
            arguments.append(word)
    listing = subprocess.run(arguments + ["-MM"], cwd=directory, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        return None
    digest = hashlib.sha256(rules + " ".join(arguments).replace(str(ROOT), "").encode())
    for name in listing.stdout.replace("\\\n", " ").split()[1:]:
        digest.update(pathlib.Path(directory, name).read_bytes())
    return digest.hexdigest()


def clang_commands(build: pathlib.Path, folder: pathlib.Path) -> None:
    """The build's compile commands without what only g++ understands."""
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        words = [word for word in shlex.split(entry.pop("command")) if word not in GCC_ONLY and not word.endswith("/ccache")]
        entry["arguments"] = words
    (folder / "compile_commands.json").write_text(json.dumps(entries))


def check(path, directory, command, database, rules):
    started = time.monotonic()
    digest = key(path, directory, command, rules)
    if digest and (CACHE / digest).exists():
        return path, 0, "", time.monotonic() - started
    result = subprocess.run(
        [TIDY, "--quiet", "-p", str(database), "--extra-arg=-Wno-unknown-warning-option", str(path)],
        capture_output=True, text=True, check=False)
    if result.returncode == 0 and digest:
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / digest).touch()
    return path, result.returncode, result.stdout, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true", help="look at unchanged sources too")
    parser.add_argument("path", nargs="*")
    options = parser.parse_args()
    build = options.build.resolve()
    rules = b"" if not options.all else os.urandom(8)
    rules += (ROOT / ".clang-tidy").read_bytes()
    rules += subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout

    todo = sources(build, options.path)
    if not todo:
        print(f"tidy.py: no source of ours in {build}/compile_commands.json; build first", file=sys.stderr)
        return 1
    bad, slowest = 0, []
    with tempfile.TemporaryDirectory() as database, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        clang_commands(build, pathlib.Path(database))
        futures = [pool.submit(check, path, *todo[path], database, rules) for path in sorted(todo)]
        for future in concurrent.futures.as_completed(futures):
            path, code, output, seconds = future.result()
            slowest.append((seconds, path.relative_to(ROOT)))
            if code != 0:
                bad += 1
                print(f"-- {path.relative_to(ROOT)}\n{output}", flush=True)
    slowest.sort(reverse=True)
    print("slowest:", ", ".join(f"{path} {seconds:.1f} s" for seconds, path in slowest[:3]))
    print(f"{len(todo)} sources, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
