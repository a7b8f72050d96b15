#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""End to end with a real SLURM: the SPANK plugin, the scripts of deploy/slurm where things are missing or hang, and containers.

  spank.py --build DIR [--keep]

A controller and two nodes run on this machine. On the second one the library lies on the loader's path, on the first it does
not. Looked at: what tasks get in their environment; that an emulated job is heard of by default, after --ncclscope=off is not,
and with full has all its detail; that wrong values are refused; that jobs run and nodes stay in service whatever is missing,
broken or hung; and that a container entered as enroot's hook and Apptainer's variables say is heard of. Exit status: 0 good, 1
failed, 77 skipped: SLURM cannot run here.
"""
import argparse
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from cluster import Skipped, Slurm, require, run_test, show_logs, wait_until, write_script  # noqa: E402
from support import PLUGIN, ROOT, Agent, Build, Processes, running  # noqa: E402

WHOLE_TEST_S = 100  # about 25 s, ten of which a program hangs
KIT = ROOT / "deploy" / "slurm"
PROFILER = "NCCL_PROFILER_PLUGIN"
SYMBOLS = {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version", "slurm_spank_init", "slurm_spank_user_init"}


class Rig:
    """The cluster, its agent, and how jobs are run and looked at."""

    def __init__(self, build, folder):
        self.folder, self.bin = folder, folder / "bin"
        self.started = time.monotonic()
        for name in ("logs", "out", "bin", "loader"):
            (folder / name).mkdir()
        (folder / "out").chmod(0o1777)
        for path in ("tests/ncclscope-run-job", "sim/ncclscope-sim-rank", "cli/ncclscope", f"plugin/{PLUGIN}",
                     "deploy/slurm/ncclscope_spank.so"):
            shutil.copy(build / path, self.bin)
        self.plugin, self.spank = self.bin / PLUGIN, self.bin / "ncclscope_spank.so"
        (folder / "loader" / PLUGIN).symlink_to(self.plugin)
        self.processes = Processes(folder / "logs")
        self.nodes = [f"nk{os.getpid()}n{i}" for i in (1, 2)]
        self.agent = Agent(Build(build), folder, "agent")
        self.sockets = self.agent.socket.parent
        self.user = pwd.getpwnam("games")
        self.slurm = Slurm(folder, self.processes, self.nodes, self.scripts(), plugstack=self.stack("colour=red"),
                           launchers={self.nodes[1]: self.with_library()} if can_unshare() else {})
        self.job = write_script(folder / "job.sh", f"""\
