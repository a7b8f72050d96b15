#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `ncclscope report` draws of logs, and whether it is right.

  pictures.py --build DIR SCENARIO

page: a run with a late rank and a hostile name. The page must name the rank and since when, show the numbers that Python
computes from the same lines, ask nobody for anything, run nothing that a name says, and be usable without a mouse.

compare: equal runs differ in nothing; a slower collective, another algorithm and a late rank are named, and nothing else.

screenshot: photographs the page into NCCLSCOPE_SCREENSHOT. No test; it makes the pictures in docs/.
"""
import collections
import html.parser
import json
import math
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import runs  # noqa: E402
from browser import Browser, needs_a_browser  # noqa: E402
from support import Skipped, require, run_scenarios  # noqa: E402

HEALTHY, CHANGED, USAGE = 0, 1, 2
PAGE_BYTES = 3_000_000
SVG = "{http://www.w3.org/2000/svg}"


def report(build, *arguments, status=HEALTHY):
    result = subprocess.run([build.command_line, "report", *arguments], capture_output=True, text=True, timeout=200, check=False)
    if "DuckDB is needed" in result.stderr:
        raise Skipped("no DuckDB here; scripts/fetch-duckdb.sh brings it")
    if "Apache ECharts is needed" in result.stderr:
        raise Skipped("no ECharts here; scripts/fetch-echarts.sh brings it")
    require(result.returncode == status, f"{arguments}: ended with {result.returncode}: {result.stdout}{result.stderr}")
    return result.stdout + result.stderr


class Tables(html.parser.HTMLParser):
    """The tables of a page by their ids: rows of cells, numbers as they stand in data-value."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.rows, self.cell = {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "table":
            self.rows = self.tables.setdefault(attributes.get("id", ""), [])
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag == "td":
            self.cell = float(attributes["data-value"]) if "data-value" in attributes else ""

    def handle_data(self, data):
        if isinstance(self.cell, str):
            self.cell += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.rows[-1].append(self.cell)
            self.cell = None


def quantile(values, p):
    place = p * (len(values) - 1)
    low = math.floor(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)


def check_numbers(page, rows):
    """The tables behind the pictures, against what Python makes of the same lines."""
    tables = Tables(page).tables
    shapes = collections.defaultdict(list)
    for row in rows:
        shapes[row["collective"], row["bytes"]].append(row)
    sizes = [r for r in tables["table-busbw-by-size"] if r]
    require(len(sizes) == len(shapes), f"{len(sizes)} sizes, not {len(shapes)}")
    for collective, size, count, mean, low, median, high, seconds in sizes:
        values = sorted(r["busbw"] for r in shapes[collective, int(size)])
        wanted = [len(values), math.fsum(values) / len(values), quantile(values, 0.05), quantile(values, 0.5), quantile(values, 0.95),
                  math.fsum(r["seconds"] for r in shapes[collective, int(size)])]
        got = [count, mean, low, median, high, seconds]
        require(all(map(near, got, wanted)), f"{collective} {size}: {got}, not {wanted}")
    boxes = [r for r in tables["table-busbw-box"] if r]
    for collective, size, _, _, count, *quantiles in boxes:
        values = sorted(r["busbw"] for r in shapes[collective, int(size)])
        require(all(near(q, quantile(values, p)) for q, p in zip(quantiles, (0.05, 0.25, 0.5, 0.75, 0.95))), f"box of {collective}")
        require(count == len(values), f"box of {collective}: {count}")
    bins = [r for r in tables["table-busbw-histogram"] if r]
    for collective in {r[0] for r in bins}:
        of = [r for r in bins if r[0] == collective]
        require(sum(r[3] for r in of) == sum(r["collective"] == collective for r in rows), f"histogram of {collective}")
        for _, low, high, count in of:
            inside = sum(r["collective"] == collective and low <= r["busbw"] < high for r in rows)
            require(inside == count, f"{collective} from {low} to {high}: {count}, not {inside}")
    # Who was waited for: over all operations, the longest less the shortest time, as the last one's.
    waited = collections.defaultdict(float)
    operations = collections.defaultdict(dict)
    for row in rows:
        operations[row["collective"], row["number"]][row["rank"]] = row["seconds"]
    for times in operations.values():
        shortest = min(times.values())
        waited[min(r for r, s in times.items() if s == shortest)] += max(times.values()) - shortest
    for row in [r for r in tables["table-stragglers"] if r]:
        require(near(row[6], waited[int(row[1])]), f"straggler {row}: not {waited[int(row[1])]}")


