#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ncclscope report --throughput` and `--throughput-prometheus`, as a user runs them.

  throughput.py --build DIR SCENARIO

What is right is computed here with pandas and numpy: steps, their communication and the means of the throughput from the rows
that were written, correlations by numpy. Every number of steps.json must agree to 1e-9.

csv: a job through the real plugin into an agent that keeps it; files with times and with steps, with other columns, as loggers
write them; what is wrong in one is told by file and line before anything is read.

prometheus: verbose logs, and a real Prometheus that remembers the throughput of their time; no data, several series, an
expression that it refuses, a server that is none, nobody there.
"""
import contextlib
import csv as csv_file
import datetime
import json
import math
import pathlib
import random
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import monitoring  # noqa: E402
from support import PLUGIN, ROOT, Agent, Job, Skipped, answering, free_ports, require, run_scenarios, running, wait_until  # noqa: E402

FINE, NEGATIVE, USAGE = 0, 1, 2
MOST_PARTS = 100


def fetched(script):
    done = subprocess.run([ROOT / "scripts" / script], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skipped(f"{script}: {done.stderr.strip()}")
    return done.stdout.strip().splitlines()[-1]


def with_pandas():
    fetched("fetch-duckdb.sh")
    sys.path.insert(0, fetched("fetch-pandas.sh"))


def report(build, *arguments, status=FINE):
    """Standard output and error."""
    result = subprocess.run([build.command_line, "report", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                            check=False)
    require(result.returncode == status, f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout, result.stderr


def near(a, b):
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def operations_of(out):
    """The rows of the process with most operations, in the order of their calls, as frame."""
    import pandas
    frame = pandas.read_parquet(out / "operations")
    counts = frame.groupby(["node", "pid"]).size().sort_values(ascending=False, kind="stable")
    node, pid = min(key for key, count in counts.items() if count == counts.iloc[0])
    mine = frame[(frame["node"] == node) & (frame["pid"] == pid)]
    return mine.sort_values(["enqueued_ns", "communicator", "sequence"], kind="stable").reset_index(drop=True)


def steps_of(frame, period, told):
    """{number: (start, stop) in ns} of the steps: from one operation of the step to the same one of the next. Which operation it
    is, is what `told` agrees with; exactly one may."""
    import numpy
    numbers = [p["first_step"] for p in told["parts"]] if told["steps"] <= MOST_PARTS else range(told["steps"])
    found = []
    for place in range(period):
        starts = frame["start_ns"].to_numpy(dtype=numpy.int64)[place::period].tolist()
        if max(numbers) + 1 < len(starts):
            steps = {n: (starts[n], starts[n + 1]) for n in numbers}
            if [p["time_ns"] for p in told["parts"]] == [p[0] for p in parts_of(steps)]:
                found.append(steps)
    require(len(found) == 1, f"{len(found)} operations whose starts are the {told['steps']} steps that were told")
    return found[0]


def parts_of(steps):
    """(middle in ns, numbers of the steps, their seconds in all) of each part."""
    parts = min(MOST_PARTS, len(steps))
    out = []
    for part in range(parts):
        numbers = list(steps)[part * len(steps) // parts:(part + 1) * len(steps) // parts]
        start, stop = steps[numbers[0]][0], steps[numbers[-1]][1]
        out.append((start + (stop - start) // 2, numbers, math.fsum(steps[n][1] - steps[n][0] for n in numbers) * 1e-9))
    return out


def covered(frame, begin, end):
    """Seconds in [begin, end) in which an operation ran."""
    timed = frame[frame["seconds"] > 0]
    stops = timed["end_ns"].astype("int64").tolist()
    spans = sorted((stop - round(s * 1e9), stop) for stop, s in zip(stops, timed["seconds"], strict=True))
    total, until = 0, begin
    for start, stop in spans:
        start, stop = max(start, until), min(stop, end)
        if stop > start:
            total, until = total + stop - start, stop
    return total * 1e-9


def check_correlation(told, x, y, what):
    import numpy
    import pandas
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    xs, ys = (numpy.array(v) for v in zip(*pairs, strict=True))
    r = numpy.corrcoef(xs, ys)[0, 1]
    rho = numpy.corrcoef(pandas.Series(xs).rank(), pandas.Series(ys).rank())[0, 1]
    margin = 1.96 / numpy.sqrt(len(xs) - 3)
    wanted = {"pairs": len(xs), "pearson": r, "low_95": numpy.tanh(numpy.arctanh(r) - margin),
              "high_95": numpy.tanh(numpy.arctanh(r) + margin), "spearman": rho}
    require(told is not None and all(near(told[k], wanted[k]) for k in wanted), f"{what}: {told}, not {wanted}")


def check_steps(out, period, samples, by_step=False):
    """steps.json against what pandas makes of the Parquet files and `samples`: (ns or step, value). Returns it."""
    told = json.loads((out / "steps.json").read_text())
    frame = operations_of(out)
    steps = steps_of(frame, period, told)
    shares, lengths, means = [], [], []
    for (time_ns, numbers, seconds), part in zip(parts_of(steps), told["parts"], strict=True):
        first, last = (numbers[0], numbers[-1] + 1) if by_step else (steps[numbers[0]][0], steps[numbers[-1]][1])
        within = [value for at, value in samples if first <= at < last]
        lengths.append(seconds / len(numbers))
        shares.append(math.fsum(covered(frame, *steps[n]) for n in numbers) / seconds)
        means.append(math.fsum(within) / len(within) if within else None)
        wanted = {"time_ns": time_ns, "first_step": numbers[0], "steps": len(numbers), "step_seconds": lengths[-1], "communication_share": shares[-1],
                  "throughput": means[-1]}
        require(all(near(part[k], wanted[k]) for k in wanted), f"part {part}, not {wanted}")
    require(sum(m is not None for m in means) >= 10, f"throughput in {means}")
    for name, x, y in (("communication_and_throughput", shares, means), ("step_time_and_throughput", lengths, means),
                       ("communication_and_step_time", shares, lengths)):
        check_correlation(told[name], x, y, name)
    return told, steps


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv_file.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def iso(ns):
    return datetime.datetime.fromtimestamp(ns / 1e9, datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def csv(build, folder):
    with_pandas()
    agent = Agent(build, folder, "node0", ["--archive-directory", str(folder / "archive"), "--archive-flush-seconds", "1"])
    with running([agent]):
        job = Job(build, 1, 2, "megatron:tp=2,pp=1", 60, plugin=PLUGIN, sockets=[agent.socket], compute_ms=60,
                  env=["NCCLSCOPE_OVERHEAD_BUDGET=1"])
        operations = job.wait()["operations"]
        wait_until("all records at the agent", lambda: sum(p["operations_received"] for p in agent.books()) == operations)
    archive = folder / "archive"
    report(build, archive, "--output", folder / "plain", "--no-pictures", "-q", "--throughput", known_csv(folder))
    frame = operations_of(folder / "plain")
    period = len(frame) // 60
    require(len(frame) == 60 * period, f"{len(frame)} operations of 60 steps")
    rng = random.Random(5)
    begin, end = int(frame["start_ns"].min()), int(frame["end_ns"].max())

    # With times: seconds, and a text that a spreadsheet has marked; columns of others, quoted, empty and NaN.
    times = sorted(rng.uniform(begin - 1e9, end + 1e9) for _ in range(400))
    rows = [(repr(t / 1e9), "a, \"b\"", rng.choice(["", "NaN", repr(rng.uniform(90, 110))]), repr(rng.uniform(300, 400))) for t in times]
    write_csv(folder / "t.csv", ["time", "note, with comma", "tflops", "tokens/s"], rows)
    report(build, archive, "--output", folder / "tflops", "-q", "--no-pictures", "--throughput", folder / "t.csv", "--throughput-column", "tflops")
    told, _ = check_steps(folder / "tflops", period, [(float(r[0]) * 1e9, float(r[2])) for r in rows if r[2] not in ("", "NaN")])
    require(told["throughput"]["name"] == "tflops" and told["throughput"]["source"] == str(folder / "t.csv"), f"{told['throughput']}")
    texts = [(iso(t), "x", v) for t, v in ((t, rng.uniform(1, 2)) for t in times)]
    (folder / "bom.csv").write_text("\ufeffTimestamp,run - note,Tokens\r\n" + "".join(f"{a},{b},{c!r}\r\n" for a, b, c in texts))
    report(build, archive, "--output", folder / "tokens", "-q", "--no-pictures", "--throughput", folder / "bom.csv", "--throughput-column", "Tokens")
    parsed = [(datetime.datetime.fromisoformat(a.replace("Z", "+00:00")).timestamp() * 1e9, c) for a, _, c in texts]
    told, steps = check_steps(folder / "tokens", period, parsed)

    # With steps, as Weights & Biases exports them; the throughput is made of the share of communication.
    rows = [(n, 500 * (1 - covered(frame, start, stop) / ((stop - start) * 1e-9))) for n, (start, stop) in steps.items()]
    write_csv(folder / "s.csv", ["Step", "run - tflops"], [(n, repr(v)) for n, v in rows])
    out, _ = report(build, archive, "--output", folder / "steps", "--throughput", folder / "s.csv")
    told, _ = check_steps(folder / "steps", period, rows, by_step=True)
    require(told["communication_and_throughput"]["pearson"] < -0.99, f"{told['communication_and_throughput']}")
    sentence = "run - tflops is low where the share of communication is high."
    require(sentence in out and sentence in (folder / "steps/report.html").read_text(), out)
    require((folder / "steps/svg/throughput.svg").exists(), "no picture of the throughput")

    # Another day's file: that is told, not passed over.
    write_csv(folder / "old.csv", ["time", "tflops"], [(iso(begin - 86400e9 + n * 1e9), 300 + n) for n in range(60)])
    out, _ = report(build, archive, "--output", folder / "old", "--no-pictures", "--throughput", folder / "old.csv")
    require("No value of tflops lies within the steps that were found: they are from" in out, out)
    # What is wrong is told before anything is read, and nothing is left behind.
    for name, text, wanted in (("a.csv", "time,tflops\n1,2\nnoon,3\n", "a.csv:3: 'noon' is no time"),
                               ("b.csv", "step,tflops\n1,2\n2,fast\n", "b.csv:3: 'fast' in column tflops is no number"),
                               ("c.csv", "when,tflops\n1,2\n", "c.csv:1: the header names neither time nor step"),
                               ("d.csv", "time,tflops\n1,\n", "d.csv:2: no rows with a value in column tflops"),
                               ("e.csv", "", "e.csv:1: no header"), ("none.csv", None, "none.csv: ")):
        if text is not None:
            (folder / name).write_text(text)
        _, err = report(build, archive, "--output", folder / "refused", "--throughput", folder / name, status=USAGE)
        require(wanted in err and not (folder / "refused").exists(), f"{name}: {err}")
    _, err = report(build, archive, "--output", folder / "refused", "--throughput", folder / "t.csv", "--throughput-column", "loss", status=USAGE)
    require("t.csv:1: the header names no column 'loss'" in err, err)


def known_csv(folder):
    path = folder / "any.csv"
    write_csv(path, ["step", "x"], [(0, 1)])
    return path


START_NS = 1_764_000_000_000_000_000
STEPS, STEP_OPERATIONS = 420, (("AllGather", 1 << 20, 9000), ("ReduceScatter", 1 << 20, 12000), ("AllReduce", 64 << 20, 60000))


def write_verbose_logs(folder):
    """A run of two ranks in which communication takes longer now and then: a step of 1.2 s and more."""
    rng = random.Random(11)
    folder.mkdir()
    files = [[], []]
    begin_us = START_NS // 1000
    for step in range(STEPS):
        slow = 4 if step % 60 < 20 else 1
        at_us = begin_us
        for place, (collective, size, base_us) in enumerate(STEP_OPERATIONS):
            us = int(base_us * slow * rng.uniform(1, 1.1))
            at_us += 100_000
            for rank, lines in enumerate(files):
                start, end = at_us + rank, at_us + us
                took = end - start
                moved = size if collective == "AllReduce" else size * 2
                factor = 1 if collective == "AllReduce" else 0.5
                perf = {"coll": collective, "coll_sn": step, "coll_msg_size_bytes": size, "coll_exec_time_us": took,
                        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": round(moved / took / 1e3, 6),
                        "coll_busbw_gbs": round(moved / took / 1e3 * factor, 6),
                        "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": [
                            {"channel_id": 0, "kernel_start_sn": 3, "kernel_stop_sn": 5, "kernel_record_sn": 4}]},
                        "event_trace_ts": {"coll_start_ts": start - 50, "coll_stop_ts": start - 45, "kernel_events": [
                            {"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": end, "kernel_record_ts": end}]}}
                lines.append(json.dumps({
                    "header": {"id": "0xabc", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
                    "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "g", "rec_mechanism": "nccl_profiler_interface",
                                 "dump_timestamp_us": end + place, "hostname": "node0", "pid": 70 + rank}, "coll_perf": perf}))
            at_us += us
        begin_us = at_us + 900_000
    for rank, lines in enumerate(files):
        (folder / f"node0-pid{70 + rank}.log").write_text("\n".join(lines) + "\n")
    return begin_us * 1000  # the end, ns


@contextlib.contextmanager
def remembering(folder, series):
    """A real Prometheus that has `series` ({labels: [(s, value)]} of the gauge tokens) in its past."""
    require(shutil.which("promtool"), "promtool is not installed; scripts/install-deps.sh installs it")
    text = "# TYPE tokens gauge\n" + "".join(
        f"tokens{labels} {value!r} {at:.3f}\n" for labels, samples in series.items() for at, value in samples) + "# EOF\n"
    (folder / "past.txt").write_text(text)
    subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", folder / "past.txt", folder / "tsdb"], check=True,
                   timeout=60, capture_output=True)
    with monitoring.prometheus(folder, [], arguments=["--storage.tsdb.retention.time=100y"]) as memory:
        yield memory


def prometheus(build, folder):
    with_pandas()
    end_ns = write_verbose_logs(folder / "logs")
    first, last = START_NS // 10**9 - 600, end_ns // 10**9 + 600
    rng = random.Random(3)
    series = {f'{{rank="{rank}"}}': [(at, rng.uniform(900, 1000)) for at in range(first, last, 7)] for rank in range(2)}

    def ask(url, query, name, *more, status=FINE):
        return report(build, folder / "logs", "--output", folder / name, "--no-pictures", "--throughput-prometheus", url, "--throughput-query",
                      query, *more, status=status)
    with remembering(folder, series) as memory:
        ask(memory.url, 'tokens{rank="1"}', "one", "--strict")
        # What Prometheus gives at each second of the run (500 values at most): the newest sample.
        head = operations_frame(folder / "one")
        run_first, run_last = head["time_ns"].min() / 1e9, head["time_ns"].max() / 1e9
        distance = max(1.0, math.ceil((run_last - run_first) / 500))
        samples, at = [], round(run_first, 3)
        while at <= round(run_last, 3) + 1e-9:
            samples.append((at * 1e9, [v for t, v in series['{rank="1"}'] if t <= at][-1]))
            at = round(at + distance, 3)
        told, _ = check_steps(folder / "one", len(STEP_OPERATIONS), samples)
        require(told["throughput"]["samples"] == len(samples), f"{told['throughput']}, not {len(samples)} samples")
        require(told["throughput"] == {"name": 'tokens{rank="1"}', "source": f"Prometheus at {memory.url}", "samples": len(samples)},
                f"{told['throughput']}")
        ask(memory.url + "/", "sum(tokens)", "sum", "--strict")

        # The tables are there all the same, unless somebody wants all or nothing.
        for query, wanted in (("tokens", "gives 2 series from 2025-11-24"), ("unknown_metric", "gives 0 series from 2025-11-24")):
            name = query.replace("_", "")
            for strict, status in (((), FINE), (("--strict",), NEGATIVE)):
                out, err = ask(memory.url, query, name + str(status), *strict, status=status)
                require(wanted in err and "wanted one, such as avg(...)" in err and wanted in out, f"{query}: {out}{err}")
                require((folder / (name + str(status)) / "report.json").exists(), f"{query}: no report")
                insights = json.loads((folder / (name + str(status)) / "insights.json").read_text())
                require("no_throughput" in [i["kind"] for i in insights], f"{query}: {insights}")
        # What can be known before is.
        _, err = ask(memory.url, "avg(tokens", "refused", status=USAGE)
        require(f"Prometheus at {memory.url}: it refuses: " in err and "parse error" in err, err)
    for status, text, wanted in ((502, "<html>Bad Gateway</html>", "its answer is no JSON: is this a Prometheus?"),
                                 (503, json.dumps({"status": "error", "errorType": "timeout", "error": "query timed out"}),
                                  "it refuses: query timed out"),
                                 (200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [{}]}}),
                                  "its answer is no matrix"), (401, "", "its answer is no JSON")):
        with answering(lambda *_, answer=(status, text): answer) as url:
            _, err = ask(url, "tokens", "refused", status=USAGE)
            require(f"Prometheus at {url}: " in err and wanted in err, f"{status}: {err}")
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    _, err = ask(nobody, "tokens", "refused", status=USAGE)
    require(f"Prometheus at {nobody}: " in err and "connect" in err.lower(), err)
    require(not (folder / "refused").exists(), "a report that could not be was begun")
    _, err = report(build, folder / "logs", "--output", folder / "refused", "--throughput-prometheus", nobody, status=USAGE)
    require("--throughput-query" in err, err)


def operations_frame(out):
    import pandas
    return pandas.read_parquet(out / "operations")


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (csv, prometheus)))