set -- nodes=1 gpus=2 layout=ddp compute_ms=5 steps=20 rank_program={self.bin}/ncclscope-sim-rank
[ -z "${{{PROFILER}:-}}" ] || set -- "$@" plugin="${PROFILER}"
exec {self.bin}/ncclscope-run-job "$@"
""")

    def stack(self, *arguments, spank=None, plugin=None, sockets=None):
        return (f"optional {spank or self.spank} plugin={plugin or self.plugin} socket_dir={sockets or self.sockets} "
                f"{' '.join(arguments)}\n")

    def scripts(self):
        """Prolog and epilog as they are shipped; what they call is chosen by a file of the node's."""
        scripts = {}
        for name in ("prolog", "epilog"):
            shutil.copy(KIT / f"{name}.sh", self.bin)
            scripts[name.capitalize()] = write_script(
                self.folder / f"{name}.sh",
                f"export NCCLSCOPE_PROGRAM={self.folder}/program.$SLURMD_NODENAME NCCLSCOPE_API_SOCKET={self.agent.api}\n"
                f"exec {self.bin}/{name}.sh 2>>{self.folder}/{name}.warnings\n")
        for node in self.nodes:
            self.call(node, f'exec {self.bin}/ncclscope "$@"\n')
        return scripts

    def call(self, node, text):
        """What prolog and epilog of the node run instead of the command line; None: nothing is there."""
        path = self.folder / f"program.{node}"
        path.unlink(missing_ok=True)
        if text is not None:
            write_script(path, text)

    def with_library(self):
        """A launcher: in its mount namespace the plugin is on the loader's path, as the package puts it there."""
        cache = self.folder / "ld.so.cache"
        return ["unshare", "--mount", "sh", "-ec", f"mount --bind {self.folder}/loader /usr/local/lib\n"
                f'/sbin/ldconfig -X -C {cache}\nmount --bind {cache} /etc/ld.so.cache\nexec "$@"', "sh"]

    def step(self, text):
        print(f"{time.monotonic() - self.started:5.1f} s  {text}", flush=True)

    def call_slurm(self, *command, environment=None, user=None):
        """The finished command; environment: variables of the user's shell."""
        if user:
            command = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command)
        return subprocess.run([str(word) for word in command], env={**self.slurm.environment, **(environment or {})},
                              capture_output=True, text=True, timeout=40, check=False, stdin=subprocess.DEVNULL, cwd="/")

    def variables(self, *options, node=0, environment=None, command="srun"):
        """What a task has of ours."""
        arguments = [command, f"-w{self.nodes[node]}", "-n1", *options]
        result = self.call_slurm(*arguments, *(["srun"] if command == "salloc" else []), "/usr/bin/env", environment=environment,
                                 user=self.user)
        require(result.returncode == 0, f"{arguments} ended with {result.returncode}: {result.stderr}")
        return ours(result.stdout)

    def run_job(self, what, *options, node=0, environment=None):
        """Runs the emulated job in a step of its own; it must succeed. Returns its number."""
        result = self.call_slurm("srun", f"-w{self.nodes[node]}", "-n1", *options, "sh", "-c",
                                 f'{self.job} >/dev/null && echo "job=$SLURM_JOB_ID"', environment=environment, user=self.user)
        require(result.returncode == 0 and "job=" in result.stdout, f"{what}: ended with {result.returncode}: {result.stderr}")
        return re.search(r"job=(\d+)", result.stdout).group(1)

    def heard_of(self):
        """The jobs that have operations at the agent."""
        return {labels["job_id"] for labels, count in self.agent.scrape()["ncclscope_collective_operations_total"] if count > 0}

    def require_in_service(self, what):
        states = self.slurm.run("sinfo", "-h", "-N", "-o", "%T %E").split("\n")
        require(all(re.match(r"(idle|completing|mixed|allocated) none", state) for state in states if state),
                f"{what}: nodes are {states}")

    def node_log(self, node=0):
        """Of slurmd and its steps."""
        return (self.folder / "logs" / f"{self.nodes[node]}.steps").read_text(errors="replace")


def can_unshare():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def ours(text):
    """Ours of lines as env prints them."""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value for name, value in pairs.items()
            if name.startswith(("NCCL", "APPTAINER", "SINGULARITY")) and name != "NCCLSCOPE_SPANK"}


def expected_on(rig, profiler):
    binds = f"{rig.bin}:/opt/ncclscope:ro,{rig.sockets}:{rig.sockets}:ro"
    inside = f"/opt/ncclscope/{PLUGIN}"
    return {PROFILER: str(profiler), "NCCLSCOPE_SOCKET": f"{rig.sockets}/agent.sock", "APPTAINER_BIND": binds,
            "SINGULARITY_BIND": binds, f"APPTAINERENV_{PROFILER}": inside, f"SINGULARITYENV_{PROFILER}": inside}


def require_equal(have, want, what):
    require(have == want, f"{what}: {have}, expected {want}")


