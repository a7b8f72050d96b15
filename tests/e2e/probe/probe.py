#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`ncclscope probe` as users run it.

  probe.py --build DIR SCENARIO

no_driver: the worker linked with the real NCCL and CUDA runtime, where no driver is. The others: with stand-ins for both
(tests/support/fake_nccl.cc, fake_cudart.cc), which move real bytes between real processes, on a copy of the machine
"rail8"; what they measure means nothing, so thresholds in these tests are absurdly high or low.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "slurm"))
sys.dont_write_bytecode = True
from support import ROOT, Failure, Processes, Skipped, answering, require, run_scenarios  # noqa: E402

RAIL8 = ",".join(f"0000:{n}3:00.0" for n in range(1, 9))
SMALL = ["--max-bytes", "4K", "--iterations", "2", "--warmup", "1"]
DEADLINE = 90


class Probe:
    """The command, and how to call it."""

    def __init__(self, build, folder):
        tree = build.folder.resolve()
        self.folder = folder
        self.program = tree / "cli" / "ncclscope"
        self.worker = tree / "cli" / "ncclscope-probe-worker"
        self.stand_ins = tree / "tests" / "stand-ins"
        self.rail8 = tree / "tests" / "machines" / "rail8"
        if not self.worker.exists():
            reason = "the probe's worker is not built: no NCCL found (scripts/fetch-nccl.sh brings it)"
            raise Failure(reason) if os.environ.get("CI") else Skipped(reason)
        self.processes = []

    def environment(self, **more):
        plain = {k: v for k, v in os.environ.items()
                 if not k.startswith(("SLURM_", "OMPI_", "PMI_", "NCCL", "FAKE_")) and k not in ("RANK", "WORLD_SIZE")}
        return {**plain, "LD_LIBRARY_PATH": str(self.stand_ins), "FAKE_NCCL_DIR": str(self.folder), "FAKE_GPUS": RAIL8, **more}

    def start(self, *arguments, **environment):
        # CMake's run path in the build folder ends with an empty part, which is the current directory: ctest's holds a
        # stand-in of the driver for other tests.
        process = subprocess.Popen([self.program, "probe", *map(str, arguments)], env=self.environment(**environment), cwd="/",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    @staticmethod
    def finish(process, status):
        try:
            out, err = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"{process.args} did not end within {DEADLINE} s") from None
        require(process.returncode == status, f"{process.args} ended with {process.returncode}, not {status}: {err}{out}")
        return out, err

    def run(self, status, *arguments, **environment):
        return self.finish(self.start(*arguments, **environment), status)

    def json(self, status, *arguments, **environment):
        return json.loads(self.run(status, "--json", *arguments, **environment)[0])


def no_driver(build, folder):
    """What is linked can be loaded; without a driver it says so and ends with 3, in one process and in several."""
    probe = Probe(build, folder)
    plain = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}

    def real(*command):
        return subprocess.run(command, env=plain, cwd="/", capture_output=True, text=True, timeout=DEADLINE, check=False)
    shown = real(probe.worker, "--help")
    require(shown.returncode == 0 and "started by `ncclscope probe`" in shown.stdout, f"--help: {shown}")
    shown = real(probe.program, "probe", "--help")
    require(shown.returncode == 0 and "--min-busbw" in shown.stdout, f"probe --help: {shown}")
    linked = real("readelf", "-d", probe.worker).stdout
    require("libnccl.so.2" in linked and "libcudart.so" in linked, f"the worker is linked with {linked}")
    require("libnccl" not in real("readelf", "-d", probe.program).stdout, "the command itself needs NCCL")
    if pathlib.Path("/proc/driver/nvidia").exists():
        print("there is a driver here: what is said without one is not tried")
        return
    for arguments in ([], ["--json"], ["--min-busbw", "1"]):
        result = real(probe.program, "probe", "--timeout", "60s", *arguments)
        require(result.returncode == 3, f"without a driver: {result.returncode}: {result.stderr}")
        require("no NVIDIA driver: libcuda.so.1 cannot be loaded" in result.stderr, f"it says {result.stderr}")


def not_built(build, folder):
    """Where the worker was left out, the command says what to install."""
    alone = folder / "ncclscope"
    shutil.copy(build.command_line, alone)
    result = subprocess.run([alone, "probe"], capture_output=True, text=True, timeout=DEADLINE, check=False)
    require(result.returncode == 3 and "Install the package ncclscope-probe" in result.stderr
            and "scripts/fetch-nccl.sh" in result.stderr, f"{result}")


