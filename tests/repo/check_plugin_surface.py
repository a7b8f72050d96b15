#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the plugin's shared object shows to the process that loads it.

  check_plugin_surface.py FILE    needs nm, readelf and strip (binutils)

A library that exports more than its tables, or that brings a second libstdc++ or static TLS, can crash or fail to
load in a training process; these are the properties that prevent it.
"""
import os
import re
import subprocess
import sys
import tempfile

EXPORTS = {f"ncclProfiler_v{n}" for n in range(1, 8)}
NEEDED = re.compile(r"^(libc\.so\.6|libm\.so\.6|ld-linux-x86-64\.so\.2|ld-linux-aarch64\.so\.1)$")
MAX_STRIPPED_BYTES = 150 * 1024
MAX_GLIBC = (2, 34)  # RHEL 9 and Ubuntu 22.04 have 2.34 and 2.35


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    library = sys.argv[1]
    errors = []

    defined = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    if defined != EXPORTS:
        errors.append(f"exports: too many {sorted(defined - EXPORTS)}, missing {sorted(EXPORTS - defined)}")
    types = {line.split()[-1]: line.split()[-2] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    code = [name for name, kind in types.items() if kind in "TtWw"]
    if code:
        errors.append(f"exports: NCCL looks for data symbols, but these are functions: {code}")

    symbols = run("readelf", "--wide", "--syms", library)
    unique = re.findall(r"\sUNIQUE\s.*\s(\S+)$", symbols, re.MULTILINE)
    if unique:
        errors.append(f"GNU_UNIQUE symbols ignore RTLD_LOCAL; build with -fno-gnu-unique: {unique[:5]}")

    dynamic = run("readelf", "--wide", "-d", library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    strangers = [name for name in needed if not NEEDED.match(name)]
    if strangers:
        errors.append(f"needs {strangers}; only libc, libm and the loader are allowed")
    if "STATIC_TLS" in dynamic:
        errors.append("DF_STATIC_TLS: dlopen can fail in a process that has used up its static TLS")
    if not re.search(r"\(FLAGS_1\).*\bNODELETE\b", dynamic):
        errors.append("no NODELETE: NCCL's dlclose would unmap the code under the sender thread (-Wl,-z,nodelete)")
    if not re.search(r"\((FLAGS|FLAGS_1)\).*\b(BIND_)?NOW\b", dynamic):
        errors.append("no BIND_NOW: a missing symbol would be found in the middle of a job (-Wl,-z,now)")
    if re.search(r"\(TEXTREL\)", dynamic):
        errors.append("text relocations")
    if "GNU_STACK" in (segments := run("readelf", "--wide", "-l", library)) and re.search(r"GNU_STACK.*RWE", segments):
        errors.append("executable stack")
    tls = re.search(r"^\s+TLS\s", segments, re.MULTILINE)
    if tls:
        errors.append("a TLS segment: the hot path must not use thread_local, and the C++ runtime's must not be linked in")

    undefined = run("nm", "-D", "--undefined-only", library)
    names = [line.split()[-1] for line in undefined.splitlines()]
    foreign = [n for n in names if "@" not in n and not line_is_weak(undefined, n)]
    if foreign:
        errors.append(f"undefined symbols without a version (from no library it needs): {foreign[:8]}")
    versions = sorted({tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([0-9.]+)", undefined)})
    other = [n for n in names if "@" in n and "@GLIBC_" not in n]
    if other:
        errors.append(f"symbols of other libraries: {other[:8]}")
    newest = versions[-1] if versions else (0,)
    if newest > MAX_GLIBC:
        late = [n for n in names if "@GLIBC_" in n and tuple(map(int, n.split("GLIBC_")[1].split("."))) > MAX_GLIBC]
        errors.append(f"needs GLIBC {newest} through {late[:5]}; at most {MAX_GLIBC} is allowed")

    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped.so")
        run("strip", "--strip-all", "-o", stripped, library)
        size = os.path.getsize(stripped)
    if size > MAX_STRIPPED_BYTES:
        errors.append(f"stripped size {size} bytes; at most {MAX_STRIPPED_BYTES}")

    print(f"exports {len(defined)}, needed {needed}, stripped {size} bytes, "
          f"newest GLIBC {'.'.join(map(str, newest))}, {len(names)} imports")
    for error in errors:
        print(f"{library}: {error}")
    return 1 if errors else 0


def line_is_weak(listing: str, name: str) -> bool:
    return any(line.split()[-1] == name and line.split()[-2] in ("w", "v") for line in listing.splitlines())


if __name__ == "__main__":
    sys.exit(main())
