# SPDX-License-Identifier: Apache-2.0
"""A real SLURM on this machine, for tests: a controller and nodes on loopback and free ports, with a munge of their own.

Everything lies in a temporary folder. Root is needed. A test calls run_test(), which skips where SLURM cannot run.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import DEADLINE_S, SKIPPED_STATUS, Failure, Skipped, free_ports, require, wait_until  # noqa: E402

FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


class Slurm:
    """slurmctld and a slurmd for each node. Use as a context."""

    def __init__(self, folder, processes, nodes, scripts, proctrack=None, plugstack="", launchers=None):
        """launchers: {node: what its slurmd's command line is given to}."""
        self.folder, self.processes, self.nodes = folder, processes, nodes
        self.launchers = launchers or {}
        self.environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
        for name in [n for n in self.environment if n.startswith(("SLURM_", "SBATCH_")) and n != "SLURM_CONF"]:
            del self.environment[name]
        self.proctrack = f"proctrack/{proctrack or ('cgroup' if self.freezer_works() else 'linuxproc')}"
        for name in ("state", "spool", "munge", *(f"spool/{n}" for n in nodes)):
            (folder / name).mkdir()
        self.write_configuration(scripts, plugstack)

    @staticmethod
    def freezer_works():
        probe = FREEZER / f"ncclscope-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError:
            return False
        return True

    def write_configuration(self, scripts, plugstack):
        folder, munge = self.folder, self.folder / "munge"
        ports = free_ports(1 + len(self.nodes))
        lines = [
            "ClusterName=ncclscope-test", "SlurmctldHost=localhost(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
            "AuthType=auth/munge", "CredType=cred/munge", f"AuthInfo=socket={munge}/socket",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny", f"SlurmctldPort={ports[0]}", "MpiDefault=none", "ReturnToService=2",
            f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"SlurmdLogFile={folder}/logs/%n.steps",
            f"SlurmdSpoolDir={folder}/spool/%n", f"StateSaveLocation={folder}/state", f"PlugStackConfig={folder}/plugstack.conf",
            f"ProctrackType={self.proctrack}", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides", "JobRequeue=1", "KillWait=2",
            # Heterogeneous jobs are started by the backfill scheduler, which looks every 30 s by default.
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1",
            *(f"{name}={path}" for name, path in scripts.items())]
        for node, port in zip(self.nodes, ports[1:]):
            lines.append(f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 CoresPerSocket=8 "
                         "RealMemory=1000 State=UNKNOWN")
        lines.append("PartitionName=test Nodes=ALL Default=YES MaxTime=5 State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n")
        self.plugstack(plugstack)
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge.chmod(0o755)

    def plugstack(self, text):
        """Read by every command and every step anew."""
        (self.folder / "plugstack.conf").write_text(text)

    def start(self):
        munge = self.folder / "munge"
        start = self.processes.start
        start("munged", ["munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                         f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log"])
        try:
            wait_until("munged", lambda: self.processes.check() or (munge / "socket").exists(), 10)
            start("slurmctld", ["slurmctld", "-D", "-c"], env=self.environment, cwd=self.folder)
            for node in self.nodes:
                start(f"slurmd-{node}", [*self.launchers.get(node, []), "slurmd", "-D", "-N", node], env=self.environment,
                      cwd=self.folder)  # prologs run there

            def all_idle():
                self.processes.check()
                states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
                return states and all(state == "idle" for state in states) and len(states) == len(self.nodes)
            wait_until("SLURM's nodes idle", all_idle, 20)
        except Failure as failure:
            if self.proctrack == "proctrack/cgroup":
                raise
            raise Skipped(f"SLURM does not start here: {failure}") from None

    def run(self, *command, user=None, check=True, timeout=DEADLINE_S):
        if user:
            command = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command)
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
                                stdin=subprocess.DEVNULL, cwd="/")
        require(not check or result.returncode == 0, f"{command} ended with {result.returncode}: {result.stderr}{result.stdout}")
        return result.stdout

    def submit(self, name, *arguments, user=None, account="physics"):
        out = self.run("sbatch", "--parsable", "-n1", "-D", "/", "-J", name, "-A", account, "-o", f"{self.folder}/out/{name}.%j",
                       *map(str, arguments), user=user)
        return out.strip().split(";")[0]

    def queue(self):
        return [line.split() for line in self.run("squeue", "-h", "-a", "-o", "%A %i %T").splitlines()]

    def cgroups(self):
        return [FREEZER / f"slurm_{node}" for node in self.nodes if (FREEZER / f"slurm_{node}").exists()]

    def stop(self):
        """Ends jobs, then daemons; leaves neither processes nor cgroups."""
        with contextlib.suppress(Failure, subprocess.TimeoutExpired):
            for job in {line[0] for line in self.queue()}:
                self.run("scancel", "--signal=KILL", job, check=False)
                self.run("scancel", job, check=False)
            wait_until("jobs ended", lambda: all(state not in ("RUNNING", "COMPLETING") for _, _, state in self.queue()), 10)
        self.processes.stop()
        for top in self.cgroups():
            for folder, _, _ in os.walk(top, topdown=False):
                for pid in (pathlib.Path(folder) / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                group = pathlib.Path(folder)

                def removed():
                    with contextlib.suppress(OSError):
                        group.rmdir()
                    return not group.exists()
                wait_until(f"{group} removed", removed, 5)


def write_script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def run_test(options, seconds, test):
    """A test's main: test(folder) within so many seconds. Returns the exit status. options: keep."""
    def out_of_time(*_):
        raise Failure(f"the whole test: not within {seconds} s")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ncclscope-slurm-"))
    folder.chmod(0o755)
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"  # where the daemons are
    try:
        missing = [name for name in ("slurmctld", "slurmd", "srun", "munged") if shutil.which(name) is None]
        if missing:
            raise Skipped(f"not installed: {', '.join(missing)} (scripts/install-deps.sh installs them)")
        if os.geteuid() != 0:
            raise Skipped("SLURM's daemons need root to run jobs of several users")
        signal.signal(signal.SIGALRM, out_of_time)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        signal.alarm(seconds)
        test(folder)
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED_STATUS
    except Failure as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def show_logs(folder):
    """What daemons, jobs and agents said last; for a test that has failed."""
    paths = [path for pattern in ("logs/*", "out/*", "*/log") for path in sorted(folder.glob(pattern))]
    for path in filter(pathlib.Path.is_file, paths):
        lines = [line for line in path.read_text(errors="replace").splitlines() if "pmix" not in line and "MPI" not in line]
        print(f"---- {path.relative_to(folder)}\n" + "\n".join(lines[-25:]), file=sys.stderr)