def environments(rig):
    on = expected_on(rig, rig.plugin)
    full = {**on, "NCCLSCOPE_DETAIL": "full", "NCCLSCOPE_COST_SAMPLE": "0"}
    off = {"NCCLSCOPE_DISABLE": "1"}
    require_equal(rig.variables(), on, "by default")
    require_equal(rig.variables("--ncclscope=on"), on, "on")
    require_equal(rig.variables("--ncclscope=off"), off, "off")
    require_equal(rig.variables("--ncclscope=full"), full, "full")
    if rig.slurm.launchers:
        require_equal(rig.variables(node=1), expected_on(rig, PLUGIN), "where the loader finds the library")
    mine = {PROFILER: "libmine.so", "NCCLSCOPE_DETAIL": "low"}
    require_equal(rig.variables(environment=mine), mine, "a profiler of the user")
    require_equal(rig.variables("--ncclscope=full", environment=mine), mine, "a profiler of the user, with full")
    have = rig.variables(environment={"APPTAINER_BIND": "/data"})
    require_equal(have["APPTAINER_BIND"], "/data," + on["APPTAINER_BIND"], "a bind of the user")
    require_equal(rig.variables("--ncclscope=off", command="salloc"), off, "srun inside salloc --ncclscope=off")
    # The file of the package, included as the page says.
    (rig.folder / "plugstack.conf.d").mkdir()
    shipped = (KIT / "plugstack.conf").read_text().replace("/usr/lib/ncclscope-slurm/ncclscope_spank.so", str(rig.spank))
    (rig.folder / "plugstack.conf.d" / "ncclscope.conf").write_text(shipped)
    rig.slurm.plugstack(f"include {rig.folder}/plugstack.conf.d/*.conf\n")
    require_equal(rig.variables("--ncclscope=off"), off, "the package's plugstack.conf")
    rig.slurm.plugstack(rig.stack("default=off"))
    require_equal(rig.variables(), {}, "default=off")
    require_equal(rig.variables("--ncclscope=on"), on, "default=off and --ncclscope=on")
    rig.slurm.plugstack(rig.stack("default=full", "containers=off"))
    require_equal(rig.variables(), {name: value for name, value in full.items() if name.startswith("NCCL")}, "default=full")
    rig.slurm.plugstack(rig.stack())
    rig.step("environments: on, off, full, a profiler of the user, loader's path, salloc, defaults")


def task_prolog(rig):
    """The other way to set the profiler: the library's name where the loader finds it, else its path."""
    def said(launcher=(), plugin=rig.plugin, **variables):
        result = subprocess.run([*launcher, "sh", KIT / "task_prolog.sh"], capture_output=True, text=True, timeout=20, check=False,
                                env={"PATH": os.environ["PATH"], "NCCLSCOPE_PLUGIN": str(plugin), **variables})
        require(result.returncode == 0 and not result.stderr, f"task_prolog.sh: {result}")
        return result.stdout
    by_path = f"export {PROFILER}={rig.plugin}\n"
    require_equal(said(), by_path, "task_prolog.sh")
    require_equal(said(NCCLSCOPE_DISABLE="0"), by_path, "task_prolog.sh with NCCLSCOPE_DISABLE=0")
    for variables in ({PROFILER: "libmine.so"}, {PROFILER: ""}, {"NCCLSCOPE_DISABLE": "1"}):
        require_equal(said(**variables), "", f"task_prolog.sh with {variables}")
    require_equal(said(plugin="/nowhere/lib.so"), "", "task_prolog.sh without the plugin")
    if rig.slurm.launchers:
        require_equal(said(rig.with_library()), f"export {PROFILER}={PLUGIN}\n", "task_prolog.sh where the loader finds it")
        other = rig.folder / PLUGIN
        shutil.copy(rig.plugin, other)
        require_equal(said(rig.with_library(), other), f"export {PROFILER}={other}\n", "task_prolog.sh where it finds another one")
    rig.step("task_prolog.sh: name, path, a profiler of the user, switched off, missing")


