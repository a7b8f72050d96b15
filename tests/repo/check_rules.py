#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rules and alerts of deploy/prometheus: written from their templates, well named, documented, tested, and about metrics
that exist.

  check_rules.py             checks the repository
  check_rules.py --selftest  proves that the checks can fail
"""
import pathlib
import re
import subprocess
import sys

import yaml

sys.dont_write_bytecode = True
from selftest import prove  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
LEVELS = "rank|gpu|node|comm|role|place|job|shape"
NAME = re.compile(rf"({LEVELS}):ncclscope_[a-z0-9_]+:[a-z0-9_]+")
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
TEXT = re.compile(r'"[^"]*"|\'[^\']*\'')
# Not ours: what Prometheus writes about targets and alerts.
FOREIGN = {"up", "ALERTS_FOR_STATE"}
SECTIONS = ("## Meaning", "## First look", "## Usual causes", "## Commands")
ANNOTATIONS = ("summary", "description", "runbook_url")


def catalogue():
    text = (ROOT / "docs" / "metrics.md").read_text()
    names = set()
    for name, kind in re.findall(r"^\| `(ncclscope_\w+)` \| (\w+)", text, re.M):
        names |= {f"{name}_{part}" for part in ("sum", "count", "bucket")} if kind == "histogram" else {name}
    return names


def rules_of(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def series_in(expression):
    """Names of series in an expression; label values are left out."""
    return {w for w in WORD.findall(TEXT.sub("", expression)) if w.startswith("ncclscope_") or w in FOREIGN or ":ncclscope_" in w}


def annotation_series(text):
    return {w for w in WORD.findall(text) if re.match(rf"(({LEVELS}):)?ncclscope_", w) and not w.endswith(":")}


# Cases that an alert's tests must have, beside firing and not firing. By name: what a case is about stands there.
ABSENT = re.compile(r"\b(no data|absent|no network phases|no step times|nobody knows|never was an agent|no longer report)\b")
BLIND = re.compile(r"\bblind\b")
# About telemetry, nodes or history itself: partly blind telemetry is what they tell of, or plays no part.
SEES_WITHOUT_COVERAGE = {"NcclscopeLowCoverage", "NcclscopePluginOverhead", "NcclscopeAgentDown", "NcclscopeVersionSkew",
                         "NcclscopeSeriesFolded", "NcclscopeJobOutsideNccl", "NcclscopeSlowLink", "NcclscopeStepTimeAboveBaseline",
                         "NcclscopeSocketsInsteadOfRdma", "NcclscopeArchiveLosses"}
# Over days: once told, it stays for the range that it looks back.
STAYS = {"NcclscopeSlowAcrossJobs"}


def seconds(text):
    return sum(int(n) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for n, unit in re.findall(r"(\d+)([smhd])", text))


def uncovered_cases(name, cases):
    """What is missing of: fires (with exact annotations), does not fire, recovers, absent data, blind telemetry."""
    fires = silent = recovers = False
    for case in cases:
        checks = sorted((c for c in case["alert_rule_test"] if c["alertname"] == name), key=lambda c: seconds(c["eval_time"]))
        told = [bool(c["exp_alerts"]) for c in checks]
        fires |= any(told)
        silent |= bool(told) and not any(told)
        recovers |= True in told and not told[-1]
        for expected in (e for c in checks for e in c["exp_alerts"]):
            if set(expected.get("exp_annotations", {})) != set(ANNOTATIONS):
                yield f"the annotations of case '{case['name']}'"
    names = [case["name"] for case in cases]
    if not fires:
        yield "a case in which it fires"
    if not silent:
        yield "a case in which it does not fire"
    if not recovers and name not in STAYS:
        yield "a case in which it ends"
    if not any(ABSENT.search(n) for n in names):
        yield "a case with absent data"
    if name not in SEES_WITHOUT_COVERAGE and not any(BLIND.search(n) for n in names):
        yield "a case with blind telemetry"


def uncovered_rules(rules, alerts, tests):
    """Recording rules that no tested alert and no tested expression depends on."""
    uses = {}
    for rule in rules:
        uses.setdefault(rule["record"], set()).update(series_in(rule["expr"]))
    reached, todo = set(), set()
    for rule in alerts:
        if rule["alert"] in tests:
            todo |= series_in(rule["expr"])
            for text in rule.get("annotations", {}).values():
                todo |= annotation_series(text)
    for cases in tests.values():
        for case in cases:
            for check in case.get("promql_expr_test", []):
                todo |= series_in(check["expr"])
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo |= uses.get(name, set())
    return sorted(set(uses) - reached)


ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.S)


def can_say(template, said):
    """Whether a template can come to these words: its text, one branch of each choice, anything for a value and for a loop."""
    pieces = ACTION.split(template)  # text, action, text, ...

    def after_text(text, places):
        words = r"\s*".join(re.escape(word) for word in text.split())
        words = re.sub(r"(?<![\w.])\d+[smhdw]\b", r"\\d+[smhdw]", words)  # windows are a site's own
        expression = re.compile(rf"\s*{words}\s*")
        return {match.end() for match in (expression.match(said, place) for place in places) if match}

    def anything(places):
        return set(range(min(places), len(said) + 1)) if places else set()

    def walk(at, places):
        """From the text `at` on to the end, or to the action that ends this branch: (places in `said`, where, that action)."""
        places = after_text(pieces[at], places)
        at += 1
        while at < len(pieces):
            word = pieces[at].split(" ", 1)[0]
            if word in ("else", "end"):
                return places, at, pieces[at]
            if word in ("if", "with", "range"):
                before = anything(places) if word == "range" else places
                reached, ended = set(before), ""  # without an else the branch may be left out
                while ended != "end":
                    branch, at, ended = walk(at + 1, before)
                    reached |= branch
                places = anything(reached) if word == "range" else reached
            elif not re.match(r"\$\w+ :?=", pieces[at]):
                places = anything(places)
            places = after_text(pieces[at + 1], places)
            at += 2
        return places, at, ""
    return len(said) in walk(0, {0})[0]


def quotes_in(text):
    """(alert, summary, description) of alerts that a page quotes: "> **Alert**: summary", an empty line, the description."""
    for block in re.findall(r"(?:^>.*\n)+", text, re.M):
        lines = [line.removeprefix(">").strip() for line in block.splitlines()]
        if (begin := re.match(r"\*\*(Ncclscope\w+)\*\*: ", lines[0])) and "" in lines:
            middle = lines.index("")
            yield begin[1], " ".join(lines[:middle])[begin.end():], " ".join(lines[middle + 1:])


def stale_quotes(alerts, pages):
    """pages: {name: text}."""
    for page, text in pages.items():
        for name, *said in quotes_in(text):
            for annotation, words in zip(("summary", "description"), said, strict=True):
                if not any(can_say(rule["annotations"][annotation], words) for rule in alerts if rule["alert"] == name):
                    yield f"{page}: {name} does not say so (any more): {words}"


def findings(rules, alerts, metrics, runbooks, tests, pages):
    """rules, alerts: lists of rules. runbooks, pages: {name: text}. tests: {name: [cases]}."""
    recorded = {rule["record"] for rule in rules}
    for rule in rules:
        if not NAME.fullmatch(rule["record"]):
            yield f"{rule['record']}: not level:metric:operations with a level of {LEVELS}"
    for rule in rules + alerts:
        name = rule.get("record") or rule["alert"]
        used = series_in(rule["expr"])
        for text in rule.get("annotations", {}).values():
            used |= annotation_series(text)
        for series in sorted(used - FOREIGN):
            if ":" in series and series not in recorded:
                yield f"{name}: uses {series}, which no rule records"
            elif ":" not in series and series not in metrics:
                yield f"{name}: uses {series}, which is not in docs/metrics.md"
    names = {rule["alert"] for rule in alerts}
    for rule in alerts:
        name = rule["alert"]
        if rule.get("labels", {}).get("severity") not in ("critical", "warning", "info"):
            yield f"{name}: severity is {rule.get('labels', {}).get('severity')}; critical, warning or info"
        for annotation in ANNOTATIONS:
            if not rule.get("annotations", {}).get(annotation):
                yield f"{name}: no {annotation}"
        if not rule.get("annotations", {}).get("runbook_url", "").endswith(f"/{name}.md"):
            yield f"{name}: runbook_url does not end in /{name}.md"
        missing = [section for section in SECTIONS if section not in runbooks.get(name, "")]
        if missing:
            yield f"docs/runbooks/{name}.md: lacks {', '.join(missing)}"
        for what in uncovered_cases(name, tests.get(name, [])):
            yield f"{name}: promtool tests lack {what}"
    for name in uncovered_rules(rules, alerts, tests):
        yield f"{name}: no promtool test depends on it"
    yield from stale_quotes(alerts, pages)
    for name in sorted(set(runbooks) - names):
        yield f"docs/runbooks/{name}.md: no alert of this name"


def repository():
    return {
        "rules": rules_of(FOLDER / "recording.yml"),
        "alerts": rules_of(FOLDER / "alerts.yml"),
        "metrics": catalogue(),
        "runbooks": {p.stem: p.read_text() for p in (ROOT / "docs" / "runbooks").glob("Ncclscope*.md")},
        "pages": {f"docs/{p.name}": p.read_text() for p in (ROOT / "docs").glob("*.md")},
        "tests": {p.name.split(".")[0]: yaml.safe_load(p.read_text())["tests"] for p in (FOLDER / "tests").glob("*.test.yml")},
    }


def selftest() -> int:
    return prove(findings, repository(), {
        "a name without a level": lambda r: r["rules"][0].update(record="ncclscope_x:max"),
        "a metric that does not exist": lambda r: r["rules"][0].update(expr="rate(ncclscope_no_such_total[5m])"),
        "a series that nobody records": lambda r: r["alerts"][0].update(expr="job:ncclscope_nothing:max > 1"),
        "no severity": lambda r: r["alerts"][0]["labels"].clear(),
        "no summary": lambda r: r["alerts"][0]["annotations"].pop("summary"),
        "another runbook": lambda r: r["alerts"][0]["annotations"].update(runbook_url="docs/runbooks/Other.md"),
        "no runbook": lambda r: r["runbooks"].pop(r["alerts"][0]["alert"]),
        "a runbook too many": lambda r: r["runbooks"].update(NcclscopeOther="x"),
        "no test": lambda r: r["tests"].pop(r["alerts"][0]["alert"]),
        "no case in which it ends": lambda r: [c.update(alert_rule_test=c["alert_rule_test"][:1]) for c in r["tests"]["NcclscopeHang"]],
        "no blind telemetry": lambda r: [c.update(name="x") for c in r["tests"]["NcclscopeLateGpu"]],
        "a rule that nothing tests": lambda r: r["rules"].append({"record": "job:ncclscope_x:max", "expr": "1"}),
        "an alert's words of before": lambda r: r["pages"].update(x=r["pages"]["docs/my-job-is-slow.md"].replace("is late and slows", "slows")),
        "a query of an annotation": lambda r: r["alerts"][0]["annotations"].update(description='{{ query "ncclscope_no_such" }}'),
    })


def main() -> int:
    if sys.argv[1:] == ["--selftest"]:
        return selftest()
    code = 0
    for command in ([FOLDER / "render.py", "--check"], [FOLDER / "tests" / "write.py", "--check"]):
        code |= subprocess.run([sys.executable, "-B", *command], check=False).returncode
    everything = repository()
    found = list(findings(**everything))
    for line in found:
        print(line)
    print(f"{len(everything['rules'])} recording rules, {len(everything['alerts'])} alerts, {len(found)} findings")
    return 1 if found or code else 0


if __name__ == "__main__":
    sys.exit(main())
