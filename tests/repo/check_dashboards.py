#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Dashboards of dashboards/grafana: about series that exist, described, and with links that lead somewhere.

  check_dashboards.py             checks the repository
  check_dashboards.py --selftest  proves that the checks can fail
"""
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import check_rules  # noqa: E402
from selftest import prove  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards" / "grafana"
# Not ours: what Prometheus writes itself, and what DCGM's exporter says.
PROMETHEUS = {"up", "ALERTS", "ALERTS_FOR_STATE"}
DCGM = {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE"}
UIDS = {"cluster": "ncclscope-cluster", "job": "ncclscope-job", "communicator": "ncclscope-communicator", "node": "ncclscope-node",
        "compare": "ncclscope-compare", "telemetry": "ncclscope-telemetry"}
SERIES = re.compile(r"(?:[a-z]+:)?ncclscope_\w+(?::\w+)?|DCGM_\w+|ALERTS\w*|\bup\b")
VARIABLE = re.compile(r"\$(?:{(\w+)[^}]*}|([A-Za-z_]\w*))")


def all_links(thing):
    if isinstance(thing, dict):
        if isinstance(thing.get("url"), str) and "title" in thing:
            yield thing["url"]
        for value in thing.values():
            yield from all_links(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from all_links(value)


def series_of(expression):
    return set(SERIES.findall(check_rules.TEXT.sub('""', expression)))


def check_board(name, board, known, runbooks, uids):
    variables = {v["name"]: v for v in board["templating"]["list"]}
    built_in = {"__rate_interval", "__interval", "__range", "__url_time_range", "__data", "__field"}
    if board["uid"] != UIDS.get(name):
        yield f"uid is {board['uid']}"
    if not board.get("description") or "ncclscope" not in board.get("tags", []):
        yield "lacks a description, or the tag ncclscope that links the dashboards"
    for variable in variables.values():
        if variable["type"] not in ("datasource", "constant", "custom", "query") or not variable.get("description"):
            yield f"variable {variable['name']}: of type {variable['type']}, or without description"
        if variable["type"] == "query":
            for series in series_of(variable["query"]) - known:
                yield f"variable {variable['name']}: {series} does not exist"
    seen, cells = set(), {}
    for panel in board["panels"]:
        where = f"panel '{panel.get('title')}'"
        if panel["id"] in seen:
            yield f"{where}: its id is another panel's"
        seen.add(panel["id"])
        grid = panel["gridPos"]
        for cell in ((x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])):
            if cell in cells or cell[0] > 23:
                yield f"{where}: lies on '{cells.get(cell)}', or beyond the right edge"
                break
            cells[cell] = panel.get("title")
        if panel["type"] == "row":
            continue
        if not panel.get("title") or len(panel.get("description", "")) < 20:
            yield f"{where}: no title, or no description"
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"{where}: no unit"
        if not panel.get("targets"):
            yield f"{where}: no expression"
        if panel["datasource"].get("uid") != "${datasource}":
            yield f"{where}: another data source than the variable's"
        for target in panel.get("targets", []):
            for series in series_of(target["expr"]) - known:
                yield f"{where}: {series} is neither in docs/metrics.md nor recorded"
            for braced, plain in VARIABLE.findall(target["expr"]):
                if (braced or plain) not in variables and (braced or plain) not in built_in:
                    yield f"{where}: variable {braced or plain} does not exist"
            if target["expr"].count("(") != target["expr"].count(")"):
                yield f"{where}: parentheses"
    for url in all_links(board):
        if url.startswith("/d/"):
            uid, _, query = url.removeprefix("/d/").partition("?")
            if uid not in uids:
                yield f"link to {uid}, which does not exist"
                continue
            for variable in re.findall(r"var-(\w+)=", query):
                if variable not in uids[uid]:
                    yield f"link to {uid} sets {variable}, which it does not have"
        elif url.startswith("${runbooks}/"):
            page = url.removeprefix("${runbooks}/")
            if "${" not in page and page not in runbooks:
                yield f"link to the runbook {page}, which does not exist"
        elif not url.startswith("http://${__data.fields.Agent}/"):
            yield f"link to {url}"
        for braced, plain in VARIABLE.findall(url):
            if (braced or plain).split(".")[0] not in {*variables, *built_in}:
                yield f"link uses {braced or plain}, which does not exist"


def findings(boards, known, runbooks):
    uids = {b["uid"]: {v["name"] for v in b["templating"]["list"]} for b in boards.values()}
    for name in UIDS.keys() - boards.keys():
        yield f"{name}.json is missing"
    for name, board in boards.items():
        for finding in check_board(name, board, known, runbooks, uids):
            yield f"{name}.json: {finding}"


def repository():
    recorded = {rule["record"] for rule in check_rules.rules_of(check_rules.FOLDER / "recording.yml")}
    return {"boards": {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("*.json"))},
            "known": check_rules.catalogue() | recorded | PROMETHEUS | DCGM,
            "runbooks": {p.name for p in (ROOT / "docs" / "runbooks").glob("*.md")}}


def panel(state, board="job"):
    return next(p for p in state["boards"][board]["panels"] if p["type"] != "row")


def selftest() -> int:
    return prove(findings, repository(), {
        "a metric that does not exist": lambda s: panel(s)["targets"][0].update(expr="rate(ncclscope_no_such_total[5m])"),
        "a series that nobody records": lambda s: panel(s)["targets"][0].update(expr="job:ncclscope_nothing:max > 1"),
        "a metric of DCGM that nobody checked": lambda s: panel(s)["targets"][0].update(expr="DCGM_FI_NOTHING"),
        "no description": lambda s: panel(s).update(description=""),
        "no unit": lambda s: panel(s)["fieldConfig"]["defaults"].pop("unit"),
        "no expression": lambda s: panel(s).update(targets=[]),
        "a variable that does not exist": lambda s: panel(s)["targets"][0].update(expr='up{x="$nothing"}'),
        "panels on each other": lambda s: panel(s)["gridPos"].update(w=24),
        "an id twice": lambda s: panel(s).update(id=2),
        "a link to nowhere": lambda s: s["boards"]["job"]["links"].append({"title": "x", "url": "/d/nothing?"}),
        "a link with a variable too many": lambda s: s["boards"]["job"]["links"].append(
            {"title": "x", "url": "/d/ncclscope-node?var-rank=1"}),
        "a runbook that is gone": lambda s: s["runbooks"].remove("NcclscopeHang.md"),
        "a dashboard that is gone": lambda s: s["boards"].pop("compare"),
    })


def main() -> int:
    if sys.argv[1:] == ["--selftest"]:
        return selftest()
    state = repository()
    found = list(findings(**state))
    for line in found:
        print(line)
    panels = sum(len(b["panels"]) for b in state["boards"].values())
    print(f"{len(state['boards'])} dashboards, {panels} panels and rows, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