def check_svg(folder, names):
    files = sorted(path.stem for path in (folder / "svg").glob("*.svg"))
    require(files == sorted(names), f"SVG files {files}, pictures {sorted(names)}")
    for name in names:
        text = (folder / "svg" / f"{name}.svg").read_text()
        root = xml.etree.ElementTree.fromstring(text)
        require(root.tag == f"{SVG}svg" and root.get("viewBox").startswith("0 0 1100 "), f"{name}: {root.attrib}")
        words = " ".join(e.text or "" for e in root.iter(f"{SVG}text"))
        require(sum(1 for _ in root.iter(f"{SVG}path")) >= 3, f"{name}: nothing is drawn")
        require("NaN" not in text and "undefined" not in text and "<script" not in text, f"{name}: {text[:300]}")
        require(len(text) < 1_000_000, f"{name}: {len(text)} bytes")
        if name == "busbw-by-size":
            require("message size" in words and "AllReduce" in words and "MiB" in words, f"{name}: {words}")
        if name == "stragglers":
            require("rank 5" in words, f"{name}: {words}")


def check_page(folder, screenshots=None):
    needs_a_browser()
    with Browser(width=1300) as browser:
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            browser.open(f"file://{folder}/report.html")
            count = browser.evaluate("document.querySelectorAll('[data-picture]').length")
            browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # draws what is not in view
            browser.wait_for(f"document.documentElement.getAttribute('data-drawn') === '{count}'")
            empty = browser.evaluate("[...document.querySelectorAll('[data-picture]')].filter(e => !e.querySelector('canvas')).length")
            require(empty == 0, f"{scheme}: {empty} of {count} are not drawn")
            if screenshots:
                browser.screenshot(screenshots.with_stem(f"{screenshots.stem}-{scheme}"))
        resources = browser.evaluate("performance.getEntriesByType('resource').map(r => r.name)"
                                     ".filter(n => !n.startsWith('data:') && !n.startsWith('blob:'))")
        require(not resources, f"the page asks for {resources}")
        require(browser.evaluate("window.attacked") is None, "a communicator's name was run")
        require(browser.evaluate("document.querySelectorAll('img').length") == 0, "a communicator's name became an element")
        require(not browser.errors, f"errors on the page: {browser.errors}")
        blocked = browser.evaluate("""new Promise(done => {
            document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective), {once: true});
            fetch('http://127.0.0.2:9/').catch(() => setTimeout(() => done('nothing'), 2000)); })""")
        require(blocked == "connect-src", f"policy: {blocked}")

        tree = browser.accessibility_tree()
        roles = {role for role, _, _ in tree}
        require({"banner", "main", "contentinfo", "navigation", "heading", "figure", "list"} <= roles, f"roles: {sorted(roles)}")
        images = [name for role, name, _ in tree if role in ("img", "image")]
        require(len(images) >= count and all(images), f"pictures without a name: {images}")
        # Every table is reached and opened with keys alone.
        browser.evaluate("document.activeElement.blur()")
        browser.press("Tab")
        require(browser.evaluate("document.activeElement.className") == "skip", "the first Tab is not the skip link")
        browser.evaluate("document.querySelector('summary').focus()")
        browser.press("Enter", text="\r")
        require(browser.evaluate("document.querySelector('details').open"), "Enter does not open a table")


def late_run(build, folder, **options):
    rows = runs.write(folder / "nccl-inspector-4711", late=5, **options)
    text = report(build, folder / "nccl-inspector-4711", "--output", folder / "out")
    return rows, text


def page(build, folder):
    rows, text = late_run(build, folder)
    require("(global rank 5) is late, since 2025-11-24 16:01:" in text, f"the terminal does not name rank 5: {text[-3000:]}")
    out = folder / "out"
    faults = [i for i in json.loads((out / "insights.json").read_text()) if i["weight"] == "fault"]
    require([f["kind"] for f in faults] == ["late_gpu"], f"insights: {faults}")
    begin = (runs.START_US + 200 * runs.STEP_US) * 1000
    require(abs(faults[0]["since_ns"] - begin) < 25e9, f"since {faults[0]['since_ns']}, not {begin}")
    text = (out / "report.html").read_text()
    require(len(text) < PAGE_BYTES, f"the page has {len(text)} bytes")
    require("Licensed under the Apache License" in text and "Apache ECharts" in text, "the library's licence is not in the page")
    check_numbers(text, rows)
    names = ["busbw-box", "busbw-by-size", "busbw-histogram", "busbw-over-time", "communication-over-time", "ranks-1",
             "skew-over-time", "stragglers", "time-histogram"]
    check_svg(out, names)
    check_page(out)


