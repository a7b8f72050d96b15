#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The packages on a machine of their own: built by CPack, installed into a Debian that a real systemd has booted (systemd-nspawn),
with an emulated job running all the time.

  packages.py --build DIR [--keep FOLDER]     FOLDER holds the bare Debian, to make it once only

Looked at: what is in the packages; the service after installation (account, sockets, hardening in force); a restart, a kill and
an upgrade under load, which must cost no connection and no record; the watchdog; removal and purge, which must not harm the job.
Then the .rpm packages on the same machine, by rpm itself without its database of dependencies: installed, upgraded under load,
removed.
Skipped, with the reason, where the machine allows no container.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
from support import SKIPPED_STATUS, Failure, Skipped, require, wait_until  # noqa: E402

RANKS = 2
UNIT = "ncclscope-agent.service"
PACKAGES = {"ncclscope", "ncclscope-plugin", "ncclscope-slurm"}
BARE = "systemd,systemd-sysv,dbus,procps,libnss-systemd,rpm"


def run(*command, check=True, timeout=120, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, check=False,
                            stdin=subprocess.DEVNULL, **options)
    if check:
        require(result.returncode == 0, f"{' '.join(map(str, command))} ended with {result.returncode}: "
                                        f"{result.stdout[-1500:]}{result.stderr[-1500:]}")
    return result


def expected_packages(build):
    """What ncclscope probe calls NCCL with is a package of its own, where it was built."""
    probe = {"ncclscope-probe"} if (build / "cli" / "ncclscope-probe-worker").exists() else set()
    return PACKAGES | probe


def build_packages(build):
    """{package's name: file}"""
    folder = build / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    run("cpack", "-G", "DEB", cwd=build, timeout=300)
    packages = {run("dpkg-deb", "-f", deb, "Package").stdout.strip(): deb for deb in folder.glob("*.deb")}
    require(set(packages) == expected_packages(build), f"these packages were made: {packages}")
    return packages


def build_rpms(build, folder, version=None):
    """{package's name: file}, copied into `folder`"""
    shutil.rmtree(build / "packages", ignore_errors=True)
    run("cpack", "-G", "RPM", *(["-R", version] if version else []), cwd=build, timeout=300)
    rpms = {}
    for rpm in (build / "packages").glob("*.rpm"):
        name, has = run("rpm", "-qp", "--qf", "%{NAME} %{VERSION}", rpm).stdout.split()
        require(version in (None, has), f"{rpm.name} is version {has}")
        rpms[name] = pathlib.Path(shutil.copy(rpm, folder))
    require(set(rpms) == expected_packages(build), f"these packages were made: {rpms}")
    return rpms


def check_contents(packages):
    files = {name: [line.split(maxsplit=5) for line in run("dpkg-deb", "-c", deb).stdout.splitlines()]
             for name, deb in packages.items()}
    paths = {name: {row[5].split(" -> ")[0].lstrip(".") for row in rows} for name, rows in files.items()}
    for path in ("/usr/bin/ncclscope", "/usr/bin/ncclscope-agent", f"/usr/lib/systemd/system/{UNIT}",
                 "/usr/lib/systemd/system/ncclscope-agent.socket", "/usr/lib/sysusers.d/ncclscope.conf",
                 "/usr/lib/tmpfiles.d/ncclscope.conf", "/etc/ncclscope/agent.toml",
                 "/usr/share/ncclscope/prometheus/alerts.yml", "/usr/share/doc/ncclscope/metrics.md"):
        require(path in paths["ncclscope"], f"{path} is not in the package ncclscope")
    kit = "/usr/share/ncclscope/slurm"
    for path in (*(f"{kit}/{name}" for name in ("prolog.sh", "epilog.sh", "task_prolog.sh", "plugstack.conf",
                                                "enroot/50-ncclscope.sh", "spank/build.sh", "spank/ncclscope_spank.cc")),
                 "/usr/lib/ncclscope-slurm/ncclscope_spank.so"):
        require(path in paths["ncclscope-slurm"], f"{path} is not in the package ncclscope-slurm")
    library = "libnccl-profiler-ncclscope.so"
    require(f"/usr/lib/ncclscope/{library}" in paths["ncclscope-plugin"], f"no {library} in {sorted(paths['ncclscope-plugin'])}")
    links = [row[5] for row in files["ncclscope-plugin"] if row[0].startswith("l")]
    require(any(library in link for link in links), f"the loader's path has no {library}: {links}")
    worker = "/usr/libexec/ncclscope/ncclscope-probe-worker"
    require({name for name in paths if worker in paths[name]} == set(paths) & {"ncclscope-probe"}, f"{worker} is in the wrong package")
    require("libnccl" not in run("dpkg-deb", "-f", packages["ncclscope"], "Depends").stdout, "the package ncclscope needs NCCL")
    for name, rows in files.items():
        for row in rows:
            require(row[1] == "root/root", f"{row[5]} in {name} belongs to {row[1]}")
            require(row[0][0] == "l" or row[0][5] != "w" and row[0][8] != "w", f"{row[5]} in {name} can be written by others: {row[0]}")
    for deb in packages.values():
        fields = run("dpkg-deb", "-f", deb).stdout
        print("\n".join(line for line in fields.splitlines() if line.split(":")[0] in ("Package", "Version", "Depends",
                                                                                     "Installed-Size")))


