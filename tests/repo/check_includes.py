#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Dependency direction: what each top folder may include, and what the plugin must never see.

  check_includes.py            checks the tracked and untracked-but-not-ignored sources
  check_includes.py --selftest proves that the rules can fail
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("proto", "verdict", "topology", "archive", "plugin", "agent", "sim", "cli", "deploy", "tests")

# Ours: folder -> folders it may include besides itself. tests/ may include everything.
MAY_USE = {
    "proto": (),
    "verdict": ("proto",),  # of it proto/model/ alone
    "topology": (),
    "plugin": ("proto",),
    "archive": ("proto",),
    "agent": ("proto", "archive", "topology", "verdict"),  # of verdict/ step_period.h alone
    "sim": ("proto",),
    "cli": ("proto", "sim", "verdict", "archive", "topology"),
    "deploy": (),  # SLURM's plugin is also built on the spot, from its folder alone
}

# Inside the agent, from the bottom to the top. "app" wires, "api" and "export" stand side by side; the page builds on
# what "export" serves.
AGENT_LAYERS = {"base": 0, "access": 1, "ingest": 1, "identity": 2, "aggregate": 3, "archive": 4, "export": 5, "api": 5, "page": 6, "app": 7}

# Strangers that would bring symbols, threads or allocation into a training process.
PLUGIN_FORBIDDEN = re.compile(
    r"^(grpc|grpcpp|google/|fmt/|spdlog/|prometheus/|nlohmann/|toml|CLI/|cuda|nccl\.h|"
    r"iostream$|fstream$|sstream$|locale$|regex$|filesystem$|format$|ncclscope/v1/)")
VERDICT_FORBIDDEN = re.compile(r"^(grpc|google/|fmt/|spdlog/|prometheus/|nlohmann/|chrono$|iostream$|fstream$|filesystem$|thread$)")
TOPOLOGY_FORBIDDEN = re.compile(r"^(grpc|google/|fmt/|spdlog/|prometheus/|nlohmann/|CLI/|iostream$|chrono$|thread$)")
PROTO_FORBIDDEN = re.compile(r"^(grpc|google/|fmt/|spdlog/|prometheus/|nlohmann/|iostream$|fstream$|sstream$|locale$|regex$)")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def violation(source: str, included: str) -> str | None:
    """Why `source` (path from the root) must not include `included`; None if it may."""
    folder = source.split("/")[0]
    target = included.split("/")[0] if "/" in included else None
    if folder == "plugin" and PLUGIN_FORBIDDEN.match(included):
        return "the plugin lives in other people's processes: libc, pthread and a few std headers only"
    if folder == "verdict" and VERDICT_FORBIDDEN.match(included):
        return "verdict/ is pure: no libraries, no input or output, no clocks"
    if folder == "topology" and TOPOLOGY_FORBIDDEN.match(included):
        return "topology/ reads small files and computes: std headers only, no clocks, no threads"
    if folder == "proto" and PROTO_FORBIDDEN.match(included):
        return "proto/ is included by the plugin: std headers without allocation only"
    if folder in MAY_USE and target in FOLDERS and target != folder and target not in MAY_USE[folder]:
        allowed = ", ".join(MAY_USE[folder]) or "nothing of ours"
        return f"{folder}/ may use {allowed}"
    if folder == "verdict" and target == "proto" and not included.startswith("proto/model/"):
        return "verdict/ knows what an operation is (proto/model/), not how it travels"
    if folder == "agent" and target == "verdict" and included != "verdict/step_period.h":
        return "agents measure, and judge nobody: of verdict/ they may use the step finder only"
    if folder == "agent" and target == "agent":
        own, other = source.split("/")[1], included.split("/")[1]
        if own in AGENT_LAYERS and other in AGENT_LAYERS and own != other:
            # The snapshot's types are the seam between the layers; data types flow upwards only.
            if AGENT_LAYERS[other] > AGENT_LAYERS[own]:
                return f"agent/{own} lies below agent/{other}"
    return None


def selftest() -> int:
    cases = [
        ("plugin/a.cc", "proto/wire/frame.h", True),
        ("plugin/a.cc", "agent/base/x.h", False),
        ("plugin/a.cc", "sim/x.h", False),
        ("cli/a.cc", "topology/machine.h", True),
        ("agent/a/a.cc", "topology/machine.h", True),
        ("topology/a.cc", "proto/wire/frame.h", False),
        ("deploy/slurm/spank/a.cc", "proto/wire/frame.h", False),
        ("tests/unit/slurm/a.cc", "deploy/slurm/spank/choice.h", True),
        ("cli/a.cc", "deploy/slurm/spank/choice.h", False),
        ("topology/a.cc", "nlohmann/json.hpp", False),
        ("plugin/a.cc", "spdlog/spdlog.h", False),
        ("plugin/a.cc", "grpcpp/grpcpp.h", False),
        ("plugin/a.cc", "google/protobuf/message.h", False),
        ("plugin/a.cc", "fmt/core.h", False),
        ("plugin/a.cc", "prometheus/registry.h", False),
        ("plugin/a.cc", "iostream", False),
        ("plugin/a.cc", "atomic", True),
        ("agent/ingest/a.cc", "proto/wire/decode.h", True),
        ("agent/ingest/a.cc", "plugin/record_ring.h", False),
        ("agent/ingest/a.cc", "agent/base/fd.h", True),
        ("agent/base/a.cc", "agent/ingest/session.h", False),
        ("agent/aggregate/a.cc", "agent/export/catalogue.h", False),
        ("agent/app/main.cc", "agent/api/service.h", True),
        ("cli/a.cc", "sim/emulator.h", True),
        ("cli/a.cc", "agent/base/x.h", False),
        ("cli/a.cc", "verdict/judge.h", True),
        ("agent/export/a.cc", "verdict/judge.h", False),
        ("verdict/a.cc", "proto/wire/frame.h", False),
        ("verdict/a.cc", "proto/model/operation.h", True),
        ("agent/aggregate/a.h", "verdict/step_period.h", True),
        ("verdict/a.cc", "chrono", False),
        ("archive/a.cc", "proto/wire/frame.h", True),
        ("archive/a.cc", "agent/base/x.h", False),
        ("agent/archive/a.cc", "archive/writer.h", True),
        ("cli/a.cc", "archive/reader.h", True),
        ("sim/a.cc", "archive/reader.h", False),
        ("sim/a.cc", "plugin/x.h", False),
        ("sim/a.cc", "cli/x.h", False),
        ("proto/wire/a.h", "plugin/x.h", False),
        ("tests/unit/a.cc", "plugin/x.h", True),
    ]
    wrong = [c for c in cases if (violation(c[0], c[1]) is None) != c[2]]
    for source, included, allowed in wrong:
        print(f"{source} -> {included}: should be {'allowed' if allowed else 'refused'}")
    print(f"{len(cases)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main() -> int:
    if sys.argv[1:] == ["--selftest"]:
        return selftest()
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.h", "*.cc", "*.c"],
        cwd=ROOT, capture_output=True, text=True, check=False)
    names = [n for n in listing.stdout.split("\0") if n]
    if listing.returncode != 0 or not names:  # an unpacked archive has no git
        names = [str(p.relative_to(ROOT)) for f in FOLDERS for s in ("*.h", "*.cc", "*.c") for p in (ROOT / f).rglob(s)]
    found = 0
    for name in sorted(names):
        path = ROOT / name
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            reason = match and violation(name, match.group(1))
            if reason:
                found += 1
                print(f"{name}:{number}: must not include {match.group(1)}: {reason}")
    print(f"{len(names)} files, {found} forbidden includes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
