#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How good is the verdict through plugin and agent? Emulated jobs of 8 to 64 ranks -> plugins -> agents -> ncclscope diagnose.

  through_agents.py --build DIR [--faulty N] [--healthy N] [--hangs N] [--most-ranks N] [--seed N] [--at-once RANKS] [--json FILE]

The same question as diagnosis_bench asks of its cost model, asked of real processes in real time: seeded jobs (DDP, FSDP,
TP x DP, TP x PP x DP, mixture of experts) with a known fault, healthy ones (uneven stages, a hot expert, pauses), and jobs that
stop for good. Each is watched with `diagnose --watch --json`. Jobs run side by side on the same agents, as many as --at-once
allows. Emulated ranks share this machine's cores, so delays begin at 15 % of a step's compute and thresholds are not the
shipped ones: a GPU is late from 8 % of the time on. Where other programs take the cores, all ranks are late now and then, and a
fault rightly goes unnamed: such a job is played a second time, alone. Who is accused wrongly gets no second try. Prints a line for
each job that is judged wrongly or played twice, and the bars; ends with 1 if one is missed.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
sys.dont_write_bytecode = True
from support import PLUGIN, Agent, Build, Job, running  # noqa: E402

NODES = 8
WINDOW_STEPS = 36  # three parts of twelve
VERDICT_STEPS = 60
LATE_SHARE = 0.08
HANG_S, LATE_BY_S = 6, 5
LEAST_LIMIT_S = 150
LATE_KINDS = ("late_gpu", "late_node", "late_group", "late_replica")
HANG_CLASSES = {"crash": "process_gone", "missing": "rank_never_called", "slow-gpu": "gpu_never_started",
                "stuck": "network_stuck", "mismatch": "argument_mismatch"}
# name: (layout of so many ranks, its communicator of all ranks, collectives of a step on that)
FAMILIES = {"ddp": ("ddp", "dp_group", 4), "fsdp": ("fsdp", "fsdp_group", 12), "tp-dp": ("megatron:tp=2", "default_pg", 1),
            "tp-pp-dp": ("megatron:tp=2,pp=2", "default_pg", 1),
            "moe": ("moe:ep=4,copy=1", "dp_group", 1)}


@dataclasses.dataclass
class Scenario:
    """All of it follows from the seed."""
    seed: int
    kind: str  # faulty, healthy, hang
    family: str
    layout: str
    nodes: int
    gpus: int
    compute_ms: int
    faults: list
    late: set = dataclasses.field(default_factory=set)  # global ranks; of a hang: who is to blame
    onset: int = 0
    hang_class: str = ""

    @property
    def ranks(self):
        return self.nodes * self.gpus

    @property
    def last_step(self):
        """Until which it is watched. A healthy job is judged three times."""
        return 2 * WINDOW_STEPS if self.kind == "healthy" else self.onset + VERDICT_STEPS + 5

    @property
    def limit_s(self):
        """Of the whole job, however slow the machine."""
        return max(LEAST_LIMIT_S, 60 + 2 * self.last_step * self.compute_ms / 1000)

    def describe(self):
        return (f"seed {self.seed}: {self.kind}, {self.layout} on {self.nodes} x {self.gpus} GPUs, {self.compute_ms} ms, "
                f"{' '.join(self.faults) or 'no fault'}")


