# SPDX-License-Identifier: Apache-2.0
"""Draws dashboards with Grafana's own panels in a real browser, and checks their schema with Grafana's own types.

Needs what scripts/fetch-grafana.sh brings, node and Chromium; says so and does nothing where one of them is missing.
"""
import copy
import functools
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import time

from browser import Browser, program
from support import http_server, require

HERE = pathlib.Path(__file__).resolve().parent / "drawing"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path(os.environ.get("HOME", "/tmp")) / ".cache") / "ncclscope"


def packages():
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
    return CACHE / f"grafana-panels-{lock}"


def missing():
    """Why nothing can be drawn here; None if it can."""
    if not (packages() / "complete").exists():
        return "Grafana's panels are not here (scripts/fetch-grafana.sh brings them)"
    node = shutil.which("node") and subprocess.run(["node", "-p", "process.versions.node"], capture_output=True, text=True,
                                                   timeout=20, check=False).stdout
    if not node or int(node.split(".")[0]) < 20:
        return f"node 20 or later is needed; there is {node.strip() if node else 'none'}"
    return None if program() else "no Chromium"


def run(command, folder, what):
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
                            env=dict(os.environ, NODE_ENV="production"))
    require(result.returncode == 0, f"{what}: {(result.stdout + result.stderr)[-3000:]}")


def workplace(folder):
    """A copy of the sources with the packages beside them."""
    place = folder / "drawing"
    shutil.copytree(HERE, place)  # makes the folders above it too
    (place / "node_modules").symlink_to(packages() / "node_modules")
    return place


def check_schema(place, boards):
    """Each dashboard is a Dashboard in the words of @grafana/schema."""
    # JSON has strings where Grafana's types have enumerations.
    plain = ("type Plain<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T :\n"
             "  T extends Array<infer U> ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;\n")
    for name, board in boards.items():
        (place / f"{name}.ts").write_text(f'import type {{ Dashboard }} from "@grafana/schema";\n{plain}'
                                          f"const board: Plain<Dashboard> = {json.dumps(board)};\nexport default board;\n")
    # And the check can fail.
    (place / "wrong.ts").write_text(f'import type {{ Dashboard }} from "@grafana/schema";\n{plain}// @ts-expect-error\n'
                                    f"const board: Plain<Dashboard> = {json.dumps({**next(iter(boards.values())), 'schemaVersion': '39'})};\n"
                                    "export default board;\n")
    run([place / "node_modules" / ".bin" / "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution",
         "bundler", "--target", "es2022", "wrong.ts", *(f"{name}.ts" for name in boards)], place, "schema of the dashboards")


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def filled(value, expand, variables):
    """A dashboard as Grafana shows it once variables are chosen."""
    if isinstance(value, dict):
        return {k: v if k in ("url", "legendFormat", "description", "templating") else filled(v, expand, variables)
                for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, expand, variables) for v in value]
    return expand(value, variables) if isinstance(value, str) and "${datasource}" not in value else value


def draw(folder, prometheus, boards, expand, variables, seconds=40):
    """boards, variables: by name. Fails if a panel cannot be drawn; keeps pictures in NCCLSCOPE_SCREENSHOTS."""
    reason = missing()
    if reason:
        print(f"NOT DRAWN: {reason}")
        return
    begin = time.monotonic()
    place = workplace(folder / f"drawing-{len(boards)}")
    check_schema(place, boards)
    checked = time.monotonic()
    run(["node", place / "node_modules" / "vite" / "bin" / "vite.js", "build", "--logLevel", "error"], place, "vite build")
    built = time.monotonic()
    pictures = os.environ.get("NCCLSCOPE_SCREENSHOTS")
    with http_server(functools.partial(Files, directory=place / "dist")) as page, Browser(width=1410) as browser:
        for name, board in boards.items():
            now = time.time()
            (place / "dist" / "board.json").write_text(json.dumps({
                "board": filled(copy.deepcopy(board), expand, variables[name]), "prometheus": prometheus.url,
                "from": int(now) - seconds, "to": int(now), "step": 1,
                "chosen": ", ".join(f"{k} {v}" for k, v in variables[name].items()
                                    if k not in ("datasource", "runbooks") and v != ".*")}))
            browser.errors.clear()
            browser.open(f"{page}/index.html")
            drawn = browser.wait_for("window.drawn")
            failed = [f"{p['title']}: {p['error']}" for p in drawn if p["error"]]
            require(not failed, f"{name}: panels that could not be drawn: {failed[:3]}")
            texts = browser.evaluate("document.getElementById('board').innerText")
            lost = [p["title"] for p in board["panels"] if p["title"] not in texts and "$" not in p["title"]]
            require(not lost, f"{name}: titles that are not there: {lost}")
            empty = [p["title"] for p in drawn if not p["series"]]
            thrown = [e for e in browser.errors if "404" not in e]
            require(not thrown, f"{name}: {thrown[:3]}")
            print(f"{name}: {len(drawn)} panels drawn, empty for this choice: {', '.join(empty) or 'none'}")
            if pictures:
                browser.screenshot(pathlib.Path(pictures) / f"{name}.png")
    print(f"schema {checked - begin:.0f} s, build {built - checked:.0f} s, drawing {time.monotonic() - built:.0f} s")
