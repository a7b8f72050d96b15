#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The agent's own page over HTTP and in a real browser.

  page.py --build DIR SCENARIO

use: an emulated job with a hostile name and a rank that stops calling runs on two nodes. The page of the first must show who
is waited for, run nothing that a name says, and be usable with a keyboard and a screen reader. Who may not scrape sees nothing.

screenshot: photographs the page after NCCLSCOPE_TEST_SECONDS (100) of a job that becomes slow at the end, into
NCCLSCOPE_SCREENSHOT. No test; it makes the picture in docs/.
"""
import hashlib
import http.client
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from browser import Browser, needs_a_browser  # noqa: E402
from support import (PLUGIN, ROOT, Agent, Failure, Job, node_agents, require, run_scenarios, running,  # noqa: E402
                     wait_until)

TOKEN = "a-token-of-the-test"
# On busy cores the plugin's governor would time only slices of operations, and those without times are not seen to hang.
TIME_ALL = ("NCCLSCOPE_OVERHEAD_BUDGET=0.5", "NCCLSCOPE_COST_SAMPLE=0")
ATTACK = "<img src=x onerror='window.attacked=1'><script>window.attacked=2</script>"


def ask(agent, path, method="GET", token=TOKEN):
    connection = http.client.HTTPConnection(agent.address, timeout=10)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def check_http(agent):
    for path in ("/", "/api/node.json"):
        for token in (None, "wrong"):
            answer, body = ask(agent, path, token=token)
            require(answer.status == 401 and b"node0" not in body, f"{path} with token {token}: {answer.status}")
        answer, body = ask(agent, path)
        require(answer.status == 200 and body, f"{path}: {answer.status}")
        head, nothing = ask(agent, path, "HEAD")
        require(head.status == 200 and not nothing, f"HEAD {path}: {head.status}, {len(nothing)} bytes")
        require(ask(agent, path, "POST")[0].status == 405, f"POST {path} is not refused")
    policy = ask(agent, "/")[0].headers["Content-Security-Policy"]
    require(policy.startswith("default-src 'none'") and "unsafe" not in policy, f"policy: {policy}")
    require(ask(agent, "/healthz", token=None)[0].status == 200, "/healthz asks for a token")


def node_data(agent):
    return json.loads(ask(agent, "/api/node.json")[1])


def waiting(data, seconds):
    """Rank numbers by whether they wait in the job's communicator, once some wait for long."""
    for job in data["jobs"]:
        for c in job["communicators"]:
            ages = {r["rank"]: r["inflight_seconds"] for r in c["ranks"]}
            if ages and max(ages.values()) >= seconds:
                return ages
    return None


def check_live(browser, agent):
    """The real job: rank 1 never called again, rank 0 waits for it."""
    browser.set_headers(Authorization=f"Bearer {TOKEN}")
    browser.open(f"http://{agent.address}/")
    browser.wait_for("document.querySelectorAll('#jobs article').length === 1")
    browser.wait_for("!document.getElementById('waiting-box').hidden")
    browser.wait_for("[...document.getElementById('waiting').rows].some(r => r.textContent.includes('is waited for'))")
    rows = browser.evaluate("[...document.getElementById('waiting').rows].map(r => [...r.cells].map(c => c.textContent))")
    what = {row[2]: row[7] for row in rows}
    require(what["1"] == "has not called yet, and is waited for", f"rank 1: {rows}")
    require(what["0"] == "called and started" or what["0"].startswith("hung"), f"rank 0: {rows}")
    require(browser.evaluate("document.title") == "ncclscope node0", "title")
    require("%" in browser.evaluate("document.getElementById('overview').textContent"), "no coverage")
    books = browser.evaluate("document.getElementById('books').textContent")
    require(books.count("balanced") == 2, f"books: {books}")

    # Nothing that a tenant called things was taken for HTML.
    require(ATTACK[:20] in browser.evaluate("document.getElementById('jobs').textContent"), "the job's name is not shown")
    require(browser.evaluate("window.attacked") is None, "a job's name was run")
    require(browser.evaluate("document.querySelectorAll('img').length + document.querySelectorAll('script').length") == 1,
            "a job's name became elements")
    # And the policy would stop it if it had been: no HTML from text, no other origin.
    answer = browser.evaluate("(() => { try { document.body.innerHTML = '<p>'; return 'made'; } catch (e) { return e.name; } })()")
    require(answer == "TypeError", f"innerHTML: {answer}")
    blocked = browser.evaluate("""new Promise(done => {
        document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective), {once: true});
        fetch('http://127.0.0.2:9/').catch(() => setTimeout(() => done('nothing'), 2000)); })""")
    require(blocked == "connect-src", f"policy: {blocked}")
    refused = [e for e in browser.errors if "Content Security Policy" not in e and "TrustedHTML" not in e]
    require(not refused, f"errors on the page: {refused}")


