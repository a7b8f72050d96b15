# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus and a real Alertmanager for end-to-end tests, with the shipped rules, routes and inhibitions.

  with monitoring.alertmanager(folder) as alerts, monitoring.prometheus(folder, scrapes, settings, alerts) as prometheus:
      prometheus.query("up")

Both run in the foreground on free ports of loopback and end with the block. If the block fails, what they warned of is printed.
"""
import contextlib
import json
import shutil
import subprocess
import sys
import time

import yaml
from support import ROOT, Processes, answering, free_ports, http_get, require, wait_until

RULES = ROOT / "deploy" / "prometheus"


class Prometheus:
    """Asks the one at `url`."""

    def __init__(self, url):
        self.url = url

    def ask(self, path, **parameters):
        return json.loads(http_get(f"{self.url}/api/v1/{path}", **parameters)[1])["data"]

    def query(self, expression, at=None):
        when = {} if at is None else {"time": at}
        return self.ask("query", query=expression, **when)["result"]

    def range(self, expression, seconds):
        """Every second of the last ones."""
        now = time.time()
        return self.ask("query_range", query=expression, start=now - seconds, end=now, step=1)["result"]

    def fired(self):
        """Labels of every alert that fired at any time so far."""
        return [r["metric"] for r in self.query('max_over_time(ALERTS{alertstate="firing"}[5m])')]

    def failed_rules(self):
        return [f"{r['name']}: {r['lastError']}" for g in self.ask("rules")["groups"] for r in g["rules"] if r.get("lastError")]


class Alertmanager:
    """Asks the one at `url`; `received` is what it delivered: (receiver's path, alert)."""

    def __init__(self, url, received):
        self.url, self.received = url, received

    def alerts(self):
        return json.loads(http_get(f"{self.url}/api/v2/alerts")[1])

    def suppressed(self):
        return [a["labels"] for a in self.alerts() if a["status"]["state"] == "suppressed"]


def scrape(job_name, *addresses, **options):
    """One of Prometheus' scrape_configs."""
    return {"job_name": job_name, "static_configs": [{"targets": list(addresses)}], **options}


@contextlib.contextmanager
def prometheus(folder, scrape_configs, settings=None, alerts_to=None, arguments=()):
    """Scrapes every second, and with `settings` evaluates the shipped rules every second, rendered with them (render.py --set).

    alerts_to: an Alertmanager. arguments: more of Prometheus' own.
    """
    configuration = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                     "scrape_configs": scrape_configs}
    if settings is not None:
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        subprocess.run([sys.executable, "-B", RULES / "render.py", "--out", folder, *words], check=True, timeout=30)
        configuration["rule_files"] = ["recording.yml", "alerts.yml"]
    if alerts_to is not None:
        configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alerts_to.url.removeprefix("http://")]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with served(folder, "prometheus", ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                                       *arguments]) as url:
        yield Prometheus(url)


@contextlib.contextmanager
def alertmanager(folder):
    """With the shipped routes and inhibitions; delivers to this process, within a second."""
    received = []

    def keep(path, body):
        received.extend((path, alert) for alert in json.loads(body)["alerts"])
        return 200, ""
    with answering(keep) as webhook:
        configuration = yaml.safe_load((RULES / "alertmanager.yml").read_text())
        configuration["route"] |= {"group_wait": "1s", "group_interval": "1s"}
        for receiver in configuration["receivers"]:
            for hook in receiver.get("webhook_configs", []):
                hook["url"] = hook["url"].replace("http://127.0.0.1:9095", webhook)
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
        program = shutil.which("prometheus-alertmanager") or "alertmanager"  # Debian's name, and its own
        with served(folder, "alertmanager", [program, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/am",
                                             "--cluster.listen-address="]) as url:
            yield Alertmanager(url, received)


@contextlib.contextmanager
def served(folder, name, command):
    """Runs a server of the Prometheus project, at a free port; yields its URL once it is ready."""
    require(shutil.which(command[0]), f"{command[0]} is not installed; scripts/install-deps.sh installs it")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    processes = Processes(folder)

    def ready():
        processes.check()
        with contextlib.suppress(OSError):
            return http_get(f"http://{address}/-/ready")
        return None
    try:
        processes.start(name, [*command, f"--web.listen-address={address}"])
        wait_until(f"{name} ready", ready)
        yield f"http://{address}"
    except BaseException:
        log = (folder / f"{name}.log").read_text(errors="replace").splitlines()
        print(f"-- {name}: " + "\n".join([line for line in log if "level=info" not in line][-5:]))
        raise
    finally:
        processes.stop()
