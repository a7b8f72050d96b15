#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How soon a drop of transfer bandwidth is found, and how often nothing is found to be one.

  bandwidth_drop.py [--days 1000] [--drops 4000] [--noise 0.02] [--drop 0.05] [--seed 1] [--check-only] [--out FILE]

Simulated is NcclscopeTransferDrop as shipped: scrapes every 15 s, the bandwidth of each interval between two of them varies
independently by --noise (standard deviation), the rule looks at the last five intervals, floor and median come from the job's
history. The simulation's formula is first held against Prometheus' own engine: promtool evaluates the shipped rules over a sample
of such a job, and must find the same values. Days are of jobs one day long, each with its own first hour. Ends with 1 if there are
more false alerts than the bar allows; how many drops are found in time is printed beside its bar.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
sys.path.insert(0, str(RULES))
sys.path.insert(0, str(RULES / "tests"))
sys.dont_write_bytecode = True
import numpy  # noqa: E402
import render  # noqa: E402

SCRAPE_S, RECENT, BASELINE_EVERY = 15, 5, 20  # intervals in `recent`; evaluations between two of the baselines
FIRST = 4  # evaluation from which on `recent` is recorded: verdicts' windows are evaluated once a minute
THRESHOLDS = {name: float(render.PARAMETERS[name][0]) for name in ("recent_samples", "drop_deviations", "drop_share", "few_samples")}
RANGE = render.seconds(render.PARAMETERS["baseline_range"][0]) // SCRAPE_S
OFFSET = 3 * render.seconds(render.PARAMETERS["window"][0]) // SCRAPE_S
WITHIN, BAR_FALSE, BAR_FOUND = 5, 1, 0.95
SHAPE = {"cluster": "c1", "job_id": "4711"}


def recent(times):
    """Bandwidth over the last RECENT intervals, or what there is, relative; times: what an operation takes, by interval."""
    total = numpy.concatenate([[0], numpy.cumsum(times)])
    begin = numpy.maximum(0, numpy.arange(len(total)) - RECENT)
    with numpy.errstate(invalid="ignore"):
        return (numpy.arange(len(total)) - begin) / (total - total[begin])


def deviation(past):
    return past.std() * (1 + THRESHOLDS["few_samples"] / len(past))


def floors(values, first):
    """(median, floor) as known at each evaluation; `values` recorded from evaluation `first` on."""
    median = numpy.full(len(values), numpy.nan)
    floor = numpy.full(len(values), numpy.nan)
    for at in range(0, len(values), BASELINE_EVERY):
        past = values[max(first, at - OFFSET - RANGE + 1):max(first, at - OFFSET + 1)]
        if len(past) >= THRESHOLDS["recent_samples"]:
            m = numpy.median(past)
            median[at:at + BASELINE_EVERY] = m
            floor[at:at + BASELINE_EVERY] = min(m - THRESHOLDS["drop_deviations"] * deviation(past), THRESHOLDS["drop_share"] * m)
    return median, floor


def simulate(random_state, noise, days, drops, drop):
    day = 24 * 3600 // SCRAPE_S
    false_alerts = evaluations = 0
    for _ in range(days):
        values = recent(1 / numpy.maximum(0.5, 1 + noise * random_state.standard_normal(day)))
        _, floor = floors(values, FIRST)
        below = values < floor  # False where either is unknown
        false_alerts += int((below[1:] & ~below[:-1]).sum()) + int(below[0])
        evaluations += int(numpy.isfinite(floor).sum())
    delays = []
    hours = 4 * 3600 // SCRAPE_S
    for _ in range(drops):
        begin = hours - int(random_state.integers(40, 200))
        bandwidth = numpy.maximum(0.5, 1 + noise * random_state.standard_normal(hours))
        bandwidth[begin:] *= 1 - drop
        values = recent(1 / bandwidth)
        _, floor = floors(values, FIRST)
        found = numpy.flatnonzero(values[begin + 1:] < floor[begin + 1:])
        delays.append(int(found[0]) + 1 if len(found) else 10 ** 6)
    return false_alerts, evaluations, delays