def make_scenario(kind, number, seed, most_ranks):
    """number: of its kind, so that all families and faults come in turn."""
    choose = random.Random(f"{kind} {seed}")
    ranks = choose.choice([n for n in (8, 16, 32, 64) if n <= most_ranks])
    nodes = choose.choice([n for n in (2, 4, 8) if ranks // n >= 2])
    gpus = ranks // nodes
    family = list(FAMILIES)[number % len(FAMILIES)]
    layout = FAMILIES[family][0]
    stage_ranks = ranks // 2 if family == "tp-pp-dp" else ranks
    # Emulated ranks cost about a percent of a core each, at ten steps a second: here two cores are half idle.
    compute_ms = max(200, 15 * ranks)
    faults = []
    if kind != "hang":
        if family == "tp-pp-dp" and choose.random() < 0.5:
            uneven = 1 + choose.uniform(0.05, 0.3)
            faults += [f"slow-gpu:rank={r},factor={uneven:.3f}" for r in range(stage_ranks, ranks)]
        if family == "moe" and choose.random() < 0.5:
            layout += f",hot={choose.randint(5, 50)}"
        if choose.random() < 0.5:  # a checkpoint, an evaluation
            faults.append(f"pause:rank=0,ms={2 * compute_ms},step={choose.randint(10, 40)}")
            at = choose.randint(10, 40)
            faults += [f"pause:node={n},ms={3 * compute_ms},step={at}" for n in range(nodes)]
    scenario = Scenario(seed, kind, family, layout, nodes, gpus, compute_ms, faults)
    if kind == "faulty":
        scenario.onset = choose.choice((0, 30))
        delay = 0.15 * (2 / 0.15) ** choose.random()
        # In a pipeline later stages wait for their input anyway; a node that is a whole stage is an uneven one.
        culprit = choose.randrange(stage_ranks)
        whole_node = choose.random() < 0.25 and family != "tp-pp-dp" and nodes > 2
        target = f"node={culprit // gpus}" if whole_node else f"rank={culprit}"
        how = choose.choice((f"late:{target},ms={delay * compute_ms:.0f}", f"slow-gpu:{target},factor={1 + delay:.3f}"))
        faults.append(f"{how},from={scenario.onset}")
        scenario.late = {r for r in range(ranks) if r // gpus == culprit // gpus} if whole_node else {culprit}
    elif kind == "hang":
        fault = list(HANG_CLASSES)[(number + number // len(HANG_CLASSES)) % len(HANG_CLASSES)]
        culprit = choose.randrange(ranks)
        scenario.hang_class = HANG_CLASSES[fault]
        scenario.late = set() if fault == "stuck" else {culprit}
        target = f"node={culprit // gpus}" if fault == "stuck" else f"rank={culprit}"
        scenario.faults = [f"{fault}:{target},from={choose.randint(5, 12)}" + (",factor=100000" if fault == "slow-gpu" else "")]
    return scenario


@dataclasses.dataclass
class Outcome:
    right: bool = False
    falsely: bool = False
    after: float = -1  # steps from the fault, or seconds from a hang's threshold, to the verdict
    said: str = ""
    tries: int = 1


class Watch:
    """Reads what `diagnose --watch` says of one job."""

    def __init__(self, build, agents, scenario, job_id):
        window = WINDOW_STEPS * scenario.compute_ms * 1.25 / 1000
        self.command = [build.command_line, "diagnose", "--job", job_id, "--watch", "--json", "--hang", f"{HANG_S}s", "--interval", "1s",
                        "--window", f"{window:.1f}s", "--late-share", "1" if scenario.kind == "hang" else str(LATE_SHARE)]
        self.command += [part for agent in agents[:scenario.nodes] for part in ("--agent", agent.api)]
        self.scenario, self.build = scenario, build

    def reports(self):
        """Until it is killed. It ends by itself as long as nobody knows the job."""
        end = time.monotonic() + self.scenario.limit_s
        while time.monotonic() < end:
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True)
            limit = threading.Timer(end - time.monotonic(), process.kill)
            limit.start()
            try:
                for line in process.stdout:
                    yield json.loads(line)
            finally:
                limit.cancel()
                process.kill()
                process.wait()
                process.stdout.close()
            time.sleep(0.2)

    def steps_of(self, report):
        """Steps that the slowest rank has begun."""
        _, name, per_step = FAMILIES[self.scenario.family]
        comms = {c["comm"] for c in report["communicators"] if c["name"] == name}
        called = [r["called"] for r in report["ranks"] if r["comm"] in comms]
        return min(called) / per_step if len(called) == self.scenario.ranks else 0

    def judge(self):
        return self.judge_hang() if self.scenario.kind == "hang" else self.judge_rates()

    def judge_rates(self):
        outcome = Outcome(right=self.scenario.kind == "healthy")
        for report in self.reports():
            steps = self.steps_of(report)
            sure = [f for f in report["findings"] if f["fault"] and f["confidence"] == "high"]
            accused = {int(g["global_rank"]) for f in sure if f["kind"] in LATE_KINDS for g in f["gpus"]}
            if sure:
                outcome.said = "; ".join(f["headline"] for f in sure)
            others = [f for f in sure if f["kind"] not in LATE_KINDS]
            if others or accused - self.scenario.late or (accused and steps <= self.scenario.onset):
                outcome.falsely, outcome.right = True, False
                return outcome
            if accused:
                outcome.after = steps - self.scenario.onset
                outcome.right = outcome.after <= VERDICT_STEPS
                return outcome
            if steps > self.scenario.last_step:
                outcome.said += f"; {steps:.0f} steps"
                return outcome
        outcome.right, outcome.said = False, "too few steps within the limit"
        return outcome

    def judge_hang(self):
        for report in self.reports():
            hangs = [f for f in report["findings"] if f["kind"] == "hang"]
            if not hangs:
                continue
            size = {c["comm"]: c["nranks"] for c in report["communicators"]}
            blamed, ambiguous = set(), False
            for finding in hangs:
                ranks = {int(g["global_rank"]) for g in finding["gpus"]}
                # Of two that differ nobody can tell which one is wrong.
                if finding["class"] == "argument_mismatch" and size.get(finding.get("comm")) == 2 and len(ranks) == 2:
                    ambiguous = True
                    ranks &= self.scenario.late
                blamed |= ranks
            late = max(f["waiting_seconds"] - f["threshold_seconds"] for f in hangs)
            outcome = Outcome(after=late, said="; ".join(f["headline"] for f in hangs) + f" ({late:.1f} s after the threshold)")
            outcome.right = ({f["class"] for f in hangs} == {self.scenario.hang_class} and late <= LATE_BY_S
                             and (blamed == self.scenario.late or (ambiguous and not blamed - self.scenario.late)))
            return outcome
        return Outcome(said="no hang was told")


def play(build, agents, scenario, suffix=""):
    job_id = f"{scenario.kind}-{scenario.seed}{suffix}"
    job = Job(build, scenario.nodes, scenario.gpus, scenario.layout, 100000, PLUGIN,
              [a.socket for a in agents[:scenario.nodes]], job_id=job_id, compute_ms=scenario.compute_ms, hang_seconds=int(2 * scenario.limit_s),
              fault=scenario.faults,
              # On busy cores the plugin's governor would time only slices of operations, each rank its own.
              env=["NCCLSCOPE_OVERHEAD_BUDGET=0.5", "NCCLSCOPE_COST_SAMPLE=0"])
    try:
        return Watch(build, agents, scenario, job_id).judge()
    finally:
        job.stop()


class Room:
    """So many ranks may run at a time."""

    def __init__(self, ranks):
        self.left, self.changed = ranks, threading.Condition()

    @contextlib.contextmanager
    def of(self, ranks):
        with self.changed:
            self.changed.wait_for(lambda: self.left >= ranks)
            self.left -= ranks
        try:
            yield
        finally:
            with self.changed:
                self.left += ranks
                self.changed.notify_all()


def play_all(build, scenarios, at_once):
    """[(scenario, outcome)]"""
    room = Room(max(at_once, max(s.ranks for s in scenarios)))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-"))
    try:
        agents = [Agent(build, folder, f"node{n}", snapshot_interval_ms=200) for n in range(NODES)]

        def one(scenario):
            with room.of(scenario.ranks):
                return play(build, agents, scenario)

        def alone(scenario, outcome):
            if scenario.kind != "faulty" or outcome.right or outcome.falsely:
                return outcome
            return dataclasses.replace(play(build, agents, scenario, "-again"), tries=2)
        with running(agents):
            with concurrent.futures.ThreadPoolExecutor(len(scenarios)) as pool:
                results = list(zip(scenarios, pool.map(one, scenarios), strict=True))
            return [(scenario, alone(scenario, outcome)) for scenario, outcome in results]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(results):
    """Lines as diagnosis_bench's; whether all bars are met."""
    by_kind, by_family = collections.defaultdict(list), collections.defaultdict(list)
    for scenario, outcome in results:
        by_kind[scenario.kind].append(outcome)
        by_family[scenario.kind, scenario.family].append(outcome)
        if not outcome.right or outcome.falsely:
            print(f"WRONG {scenario.describe()}; said: {outcome.said or 'nothing'}")
        elif outcome.tries > 1:
            print(f"PLAYED TWICE {scenario.describe()}")
    for (kind, family), outcomes in sorted(by_family.items()):
        print(f"{kind:8} {family:9} {sum(o.right for o in outcomes):4} of {len(outcomes)} right")
    lines = []

    def add(name, what, value, unit, limit=None, bound=None):
        good = None if limit is None else value >= bound if limit == "at_least" else value <= bound
        lines.append({"name": f"through_agents_{name}", "what": what, "value": round(value, 2), "unit": unit,
                      "bar": limit and {limit: bound}, "ok": good})

    def after(outcomes):
        return sorted(o.after for o in outcomes if o.right and o.after >= 0) or [-1]
    if faulty := by_kind["faulty"]:
        add("top1", f"the right GPU or node is named within {VERDICT_STEPS} steps", 100 * sum(o.right for o in faulty) / len(faulty),
            "%", "at_least", 99)
        add("false", "jobs with a fault in which somebody innocent is accused", sum(o.falsely for o in faulty), "jobs", "at_most",
            len(faulty) // 100)
        add("steps", "steps from the fault to the verdict, median", after(faulty)[len(after(faulty)) // 2], "steps")
        add("jobs", "jobs with a fault that were played", len(faulty), "jobs")
        add("twice", "of these, jobs that were played twice", sum(o.tries > 1 for o in faulty), "jobs")
    if healthy := by_kind["healthy"]:
        add("healthy_accused", "healthy jobs in which anybody is accused", sum(o.falsely for o in healthy), "jobs", "at_most", 0)
        add("healthy_judged", "healthy jobs that were judged to their end", 100 * sum(o.right for o in healthy) / len(healthy), "%",
            "at_least", 100)
        add("healthy_jobs", "healthy jobs that were played", len(healthy), "jobs")
    if hangs := by_kind["hang"]:
        add("hang_right", "class and ranks of a hang are right", 100 * sum(o.right for o in hangs) / len(hangs), "%", "at_least", 100)
        add("hang_seconds", "from the threshold to the verdict, most", after(hangs)[-1], "s", "at_most", LATE_BY_S)
        add("hang_jobs", "jobs that stopped for good", len(hangs), "jobs")
    return lines, all(line["ok"] is not False for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--faulty", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=5)
    parser.add_argument("--hangs", type=int, default=5)
    parser.add_argument("--most-ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=64, metavar="RANKS")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    begin = time.monotonic()
    scenarios = [make_scenario(kind, number, options.seed + number, options.most_ranks)
                 for kind, count in (("faulty", options.faulty), ("healthy", options.healthy), ("hang", options.hangs))
                 for number in range(count)]
    results = play_all(Build(options.build), scenarios, options.at_once)
    lines, good = report(results)
    for line in lines:
        print(json.dumps(line))
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(scenarios)} jobs of up to {options.most_ranks} ranks in {time.monotonic() - begin:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
