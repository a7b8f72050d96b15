#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Does what docs/security.md says, with the commands that it gives: makes the certificates, the token
and the files, starts the agent with them, and asks as everybody might.

  security_doc.py <ncclscope-agent> <ncclscope> <docs/security.md>
"""
import concurrent.futures
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

AGENT, CLI, DOCUMENT = sys.argv[1:4]
HASH = "$2y$04$ABCDEFGHIJKLMNOPQRSTUuehC1EpP/PASx2IdPqZEHtFv7CrmycOO"  # "pass", cost 4


def check(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"security_doc.py: FAILED: {what}")
    print("ok:", what)


def eventually(condition, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"security_doc.py: FAILED within 30 s: {what}")
        time.sleep(0.05)
    print("ok:", what)


class Agent:
    def __init__(self, *settings: str):
        self.ready = pathlib.Path("ready")
        self.ready.unlink(missing_ok=True)
        self.log_path = pathlib.Path("log")
        self.process = subprocess.Popen(
            [AGENT, "--socket", "agent.sock", "--api-socket", "api.sock", "--ready-file", "ready", *settings],
            stderr=self.log_path.open("w"))
        eventually(lambda: self.ready.exists() or self.process.poll() is not None, "the agent starts")
        check(self.ready.exists(), f"it is ready: {self.log()}")
        self.addresses = dict(line.split("=", 1) for line in self.ready.read_text().splitlines())

    def log(self) -> str:
        return self.log_path.read_text()

    def hang_up(self, until: str) -> None:
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: until in self.log(), f"after SIGHUP the log says: {until}")

    def stop(self) -> None:
        self.process.terminate()
        check(self.process.wait(30) == 0, "the agent stops cleanly")


def context(certificate: str | None = None, ca: str = "ca.crt") -> ssl.SSLContext:
    out = ssl.create_default_context(cafile=ca)
    if certificate:
        out.load_cert_chain(certificate + ".crt", certificate + ".key")
    return out


def get(url: str, headers: dict | None = None, tls: ssl.SSLContext | None = None) -> int:
    """The status; 0 when there was none."""
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, context=tls, timeout=30) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return 0


def basic(text: str) -> dict:
    import base64
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def ncclscope(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([CLI, *arguments], capture_output=True, text=True, timeout=60)


def refuses(what: str, message: str, *settings: str) -> None:
    done = subprocess.run([AGENT, "--socket", "other.sock", "--api-socket", "", *settings],
                          capture_output=True, text=True, timeout=60)
    check(done.returncode in (1, 2) and message in done.stderr, f"{what}: {done.stderr.strip()}")


def metrics_over_tls(token: str) -> None:
    agent = Agent("--listen", "127.0.0.1:0", "--web-config", "web.yml")
    base = "https://" + agent.addresses["http"]
    url = base + "/metrics"
    bearer = {"Authorization": "Bearer " + token}
    check(get(url, bearer, context()) == 200, "a token opens /metrics")
    check(get(url, {}, context()) == 401, "nothing else does")
    check(get(url, {"Authorization": "Bearer " + token[:-1] + "x"}, context()) == 401, "nor another token")
    check(get(base + "/nothing", {}, context()) == 401, "unknown paths are not told from others")
    check(get(base + "/healthz", {}, context()) == 200, "/healthz is open")
    check(get("http://" + agent.addresses["http"] + "/metrics", bearer) in (0, 400), "plain text is not served")
    old = context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    check(get(url, bearer, old) == 200, "TLS 1.2 is spoken")

    web = pathlib.Path("web.yml").read_text()
    pathlib.Path("web.yml").write_text(web.replace("TLS12 ", "TLS13 ") + "basic_auth_users:\n  anna: " + HASH + "\n")
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: get(url, basic("anna:pass"), context()) == 200, "a user that was added may pass")
    check(get(url, basic("anna:wrong"), context()) == 401, "with the right password only")
    check(get(url, basic("bob:pass"), context()) == 401, "and no other user")
    check(get(url, bearer, old) == 0, "TLS 1.2 is over after min_version became TLS13")

    pathlib.Path("web.yml").write_text("tls_server_confg: {}\n")
    agent.hang_up("web.yml:1: unknown key 'tls_server_confg'")
    check(get(url, bearer, context()) == 200, "a bad file changes nothing")

    pathlib.Path("web.yml").write_text(
        "tls_server_config:\n  cert_file: agent.crt\n  key_file: agent.key\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n")
    eventually(lambda: get(url, {}, context("ops")) == 200 and get(url, {}, context()) == 403,
               "a changed file is seen without SIGHUP; certificates are asked for")
    openssl_expired()
    check(get(url, {}, context("forged")) in (0, 403), "a certificate of another authority is refused")
    check(get(url, {}, context("expired")) in (0, 403), "an expired certificate is refused")
    check(get(url, {}, context("agent")) in (0, 403), "a server's certificate is not a client's")
    check(get(base + "/readyz", {}, context()) == 200, "/readyz is open without a certificate")

    # Another authority: new connections meet the new certificate.
    subprocess.run("openssl x509 -req -days 9 -in agent.csr -CA other.crt -CAkey other.key -CAcreateserial"
                   " -extfile agent.ext -out agent.crt", shell=True, check=True, capture_output=True)
    eventually(lambda: get(base + "/healthz", {}, context(ca="other.crt")) == 200, "a new certificate is used")
    agent.stop()


def openssl_expired() -> None:
    """forged.*: of other.*, an authority that nobody trusts; expired.*: of ours, long ago."""
    script = r"""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9 -subj /CN=other \
  -keyout other.key -out other.crt
