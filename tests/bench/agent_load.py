#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What an agent costs under load, with its default limits.

  agent_load.py --build DIR --out FILE [--seconds 45]    a training job, and short jobs
  agent_load.py --build DIR --churn [--jobs 1250]        short jobs alone; ends with 1 if the agent takes too much memory

The training job: 8 ranks x 1,000 collectives a second each, /metrics with gzip every 15 s. The short jobs: 100 at a time of
64 communicators each, until the hard caps fold and refuse (a job that has ended keeps its place for the grace time); /metrics with gzip twice a second, and the books. Their
figure is the most memory that was ever resident (VmHWM). Writes Google Benchmark's JSON (rows AgentLoad and AgentChurn),
so that scripts/bench_bars.py reads it like the others. A figure counts only if the agent holds exactly the operations that
were driven, or under churn, has taken in every one of them.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
sys.dont_write_bytecode = True
from support import Agent, Build, Failure, require, running, wait_until  # noqa: E402

RANKS, RATE, SCRAPE_S = 8, 1000, 15
ALIVE, COMMUNICATORS = 100, 64
MAX_CHURN_MB = 40


def scrape(agent):
    request = urllib.request.Request(f"http://{agent.address}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=10) as response:
        body = response.read()
        require(response.headers.get("Content-Encoding") == "gzip", "the agent did not compress")
        return gzip.decompress(body).decode()


def total(text, name):
    return sum(int(float(v)) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def drive(build, agent, arguments, period_s, between):
    """Runs agent_load, and calls `between` every so often; returns what it printed."""
    command = [build.folder / "tools" / "agent_load", agent.socket, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        begin, calls = time.monotonic(), 0
        while load.poll() is None:
            if time.monotonic() - begin >= (calls + 1) * period_s:
                between()
                calls += 1
            time.sleep(0.05)
        text = load.stdout.read().strip()
    require(load.returncode == 0, f"agent_load ended with {load.returncode}: {text}")
    return text


def train(build, agent, seconds):
    text = drive(build, agent, ("steady", agent.process.pid, seconds, RANKS, RATE), SCRAPE_S - 1, lambda: scrape(agent))
    figures = re.search(r"([\d.]+) % of a core, RSS ([\d.]+) MB", text)
    require(figures, f"agent_load said: {text}")
    driven = RANKS * RATE * seconds
    wait_until(f"{driven} operations at the agent",
               lambda: total(scrape(agent), "ncclscope_collective_operations_total") == driven, 10)
    print(text, file=sys.stderr)
    return {"cpu_percent": float(figures.group(1)), "rss_mb": float(figures.group(2)), "operations": driven}


def memory_mb(pid):
    """{name: MB} of the resident memory that /proc tells of."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {name: int(kib) * 1024 / 1e6 for name, kib in re.findall(r"^(VmHWM|RssAnon|RssFile|VmRSS):\s+(\d+) kB", status, re.MULTILINE)}


def churn(build, agent, jobs):
    most = 0
    idle = memory_mb(agent.process.pid)

    def look():
        nonlocal most
        most = max(most, total(scrape(agent), "ncclscope_agent_series"))
        agent.all_books()
    text = drive(build, agent, ("churn", jobs, ALIVE, COMMUNICATORS), 0.5, look)
    figures = re.fullmatch(r"(\d+) jobs, (\d+) alive, (\d+) cut off, (\d+) operations", text)
    require(figures, f"agent_load said: {text}")
    require(figures.group(2) == str(ALIVE), f"agent_load: {text}")
    wait_until("every operation taken in", lambda: total(
        scrape(agent), "ncclscope_agent_records_total") >= int(figures.group(4)), 10)
    last = scrape(agent)
    errors = [line for line in last.splitlines() if line.startswith("ncclscope_agent_decode_errors_total{")
              and 'reason="limit"' not in line and not line.endswith(" 0")]
    require(not errors, f"frames could not be decoded: {errors}")
    peak = memory_mb(agent.process.pid)
    # As one user there is no more than its share.
    least = 40_000 if os.geteuid() == 0 else 20_000
    require(most >= least, f"at most {most} series: the hard cap was not reached, so nothing was tested")
    print(f"{text}; at most {most} series; most ever resident {peak['VmHWM']:.1f} MB, of the last {peak['VmRSS']:.1f} MB "
          f"{peak['RssAnon']:.1f} its own and {peak['RssFile']:.1f} of files; idle {idle['VmRSS']:.1f} MB", file=sys.stderr)
    return {"peak_mb": peak["VmHWM"], "series": most}


def measure(build, name, run, *arguments):
    """A row of the results."""
    row = {"name": name, "run_type": "iteration", "time_unit": "ns"}
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as folder:
        os.chmod(folder, 0o755)  # for the short jobs' users
        try:
            agent = Agent(build, pathlib.Path(folder), "node0", ["--log-level", "error"], snapshot_interval_ms=1000)
            with running([agent]):
                row |= run(build, agent, *arguments)
        except (Failure, OSError) as error:
            row |= {"error_occurred": True, "error_message": str(error)}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=3 * SCRAPE_S)
    parser.add_argument("--churn", action="store_true")
    parser.add_argument("--jobs", type=int, default=1250)
    options = parser.parse_args()
    build = Build(options.build)
    rows = [] if options.churn else [measure(build, "AgentLoad", train, options.seconds)]
    rows.append(measure(build, "AgentChurn", churn, options.jobs))
    if options.out:
        options.out.write_text(json.dumps({"context": {"num_cpus": os.cpu_count()}, "benchmarks": rows}))
    for row in rows:
        if "error_occurred" in row:
            print(f"{row['name']}: {row['error_message']}", file=sys.stderr)
    too_much = rows[-1].get("peak_mb", 0) > MAX_CHURN_MB
    if too_much:
        print(f"AgentChurn: {rows[-1]['peak_mb']:.1f} MB resident; the bar is {MAX_CHURN_MB} MB", file=sys.stderr)
    return 1 if too_much or any("error_occurred" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
