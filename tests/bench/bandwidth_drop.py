#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How soon a drop of transfer bandwidth is found, and how often nothing is found to be one.

  bandwidth_drop.py [--days 1000] [--drops 4000] [--noise 0.02] [--operations N] [--kinds K] [--communicators C] [--drop 0.05]
                    [--seed 1] [--check-only] [--out FILE]

Simulated is NcclscopeTransferDrop as shipped: scrapes every 15 s, the rule looks at the last five intervals between them, floors
and medians come from the job's history. Bandwidth is noisy: by --noise (standard deviation) from one operation to the next, with
--operations of them per interval. --operations 1 is the hard case: then it is the mean of a whole interval that varies so much, as
where something slow and common to all operations makes the noise. --kinds: of collectives that a job has (FSDP: AllGather and
ReduceScatter), each with noise of its own, and all slowed down by the drop; --communicators: of each, all of them noisy, one of
them slowed down.

The formula is first held against Prometheus' own engine: promtool evaluates the shipped rules over a sample of such a job, and must
find the same values. Days are of jobs one day long, each with its own first hour. What no test can beat is printed beside what the
rule finds: that of the mean of exactly the five slow intervals, with median and noise known, at the rate of false alerts that the
bar allows. Ends with 1 if there are more false alerts than that.
"""
import argparse
import json
import math
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
SAMPLES, DEVIATIONS, LEAST, SHARE, FEW = (float(render.PARAMETERS[name][0]) for name in (
    "recent_samples", "drop_deviations", "drop_least_deviations", "drop_share", "few_samples"))
RANGE = render.seconds(render.PARAMETERS["baseline_range"][0]) // SCRAPE_S
OFFSET = 3 * render.seconds(render.PARAMETERS["window"][0]) // SCRAPE_S
WITHIN, BAR_FALSE, BAR_FOUND = 5, 1, 0.95
DAY = 24 * 3600 // SCRAPE_S
NORMAL = statistics.NormalDist()


def recent(times):
    """Bandwidth over the last RECENT intervals, or what there is, relative; times: what an operation takes, by interval (last
    axis)."""
    zero = numpy.zeros(times.shape[:-1] + (1,))
    total = numpy.concatenate([zero, numpy.cumsum(times, axis=-1)], axis=-1)
    begin = numpy.maximum(0, numpy.arange(total.shape[-1]) - RECENT)
    with numpy.errstate(invalid="ignore"):
        return (numpy.arange(total.shape[-1]) - begin) / (total - total[..., begin])


def baselines(values, first, since=0):
    """(median, deviation) of a series as known at each evaluation from `since` on, as the rules take them; recorded from evaluation
    `first` on."""
    median = numpy.full(len(values), numpy.nan)
    deviation = numpy.full(len(values), numpy.nan)
    for at in range(since // BASELINE_EVERY * BASELINE_EVERY, len(values), BASELINE_EVERY):
        past = values[max(first, at - OFFSET - RANGE + 1):max(first, at - OFFSET + 1)]
        if len(past) >= SAMPLES:
            median[at:at + BASELINE_EVERY] = numpy.median(past)
            deviation[at:at + BASELINE_EVERY] = past.std() * (1 + FEW / len(past))
    return median, deviation


def below(values, communicators, since=0):
    """Whether a drop is seen at each evaluation from `since` on. values: of the slowest communicator, by kind of collective."""
    kinds = len(values)
    deviations = DEVIATIONS + math.log(2 * kinds - 1) / DEVIATIONS
    shares, found = [], numpy.zeros(values.shape[1], bool)
    for series in values:
        median, deviation = baselines(series, FIRST, since if kinds == 1 else 0)
        floor = numpy.minimum(1 - (LEAST * math.log(communicators) + deviations) * deviation / median, SHARE)
        shares.append(series / median)
        found |= shares[-1] < floor  # False where either is unknown
    if kinds > 1:
        share = numpy.mean(shares, axis=0)
        median, deviation = baselines(share, int(numpy.flatnonzero(numpy.isfinite(share))[0]), since)
        together = share < numpy.minimum(median - deviations * deviation, SHARE)
        found |= together & (numpy.min(shares, axis=0) < SHARE)
    return found


def bandwidths(random_state, noise, kinds, communicators, count):
    return numpy.maximum(0.5, 1 + noise * random_state.standard_normal((kinds, communicators, count)))


def simulate(random_state, options):
    noise = options.noise / math.sqrt(options.operations)
    shape = (options.kinds, options.communicators)
    false_alerts = 0
    for _ in range(options.days):
        found = below(recent(1 / bandwidths(random_state, noise, *shape, DAY)).min(axis=1), options.communicators)
        false_alerts += int((found[1:] & ~found[:-1]).sum())
    delays = []
    count = 4 * 3600 // SCRAPE_S
    for _ in range(options.drops):
        begin = count - int(random_state.integers(40, 200))
        bandwidth = bandwidths(random_state, noise, *shape, begin + 4 * WITHIN)
        bandwidth[:, 0, begin:] *= 1 - options.drop
        found = below(recent(1 / bandwidth).min(axis=1), options.communicators, begin)[begin + 1:]
        delays.append(int(found.argmax()) + 1 if found.any() else 10 ** 6)
    return false_alerts, delays


def best_possible(options):
    """Share of drops that the best test finds after five intervals: the mean of these, over kinds of collectives, against a mean
    and a noise that are known, at BAR_FALSE alerts in 1,000 days of as many independent looks. (Looks overlap, but this far out
    nearly each counts.)"""
    deviation = options.noise / math.sqrt(options.operations * RECENT * options.kinds)
    limit = NORMAL.inv_cdf(1 - BAR_FALSE / (1000 * DAY * options.communicators))
    return 1 - NORMAL.cdf(limit - options.drop / deviation)


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
                algorithm="RING", protocol="SIMPLE", holds_rank="0" if node == "n0" else "", job="ncclscope",
                instance=f"{node}:9400")
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
        min(1 - DEVIATIONS * past.std() * (1 + FEW / len(past)) / m, SHARE))
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
    parser.add_argument("--operations", type=float, default=1)
    parser.add_argument("--kinds", type=int, default=1)
    parser.add_argument("--communicators", type=int, default=1)
    parser.add_argument("--drop", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    check_formula(options.noise, options.seed)
    if options.check_only:
        return 0
    false_alerts, delays = simulate(numpy.random.default_rng(options.seed), options)
    found = sum(d <= WITHIN for d in delays) / len(delays)
    within_10 = sum(d <= 2 * WITHIN for d in delays) / len(delays)
    best = best_possible(options)
    allowed = max(1, BAR_FALSE * options.days / 1000)
    print(f"{options.days} job-days of {options.kinds} kinds of collectives in {options.communicators} communicators: {false_alerts} "
          f"false alerts\n    bar {BAR_FALSE} in 1,000 job-days: {'met' if false_alerts <= allowed else 'missed'}")
    print(f"{len(delays)} drops of {options.drop:.1%} at {options.noise:.1%} noise of an operation, {options.operations:g} of them in an "
          f"interval: {found:.1%} found within {WITHIN} scrape intervals (the best possible test: {best:.1%}), {within_10:.1%} within "
          f"{2 * WITHIN}; median {statistics.median(delays):g}")
    print(f"    bar {BAR_FOUND:.0%} within {WITHIN}: {'met' if found >= BAR_FOUND else 'missed'}")
    if options.out:
        options.out.write_text(json.dumps({
            "check": "bandwidth_drop", "seed": options.seed, "days": options.days, "false_alerts": false_alerts,
            "drops": len(delays), "noise": options.noise, "operations_per_interval": options.operations, "kinds": options.kinds,
            "communicators": options.communicators, "drop": options.drop, "found_within_5": found, "found_within_10": within_10,
            "best_possible_within_5": best, "median_intervals": statistics.median(delays), "bar_false_per_1000_days": BAR_FALSE,
            "bar_found_within_5": BAR_FOUND, "false_ok": false_alerts <= allowed, "found_ok": found >= BAR_FOUND}) + "\n")
    return 1 if false_alerts > allowed else 0


if __name__ == "__main__":
    sys.exit(main())