def refusals(rig):
    for command in (["srun", "-n1", "true"], ["sbatch", "-n1", "--wrap", "true"], ["salloc", "-n1", "true"]):
        for value in ("maybe", "", "ON"):
            result = rig.call_slurm(command[0], f"--ncclscope={value}", *command[1:], user=rig.user)
            require(result.returncode != 0 and f"--ncclscope={value}: wanted off, on or full" in result.stderr,
                    f"{command[0]} --ncclscope={value} ended with {result.returncode}: {result.stderr}")
    require("--ncclscope=off|on|full" in rig.call_slurm("srun", "--help").stdout, "srun --help does not name the option")
    require('argument "colour=red" in plugstack.conf: wanted' in rig.node_log(), "slurmd's log does not name the wrong argument")
    rig.step("wrong values refused by srun, sbatch and salloc; a wrong argument named in slurmd's log")


def telemetry(rig):
    inside = write_script(rig.folder / "inside.sh", f"srun -n1 {rig.job}\nexec srun -n1 --ncclscope=off {rig.job}\n")
    submit = rig.slurm.submit
    batch = {"on": submit("on", rig.job, user=rig.user),
             "off": submit("off", "--ncclscope=off", rig.job, user=rig.user),
             "full": submit("full", "--ncclscope=full", inside, user=rig.user)}
    direct = {"on": rig.run_job("srun"), "by name": rig.run_job("srun, library on the loader's path", node=1),
              "off": rig.run_job("srun --ncclscope=off", "--ncclscope=off")}
    wide = rig.call_slurm("srun", "-N2", "-n4", rig.job, user=rig.user)
    require(wide.returncode == 0, f"four tasks on two nodes: {wide.stderr}")
    wait_until("batch jobs over", lambda: not set(batch.values()) & {line[0] for line in rig.slurm.queue()})
    for name, job in batch.items():
        said = pathlib.Path(f"{rig.folder}/out/{name}.{job}").read_text()
        require("{" in said, f"batch job {name} said {said!r}")
    wanted = {batch["on"], batch["full"], direct["on"], direct["by name"]}
    wait_until("the jobs are heard of", lambda: wanted <= rig.heard_of())
    for silent in (batch["off"], direct["off"]):
        require(silent not in rig.heard_of(), f"job {silent} has been heard of, with --ncclscope=off")
    details = rig.agent.scrape()["ncclscope_plugin_detail_info"]
    asked = {job: {labels["asked"] for labels, _ in details if labels["job_id"] == job} for job in wanted}
    require_equal(asked, {job: {"full" if job == batch["full"] else "normal"} for job in wanted}, "detail that was asked for")
    rig.step("jobs are heard of by default, not after --ncclscope=off, with full detail after --ncclscope=full")


def damage(rig):
    """Each thing missing or broken in its turn: the job runs, and the log has one line of ours at most."""
    nowhere = rig.folder / "nowhere"
    garbage = rig.folder / "garbage.so"
    garbage.write_text("no library\n")  # a torn one kills whoever maps it: SIGBUS
    for what, stack, remark in (
            ("the plugin is missing", rig.stack(plugin=nowhere / PLUGIN), f"ncclscope: {nowhere}/{PLUGIN} cannot be read"),
            ("the sockets' folder is missing", rig.stack(sockets=nowhere), f"ncclscope: {nowhere} is not there"),
            ("ncclscope_spank.so is missing", rig.stack(spank=nowhere / "ncclscope_spank.so"), None),
            ("ncclscope_spank.so is no library", rig.stack(spank=garbage), None),
            ("default= is wrong", rig.stack("default=of"), None)):
        rig.slurm.plugstack(stack)
        before = len(rig.node_log())
        rig.run_job(what)
        lines = [line for line in rig.node_log()[before:].splitlines() if "ncclscope: " in line and "argument" not in line]
        require(len(lines) == (remark is not None) and all(remark in line for line in lines), f"{what}: the log has {lines}")
    rig.slurm.plugstack(rig.stack())
    rig.agent.send(signal.SIGSTOP)
    rig.call(rig.nodes[0], None)
    rig.run_job("the agent hangs")
    rig.agent.send(signal.SIGCONT)
    rig.require_in_service("after damage")
    rig.step("jobs run with the plugin, its folder, SPANK plugin or agent missing, broken or hung")


