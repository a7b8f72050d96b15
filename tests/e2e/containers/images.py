#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The container images: their files through hadolint, both built by buildah, and then used as on a node. The installer prepares it
as the init container of the chart would, the image's agent runs there without rights on a read-only root, and an emulated job
loads the plugin that was installed.

  images.py --build DIR [--compile]

Without --compile the stage that compiles is replaced by `cmake --install` of DIR, which takes minutes less; scripts/soak.sh runs it
with. The base is the Debian of scripts/fetch-debian.sh. Needs root, buildah, and Debian's packages; skipped (77) without.
"""
import argparse
import contextlib
import copy
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "helm"))
sys.dont_write_bytecode = True
import chart  # noqa: E402
from support import ROOT, SKIPPED_STATUS, Build, Job, http_get, parse_samples, sum_of, wait_until  # noqa: E402

FILES = ROOT / "deploy/containers"
UID = 19464
COMPILE = False
BUILD = None
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ncclscope"
DEBIAN = CACHE / "debian-12.tar"


def run(*command, check=True, timeout=240, **options) -> subprocess.CompletedProcess:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, check=False, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def with_given_stages(text: str) -> str:
    """The Containerfile on the image localhost/debian; the stage `build` is a copy of out/ unless it shall compile."""
    head, build, runtime = re.split(r"^(?=FROM )", text, flags=re.M)
    return head + (build if COMPILE else "FROM scratch AS build\nCOPY out/ /out/\n\n") + runtime


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.folder = pathlib.Path(cls.stack.enter_context(tempfile.TemporaryDirectory()))
        cls.folder.chmod(0o755)
        cls.storage = cls.storage_options("overlay")
        if cls.buildah("from", "scratch", check=False).returncode != 0:  # no overlayfs here: everything is copied, which takes longer
            cls.storage = cls.storage_options("vfs")
        cls.addClassCleanup(cls.buildah, "umount", "--all", check=False)
        container = cls.buildah("from", "scratch").stdout.strip()
        cls.buildah("add", "--quiet", container, DEBIAN, "/")
        cls.buildah("commit", "--quiet", "--rm", container, "localhost/debian")
        cls.agent = cls.make_image("agent.Containerfile", "agent")
        cls.installer = cls.make_image("plugin-installer.Containerfile", "plugin")

    @classmethod
    def storage_options(cls, driver):
        return ["--storage-driver", driver, "--root", cls.folder / driver, "--runroot", cls.folder / f"{driver}-run"]

    @classmethod
    def buildah(cls, command, *arguments, **options):
        return run("buildah", *cls.storage, command, *arguments, **options)

    @classmethod
    def make_image(cls, file, component) -> str:
        context = cls.folder / f"context-{component}"
        if COMPILE:
            run("sh", "-c", f"mkdir {context} && git -c safe.directory={ROOT} -C {ROOT} archive HEAD | tar -x -C {context}")
        else:
            run("cmake", "--install", BUILD.folder, "--component", component, "--prefix", "/usr", "--strip",
                env=dict(os.environ, DESTDIR=str(context / "out")))
            shutil.copytree(FILES, context / "deploy/containers")
        (context / file).write_text(with_given_stages((FILES / file).read_text()))
        name = f"localhost/{component}"
        cls.buildah("build", "--isolation", "chroot", "--pull-never", "--build-arg", "BASE_IMAGE=localhost/debian", "--build-arg", "REVISION=abc123",
                    "--file", context / file, "--tag", name, context, timeout=3000 if COMPILE else 300)
        shutil.rmtree(context)
        return name

    @classmethod
    def root_of(cls, image) -> pathlib.Path:
        """A container's file system."""
        container = cls.buildah("from", "--pull-never", image).stdout.strip()
        return pathlib.Path(cls.buildah("mount", container).stdout.strip())

    @staticmethod
    def inside(root, volumes, *options):
        """What runs a program in that file system, read-only but for the volumes, beside the processes of this machine."""
        for place in volumes.values():
            (root / place).mkdir(parents=True, exist_ok=True)
        mounts = "".join(f"mount --bind {folder} {root}/{place}; " for folder, place in volumes.items())
        script = (f"set -e; mount --bind {root} {root}; cd /; {mounts}mount --bind /proc {root}/proc; mount -o remount,ro,bind {root}; "
                  "exec chroot \"$@\"")
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *options, root]

    def pod(self, sockets, plugin) -> Build:
        """Jobs with both directories mounted read-only, as in a training pod."""
        build = copy.copy(BUILD)
        build.run_job = self.folder / "run-job-in-pod"
        build.run_job.write_text(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -ec '\n"
            "mount -t tmpfs -o mode=755 run /run\nmkdir /run/ncclscope /run/plugin\n"
            f"mount --bind {sockets} /run/ncclscope\nmount --bind {plugin} /run/plugin\n"
            "mount -o remount,bind,ro /run/ncclscope\nmount -o remount,bind,ro /run/plugin\n"
            "if touch /run/ncclscope/x 2>/dev/null; then echo not read-only >&2; exit 9; fi\n"
            f"exec {BUILD.run_job} \"$@\"' sh \"$@\"\n")
        build.run_job.chmod(0o755)
        return build

    def configuration(self, image):
        return json.loads(self.buildah("inspect", "--type", "image", image).stdout)["OCIv1"]["config"]

    def test_configuration_of_the_images(self):
        for image, program in ((self.agent, "/usr/bin/ncclscope-agent"), (self.installer, "/usr/bin/ncclscope-install-plugin")):
            configuration = self.configuration(image)
            self.assertEqual(f"{UID}:{UID}", configuration["User"])
            self.assertEqual([program], configuration["Entrypoint"])
            labels = configuration["Labels"]
            self.assertEqual(("Apache-2.0", "abc123"),
                             (labels["org.opencontainers.image.licenses"], labels["org.opencontainers.image.revision"]))
        self.assertIn("9464/tcp", self.configuration(self.agent)["ExposedPorts"])

    def test_a_node_as_the_chart_prepares_it(self):
        sockets, plugin, api = (self.folder / "node" / name for name in ("sockets", "plugin", "api"))
        for folder in (sockets, plugin, api):
            folder.mkdir(parents=True)
        os.chown(api, 0, UID)
        api.chmod(0o2777)  # as Kubernetes makes an emptyDir

        # The init container: uid 0, a read-only root, all capabilities dropped but CHOWN.
        done = run(*self.inside(self.root_of(self.installer), {sockets: "host/sockets", api: "host/api", plugin: "host/plugin"}),
                   "setpriv",
                   "--inh-caps=-all,+chown", "--bounding-set=-all,+chown", "--no-new-privs", "/usr/bin/ncclscope-install-plugin",
                   "--sockets=/host/sockets", "--api=/host/api", f"--owner={UID}:{UID}", "--plugin=/host/plugin")
        self.assertIn("installed /host/plugin/libnccl-profiler-ncclscope.so", done.stdout)
        self.assertEqual((UID, 0), (sockets.stat().st_uid, plugin.stat().st_uid))

        # The agent: its user, a read-only root, no capability, group 0 besides its own.
        root = self.root_of(self.agent)
        leftovers = [path for folder in ("var/lib/apt/lists", "var/cache/apt") for path in (root / folder).rglob("*") if path.is_file()]
        self.assertEqual([], leftovers)
        for program in ("ncclscope-agent", "ncclscope"):
            self.assertNotIn("not found", run("chroot", root, "/usr/bin/ldd", f"/usr/bin/{program}").stdout)
            self.assertIn(program, run("chroot", f"--userspec={UID}:{UID}", root, f"/usr/bin/{program}", "--version").stdout)
        log = self.stack.enter_context(open(self.folder / "agent.log", "w+", encoding="utf-8"))
        agent = subprocess.Popen(
            [*self.inside(root, {sockets: "run/ncclscope", api: "run/ncclscope-api"}, f"--userspec={UID}:{UID}", "--groups=0"),
             "/usr/bin/ncclscope-agent", "--socket", "/run/ncclscope/agent.sock", "--api-socket", "/run/ncclscope-api/api.sock",
             "--listen", "127.0.0.1:0", "--ready-file", "/run/ncclscope-api/ready", "--node", "node", "--snapshot-interval-ms", "50"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            def ready():
                self.assertIsNone(agent.poll(), (self.folder / "agent.log").read_text())
                return (api / "ready").exists()
            wait_until("the agent is ready", ready)
            address = dict(line.split("=", 1) for line in (api / "ready").read_text().splitlines())["http"]
            status = pathlib.Path(f"/proc/{agent.pid}/status").read_text()
            self.assertRegex(status, rf"Uid:\t{UID}\t{UID}\t{UID}")
            self.assertRegex(status, r"CapEff:\t0+\n")

            job = Job(self.pod(sockets, plugin), 1, 2, "ddp", 10, plugin="/run/plugin/libnccl-profiler-ncclscope.so",
                      sockets=["/run/ncclscope/agent.sock"], env="LD_LIBRARY_PATH=")
            truth = job.wait()
            self.assertGreater(truth["operations"], 0)

            def counted():
                samples = parse_samples(http_get(f"http://{address}/metrics")[1])
                return sum_of(samples, "ncclscope_collective_operations_total") > 0 and samples
            samples = wait_until("operations arrive", counted)
            self.assertEqual({"node"}, {labels["node"] for labels, _ in samples["ncclscope_rank_info"]})
        finally:
            agent.send_signal(signal.SIGTERM)
            self.assertEqual(0, agent.wait(timeout=20), (self.folder / "agent.log").read_text())


class Files(unittest.TestCase):
    def test_pass_hadolint(self):
        hadolint = chart.TOOLS / "bin/hadolint"
        if not hadolint.exists():
            self.skipTest("no hadolint; scripts/fetch-helm.sh brings it")
        self.assertEqual("", run(hadolint, *FILES.glob("*.Containerfile")).stdout)

    def test_bases_are_pinned_by_tag(self):
        for file in FILES.glob("*.Containerfile"):
            text = file.read_text()
            self.assertRegex(text, r"(?m)^ARG BASE_IMAGE=debian:12\.\d+-slim$")
            self.assertEqual(["FROM ${BASE_IMAGE}"] * 2, re.findall(r"(?m)^FROM \S+", text))

    def test_the_agents_image_installs_the_libraries_that_its_programs_name(self):
        """By the packages of this machine, where the programs were built."""
        text = (FILES / "agent.Containerfile").read_text()
        installed = set(re.search(r"--no-install-recommends(.*?)&&", text, flags=re.S).group(1).replace("\\", " ").split())
        in_every_debian = {"libc6", "libgcc-s1", "libstdc++6"}
        for program in (BUILD.agent, BUILD.command_line):
            for name in re.findall(r"NEEDED +(\S+)", run("objdump", "-p", program).stdout):
                path = re.search(rf"{re.escape(name)} => (\S+)", run("ldd", program).stdout)
                if path is None:
                    continue  # the loader itself
                real = os.path.realpath(path.group(1))
                owner = run("dpkg", "-S", f"*{real.removeprefix('/usr')}").stdout.split(":")[0]
                self.assertIn(owner, installed | in_every_debian, f"{program.name} needs {name}: add its package to agent.Containerfile")

    def test_no_file_of_the_build_context_is_left_out_that_the_build_needs(self):
        """.dockerignore keeps history, results and tests out; what compiling needs stays."""
        ignored = (ROOT / ".dockerignore").read_text().split()
        for needed in ("CMakeLists.txt", "CMakePresets.json", "cmake", "proto", "verdict", "plugin", "sim", "archive", "agent", "cli",
                       "scripts", "docs", "dashboards", "deploy"):
            self.assertTrue((ROOT / needed).exists(), needed)
            self.assertNotIn(needed, ignored)


def main():
    global BUILD, COMPILE  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--compile", action="store_true")
    options, rest = parser.parse_known_args()
    BUILD, COMPILE = Build(options.build), options.compile
    program = unittest.main(argv=[sys.argv[0], *rest, "Files"], verbosity=2, exit=False)
    good = program.result.wasSuccessful()
    missing = [what for what, absent in (("root", os.geteuid() != 0), ("buildah", shutil.which("buildah") is None),
                                         (f"{DEBIAN} (scripts/fetch-debian.sh)", not DEBIAN.exists())) if absent]
    if missing:
        print(f"SKIPPED: images are not built here, for want of {', '.join(missing)}")
        sys.exit(SKIPPED_STATUS if good else 1)
    sys.exit(0 if unittest.main(argv=[sys.argv[0], *rest, "Images"], verbosity=2, exit=False).result.wasSuccessful() and good else 1)


if __name__ == "__main__":
    main()