def check_use(browser):
    """Keyboard, screen reader, and both colour schemes."""
    browser.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(14):
        browser.press("Tab")
        seen.append(browser.evaluate("document.activeElement.id || document.activeElement.className || "
                                     "document.activeElement.getAttribute('href') || document.activeElement.tagName"))
    for name in ("skip", "pause", "filter", "waiting-box", "scroll", "/metrics"):
        require(name in seen, f"{name} is not reached with Tab: {seen}")
    outline = browser.evaluate("(() => { document.getElementById('pause').focus({focusVisible: true}); "
                               "return getComputedStyle(document.activeElement).outlineStyle; })()")
    require(outline == "solid", f"focus is not visible: {outline}")
    browser.press("Enter", text="\r")
    require(browser.evaluate("state.paused && document.getElementById('pause').getAttribute('aria-pressed')") == "true",
            "Enter does not pause")

    tree = browser.accessibility_tree()
    roles = [role for role, _, _ in tree]
    for role in ("banner", "main", "contentinfo", "status", "button", "searchbox", "columnheader", "rowheader"):
        require(role in roles, f"no {role} for a screen reader: {sorted(set(roles))}")
    regions = {name for role, name, _ in tree if role == "region"}
    require({"Overview", "In flight for long", "Jobs", "Telemetry books", "Agent"} <= regions, f"regions: {regions}")
    require(all(name for role, name, _ in tree if role in ("button", "searchbox", "image", "link")), "something has no name")
    live = [p for role, _, p in tree if role == "status"]
    require(live[0].get("live") == "polite", f"politeness: {live}")

    # Text must stand out from its ground in both schemes: WCAG AA, 4.5 to 1.
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        least = browser.evaluate("""(() => {
            const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255)
              .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
            const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
              if (!c.endsWith(', 0)')) return c; } return 'rgb(255, 255, 255)'; };
            let least = [99, ''];
            for (const e of document.querySelectorAll('body *')) {
              if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length ||
                  e.tagName === 'SCRIPT') continue;
              const a = light(getComputedStyle(e).color), b = light(ground(e));
              const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
              if (ratio < least[0]) least = [ratio, e.tagName + ' ' + e.textContent.slice(0, 40)];
            }
            return least; })()""")
        print(f"{scheme}: lowest contrast {least[0]:.1f} ({least[1]})")
        require(least[0] >= 4.5, f"{scheme}: contrast {least}")
    browser.prefer("light")


