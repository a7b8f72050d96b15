#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/containers/install-plugin.sh on this machine's file system: who owns what afterwards, that a plugin is replaced in one
step whatever happens, and that a process which has loaded the old one goes on.

  installer.py --plugin libnccl-profiler-ncclscope.so
"""
import argparse
import ctypes
import itertools
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "deploy/containers/install-plugin.sh"
NAME = "libnccl-profiler-ncclscope.so"
PLUGIN = None
needs_root = unittest.skipUnless(os.geteuid() == 0, "needs root")


def install(*arguments, before=(), environment=None) -> subprocess.CompletedProcess:
    return subprocess.run([*before, "sh", SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False,
                          env=environment)


def can_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode == 0


class Installer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)
        self.plugin = self.folder / "lib"
        # Another build of the plugin: the same code with more behind it.
        self.other = self.folder / "other.so"
        self.other.write_bytes(PLUGIN.read_bytes() + b"another build" * 4096)

    def installed(self) -> bytes:
        return (self.plugin / NAME).read_bytes()

    def assert_done(self, done):
        self.assertEqual(0, done.returncode, done.stderr)

    def assert_refused(self, done, words):
        self.assertEqual(1, done.returncode, done.stdout)
        self.assertRegex(done.stderr, words)

    def names(self):
        return sorted(os.listdir(self.plugin))

    def test_copies_the_plugin_and_nothing_else(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        self.assertEqual(PLUGIN.read_bytes(), self.installed())
        self.assertEqual([NAME], self.names())
        self.assertEqual(0o755, stat.S_IMODE((self.plugin / NAME).stat().st_mode))
        self.assertEqual(0o755, stat.S_IMODE(self.plugin.stat().st_mode))

    def test_leaves_alone_what_is_the_same(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        before = (self.plugin / NAME).stat().st_ino
        done = install(f"--plugin={self.plugin}", f"--from={PLUGIN}")
        self.assert_done(done)
        self.assertIn("up to date", done.stdout)
        self.assertEqual(before, (self.plugin / NAME).stat().st_ino)

    def test_readers_meet_a_whole_file_old_or_new(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        whole = {PLUGIN.read_bytes(), self.other.read_bytes()}
        stop, wrong, reads = threading.Event(), [], itertools.count()

        def read():
            while not stop.is_set():
                next(reads)
                if self.installed() not in whole:
                    wrong.append("torn")
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for source in (self.other, PLUGIN) * 5:
                self.assert_done(install("--plugin", self.plugin, "--from", source))
        finally:
            stop.set()
            reader.join()
        self.assertEqual([], wrong)
        self.assertGreater(next(reads), 10)

    def test_a_process_that_has_loaded_the_old_one_goes_on(self):
        """A copy over the file in place would change or cut what is mapped; symbols would then read garbage, or SIGBUS."""
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        program = (
            "import ctypes, sys\n"
            "library = ctypes.CDLL(sys.argv[1])\n"
            "name = lambda: ctypes.cast(ctypes.c_void_p.in_dll(library, 'ncclProfiler_v4'), ctypes.c_char_p).value\n"
            "print(name(), flush=True)\n"
            "sys.stdin.readline()\n"
            "maps = open('/proc/self/maps').read()\n"
            "start, end = next(l.split()[0].split('-') for l in maps.splitlines() if l.endswith('.so (deleted)') and ' r-xp ' in l)\n"
            "ctypes.string_at(int(start, 16), int(end, 16) - int(start, 16))\n"
            "print(name(), flush=True)\n")
        job = subprocess.Popen([sys.executable, "-c", program, self.plugin / NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            before = job.stdout.readline()
            self.assert_done(install("--plugin", self.plugin, "--from", self.other))
            after, _ = job.communicate("go\n", timeout=60)
        finally:
            job.kill()
            job.wait()
        self.assertEqual((0, before), (job.returncode, after))
        self.assertIn("ncclscope", before)
        self.assertEqual(self.other.read_bytes(), self.installed())
        ctypes.CDLL(str(self.plugin / NAME))  # and a new process loads the new one

    def test_a_kill_at_any_time_leaves_a_whole_plugin(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        whole = {PLUGIN.read_bytes(), self.other.read_bytes()}
        # Stops it before each of the steps that touch the file; a stop signal of our own marks them.
        for step in ("cp", "chmod", "sync", "cmp", "mv"):
            fake = self.folder / f"bin-{step}"
            fake.mkdir()
            (fake / step).write_text(f"#!/bin/sh\ncase \"$*\" in *.{NAME}.*) kill -KILL $PPID; exit 1 ;; esac\nexec /bin/{step} \"$@\"\n")
            (fake / step).chmod(0o755)
            done = install("--plugin", self.plugin, "--from", self.other, environment={"PATH": f"{fake}:/usr/bin:/bin"})
            self.assertEqual(-signal.SIGKILL, done.returncode, f"{step}: {done.stderr}")
            self.assertIn(self.installed(), whole, step)
            self.assertEqual(PLUGIN.read_bytes(), self.installed(), step)
        self.assert_done(install("--plugin", self.plugin, "--from", self.other))
        self.assertEqual(self.other.read_bytes(), self.installed())

    def test_what_a_killed_one_left_goes_away_later(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        left = self.plugin / f".{NAME}.4711"
        left.write_bytes(b"half")
        os.utime(left, (1, 1))
        fresh = self.plugin / f".{NAME}.4712"
        fresh.write_bytes(b"another installer is at it")
        self.assert_done(install("--plugin", self.plugin, "--from", self.other))
        self.assertEqual([fresh.name, NAME], self.names())

    @needs_root
    def test_a_full_file_system_keeps_the_old_plugin(self):
        if not can_mount():
            self.skipTest("cannot mount here")
        self.plugin.mkdir()
        big = self.folder / "big.so"
        big.write_bytes(PLUGIN.read_bytes() + bytes(4 << 20))
        script = (f"mount -t tmpfs -o size=1m,mode=755 none {self.plugin} && sh {SCRIPT} --plugin {self.plugin} --from {PLUGIN} && "
                  f"sh {SCRIPT} --plugin {self.plugin} --from {big}; code=$?; cmp {PLUGIN} {self.plugin}/{NAME} && "
                  f"ls -A {self.plugin} && exit $code")
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        self.assert_refused(done, r"cannot copy the plugin to .*\(is it full\?\)")
        self.assertEqual(NAME, done.stdout.splitlines()[-1])

    @needs_root
    def test_a_file_system_mounted_noexec_is_named(self):
        if not can_mount():
            self.skipTest("cannot mount here")
        self.plugin.mkdir()
        script = f"mount -t tmpfs -o noexec,mode=755 none {self.plugin} && exec sh {SCRIPT} --plugin {self.plugin} --from {PLUGIN}"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        self.assert_refused(done, "noexec")

    @needs_root
    def test_a_directory_that_others_can_write_to_is_refused(self):
        self.plugin.mkdir()
        self.plugin.chmod(0o775)
        self.assert_refused(install("--plugin", self.plugin, "--from", PLUGIN), "written by others")
        self.plugin.chmod(0o755)
        os.chown(self.plugin, 12345, 12345)
        self.assert_refused(install("--plugin", self.plugin, "--from", PLUGIN), "belongs to uid 12345")

    def test_what_is_no_plugin_is_refused(self):
        self.assert_refused(install("--plugin", self.plugin, "--from", self.folder / "none.so"), "no plugin at")
        text = self.folder / "text.so"
        text.write_text("404 not found\n")
        self.assert_refused(install("--plugin", self.plugin, "--from", text), "no ELF file")
        cut = self.folder / "empty.so"
        cut.write_bytes(b"")
        self.assert_refused(install("--plugin", self.plugin, "--from", cut), "no ELF file")

    def test_wrong_options_are_named(self):
        self.assert_refused(install(), "nothing to do")
        self.assert_refused(install("--plugins", "x"), "--plugins")
        self.assert_refused(install("--plugin"), "wants a value")
        for owner in ("", "agent", "1:2:3", "1:", ":1", "-1:1"):
            self.assert_refused(install("--sockets", self.folder / "s", "--owner", owner), "not UID:GID in numbers")

    @needs_root
    def test_the_socket_directory_is_the_agents_and_nobody_elses_to_write(self):
        sockets = self.folder / "sockets"
        for _ in range(2):
            self.assert_done(install("--sockets", sockets, "--owner", "19464:19464"))
            about = sockets.stat()
            self.assertEqual((19464, 19464, 0o755), (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)))
        sockets.chmod(0o777)
        self.assert_done(install("--sockets", sockets, "--owner", "20001:20002"))
        about = sockets.stat()
        self.assertEqual((20001, 20002, 0o755), (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)))

    @needs_root
    def test_a_volume_of_everybody_becomes_the_agents(self):
        """As Kubernetes makes an emptyDir: mode 2777, and the group of fsGroup."""
        api = self.folder / "api"
        api.mkdir()
        os.chown(api, 0, 19464)
        api.chmod(0o2777)
        self.assert_done(install("--api", api, "--owner", "19464:19464"))
        about = api.stat()
        self.assertEqual((19464, 19464, 0o755), (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)))

    @needs_root
    def test_the_archive_directory_is_for_the_agent_and_its_group(self):
        self.assert_done(install("--archive", self.folder / "kept", "--owner", "19464:19464"))
        about = (self.folder / "kept").stat()
        self.assertEqual((19464, 19464, 0o750), (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)))

    @needs_root
    def test_a_link_is_not_followed(self):
        (self.folder / "link").symlink_to("/etc")
        self.assert_refused(install("--sockets", self.folder / "link", "--owner", "19464:19464"), "symbolic link")

    @needs_root
    def test_root_with_the_right_to_give_files_away_is_enough(self):
        """As the chart runs it: all capabilities dropped but CHOWN."""
        if shutil.which("setpriv") is None:
            self.skipTest("no setpriv")
        only = ("setpriv", "--inh-caps=-all,+chown", "--bounding-set=-all,+chown", "--no-new-privs")
        sockets = self.folder / "sockets"
        arguments = ("--sockets", sockets, "--owner", "19464:19464", "--archive", self.folder / "kept", "--plugin", self.plugin,
                     "--api", self.folder / "api")
        (self.folder / "api").mkdir()
        os.chown(self.folder / "api", 0, 19464)
        (self.folder / "api").chmod(0o2777)
        for source in (PLUGIN, self.other):
            self.assert_done(install(*arguments, "--from", source, before=only))
        sockets.chmod(0o700)  # wrong mode, and not root's any more
        self.assert_done(install(*arguments, "--from", PLUGIN, before=only))
        for folder in (sockets, self.folder / "api"):
            self.assertEqual((19464, 0o755), (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)))
        without = ("setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")
        self.assert_refused(install("--sockets", self.folder / "more", "--owner", "19464:19464", before=without), "CAP_CHOWN")

    def test_removes_the_plugin(self):
        self.assert_done(install("--plugin", self.plugin, "--from", PLUGIN))
        self.assert_done(install("--remove", self.plugin))
        self.assertEqual([], self.names())
        self.assert_done(install("--remove", self.plugin))


def main():
    global PLUGIN  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    PLUGIN = options.plugin.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