def one_node(build, folder):
    """Table, JSON, thresholds and limits of eight GPUs in one process."""
    probe = Probe(build, folder)
    root = ["--sys-root", probe.rail8]
    out, _ = probe.run(0, *SMALL, *root)
    require(out.startswith("# ncclscope probe: 8 ranks on 1 node, NCCL "), out)
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d", line)]
    require(len(rows) == 8 and all(len(row) == 8 and row[2] == "float" and row[7] == "0" for row in rows), out)
    require([row[0] for row in rows] == ["1024", "4096"] * 4, f"sizes {rows}")
    require([row[1] for row in rows] == ["256", "1024"] + ["32", "128"] * 3, f"counts {rows}")
    require([row[3] for row in rows] == ["sum", "sum", "none", "none", "sum", "sum", "none", "none"], f"redop {rows}")
    require(out.rstrip().endswith("# ok"), out)

    report = probe.json(0, *SMALL, *root)
    require(report["outcome"] == "ok" and report["ranks"] == 8 and len(report["gpus"]) == 8, f"{report}")
    for row in report["rows"]:
        n = 8
        factor = 2 * (n - 1) / n if row["collective"] == "AllReduce" else (n - 1) / n
        algorithm = row["bytes"] / row["time_us"] / 1e3
        require(abs(row["algbw_gigabytes_per_second"] / algorithm - 1) < 1e-6, f"algbw of {row}")
        require(abs(row["busbw_gigabytes_per_second"] / algorithm / factor - 1) < 1e-6, f"busbw of {row}")
    # 16 links to the GPU that has lost two: 16 x 20.6 GB/s.
    for comparison in report["comparisons"]:
        allowed = comparison["allowed"]
        require(abs(allowed["gigabytes_per_second"] - 16 * 20.6) < 0.01 and "NVL between GPU" in allowed["what"], f"{comparison}")
        require(comparison["baseline"]["gigabytes_per_second"] is None, f"{comparison}")

    _, err = probe.run(1, *SMALL, "--min-busbw", "1e9", "--collectives", "AllReduce,alltoall")
    require("AllReduce of 4096 bytes reaches" in err and "wanted at least 1e+09" in err, err)
    probe.run(0, *SMALL, "--min-busbw", "1e-9,AllGather=1e-12")
    _, err = probe.run(1, *SMALL, "--min-busbw", "0,AllGather=1e9")
    require("AllGather" in err and "AllReduce" not in err, err)
    probe.run(0, *SMALL, *root, "--min-fraction", "1e-9")
    _, err = probe.run(3, *SMALL, "--min-fraction", "0.5")
    require("what the paths allow is not known" in err and "/sys does not show these GPUs" in err, err)
    probe.run(0, *SMALL, "--gpus", "1,4", FAKE_NCCL_FAULT="")
    _, err = probe.run(3, *SMALL, "--gpus", "1,9")
    require("GPU 9 is wanted, and CUDA shows 8" in err, err)


def one_gpu(build, folder):
    """Two ranks share the only GPU there is."""
    report = Probe(build, folder).json(0, *SMALL, FAKE_GPUS="0000:13:00.0")
    require(report["ranks"] == 2 and report["nodes"] == 1 and report["shared_gpu"], f"{report}")
    require([gpu["pci"] for gpu in report["gpus"]] == ["0000:13:00.0"] * 2, f"{report}")
    require(all(row["wrong"] == 0 for row in report["rows"]) and len(report["rows"]) == 8, f"{report}")


