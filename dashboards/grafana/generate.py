#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the dashboards of this folder.

  generate.py           writes *.json
  generate.py --check   fails if they would change

Needs the Grafana Foundation SDK (Apache-2.0), which scripts/fetch-grafana.sh brings; exits with 77 where it is missing.
"""
import argparse
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path(os.environ.get("HOME", "/tmp")) / ".cache") / "ncclscope"
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), *map(str, sorted(CACHE.glob("grafana-sdk-*")))]


def render():
    """{file name: text}"""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    import cluster
    import communicator
    import compare
    import job
    import node
    import telemetry
    window = json.loads((ROOT / "deploy" / "prometheus" / "thresholds.json").read_text())["window"]["value"]
    out = {}
    for module in (cluster, job, communicator, node, compare, telemetry):
        board = module.make(window).build()
        for number, panel in enumerate(board.panels, 1):
            panel.id_val = number
        plain = json.loads(json.dumps(board, cls=JSONEncoder))
        for variable in plain["templating"]["list"]:
            # The SDK gives all variables what only those of intervals have.
            for key in ("auto", "auto_count", "auto_min"):
                variable.pop(key, None)
        out[f"{module.__name__}.json"] = json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        files = render()
    except ModuleNotFoundError as error:
        print(f"SKIPPED: {error}; scripts/fetch-grafana.sh brings the SDK")
        return 77
    changed = [name for name, text in files.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if options.check:
        print("\n".join(f"{name}: differs from what generate.py writes" for name in changed) or f"{len(files)} dashboards as generated")
        return 1 if changed else 0
    for name in changed:
        (HERE / name).write_text(files[name])
    print(f"written: {', '.join(changed) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