def check_formula(noise, seed):
    """The shipped rules over a sample, in Prometheus' engine, must give what this file computes."""
    import series
    random.seed(seed)
    count = 480  # two hours
    times = [0.001 / max(0.5, random.gauss(1, noise)) for _ in range(count)]
    per_scrape = 150
    job = series.Job(count + 1)
    job.communicator("aa", 4, ["n0", "n1"], dimension="dp")
    totals, value = [], 0.0
    for t in [0, *times]:
        value += t * per_scrape
        totals.append(value)
    text = " ".join(f"{v:.12g}" for v in totals)
    operations, moved = (f"0+{step:g}x{count}" for step in (per_scrape, per_scrape * 1e8))
    for rank in range(4):
        node, gpu = f"n{rank // 2}", rank % 2
        job.rank("aa", rank, node, gpu)
        job.collective("aa", rank, node, gpu, text, operations, moved)
    for node in ("n0", "n1"):
        job.add("ncclscope_collective_busy_seconds_total", text, comm="aa", collective="AllReduce", size="<=256MiB",
                algorithm="RING", protocol="SIMPLE", job="ncclscope", instance=f"{node}:9400")
        job.add("ncclscope_plugin_info", series.gauge((count + 1, 1)), pid=1, version="0.1.0", nccl_version="2.28.9", interface=5,
                mask="0x646", job="ncclscope", instance=f"{node}:9400")
    values = recent(numpy.array(times) / 0.001) * 1e11
    expected = {}
    for at in (100, 101, 233, 300, 401, 480):
        expected[at, "comm:ncclscope_transfer_bus_bytes_per_second:recent"] = values[at]
    lines = ["rule_files:", f"  - {RULES}/recording.yml", "evaluation_interval: 15s",
             "group_eval_order: [ncclscope.progress, ncclscope.window, ncclscope.recent, ncclscope.baseline]", "tests:",
             "  - interval: 15s", "    input_series:"]
    for name, samples in job.series.items():
        lines += [f"      - series: {json.dumps(name)}", f"        values: {json.dumps(samples)}"]
    lines.append("    promql_expr_test:")

    def ask(at, expression, wanted):
        lines.extend([f"      - expr: {json.dumps(f'abs(max({expression}) / {wanted:.12g} - 1) < bool 1e-6')}",
                      f"        eval_time: {at * SCRAPE_S}s", "        exp_samples: [{labels: '{}', value: 1}]"])
    for (at, name), wanted in expected.items():
        ask(at, name, wanted)
    at = 480
    # promtool evaluates all groups every time, so recording begins with the first interval.
    past = values[max(1, at - OFFSET - RANGE + 1):at - OFFSET + 1]
    m = numpy.median(past)
    ask(at, "job:ncclscope_transfer_bus_bytes_per_second:recent_median", m)
    ask(at, "job:ncclscope_transfer_bus_bytes_per_second:recent_floor",
        min(m - THRESHOLDS["drop_deviations"] * deviation(past), THRESHOLDS["drop_share"] * m))
    ask(at, "count_over_time(job:ncclscope_transfer_bus_bytes_per_second:recent[6h] offset 15m)", len(past))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "sample.test.yml"
        path.write_text("\n".join(lines) + "\n")
        done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the rules give other values than the simulation's formula:\n{done.stdout[-2500:]}{done.stderr[-500:]}")
    print(f"formula: {len(expected) + 3} values of {count} scrapes are as promtool evaluates the shipped rules")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--drops", type=int, default=4000)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--drop", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    check_formula(options.noise, options.seed)
    if options.check_only:
        return 0
    false_alerts, evaluations, delays = simulate(numpy.random.default_rng(options.seed), options.noise, options.days,
                                                 options.drops, options.drop)
    found = sum(d <= WITHIN for d in delays) / len(delays)
    within_10 = sum(d <= 2 * WITHIN for d in delays) / len(delays)
    print(f"{options.days} job-days, {evaluations} evaluations with a known floor: {false_alerts} false alerts")
    print(f"    bar {BAR_FALSE} in 1,000 job-days: {'met' if false_alerts <= max(1, BAR_FALSE * options.days / 1000) else 'missed'}")
    print(f"{len(delays)} drops of {options.drop:.1%} at {options.noise:.1%} noise of an interval: {found:.1%} found within {WITHIN} "
          f"scrape intervals, {within_10:.1%} within {2 * WITHIN}; median {statistics.median(delays):g}")
    print(f"    bar {BAR_FOUND:.0%} within {WITHIN}: {'met' if found >= BAR_FOUND else 'missed'}")
    if options.out:
        options.out.write_text(json.dumps({"days": options.days, "false_alerts": false_alerts, "evaluations": evaluations,
                                           "drops": len(delays), "noise": options.noise, "drop": options.drop,
                                           "found_within_5": found, "found_within_10": within_10,
                                           "median_intervals": statistics.median(delays)}) + "\n")
    return 1 if false_alerts > max(1, BAR_FALSE * options.days / 1000) else 0


if __name__ == "__main__":
    sys.exit(main())
