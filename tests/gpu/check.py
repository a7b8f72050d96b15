#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what the agent heard (ncclscope tail --once --json) with what ncclscope-gpu-nccl did (its JSON lines).

  check.py --calls FILE... --operations FILE [--shared-gpu] [--json FILE]
  check.py --probe FILE --operations FILE --calls FILE...
  check.py --selftest

Counts, bytes, peers and roots must agree exactly, call by call. Durations: the plugin's time of a call (GPU clock,
kernel only) may never exceed the CUDA events around it by more than 5 %, and for calls of 500 us and more the median
of plugin / events must lie within 5 % of 1. With --shared-gpu (two ranks take turns on one GPU) the events also count
the wait for the other process's time slice, so only the first rule holds there.

With --probe: what `ncclscope probe --json` printed must be ok, right in every result, and the agent must have heard of its
operations, which are those of processes that made no calls of ours.
"""
import argparse
import collections
import json
import statistics
import sys

LONG_NS = 500_000
TOLERANCE = 0.05
SLACK_NS = 2_000  # resolution of CUDA events is about 0.5 us

P2P = ("Send", "Recv")


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip().startswith("{")]


def field(operation, *names, default=None):
    """Reads a field in either spelling of JSON (duration_ns, durationNs)."""
    for name in names:
        camel = "".join(part if i == 0 else part.capitalize() for i, part in enumerate(name.split("_")))
        for key in (name, camel):
            if key in operation:
                return operation[key]
    return default


def compare(calls, operations, shared_gpu):
    """Returns (errors, summary)."""
    errors, ratios = [], []
    checked = timed = 0
    heard = collections.defaultdict(list)
    for operation in operations:
        operation = operation.get("operation", operation)
        if field(operation, "collective") is None:
            continue
        kind = "p2p" if operation["collective"] in P2P else "collective"
        heard[int(field(operation, "pid", default=0)), kind].append(operation)
    for queue in heard.values():
        queue.sort(key=lambda o: int(field(o, "index", default=0)))

    position = collections.Counter()
    for call in calls:
        pid = call["pid"]
        kind = "p2p" if call["operations"][0]["collective"] in P2P else "collective"
        queue, begin = heard[pid, kind], position[pid, kind]
        count = len(call["operations"])
        got = queue[begin:begin + count]
        position[pid, kind] += count
        name = f"rank {call['rank']} {call['call']} of {call['operations'][0]['bytes']} bytes, iteration {call['iteration']}"
        if len(got) < count:
            errors.append(f"{name}: the agent has {len(got)} of {count} operations")
            continue
        checked += count
        want = sorted((o["collective"], o["bytes"], o["peer"], o["root"]) for o in call["operations"])
        have = sorted((o["collective"], int(field(o, "bytes", default=0)), int(field(o, "peer", default=-1)),
                       int(field(o, "root", default=-1))) for o in got)
        if want != have:
            errors.append(f"{name}: called {want}, the agent has {have}")
            continue
        durations = [int(field(o, "duration_ns", default=0)) for o in got if field(o, "timing") == "gpu"]
        if not durations or any(field(o, "warmup", default=False) for o in got):
            continue
        timed += 1
        duration, event = max(durations), call["event_ns"]
        if duration > event * (1 + TOLERANCE) + SLACK_NS:
            errors.append(f"{name}: {duration} ns by the plugin, but only {event} ns between the CUDA events")
        if event >= LONG_NS:
            ratios.append(duration / event)
    for (pid, kind), queue in heard.items():
        if any(c["pid"] == pid for c in calls) and len(queue) > position[pid, kind]:
            errors.append(f"pid {pid}: {len(queue) - position[pid, kind]} more {kind} operations at the agent than called")
    median = statistics.median(ratios) if ratios else None
    if not shared_gpu:
        if median is None:
            errors.append("no call of 500 us or more had a GPU time: nothing to compare")
        elif abs(median - 1) > TOLERANCE:
            errors.append(f"median of plugin / events is {median:.4f}; it must be within {TOLERANCE} of 1")
    if not calls:
        errors.append("no calls")
    if timed == 0:
        errors.append("no operation had a GPU time")
    return errors, {"calls": len(calls), "operations": checked, "timed_calls": timed, "long_calls": len(ratios),
                    "median_plugin_over_events": median, "errors": len(errors)}


def check_probe(report, calls, operations):
    """Errors of a run of the probe that the agent watched."""
    errors = []
    if report.get("outcome") != "ok":
        errors.append(f"the probe says {report.get('outcome')}: {report.get('reasons')}")
    if report.get("ranks", 0) < 2:
        errors.append(f"{report.get('ranks')} ranks")
    rows = report.get("rows", [])
    errors += [f"{row['collective']} of {row['bytes']} bytes: {row['wrong']} wrong elements" for row in rows if row["wrong"]]
    if not any(row["wrong"] == 0 for row in rows):
        errors.append("no result was checked")
    errors += [f"{row['collective']} of {row['bytes']} bytes took no time" for row in rows if not row["time_us"] > 0]
    ours = {call["pid"] for call in calls}
    heard = collections.Counter()
    for operation in operations:
        operation = operation.get("operation", operation)
        if int(field(operation, "pid", default=0)) not in ours:
            heard[field(operation, "collective")] += 1
    for row in rows:
        name = "Send" if row["collective"] == "AlltoAll" else row["collective"]
        if not heard[name]:
            errors.append(f"the agent heard of no {name} of the probe: {dict(heard)}")
            break
    return errors


def selftest():
    def call(event, ops, name="AllReduce"):
        return {"call": name, "rank": 0, "pid": 7, "iteration": 0, "event_ns": event, "operations": ops}

    def heard(index, collective, size, duration, **more):
        return {"pid": 7, "index": index, "collective": collective, "bytes": size, "timing": "gpu",
                "duration_ns": duration, "peer": -1, "root": -1, **more}

    one = {"collective": "AllReduce", "bytes": 64, "peer": -1, "root": -1}
    two = {"collective": "AllGather", "bytes": 128, "peer": -1, "root": -1}
    cases = [
        ("equal", [call(10**6, [one])], [heard(0, "AllReduce", 64, 980_000)], False, True),
        ("camel case", [call(10**6, [one])], [{**heard(0, "AllReduce", 64, 0), "durationNs": "990000", "duration_ns": "990000"}], False, True),
        ("group in any order", [call(10**6, [one, two])], [heard(0, "AllGather", 128, 10**6), heard(1, "AllReduce", 64, 10**6)], False, True),
        ("too short", [call(10**6, [one])], [heard(0, "AllReduce", 64, 900_000)], False, False),
        ("too short on a shared GPU", [call(10**6, [one])], [heard(0, "AllReduce", 64, 500_000)], True, True),
        ("longer than the events", [call(10**6, [one])], [heard(0, "AllReduce", 64, 1_100_000)], True, False),
        ("other bytes", [call(10**6, [one])], [heard(0, "AllReduce", 32, 10**6)], False, False),
        ("missing", [call(10**6, [one]), call(10**6, [one])], [heard(0, "AllReduce", 64, 10**6)], False, False),
        ("one too many", [call(10**6, [one])], [heard(i, "AllReduce", 64, 10**6) for i in (0, 1)], False, False),
        ("no GPU time", [call(10**6, [one])], [heard(0, "AllReduce", 64, 0, timing="none")], True, False),
    ]
    wrong = [name for name, calls, ops, shared, good in cases if (not compare(calls, ops, shared)[0]) != good]
    row = {"collective": "AllReduce", "bytes": 64, "wrong": 0, "time_us": 5}
    good = {"outcome": "ok", "ranks": 2, "rows": [row]}
    theirs = [{**heard(0, "AllReduce", 64, 5), "pid": 8}]
    probes = [
        ("fine", good, theirs, True),
        ("below", {**good, "outcome": "below"}, theirs, False),
        ("one rank", {**good, "ranks": 1}, theirs, False),
        ("wrong results", {**good, "rows": [{**row, "wrong": 1}]}, theirs, False),
        ("nothing checked", {**good, "rows": [{**row, "wrong": None}]}, theirs, False),
        ("no time", {**good, "rows": [{**row, "time_us": 0}]}, theirs, False),
        ("not heard", good, [heard(0, "AllReduce", 64, 5)], False),
        ("alltoall by sends", {**good, "rows": [{**row, "collective": "AlltoAll"}]}, [{**theirs[0], "collective": "Send"}], True),
    ]
    wrong += [name for name, report, operations, fine in probes
              if (not check_probe(report, [call(1, [one])], operations)) != fine]
    print(f"{len(cases) + len(probes)} cases, wrong: {wrong}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", nargs="+", default=[])
    parser.add_argument("--operations")
    parser.add_argument("--shared-gpu", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--probe")
    parser.add_argument("--selftest", action="store_true")
    options = parser.parse_args()
    if options.selftest:
        return selftest()
    calls = [call for path in options.calls for call in load(path)]
    if options.probe:
        with open(options.probe, encoding="utf-8") as file:
            errors = check_probe(json.load(file), calls, load(options.operations))
        print("\n".join(errors) or "the probe is ok, and the agent has heard of it")
        return 1 if errors else 0
    errors, summary = compare(calls, load(options.operations), options.shared_gpu)
    for error in errors[:20]:
        print(error)
    if len(errors) > 20:
        print(f"... {len(errors) - 20} more")
    print(json.dumps(summary))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(summary, file)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