for name in forged expired; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=ops.example.org \
    -keyout $name.key -out $name.csr
done
openssl x509 -req -days 9 -in forged.csr -CA other.crt -CAkey other.key -CAcreateserial -extfile ops.ext \
  -out forged.crt
: > database
printf '[ca]\ndefault_ca=a\n[a]\ndatabase=database\nnew_certs_dir=.\ndefault_md=sha256\nrand_serial=yes\n' > ca.cnf
printf 'policy=p\n[p]\ncommonName=supplied\n' >> ca.cnf
openssl ca -batch -notext -config ca.cnf -startdate 20200101000000Z -enddate 20200201000000Z -cert ca.crt \
  -keyfile ca.key -extfile ops.ext -in expired.csr -out expired.crt
"""
    subprocess.run(["sh", "-e", "-c", script], check=True, capture_output=True)


def api_over_tcp() -> None:
    files = ["--api-cert-file", "agent.crt", "--api-key-file", "agent.key", "--api-access-file", "access.toml"]
    refuses("no API over TCP without a certificate", "needs api_cert_file", "--api-listen", "127.0.0.1:0")
    refuses("nor with one that is missing", "nothing.crt", "--api-listen", "127.0.0.1:0",
            "--api-client-ca-file", "ca.crt", "--api-cert-file", "nothing.crt", *files[2:])
    agent = Agent("--listen", "", "--api-listen", "127.0.0.1:0", *files, "--api-client-ca-file", "ca.crt")
    address = ["--agent", agent.addresses["api"], "--ca", "ca.crt"]
    check(ncclscope("books", *address, "--token-file", "viewer.token").returncode == 0, "a token opens the API")
    check(ncclscope("books", *address, "--cert", "ops.crt", "--key", "ops.key").returncode == 0, "a certificate, too")
    nobody = ncclscope("books", *address)
    check(nobody.returncode == 3 and "a client certificate or a token is needed" in nobody.stderr,
          f"nobody gets in: {nobody.stderr.strip()}")
    pathlib.Path("access.toml").write_text('[[certificate]]\nname = "ops.example.org"\nrole = "operator"\n')
    eventually(lambda: ncclscope("books", *address, "--token-file", "viewer.token").returncode == 3,
               "a token that was removed is out")
    agent.stop()


def hostile_and_many_clients() -> None:
    agent = Agent("--listen", "127.0.0.1:0", "--snapshot-interval-ms", "60000")
    host, port = agent.addresses["http"].rsplit(":", 1)
    url = f"http://{host}:{port}/metrics"

    # Four scrapers, ten scrapes each: one page per snapshot, the same for all.
    start = threading.Barrier(4)

    def scrape(_: int) -> list[bytes]:
        start.wait()
        pages = []
        for _ in range(10):
            request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                pages.append(answer.read())
        return pages

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pages = [page for pages in pool.map(scrape, range(4)) for page in pages]
    check(len(pages) == 40 and len(set(pages)) == 1 and len(pages[0]) > 100,
          "4 x 10 scrapes of one snapshot in parallel: all complete, all the same")

    # One address may hold 32 connections of 64; the heads are never finished.
    slow = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
    for connection in slow:
        try:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        except OSError:
            pass  # over the limit: closed already
    closed = 0
    for connection in slow:
        connection.settimeout(0.2)
        try:
            closed += connection.recv(1) == b""
        except TimeoutError:
            pass
        except OSError:
            closed += 1
    check(closed >= 8, f"connections beyond the limit of the address are closed ({closed} of 40)")
    for connection in slow:
        connection.close()
    eventually(lambda: get(url) == 200, "scrapes go on when they have left")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"{method} /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").readline()
            check(answer.split()[1] in (b"405", b"400", b"501"), f"{method} is refused: {answer.decode().strip()}")
    agent.stop()


def warning_without_protection() -> None:
    agent = Agent("--listen", "0.0.0.0:0")
    check(agent.log().count("without TLS and without passwords") == 1, "an open door is one line of warning")
    agent.stop()


def main() -> None:
    text = pathlib.Path(DOCUMENT).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S)
    check(len(blocks) == 4, "the document has four blocks of commands")
    with tempfile.TemporaryDirectory(prefix="ncclscope-") as directory:
        os.chdir(directory)
        done = subprocess.run(["bash", "-eu", "-c", "\n".join(blocks)], capture_output=True, text=True)
        check(done.returncode == 0, "the commands of the document work" + (done.stderr if done.returncode else ""))
        token = pathlib.Path("viewer.token").read_text().strip()
        api_over_tcp()
        metrics_over_tls(token)
        hostile_and_many_clients()
        warning_without_protection()
    print("passed")


if __name__ == "__main__":
    main()
