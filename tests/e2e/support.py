# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: agents, emulated jobs, waiting with deadlines, reading of scrapes, free ports and
servers.

A test puts tests/e2e into its path, imports this and ends in run_scenarios(). Failure is a test that failed, Skipped one that
cannot run here. Nothing compares with the wall clock; every wait has a deadline.
"""
import argparse
import collections
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = "4711"
CLUSTER = "testcluster"
PLUGIN = "libnccl-profiler-ncclscope.so"
DEADLINE_S = 40
END_LIMIT_S = 7  # of an agent
SKIPPED_STATUS = 77  # CTest's SKIP_RETURN_CODE


class Failure(Exception):
    pass


class Skipped(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Failure(message)


def wait_until(what, probe, seconds=DEADLINE_S):
    """Calls probe until it returns something true; that is returned."""
    end = time.monotonic() + seconds
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def free_ports(count):
    """TCP ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def http_get(url, accept="*/*", **parameters):
    """(Content-Type, text) of an answer; OSError if there is none, or another one than 200."""
    if parameters:
        url += "?" + urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as response:
        return response.headers.get("Content-Type", ""), response.read().decode()


@contextlib.contextmanager
def http_server(handler):
    """A server of this process on a free port of loopback; its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def answering(answer):
    """http_server() in which answer(path, body) makes the status and the text of each answer."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self):
            status, text = answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text.encode())))
            with contextlib.suppress(ConnectionError):  # who asked may have ended, or not want to wait
                self.end_headers()
                self.wfile.write(text.encode())
        do_GET = do_POST = reply  # noqa: N815 (the library's names)

        def log_message(self, *_):
            pass
    return http_server(Handler)


def parse_samples(text):
    """{name: [(labels, value)]} of Prometheus's text format."""
    samples = collections.defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    return samples


def value(samples, name, **labels):
    """The one sample with these labels."""
    found = [v for have, v in samples[name] if all(have.get(k) == w for k, w in labels.items())]
    require(len(found) == 1, f"{name}{labels}: {len(found)} samples")
    return found[0]


def sum_of(samples, name, **labels):
    return sum(v for have, v in samples[name] if all(have.get(k) == w for k, w in labels.items()))


def remote_access(folder, names):
    """An authority, a certificate of agents (names: of openssl's subjectAltName), and a token that may read all jobs."""
    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, timeout=30, capture_output=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=test authority",
            "-days", "2")
    openssl("req", *key, "-keyout", folder / "agent.key", "-out", folder / "agent.csr", "-subj", "/CN=agent")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    openssl("x509", "-req", "-in", folder / "agent.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", folder / "names", "-out", folder / "agent.crt")
    token = "4f" * 32
    (folder / "token").write_text(token)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (folder / "access.toml").write_text(f'[[token]]\nname = "viewer"\nsha256 = "{digest}"\nrole = "viewer"\n')
    for name in ("agent.key", "access.toml"):
        (folder / name).chmod(0o600)


def api_listener(folder, address):
    """Arguments of an agent that serves its API there, as remote_access() made it."""
    return ["--api-listen", address, "--api-cert-file", folder / "agent.crt", "--api-key-file", folder / "agent.key",
            "--api-access-file", folder / "access.toml"]


def trusting(folder):
    """Arguments of the command line, to reach such agents."""
    return ["--ca", folder / "ca.crt", "--token-file", folder / "token"]


class Build:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.agent = self.folder / "agent" / "ncclscope-agent"
        self.command_line = self.folder / "cli" / "ncclscope"
        self.run_job = self.folder / "tests" / "ncclscope-run-job"
        self.rank = self.folder / "sim" / "ncclscope-sim-rank"
        self.plugin = self.folder / "plugin"
        self.recorder = self.folder / "sim" / "recorder_plugin"
        self.plugin_job = self.folder / "tests" / "ncclscope_plugin_job"