def check_states(browser):
    """What an emulated job does not show within seconds, from made-up data: hung, below its past, books that do not balance."""
    data = json.loads((ROOT / "tests" / "data" / "golden" / "node.json").read_text())
    world = data["jobs"][0]["communicators"][0]
    world["ranks"][0]["inflight_seconds"] = 75
    data["jobs"][0]["processes"][0]["balanced"] = False
    world["bandwidth"][0] |= {"now": 50e9, "past": 100e9, "low_for_seconds": 120, "operations_per_second": 10,
                              "samples": [100e9] * 100 + [None] + [50e9] * 24,
                              "last": {"rank": 1, "intervals": 12, "of_intervals": 12, "others_waited_seconds": 0.02}}
    browser.evaluate(f"(state.data = {json.dumps(data)}, show())")
    text = browser.evaluate("document.body.innerText")
    for words in ("Operations hang in job 4711: rank 1 (GPU 1) of default_pg 00c0ff is gone.", "hung: called and started", "50 % since",
                  "rank 1 (GPU 1), 12 of 12 times",
                  "others wait 20 ms each time", "do not balance", "its process is gone", "claimed, not proved"):
        require(words in text, f"'{words}' is not on the page: {text}")
    label = browser.evaluate("document.querySelector('#jobs svg').getAttribute('aria-label')")
    require("from 50 GB/s to 100 GB/s" in label, f"label of the curve: {label}")
    # A new picture changes texts and keeps elements: whoever reads or has the focus there is not thrown out.
    browser.evaluate("(window.row = document.querySelector('#jobs tbody tr'), "
                     "state.data.jobs[0].communicators[0].bandwidth[0].now = 60e9, show())")
    require(browser.evaluate("window.row.isConnected && window.row.textContent.includes('60 % since')"), "rows were made anew")
    # Who waits in another communicator is a victim, and it is not he who is waited for; without anybody here to blame, ask all.
    inner = json.loads(json.dumps(world)) | {"name": "tp", "comm": "1122334455667788"}
    for rank in (*world["ranks"], *inner["ranks"]):
        rank |= {"state": "running", "inflight_seconds": 75}
    world["ranks"][1] |= {"inflight_seconds": 0, "enqueued": world["ranks"][0]["enqueued"] - 1}
    data["jobs"][0]["communicators"].append(inner)
    browser.evaluate(f"(state.data = {json.dumps(data)}, show())")
    text = browser.evaluate("document.body.innerText")
    for words in ("has not called yet: waits in tp 112233", "ask all its nodes with ncclscope diagnose --job 4711."):
        require(words in text, f"'{words}' is not on the page: {text}")
    browser.evaluate("document.getElementById('filter').focus()")
    browser.type("bert")
    require(browser.evaluate("document.getElementById('jobs').textContent").startswith("Job ml-team/bert"), "the filter")


def use(build, folder):
    needs_a_browser()
    web = folder / "web.yml"
    web.write_text(f"bearer_tokens_sha256:\n  test: {hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    with running([Agent(build, folder, f"node{n}", ["--web-config", web]) for n in range(2)]) as agents:
        check_http(agents[0])
        job = Job(build, 2, 2, "ddp", 100000, PLUGIN, [a.socket for a in agents], compute_ms=50, hang_seconds=120,
                  fault="missing:rank=1,from=40", node_env=f"0:SLURM_JOB_NAME={ATTACK}", env=list(TIME_ALL))
        try:
            def ranks_wait():
                require(job.process.poll() is None, f"the job ended with {job.process.returncode}")
                return waiting(node_data(agents[0]), 6)
            try:
                wait_until("ranks that wait for 6 s", ranks_wait)
            except Failure as failure:
                raise Failure(f"{failure}: {json.dumps(node_data(agents[0])['jobs'])[:3000]}") from None
            with Browser() as browser:
                check_live(browser, agents[0])
                check_use(browser)
                check_states(browser)
            agent_is_gone(agents[0])
        finally:
            job.stop()


def agent_is_gone(agent):
    """The page says so, and keeps what it had."""
    with Browser() as browser:
        browser.set_headers(Authorization=f"Bearer {TOKEN}")
        browser.open(f"http://{agent.address}/")
        browser.wait_for("document.querySelectorAll('#jobs article').length > 0")
        agent.terminate()
        browser.evaluate("ask()")
        news = browser.evaluate("document.getElementById('news').textContent")
        require(news.startswith("The agent does not answer since"), f"news: {news}")
        require(browser.evaluate("document.querySelectorAll('#jobs article').length") == 1, "what was known is gone")


def screenshot(build, folder):
    needs_a_browser()
    path = pathlib.Path(os.environ["NCCLSCOPE_SCREENSHOT"])
    seconds = float(os.environ.get("NCCLSCOPE_TEST_SECONDS", "100"))
    with node_agents(build, folder, 2) as agents:
        job = Job(build, 2, 4, "megatron:tp=2,pp=2,dp=2", 100000, PLUGIN, [a.socket for a in agents], compute_ms=300, hang_seconds=600,
                  fault=f"late:rank=3,ms=120,from={int(seconds * 1.2)}", node_env="0:SLURM_JOB_NAME=llama-7b", env=list(TIME_ALL))
        try:
            time.sleep(seconds)
            require(job.process.poll() is None, f"the job ended: {job.process.poll()}")
            with Browser(width=1640) as browser:
                browser.open(f"http://{agents[0].address}/")
                browser.wait_for("document.querySelectorAll('#jobs article').length > 0")
                for scheme in ("light", "dark"):
                    browser.prefer(scheme)
                    browser.screenshot(path.with_stem(f"{path.stem}-{scheme}"))
        finally:
            job.stop()


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, (use, screenshot)))
