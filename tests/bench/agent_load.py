#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What an agent costs under load: 8 ranks x 1,000 collectives a second each, /metrics with gzip every 15 s.

  agent_load.py --build DIR --out FILE [--seconds 45]

Writes Google Benchmark's JSON (one row, AgentLoad), so that scripts/bench_bars.py reads it like the others. The figure
counts only if the agent holds exactly the operations that were driven.
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

RANKS, RATE, SCRAPE_S = 8, 1000, 15


def scrape(address):
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=10) as response:
        body = response.read()
        if response.headers.get("Content-Encoding") != "gzip":
            raise RuntimeError("the agent did not compress")
        return gzip.decompress(body).decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=3 * SCRAPE_S)
    options = parser.parse_args()
    row = {"name": "AgentLoad", "run_type": "iteration", "time_unit": "ns"}
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as name:
        folder = pathlib.Path(name)
        agent = subprocess.Popen(
            [options.build / "agent" / "ncclscope-agent", "--socket", folder / "agent.sock", "--api-socket",
             folder / "api.sock", "--listen", "127.0.0.1:0", "--ready-file", folder / "ready", "--log-level", "warning"],
            stdin=subprocess.DEVNULL)
        try:
            while not (folder / "ready").exists():
                if agent.poll() is not None:
                    raise RuntimeError(f"the agent ended with {agent.returncode}")
                time.sleep(0.05)
            address = re.search(r"^http=(.*)$", (folder / "ready").read_text(), re.MULTILINE).group(1)
            load = subprocess.Popen(
                [options.build / "tools" / "agent_load", folder / "agent.sock", str(agent.pid), str(options.seconds),
                 str(RANKS), str(RATE)], stdout=subprocess.PIPE, text=True)
            begin = time.monotonic()
            scrapes = 0
            while load.poll() is None:
                if time.monotonic() - begin >= (scrapes + 1) * SCRAPE_S - 1:
                    scrape(address)
                    scrapes += 1
                time.sleep(0.2)
            text = load.stdout.read()
            figures = re.search(r"([\d.]+) % of a core, RSS ([\d.]+) MB", text)
            if load.returncode != 0 or figures is None:
                raise RuntimeError(f"agent_load ended with {load.returncode}: {text}")
            driven, counted = RANKS * RATE * options.seconds, 0
            end = time.monotonic() + 10
            while counted != driven and time.monotonic() < end:
                time.sleep(0.5)
                counted = sum(int(float(v)) for v in re.findall(
                    r"^ncclscope_collective_operations_total\{.*\} (\S+)$", scrape(address), re.MULTILINE))
            if counted != driven:
                raise RuntimeError(f"the agent counted {counted} operations, {driven} were driven")
            print(f"{text.strip()}; {scrapes} scrapes with gzip", file=sys.stderr)
            row |= {"cpu_percent": float(figures.group(1)), "rss_mb": float(figures.group(2)), "operations": counted}
        except (RuntimeError, OSError) as error:
            row |= {"error_occurred": True, "error_message": str(error)}
        finally:
            agent.terminate()
            agent.wait(timeout=10)
    options.out.write_text(json.dumps({"context": {"num_cpus": os.cpu_count()}, "benchmarks": [row]}))
    return 1 if "error_occurred" in row else 0


if __name__ == "__main__":
    sys.exit(main())