def compare(build, folder):
    runs.write(folder / "yesterday", seed=1)
    runs.write(folder / "today", seed=2)
    runs.write(folder / "changed", seed=3, slower={"AllReduce": 1.2}, algorithms={"AllGather": "NVLS"})
    runs.write(folder / "late", seed=4, late=2, late_from=0)

    def changes(a, b, status):
        out = folder / f"{a.name}-{b.name}"
        text = report(build, "--compare", a, b, "--output", out, status=status)
        answer = json.loads((out / "compare.json").read_text())
        page = (out / "report.html").read_text()
        require(all(c["text"] in text for c in answer["changes"]), f"terminal and JSON differ: {text}")
        require(len(Tables(page).tables[""]) == 1 + len(answer["shapes"]), "the page's table has other shapes")
        check_svg(out, ["compare-ratio"])
        return answer

    answer = changes(folder / "yesterday", folder / "today", HEALTHY)
    require(answer["changes"] == [] and len(answer["shapes"]) == 3, f"equal runs: {answer['changes']}")
    answer = changes(folder / "yesterday", folder / "changed", CHANGED)
    kinds = sorted(c["kind"] for c in answer["changes"])
    require(kinds == ["algorithm", "transfer_slower"], f"changed: {answer['changes']}")
    slower = next(c for c in answer["changes"] if c["kind"] == "transfer_slower")
    require(slower["text"].startswith("AllReduce 64 MiB, 8 ranks on 2 nodes"), slower["text"])
    ratio = next(s for s in answer["shapes"] if s["collective"] == "AllReduce")["transfer_busbw"]["ratio"]
    require(abs(ratio - 1 / 1.2) < 0.02, f"ratio {ratio}")
    # A report that was made before is compared without reading its input again.
    report(build, folder / "yesterday", "--output", folder / "kept", "--no-pictures", "--quiet")
    answer = changes(folder / "kept", folder / "late", CHANGED)
    require({"waits_more", "late_gpu"} <= {c["kind"] for c in answer["changes"]}, f"late: {answer['changes']}")
    require(not any(c["kind"] == "transfer_slower" for c in answer["changes"]), f"the network is accused: {answer['changes']}")

    dumps = pathlib.Path(__file__).resolve().parents[2] / "data" / "flight_recorder" / "never_called"
    report(build, "--flight-recorder", dumps, "--output", folder / "flight", "--no-pictures", "--quiet")
    rows = json.loads((folder / "flight" / "report.json").read_text())["statistics"]
    reduces = [r for r in rows if r["collective"] == "AllReduce" and r["communicator_name"] == "default_pg"]
    # 3 of each rank are done, in 1.5 ms for 2 MiB; the fourth of three ranks is not.
    require([(r["operations"], r["timed"], r["bytes"]) for r in reduces] == [(15, 12, 2097152)], f"dumps: {reduces}")
    require(near(reduces[0]["busbw_median"], 2097152 / 1.5e-3 * 1.5), f"dumps: {reduces}")

    bad = folder / "throughput.csv"
    bad.write_text("time,tflops\n1764000000,300\nnoon,310\n")
    text = report(build, folder / "today", "--output", folder / "bad", "--throughput", bad, status=USAGE)
    require(f"{bad}:3: 'noon' is no time" in text, text)
    report(build, "--output", folder / "none", status=USAGE)
    text = report(build, "--compare", folder / "today", folder / "today", "--output", folder / "bad", "--throughput", bad, status=USAGE)
    require("--compare: takes no throughput" in text, text)
    with open(next((folder / "today").iterdir()), "a") as log:
        log.write('{"header":{}}\n')
    for strict, status in (((), HEALTHY), (("--strict",), CHANGED)):
        text = report(build, "--compare", folder / "yesterday", folder / "today", "--output", folder / f"damaged{status}", *strict, status=status)
        require(".log:1201: " in text and "Nothing changed" in text, text)


def screenshot(build, folder):
    late_run(build, folder, steps=1200, late_from=700, name="dp_group")
    check_page(folder / "out", pathlib.Path(os.environ["NCCLSCOPE_SCREENSHOT"]))


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (page, compare, screenshot)))