class Processes:
    """Programs in the foreground, ended in reverse order by their own process ids."""

    def __init__(self, logs):
        self.logs, self.running = logs, []

    def start(self, name, command, **options):
        with open(self.logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self.running.append((name, process))
        return process

    def check(self):
        for name, process in self.running:
            require(process.poll() is None, f"{name} ended with {process.returncode}: {self.output(name)}")

    def output(self, name):
        return (self.logs / f"{name}.log").read_text(errors="replace")[-2000:]

    def stop(self):
        left = []
        for name, process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    left.append(name)
        self.running = []
        require(not left, f"had to be killed: {', '.join(left)}")


class Agent:
    """One node's agent. It can be killed, stopped and started again at the same addresses."""

    def __init__(self, build, folder, node, arguments=(), environment=None, snapshot_interval_ms=50):
        self.build, self.node, self.arguments, self.environment = build, node, arguments, environment
        self.snapshot_interval_ms = snapshot_interval_ms
        self.launcher = []   # what the agent's command line is given to
        self.pass_fds = ()   # what it inherits
        self.folder = folder / node
        self.folder.mkdir()
        self.socket = self.folder / "run" / "agent.sock"
        self.api = self.folder / "run" / "api.sock"
        self.socket.parent.mkdir()
        self.ready = self.folder / "ready"
        self.process = None
        self.address = None

    def start(self):
        self.ready.unlink(missing_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, self.build.agent, "--socket", self.socket, "--api-socket", self.api, "--listen", "127.0.0.1:0",
                 "--ready-file", self.ready, "--node", self.node, "--cluster", CLUSTER, "--snapshot-interval-ms",
                 str(self.snapshot_interval_ms), *self.arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                pass_fds=self.pass_fds)

        def is_ready():
            require(self.process.poll() is None,
                    f"{self.node}: the agent ended with {self.process.returncode}: {self.log()}")
            return self.ready.exists()
        wait_until(f"{self.node}: agent ready", is_ready)
        settings = dict(line.split("=", 1) for line in self.ready.read_text().splitlines())
        self.address = settings["http"]
        return self

    def log(self, characters=2000):
        """The end of it."""
        return (self.folder / "log").read_text(errors="replace")[-characters:]

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def terminate(self):
        """A clean end is part of what is tested, and that it does not take long, also on busy cores."""
        if self.process is None or self.process.poll() is not None:
            return
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"{self.node}: the agent did not end within {END_LIMIT_S} s of SIGTERM") from None
        require(code == 0, f"{self.node}: the agent ended with {code}: {self.log()}")
        require(not self.socket.exists(), f"{self.node}: the agent left {self.socket} behind")

    def get(self, path, accept="text/plain"):
        return http_get(f"http://{self.address}{path}", accept)

    def scrape(self):
        """{name: [(labels, value)]} of the text format."""
        return parse_samples(self.get("/metrics")[1])

    def books(self):
        return self.all_books()["processes"]

    def all_books(self):
        result = subprocess.run([self.build.command_line, "books", "--agent", self.api, "--json"],
                                capture_output=True, text=True, timeout=20, check=False)
        require(result.returncode in (0, 1), f"ncclscope books ended with {result.returncode}: {result.stderr}")
        return json.loads(result.stdout)


class Job:
    """An emulated job in the background; as a context, stopped at its end."""

    def __init__(self, build, nodes, gpus, layout, steps, plugin=None, sockets=(), records=None, job_id=JOB, **options):
        command = [build.run_job, f"nodes={nodes}", f"gpus={gpus}", f"layout={layout}", f"steps={steps}", "seed=7",
                   f"rank_program={build.rank}", f"env=SLURM_JOB_ID={job_id}", "env=SLURM_JOB_NAME=pipeline"]
        command.append(f"library_path={build.recorder if records else build.plugin}")
        if records:
            command.append("plugin=libnccl-profiler-recorder5.so")
            command += ["env=NCCLSCOPE_SIM_RECORD_MASK=0x6"]
            command += [f"node_env={n}:NCCLSCOPE_SIM_RECORD={records}/{n}.jsonl" for n in range(nodes)]
        elif plugin:
            command.append(f"plugin={plugin}")
        command += [f"node_env={n}:NCCLSCOPE_SOCKET={path}" for n, path in enumerate(sockets)]
        command += [f"{name}={value}" for name, values in options.items()
                    for value in (values if isinstance(values, list) else [values])]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def wait(self, seconds=120):
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failure(f"the job did not end within {seconds} s") from None
        require(self.process.returncode == 0, f"run_job ended with {self.process.returncode}: {err}")
        return json.loads(out)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def running(agents, start=True):
    """Starts agents and ends them: cleanly, unless the test has failed."""
    try:
        for agent in agents if start else []:
            agent.start()
        yield agents
    finally:
        failure = sys.exc_info()[0] is not None
        for agent in agents:
            if agent.process is not None and agent.process.poll() is None:
                if failure:
                    agent.send(signal.SIGCONT)
                    agent.kill()
                else:
                    agent.terminate()


def node_agents(build, folder, count, start=True, arguments=()):
    """Context of the agents of node0, node1, ..."""
    return running([Agent(build, folder, f"node{n}", arguments) for n in range(count)], start)


def run_scenarios(doc, scenarios):
    """A test's main: runs the scenario that the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("scenario", choices=sorted(f.__name__ for f in scenarios))
    options = parser.parse_args()
    os.environ.pop("NCCL_PROFILER_PLUGIN", None)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-"))
    try:
        next(f for f in scenarios if f.__name__ == options.scenario)(Build(options.build), folder)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED_STATUS
    except Failure as failure:
        print(f"FAILED: {failure}")
        for log in sorted(folder.glob("node*/log")):
            print(f"-- {log.parent.name}: {log.read_text(errors='replace')[-1500:]}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("ok")
    return 0