def faults(build, folder):
    """Wrong results, hangs, crashes, refusals: each has its exit status and words."""
    probe = Probe(build, folder)
    _, err = probe.run(1, *SMALL, FAKE_NCCL_FAULT="wrong")
    require("AllGather of 1024 bytes: 1 elements of all ranks' results are wrong" in err, err)
    out, err = probe.run(4, *SMALL, "--timeout", "3s", FAKE_NCCL_FAULT="hang")
    require("not done within 3.00 s" in err and "ranks 0 to 7 on" in err and "AllGather of 1024 bytes" in err, err)
    require("rank 0 is aborted" in err, f"ncclCommAbort was not called: {err}")
    require("# AllReduce" in out and "# ok" not in out, f"what was measured before is shown: {out}")
    _, err = probe.run(4, *SMALL, "--timeout", "3s", FAKE_CUDA_FAULT="stream-hangs")
    require("AllReduce of 1024 bytes" in err, err)
    _, err = probe.run(3, *SMALL, FAKE_NCCL_FAULT="crash")
    require("its worker was ended by signal 6" in err, err)
    _, err = probe.run(3, *SMALL, FAKE_NCCL_FAULT="init-fails")
    require("ncclCommInitRank" in err and "NCCL_DEBUG=WARN" in err, err)
    _, err = probe.run(3, *SMALL, FAKE_CUDA_FAULT="no-driver")
    require("no NVIDIA driver" in err, err)
    for arguments in (["--min-bytes", "x"], ["--collectives", "broadcast"], ["--factor", "1"], ["--timeout", "soon"],
                      ["--min-busbw", "fast"], ["--process", "1"], ["--min-baseline-fraction", "0.5"], ["--nothing"],
                      ["--min-bytes", "2M", "--max-bytes", "1M"], ["--process", "0", "--processes", "2"]):
        probe.run(2, *arguments)
    left = list(folder.glob("ncclscope-probe-*"))
    require(not left, f"left behind: {left}")


def several_processes(build, folder):
    """By options and a shared folder, by torchrun's variables, by SLURM's; a hanging rank is named, and all end alike."""
    probe = Probe(build, folder)
    shared = ["--rendezvous", folder]

    def others(count, environment, *arguments):
        return [probe.start(*SMALL, *arguments, **environment(p)) for p in range(1, count)]

    def by_options(process, count):
        return [*shared, "--process", process, "--processes", count, "--local", process]
    waiting = [probe.start(*SMALL, *by_options(p, 4)) for p in (3, 1, 2)]
    report = probe.json(0, *SMALL, *by_options(0, 4))
    require(report["ranks"] == 4 and [g["pci"] for g in report["gpus"]] == RAIL8.split(",")[:4], f"{report}")
    for process in waiting:
        out, _ = probe.finish(process, 0)
        require(out == "", f"process 0 alone prints, not: {out}")
    require(not list(folder.glob("ncclscope-probe-*")), "the meeting's file is left behind")

    def torchrun(p):
        return {"RANK": str(p), "WORLD_SIZE": "3", "LOCAL_RANK": str(p), "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(os.getpid())}
    waiting = others(3, torchrun, "--min-busbw", "1e9")
    report = probe.json(1, *SMALL, "--min-busbw", "1e9", **torchrun(0))
    require(report["ranks"] == 3, f"{report}")
    for process in waiting:
        probe.finish(process, 1)

    def slurm(p):
        return {"SLURM_JOB_ID": f"9{os.getpid()}", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(p), "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": str(p), "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "n[07-08]"}
    hung = {"FAKE_NCCL_FAULT": "hang", "FAKE_NCCL_HUNG_RANK": "1"}
    waiting = others(2, lambda p: {**slurm(p), **hung}, "--timeout", "4s")
    _, err = probe.run(4, *SMALL, "--timeout", "4s", **slurm(0), **hung)
    require(f"rank 1 on {socket.gethostname()}: AllGather of 1024 bytes" in err, err)
    probe.finish(waiting[0], 4)

    _, err = probe.run(4, *SMALL, "--timeout", "2s", **slurm(0))
    require("process 1 did not come" in err, err)
    _, err = probe.run(3, *SMALL, "--timeout", "2s", **slurm(1))
    require("process 1 did not find process 0: 127.0.0.1:" in err, err)


def baseline(build, folder):
    """The fleet's baseline from a Prometheus, and one that does not answer."""
    probe = Probe(build, folder)
    asked = []

    def answer(path, _):
        asked.append(path)
        rows = [{"metric": {"collective": c, "size": "<=4KiB"}, "value": [1, v]} for c, v in (("AllReduce", "5e9"), ("AllGather", "1"))]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})
    with answering(answer) as prometheus:
        url = ["--prometheus", prometheus, "--cluster", "west"]
        report = probe.json(0, *SMALL, *url)
        known = {c["collective"]: c["baseline"]["gigabytes_per_second"] for c in report["comparisons"]}
        require(known == {"AllReduce": 5, "AllGather": 1e-9, "ReduceScatter": None, "AlltoAll": None}, f"{known}")
        require("nranks%3D%228%22%2Cnnodes%3D%221%22%2Ccluster%3D%22west%22" in asked[0], f"{asked}")
        probe.run(0, *SMALL, *url, "--collectives", "AllGather", "--min-baseline-fraction", "1")
        _, err = probe.run(3, *SMALL, *url, "--collectives", "AlltoAll", "--min-baseline-fraction", "1")
        require("the fleet's baseline is not known" in err, err)
    out, _ = probe.run(0, *SMALL, *url)
    require("the fleet's baseline is unknown (Prometheus at" in out, out)
    probe.run(3, *SMALL, *url, "--min-baseline-fraction", "0.5")


