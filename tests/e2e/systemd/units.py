#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The service files in systemd's own judgement: `systemd-analyze verify` finds nothing, and the exposure level of the service is
within its bound, with each drop-in that is shipped scored beside it.

  units.py --agent PROGRAM
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

UNITS = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "systemd"
# Exposure level, 0 (locked away) to 10. The drop-ins let the network in and, for squeue, a family of system calls.
MOST = {None: 1.5, "network.conf": 1.5, "squeue.conf": 1.7}


def analyze(*arguments, folder):
    return subprocess.run(["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="the program, in place of the installed one")
    options = parser.parse_args()
    if not shutil.which("systemd-analyze"):
        print("SKIPPED: there is no systemd-analyze here")
        return 77
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        service = (UNITS / "ncclscope-agent.service").read_text()
        for dropin, most in MOST.items():
            text = service.replace("/usr/bin/ncclscope-agent", str(pathlib.Path(options.agent).resolve()))
            text += (UNITS / dropin).read_text() if dropin else ""
            (folder / "ncclscope-agent.service").write_text(text)
            shutil.copy(UNITS / "ncclscope-agent.socket", folder)
            verified = analyze("verify", "./ncclscope-agent.service", "./ncclscope-agent.socket", folder=folder)
            said = [line for line in (verified.stdout + verified.stderr).splitlines() if "ncclscope" in line]
            if said:
                failures.append(f"verify, with {dropin}: {said}")
            scored = analyze("security", "--offline=true", "./ncclscope-agent.service", folder=folder)
            found = re.search(r"exposure level for ncclscope-agent.service: ([0-9.]+)", scored.stdout)
            if not found:
                failures.append(f"no exposure level with {dropin}: {scored.stdout[-300:]}{scored.stderr}")
                continue
            print(f"exposure level with {dropin or 'no drop-in'}: {found[1]} (at most {most})")
            if float(found[1]) > most:
                failures.append(f"exposure level {found[1]} with {dropin} is above {most}")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