def make_root(folder, packages):
    """A Debian with what the packages depend on, and nothing of ours."""
    if not (folder / "usr/bin/systemctl").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={BARE}", "bookworm", folder, timeout=600)
    depends = set()
    for deb in packages.values():
        for clause in run("dpkg-deb", "-f", deb, "Depends").stdout.split(","):
            depends.add(clause.split("|")[0].split("(")[0].strip())
    depends -= {"", *packages}
    installed = run("chroot", folder, "dpkg-query", "-W", "-f", "${Package}\n").stdout.split()
    missing = sorted(depends - set(installed))
    if missing:
        for source in ("/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/etc/apt/preferences.d"):
            if pathlib.Path(source).is_dir():
                shutil.copytree(source, folder / source[1:], dirs_exist_ok=True)
            elif pathlib.Path(source).exists():
                shutil.copy(source, folder / source[1:])
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        run("chroot", folder, "apt-get", "update", "-q", timeout=300, env=environment)
        run("chroot", folder, "apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, timeout=600, env=environment)


class Machine:
    """A booted container."""

    def __init__(self, root, shared):
        self.shared = shared
        log = open(shared / "console", "wb")   # closed with the process
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", "--directory", str(root), "--volatile=overlay", "--register=no", "--keep-unit",
             "--private-network", "--bind", f"{shared}:/shared"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.leader = None
        try:
            self.leader = wait_until("the container's init", self.find_leader, 20)
            wait_until("systemd is up", lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in
                       ("running", "degraded"), 150)
        except Failure as failure:
            said = (shared / "console").read_text(errors="replace")[-600:]
            self.power_off()
            raise Skipped(f"systemd does not boot in a container here: {failure}; {said}") from None

    def find_leader(self):
        if self.process.poll() is not None:
            raise Failure(f"systemd-nspawn ended with {self.process.returncode}")
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if "systemd" in pathlib.Path(f"/proc/{child}/comm").read_text():
                    return int(child)
        return None

    def command(self, *words):
        return ["nsenter", "--target", str(self.leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd",
                *map(str, words)]

    def run(self, *words, check=True, timeout=60):
        return run(*self.command(*words), check=check, timeout=timeout, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"})

    def show(self, *properties):
        text = self.run("systemctl", "show", UNIT, "-p", ",".join(properties)).stdout
        return dict(line.split("=", 1) for line in text.splitlines())

    def books(self):
        answer = self.run("ncclscope", "books", "--json", check=False)
        require(answer.returncode in (0, 1, 3), f"books ended with {answer.returncode}: {answer.stderr}")
        return json.loads(answer.stdout)["processes"] if answer.stdout.startswith("{") else []

    def power_off(self):
        with contextlib.suppress(Exception):
            if self.leader and self.process.poll() is None:
                os.kill(self.leader, signal.SIGRTMIN + 4)   # systemd: power off
                self.process.wait(timeout=20)
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for kind in ("unified", "systemd"):
            for name in ("payload", "supervisor"):
                with contextlib.suppress(OSError):
                    pathlib.Path(f"/sys/fs/cgroup/{kind}/{name}").rmdir()


def heard(machine, before=None):
    """Books of both ranks, once the agent has got records of each since `before`."""
    books = [b for b in machine.books() if b["state"] == "connected"]
    if len(books) != RANKS or not all(int(b["records_written"]) > 0 for b in books):
        return None
    return books


def require_unharmed(machine, what):
    books = wait_until(f"both ranks are heard after {what}", lambda: heard(machine))
    require([int(b["connects"]) for b in books] == [1] * RANKS, f"{what} cost a connection: {books}")
    require(all(int(b["records_lost"]) == 0 and int(b["records_overwritten"]) == 0 for b in books), f"{what} cost records: {books}")
    print(f"{what}: no connection and no record lost")


def next_version(deb, folder):
    """The same package as a later version, and a changed plugin file where there is one."""
    tree = folder / "next"
    shutil.rmtree(tree, ignore_errors=True)
    run("dpkg-deb", "-R", deb, tree)
    control = tree / "DEBIAN" / "control"
    control.write_text("".join(line.rstrip() + ".1\n" if line.startswith("Version:") else line
                               for line in control.read_text().splitlines(keepends=True)))
    target = folder / f"next-{deb.name}"
    run("dpkg-deb", "--root-owner-group", "-b", tree, target)
    return target


def start_job(machine, shared):
    return subprocess.Popen(machine.command("env", "-i", "PATH=/usr/bin:/bin", "ncclscope", "simulate", "--nodes", "1", "--gpus", RANKS,
                                            "--duration", "0", "--steps", "100000000", "--job-id", "4711", "--plugin",
                                            "/usr/lib/ncclscope/libnccl-profiler-ncclscope.so"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(shared / "job", "wb"))


def stop(job):
    job.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(timeout=10)
    job.kill()


def scenario(machine, packages, shared):
    for deb in packages.values():
        shutil.copy(deb, shared)
    machine.run("dpkg", "-i", *(f"/shared/{deb.name}" for deb in packages.values()))
    state = machine.show("ActiveState", "MainPID", "Type", "WatchdogUSec", "NRestarts")
    require(state["ActiveState"] == "active" and state["WatchdogUSec"] == "30s", f"after the installation: {state}")
    user = machine.run("ps", "-o", "user=", "-p", state["MainPID"]).stdout.strip()
    require(user.startswith("ncclsco"), f"the agent runs as {user}")
    require(machine.run("stat", "-c", "%a %U", "/run/ncclscope").stdout.strip() == "755 ncclscope", "the sockets' directory")
    require(machine.run("stat", "-c", "%a", "/run/ncclscope/agent.sock").stdout.strip() == "666", "the plugins' socket")
    status = machine.run("sh", "-c", f"grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/{state['MainPID']}/status").stdout
    require("CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status,
            f"the hardening is not in force: {status}")
    require("plugin" not in machine.run("ldconfig", "-p").stderr, "ldconfig")

    job = start_job(machine, shared)
    try:
        wait_until("both ranks are heard", lambda: heard(machine))
        machine.run("systemctl", "restart", UNIT)
        require_unharmed(machine, "a restart")
        machine.run("systemctl", "reload", UNIT)
        machine.run("systemctl", "kill", "-s", "KILL", UNIT)
        wait_until("restarted after a kill", lambda: machine.show("NRestarts", "ActiveState") == {"NRestarts": "1",
                                                                                             "ActiveState": "active"})
        require_unharmed(machine, "a kill")
        before = machine.show("MainPID")["MainPID"]
        for deb in packages.values():
            later = next_version(deb, shared)
            machine.run("dpkg", "-i", f"/shared/{later.name}")
        require(machine.show("MainPID")["MainPID"] != before, "an upgrade runs the new agent")
        require_unharmed(machine, "an upgrade of all packages")
        machine.run("sh", "-c", f"mkdir -p /run/systemd/system/{UNIT}.d && "
                                f"printf '[Service]\\nWatchdogSec=2\\n' > /run/systemd/system/{UNIT}.d/watchdog.conf")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        hung = machine.show("MainPID")["MainPID"]
        machine.run("systemctl", "kill", "-s", "STOP", UNIT)
        wait_until("the watchdog has replaced an agent that hangs", lambda: machine.show("MainPID")["MainPID"] not in ("0", hung))
        require_unharmed(machine, "an agent that hung")
        machine.run("dpkg", "-r", *packages)
        require(not machine.run("sh", "-c", "ls /run/ncclscope/agent.sock", check=False).stdout, "the socket outlives the package")
        require(machine.run("systemctl", "is-active", UNIT, check=False).stdout.strip() != "active", "the service outlives the package")
        require(machine.run("sh", "-c", "ls /etc/ncclscope/agent.toml").returncode == 0, "settings stay until purged")
        time.sleep(1)
        require(job.poll() is None, f"the removal harmed the job: {(shared / 'job').read_text()}")
        machine.run("dpkg", "-P", *packages)
        left = machine.run("sh", "-c", "ls -d /etc/ncclscope /var/lib/ncclscope /usr/lib/ncclscope* /usr/share/ncclscope "
                                       "/run/ncclscope 2>/dev/null", check=False).stdout
        require(left == "", f"a purge leaves {left}")
        print("removed and purged; the job went on")
    finally:
        stop(job)


def rpm_scenario(machine, build, shared):
    """Nothing of ours is installed when it begins."""
    rpms = build_rpms(build, shared)
    install = ("rpm", "--nodeps")   # what we depend on is known to dpkg here
    machine.run(*install, "-i", *(f"/shared/{rpm.name}" for rpm in rpms.values()))
    require(machine.show("ActiveState") == {"ActiveState": "active"}, "the service runs after rpm -i")
    job = start_job(machine, shared)
    try:
        wait_until("both ranks are heard", lambda: heard(machine))
        before = machine.show("MainPID")["MainPID"]
        later = build_rpms(build, shared, "99.1")
        machine.run(*install, "-U", *(f"/shared/{rpm.name}" for rpm in later.values()))
        require(machine.show("MainPID")["MainPID"] not in ("0", before), "rpm -U runs the new agent")
        require_unharmed(machine, "rpm -U of all packages")
        machine.run("rpm", "-e", *rpms)
        require(machine.run("systemctl", "is-active", UNIT, check=False).stdout.strip() != "active", "the service outlives rpm -e")
        left = machine.run("sh", "-c", "ls -d /usr/bin/ncclscope* /usr/lib/ncclscope* /run/ncclscope/agent.sock 2>/dev/null",
                           check=False).stdout
        require(left == "", f"rpm -e leaves {left}")
        time.sleep(1)
        require(job.poll() is None, f"rpm -e harmed the job: {(shared / 'job').read_text()}")
        print("rpm -e: the job went on")
    finally:
        stop(job)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="folder of the bare Debian")
    options = parser.parse_args()
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-"))
    try:
        packages = build_packages(options.build.resolve())
        check_contents(packages)
        if os.geteuid() != 0 or not shutil.which("systemd-nspawn") or not shutil.which("debootstrap"):
            raise Skipped("root, systemd-container and debootstrap are needed to boot a machine; the packages' contents are right")
        root = options.keep or temporary / "root"
        try:
            make_root(root, packages)
        except Failure as failure:
            raise Skipped(f"no Debian to boot: {failure}") from None
        shared = temporary / "shared"
        shared.mkdir()
        machine = Machine(root, shared)
        try:
            scenario(machine, packages, shared)
            if shutil.which("rpmbuild"):
                rpm_scenario(machine, options.build.resolve(), shared)
            else:
                print("no rpmbuild: the .rpm packages are not looked at")
        except Failure:
            print("books:", machine.run("ncclscope", "books", check=False).stdout[-1500:])
            print("the job said:", (shared / "job").read_text(errors="replace")[-800:] if (shared / "job").exists() else "nothing")
            print(machine.run("journalctl", "-u", "ncclscope-agent*", "-n", "40", "--no-pager", check=False).stdout)
            raise
        finally:
            machine.power_off()
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED_STATUS
    except Failure as failure:
        print(f"FAILED: {failure}")
        return 1
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