def document(build, folder):
    """Each command of docs/probe.md in a fenced block, as it stands there but for the launcher, with the stand-ins."""
    probe = Probe(build, folder)
    (folder / "shared").mkdir()
    commands = []
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "probe.md").read_text(), re.DOTALL):
        commands += [line.split("#")[0].strip() for line in block.replace("\\\n", " ").splitlines() if "ncclscope probe" in line]
    require(len(commands) >= 5, f"commands of docs/probe.md: {commands}")
    for command in commands:
        words = shlex.split(command)
        words = words[words.index("ncclscope") + 2:]
        words = [str(folder / "shared") if word.startswith("/shared") else word for word in words]
        words = ["16K" if words[i - 1] == "--max-bytes" else word for i, word in enumerate(words)]
        words += [] if "--max-bytes" in words else ["--max-bytes", "16K"]
        process = probe.start(*words, "--sys-root", probe.rail8)
        out, err = process.communicate(timeout=DEADLINE)
        # The stand-ins are no NVLink, and there is no Prometheus: below a threshold, or nothing to compare with.
        require(process.returncode in (0, 1, 3), f"{command} ended with {process.returncode}: {err}{out}")
        require(process.returncode == 0 or "wanted at least" in err or "is not known" in err, f"{command}: {err}")
        print(f"{process.returncode}  {command}")


def slurm(build, folder):
    """In a real SLURM: tasks of one node by loopback, of two nodes by a shared folder, and in a batch script alone."""
    import slurm as real
    if os.geteuid() != 0 or any(shutil.which(name, path="/usr/bin:/usr/sbin:/sbin") is None
                                for name in ("slurmctld", "slurmd", "srun", "munged")):
        raise Skipped("SLURM's daemons need root, and must be installed (scripts/install-deps.sh installs them)")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    probe = Probe(build, folder)
    folder.chmod(0o755)
    (folder / "slurm").mkdir()
    cluster = real.Slurm(folder / "slurm", Processes(folder), ["n1", "n2"], {}, "linuxproc")
    cluster.environment.update({k: v for k, v in probe.environment().items() if k.startswith(("FAKE_", "LD_"))})
    shared = folder / "shared"
    shared.mkdir()
    try:
        cluster.start()
        report = json.loads(cluster.run("srun", "-N1", "-n3", probe.program, "probe", "--json", *SMALL))
        require(report["ranks"] == 3 and report["outcome"] == "ok", f"three tasks of a node: {report}")
        report = json.loads(cluster.run("srun", "-N2", "-n4", probe.program, "probe", "--json", *SMALL, "--rendezvous", shared))
        require(report["ranks"] == 4, f"four tasks of two nodes, one GPU each: {report['gpus']}")
        report = json.loads(cluster.run("srun", "-N2", "-n2", probe.program, "probe", "--json", *SMALL, "--rendezvous", shared))
        require(report["ranks"] == 16, f"one task per node takes all its GPUs: {report}")
        require(not list(shared.iterdir()), f"left behind: {list(shared.iterdir())}")
        script = real.write_script(folder / "batch.sh", f"exec {probe.program} probe --json {' '.join(SMALL)}\n")
        cluster.run("sbatch", "--wait", "-N2", "-n4", "-D", "/", "-o", folder / "batch.out", script)
        report = json.loads((folder / "batch.out").read_text())
        require(report["ranks"] == 8, f"in a batch script it is one process: {report}")
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(run_scenarios(__doc__, [no_driver, not_built, one_node, one_gpu, faults, several_processes, baseline, document, slurm]))
