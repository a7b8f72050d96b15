# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, driven over its DevTools pipe: no driver program and no port.

  with Browser() as browser:
      browser.open("http://127.0.0.1:9464/")
      browser.evaluate("document.title")

What the page logs as an error (refused by its policy, not found, exceptions) is kept in `browser.errors`.
"""
import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from support import Failure, Skipped

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program():
    """Path of the browser; None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def needs_a_browser():
    if program() is None:
        raise Skipped("no Chromium here; scripts/install-deps.sh installs it")


class Browser:
    def __init__(self, width=1400, height=900, limit_s=30):
        self.size, self.limit_s = (width, height), limit_s
        self.errors = []
        self.next_id = 0
        self.events = []

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        profile = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True))
        to_browser, write = os.pipe()
        read, from_browser = os.pipe()

        def as_three_and_four():
            # Both are moved out of the way first: one of them may be 3 or 4 itself.
            spare = os.dup(to_browser), os.dup(from_browser)
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)
        # The sandbox needs user namespaces, which containers often lack; all that is opened is our own.
        command = [program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
                   f"--user-data-dir={profile}", f"--window-size={self.size[0]},{self.size[1]}", "about:blank"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=as_three_and_four)
        os.close(to_browser)
        os.close(from_browser)
        self.read, self.write = read, write
        self.buffer = b""
        self.session = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Accessibility", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            os.close(self.write)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        self.stack.close()

    def message(self, end):
        while b"\0" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                raise Failure(f"the browser did not answer within {self.limit_s} s")
            part = os.read(self.read, 1 << 20)
            if not part:
                raise Failure("the browser ended")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.next_id += 1
        request = {"id": self.next_id, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write, json.dumps(request).encode() + b"\0")
        end = time.monotonic() + self.limit_s
        while True:
            answer = self.message(end)
            if answer.get("id") == self.next_id:
                if "error" in answer:
                    raise Failure(f"{method}: {answer['error']}")
                return answer["result"]
            self.take(answer)

    def take(self, event):
        kind, parameters = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif kind == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
        elif kind == "Page.loadEventFired":
            self.loaded = True

    def open(self, url):
        self.loaded = False
        failure = self.call("Page.navigate", url=url).get("errorText")
        if failure:
            raise Failure(f"{url}: {failure}")
        self.until(f"{url} loaded", lambda: self.loaded)

    def until(self, what, condition):
        """Asks until it is true; returns that."""
        end = time.monotonic() + self.limit_s
        while True:
            self.call("Runtime.evaluate", expression="0")  # takes what events there are
            result = condition()
            if result:
                return result
            if time.monotonic() > end:
                raise Failure(f"{what}: not within {self.limit_s} s; errors: {self.errors}")
            time.sleep(0.05)

    def evaluate(self, expression):
        """Value of a JavaScript expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failure(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait_for(self, expression):
        return self.until(expression, lambda: self.evaluate(expression))

    def press(self, key, code=None, text=None):
        for kind in ("keyDown", "keyUp"):
            parameters = {"type": kind, "key": key, "code": code or key,
                          "windowsVirtualKeyCode": {"Tab": 9, "Enter": 13, " ": 32}.get(key, 0)}
            if text and kind == "keyDown":
                parameters["text"] = text
            self.call("Input.dispatchKeyEvent", **parameters)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def set_headers(self, **headers):
        self.call("Network.setExtraHTTPHeaders", headers=headers)

    def accessibility_tree(self):
        """[(role, name, properties)] of what a screen reader is told."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", ""),
                 {p["name"]: p["value"].get("value") for p in n.get("properties", [])})
                for n in nodes if not n.get("ignored")]

    def screenshot(self, path, height=None, width=None):
        """PNG of the whole page, or of its first `height` pixels."""
        self.call("Emulation.clearDeviceMetricsOverride")
        if height is None:
            height = int(self.evaluate("Math.ceil(document.documentElement.scrollHeight)"))
        size = {"width": width or self.size[0], "height": height}
        self.call("Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, mobile=False, **size)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