def run_one(rig, node):
    """A step that does nothing, on that node, in the background."""
    return subprocess.Popen(["srun", f"-w{rig.nodes[node]}", "-n1", "true"], env=rig.slurm.environment, cwd="/",
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def start_hung(rig):
    """A step on the second node whose prolog and epilog call a program that never ends."""
    rig.call(rig.nodes[1], "trap '' TERM\nwhile :; do sleep 1; done\n")
    return run_one(rig, 1)


def prologs(rig, slow):
    """Whatever the programs of prolog and epilog do, no node is drained. slow: of start_hung()."""
    for what, text in (("crashes", "ulimit -c 0\nkill -SEGV $$\n"), ("ends with 139", "exit 139\n"), ("is missing", None),
                       ("is no program", "\x7fELF rubbish\n")):
        rig.call(rig.nodes[0], text)
        first = run_one(rig, 0)
        require(first.wait(timeout=30) == 0, f"the program {what}: {first.stderr.read()}")
    rig.call(rig.nodes[0], f'exec {rig.bin}/ncclscope "$@"\n')
    rig.agent.send(signal.SIGSTOP)
    first = run_one(rig, 0)
    require(first.wait(timeout=30) == 0, f"the agent hangs: {first.stderr.read()}")
    wait_until("its epilog is over", lambda: "completing" not in rig.slurm.run("sinfo", "-h", "-n", rig.nodes[0], "-o", "%T"))
    rig.agent.send(signal.SIGCONT)
    require(slow.wait(timeout=30) == 0, f"the program hangs: {slow.stderr.read()}")
    wait_until("all epilogs are over", lambda: not rig.slurm.queue() and
               "completing" not in rig.slurm.run("sinfo", "-h", "-o", "%T"))
    rig.require_in_service("after prologs and epilogs that went wrong")
    rig.call(rig.nodes[1], f'exec {rig.bin}/ncclscope "$@"\n')
    warnings = (rig.folder / "prolog.warnings").read_text()
    require("no answer in time" in warnings, f"the hung agent was not noticed: {warnings}")
    rig.step("no node drained: program missing, crashed, hung; agent hung")


# A container as far as it matters here: a user namespace in which the user is root, an image of its own, and mounts as lines of
# an fstab (argument 2) ask for them. Says how each was mounted.
ENTER = """\
exec unshare --user --map-root-user --mount sh -ec '
root=$1 mounts=$2
shift 2
mount --rbind /proc "$root/proc"
while read -r source target type options; do
  case $options in
    *x-create=dir*) mkdir -p "$root$target" ;;
    *) mkdir -p "$root${target%/*}" && touch "$root$target" ;;
  esac
  mount --bind "$source" "$root$target"
  mount -o "remount,bind,$(echo "$options" | sed "s/x-create=[a-z]*,bind,//; s/,private.*//")" "$root$target"
  sed -n "s|.* $root\\($target [^ ]*\\) .*|mounted \\1|p" /proc/self/mountinfo
done <"$mounts"
exec chroot "$root" "$@"' sh "$@"
"""

# In a job: runs enroot's hook, then the emulator in the container with what the hook says.
ENROOT_JOB = """\
set -e
work=$(mktemp -d {folder}/out/enroot.XXXXXX)
export ENROOT_ROOTFS=$1 ENROOT_MOUNTS=$work/mounts ENROOT_ENVIRON=$work/environ NCCLSCOPE_PLUGIN={plugin}
: >"$ENROOT_MOUNTS"
echo IMAGE=own >"$ENROOT_ENVIRON"
{hook}
. "$ENROOT_ENVIRON"
echo "profiler ${profiler}"
env -i $(cat "$ENROOT_ENVIRON") SLURM_JOB_ID=$SLURM_JOB_ID {folder}/enter.sh "$ENROOT_ROOTFS" "$ENROOT_MOUNTS" \
  /bin/ncclscope-run-job nodes=1 gpus=2 layout=ddp compute_ms=5 {length} rank_program=/bin/ncclscope-sim-rank \\
  plugin="${profiler}"
echo "job=$SLURM_JOB_ID"
"""

# In a job: the same as Apptainer makes of its variables.
APPTAINER_JOB = """\
set -e
work=$(mktemp -d {folder}/out/apptainer.XXXXXX)
echo "$APPTAINER_BIND" | tr , '\\n' | sed 's/\\(.*\\):\\(.*\\):ro/\\1 \\2 none x-create=dir,bind,ro/' >"$work/mounts"
env -i NCCLSCOPE_SOCKET=$NCCLSCOPE_SOCKET SLURM_JOB_ID=$SLURM_JOB_ID {folder}/enter.sh "$1" "$work/mounts" \
  /bin/ncclscope-run-job nodes=1 gpus=2 layout=ddp steps=20 rank_program=/bin/ncclscope-sim-rank plugin="$APPTAINERENV_{profiler}"
echo "job=$SLURM_JOB_ID"
"""


def make_image(rig, name, loader_folder):
    """A root file system of the user's, with the emulator and the libraries that it needs."""
    image = rig.folder / name
    for folder in ("bin", "proc", "tmp", loader_folder):
        (image / folder).mkdir(parents=True)
    programs = [rig.bin / "ncclscope-run-job", rig.bin / "ncclscope-sim-rank"]
    listing = "".join(subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout for program in programs)
    for library in sorted(set(re.findall(r"(/\S+) \(0x", listing))):
        target = image / library[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for program in programs:
        shutil.copy(program, image / "bin")
    for path in (image, *image.rglob("*")):
        os.chown(path, rig.user.pw_uid, rig.user.pw_gid)
    return image


def containers(rig):
    """Containers are entered as their own software does; that software itself is not here."""
    probe = rig.call_slurm("unshare", "--user", "--map-root-user", "--mount", "true", user=rig.user)
    if probe.returncode != 0:
        rig.step(f"containers: NOT tested, users may not make user namespaces here ({probe.stderr.strip()})")
        return
    write_script(rig.folder / "enter.sh", ENTER)
    names = {"folder": rig.folder, "plugin": rig.plugin, "hook": rig.bin / "50-ncclscope.sh", "profiler": PROFILER,
             "length": "steps=20"}
    shutil.copy(KIT / "enroot" / "50-ncclscope.sh", rig.bin)
    jobs = {}

    def enter(what, script, image, node):
        path = write_script(rig.folder / "container.sh", script.format(**names))
        result = rig.call_slurm("srun", f"-w{rig.nodes[node]}", "-n1", path, image, user=rig.user)
        require(result.returncode == 0 and "job=" in result.stdout,
                f"{what}: ended with {result.returncode}: {result.stderr}{result.stdout}")
        jobs[what] = re.search(r"job=(\d+)", result.stdout).group(1)
        mounts = dict(re.findall(r"mounted (\S+) (\S+)", result.stdout))
        require(str(rig.sockets) in mounts and all(options.startswith("ro,") for options in mounts.values()),
                f"{what}: mounts are {mounts}")
        return result.stdout, mounts
    said, mounts = enter("enroot, plugin by its path", ENROOT_JOB, make_image(rig, "image1", "usr/lib/x86_64-linux-gnu"), 0)
    require(f"profiler {rig.plugin}" in said and str(rig.bin) in mounts, f"enroot: {said}")
    if rig.slurm.launchers:
        # The same image, with what the first run has left in it.
        said, mounts = enter("enroot, plugin by its name", ENROOT_JOB, rig.folder / "image1", 1)
        require(f"profiler {PLUGIN}\n" in said and f"/usr/lib/x86_64-linux-gnu/{PLUGIN}" in mounts, f"enroot: {said}")
    said, mounts = enter("apptainer", APPTAINER_JOB, make_image(rig, "image2", "usr/lib64"), 0)
    require("/opt/ncclscope" in mounts, f"apptainer: {said}")
    wait_until("jobs in containers are heard of", lambda: set(jobs.values()) <= rig.heard_of())

    # The folder is mounted, not the socket: a container that runs already reaches the agent's next start.
    path = write_script(rig.folder / "container.sh", ENROOT_JOB.format(**{**names, "length": "seconds=60"}))
    submitted = rig.slurm.submit("long", path, rig.folder / "image1", user=rig.user)
    wait_until("the container is heard of", lambda: submitted in rig.heard_of())
    rig.agent.terminate()
    rig.agent.start()
    wait_until("the container is heard of by the next agent", lambda: submitted in rig.heard_of())
    rig.slurm.run("scancel", "--signal=KILL", "--full", submitted)
    wait_until("the container has ended", lambda: submitted not in {line[0] for line in rig.slurm.queue()})
    jobs["and after a restart of the agent"] = submitted
    rig.step(f"heard of from user namespaces, with read-only mounts: {', '.join(jobs)}")


def hook(rig):
    """enroot starts no container whose hook fails."""
    program = rig.bin / "50-ncclscope.sh"
    image = rig.folder / "image3"
    (image / "usr/lib64").mkdir(parents=True)
    mounts, environ = rig.folder / "mounts", rig.folder / "environ"
    whole = {"ENROOT_ROOTFS": str(image), "ENROOT_MOUNTS": str(mounts), "ENROOT_ENVIRON": str(environ), "PATH": os.environ["PATH"],
             "NCCLSCOPE_PLUGIN": str(rig.plugin), "NCCLSCOPE_SOCKET": f"{rig.sockets}/agent.sock"}

    def run_hook(**changes):
        mounts.write_text("")
        environ.write_text("NCCLSCOPE_DETAIL=low\n")
        result = subprocess.run([program], env={n: v for n, v in {**whole, **changes}.items() if v is not None},
                                capture_output=True, text=True, timeout=20, check=False)
        require(result.returncode == 0 and not result.stderr, f"hook with {changes}: {result.returncode}, {result.stderr}")
        return mounts.read_text(), dict(line.split("=", 1) for line in environ.read_text().splitlines())
    options = "bind,ro,nosuid,nodev"
    lines, variables = run_hook(NCCL_PROFILER_PLUGIN=PLUGIN, NCCLSCOPE_DETAIL="full")
    require_equal(lines.splitlines(), [
        f"{rig.sockets} {rig.sockets} none x-create=dir,{options},noexec,private,nofail,silent",
        f"{rig.bin} {rig.bin} none x-create=dir,{options},private,nofail,silent",
        f"{rig.plugin} /usr/lib64/{PLUGIN} none x-create=file,{options},private,nofail,silent"], "the hook's mounts")
    require_equal({name: variables.get(name) for name in (PROFILER, "NCCLSCOPE_DETAIL", "NCCLSCOPE_SOCKET")},
                  {PROFILER: PLUGIN, "NCCLSCOPE_DETAIL": "low", "NCCLSCOPE_SOCKET": whole["NCCLSCOPE_SOCKET"]},
                  "the hook's variables")
    require(PROFILER not in run_hook(NCCL_PROFILER_PLUGIN="libmine.so")[1], "the hook passes a profiler of the user")
    require_equal(run_hook(NCCLSCOPE_DISABLE="1")[0], "", "the hook's mounts when switched off")
    for nothing in ({"NCCLSCOPE_PLUGIN": "/nowhere/lib.so", "NCCLSCOPE_SOCKET": "/nowhere/agent.sock"},
                    {"NCCLSCOPE_SOCKET": "/a b/agent.sock"}, {"ENROOT_ROOTFS": None}, {"ENROOT_MOUNTS": None}):
        require_equal(run_hook(**nothing)[0], "", f"the hook's mounts with {nothing}")
    rig.step("enroot's hook: mounts, variables, and success whatever is missing")


class BuiltElsewhere:
    """The plugin as build.sh makes it on the spot, from a package's files. The compiler works while other things are tested."""

    def __init__(self, rig):
        self.rig, self.kit, self.made = rig, rig.folder / "spank", rig.bin / "made.so"
        shutil.copytree(KIT / "spank", self.kit)
        headers = rig.folder / "headers" / "slurm"
        headers.mkdir(parents=True)
        for name in ("spank.h", "slurm_errno.h", "slurm_version.h"):
            shutil.copy(pathlib.Path("/usr/include/slurm", name), headers)
        self.running = self.build("-I", headers.parent, self.made)

    def build(self, *arguments):
        return subprocess.Popen(["sh", self.kit / "build.sh", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    def check(self):
        rig = self.rig
        said = self.running.communicate(timeout=60)[1]
        require(self.running.returncode == 0, f"build.sh ended with {self.running.returncode}: {said}")
        for library in (rig.spank, self.made):
            symbols = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
            require_equal({line.split()[-1] for line in symbols.splitlines()}, SYMBOLS, f"what {library.name} exports")
        rig.slurm.plugstack(rig.stack(spank=self.made))
        require_equal(rig.variables("--ncclscope=full").get("NCCLSCOPE_DETAIL"), "full", "the plugin made by build.sh")
        failing = self.build("-I", rig.folder, self.made)
        said = failing.communicate(timeout=20)[1]
        require(failing.returncode == 1 and "there is no" in said, f"build.sh without headers: {failing.returncode}, {said}")

        # What SLURM does with one for another release.
        source, other = rig.folder / "other.c", rig.bin / "other.so"
        source.write_text('const char plugin_name[] = "ncclscope", plugin_type[] = "spank";\n'
                          "const unsigned plugin_version = 0x0f0800, spank_plugin_version = 1;\n"
                          "int slurm_spank_init(void) { return 0; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source], check=True, timeout=20)
        rig.slurm.plugstack(rig.stack(spank=other))
        result = rig.call_slurm("srun", "-n1", "true", user=rig.user)
        require(result.returncode == 0 and "Incompatible" in result.stderr, f"a plugin for another release: {result}")
        rig.slurm.plugstack(rig.stack())
        rig.step("the plugin made by spank/build.sh works; one for another release of SLURM is passed over")

    def stop(self):
        self.running.kill()  # if it is still there; its compiler ends soon by itself
        self.running.wait()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--build", required=True, type=pathlib.Path)
    arguments.add_argument("--keep", action="store_true", help="keep the folder")
    options = arguments.parse_args()
    return run_test(options, WHOLE_TEST_S, lambda folder: test(options.build.resolve(), folder))


def test(build, folder):
    if not (build / "deploy" / "slurm" / "ncclscope_spank.so").exists():
        raise Skipped("ncclscope_spank.so was not built: SLURM's headers are missing (libslurm-dev)")
    rig = Rig(build, folder)
    elsewhere = BuiltElsewhere(rig)
    try:
        rig.slurm.start()
        rig.step("SLURM runs")
        with running([rig.agent]):
            environments(rig)
            refusals(rig)
            task_prolog(rig)
            telemetry(rig)
            containers(rig)
            hook(rig)
            slow = start_hung(rig)
            damage(rig)
            prologs(rig, slow)
            elsewhere.check()
        rig.run_job("no agent")
        rig.require_in_service("without an agent")
    except BaseException:
        show_logs(folder)
        raise
    finally:
        signal.alarm(0)
        elsewhere.stop()
        rig.slurm.stop()
    require(not rig.slurm.cgroups(), f"cgroups left: {rig.slurm.cgroups()}")
    rig.step("stopped, nothing left")


if __name__ == "__main__":
    sys.exit(main())
