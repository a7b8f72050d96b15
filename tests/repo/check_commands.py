#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation tells people to type.

  check_commands.py NCCLSCOPE AGENT   checks the repository with the built programs
  check_commands.py --selftest        proves that the checks can fail

Every command in a fenced block of README, docs/ and deploy/ is
  - of ncclscope or its agent: called as it stands there, without agent and network; it may fail for want of them, but not
    because it does not know an argument (exit code 2);
  - a script of the repository: there, executable, and told by its own head of the options given;
  - a question to Prometheus: an expression that promtool can parse, of metrics that exist (check_rules.py knows which);
  - another program's: in ELSEWHERE, which says what test runs it, or what it needs that no test has.
Blocks that are no commands (output, configuration, expressions alone) are told by their first word.
"""
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import check_rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^\s*```(\w*)\s*$")
SHELL = {"", "sh", "bash", "console"}
OURS = ("ncclscope", "ncclscope-agent")
SECONDS = 5  # then a command has taken its arguments and waits for something
# Placeholders of the pages, and what a program may complain of where nothing is installed and no file is there.
PLACEHOLDERS = {"JOB": "4711", "NODE": "node1", "PID": "1"}
WANTING = re.compile(r"cannot be (opened|read|run)|cannot read|No such file|does not exist|was not found|"
                     r"Could not resolve|squeue: error|squeue.* failed")

# Programs of others: the tests that run what the page says, or a need. "test:" is checked against the registered tests.
ELSEWHERE = {
    "buildah": "test:containers_images",
    "cat": "test:agent_security_document",
    "cd": "shell",
    "cmake": "test:systemd_packages",
    "cp": "shell",
    "cpack": "test:systemd_packages",
    "cut": "test:agent_security_document",
    "curl": "test:systemd_packages",
    "dpkg": "test:systemd_packages",
    "export": "shell",
    "git": "needs a clone of the repository",
    "grep": "shell",
    "head": "shell",
    "helm": "test:helm",
    "journalctl": "test:systemd_packages",
    "kubectl": "needs a Kubernetes cluster",
    "nvidia-smi": "needs an NVIDIA driver",
    "openssl": "test:agent_security_document",
    "printf": "test:agent_security_document",
    "py-spy": "needs a hanging Python process",
    "rm": "shell",
    "sbatch": "test:slurm_spank",
    "scontrol": "needs a SLURM cluster",
    "sh": "test:slurm_spank",
    "sha256sum": "test:agent_security_document",
    "srun": "test:slurm_spank",
    "systemctl": "test:systemd_packages",
    "tail": "shell",
    "tr": "shell",
}


def pages():
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder in ("docs", "deploy", "dashboards", "plugin", "tests"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def blocks(text):
    """(first line's number, language, lines) of every fenced block."""
    begin = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and begin is None:
            begin, language, lines = number + 1, fence.group(1), []
        elif fence:
            yield begin, language, lines
            begin = None
        elif begin is not None:
            lines.append(line)


def words_of(line):
    """Words of a shell line; comments are left out, operators are words of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def simple_commands(line):
    """Lists of words, one for each command of the line: what stands between ; && || | and brackets. What $(…) runs is a word."""
    line = re.sub(r"\$\([^()]*\)", "OUTPUT", line)
    command = []
    for word in words_of(line):
        if set(word) <= set(";&|()"):
            if command:
                yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def without_surroundings(command):
    """Without assignments in front, and without redirections."""
    kept, skip = [], False
    for word in command:
        if skip:
            skip = False
        elif set(word) <= set("<>") and word:
            skip = True
        elif kept or not re.match(r"\w+=", word):
            kept.append(word)
    return kept


def is_command(word):
    name = word.rsplit("/", 1)[-1]
    return name in OURS or name in ELSEWHERE or name == "promtool" or re.match(r"(scripts|tests|build|dashboards)/\S+$", word)


def commands(text):
    """(line, words) of all commands of a page; and (line, None) for a shell block that has a word nobody knows."""
    for begin, language, lines in blocks(text):
        if language not in SHELL:
            continue
        number, line, here = begin, "", None
        prompt = any(piece.lstrip().startswith("$ ") for piece in lines)
        for offset, piece in enumerate(lines):
            if here is not None:
                here = None if piece.strip() == here else here
                continue
            if not line:
                number = begin + offset
            if prompt:
                if not piece.lstrip().startswith("$ "):
                    continue  # what the command printed
                piece = piece.lstrip()[2:]
            if piece.rstrip().endswith("\\"):
                line += piece.rstrip()[:-1] + " "
                continue
            line, whole = "", line + piece
            document = re.search(r"<<-?\s*['\"]?(\w+)", whole)
            if document:
                here, whole = document.group(1), whole[:document.start()]
            try:
                found = [c for c in map(without_surroundings, simple_commands(whole)) if c]
            except ValueError:
                break  # quotes do not match: prose or output
            if not found:
                continue
            if not is_command(found[0][0]):
                if language in ("sh", "bash", "console"):
                    yield number, None, found[0][0]
                    continue
                break  # output, an expression, a file
            for command in found:
                if is_command(command[0]):
                    yield number, command, None
                elif command[0] not in ("\\", "{", "}"):
                    yield number, None, command[0]


def check_script(command):
    path = ROOT / command[0]
    if command[0].startswith("build/"):
        return None  # built; its own tests call it
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{command[0]} is not there, or not executable"
    text = path.read_text()
    missing = [w for w in command[1:] if w.startswith("--") and w.split("=")[0] not in text]
    return f"{command[0]} does not know {', '.join(missing)}" if missing else None


class Programs:
    def __init__(self, program, agent):
        self.paths = {"ncclscope": program, "ncclscope-agent": agent}
        self.alone = ["unshare", "--net"] if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0 else []

    def check(self, command):
        name = command[0].rsplit("/", 1)[-1]
        arguments = [PLACEHOLDERS.get(a, re.sub(r"\.\.\.$|…", "", a)) for a in command[1:]]
        with tempfile.TemporaryDirectory() as folder:
            if name == "ncclscope-agent":  # its settings are asked for, not a second agent
                empty = pathlib.Path(folder, "agent.toml")
                empty.write_text("")
                arguments = [str(empty) if a.endswith(".toml") else a for a in arguments] + ["--print-config"]
            call = [*self.alone, "timeout", str(SECONDS), self.paths[name], *arguments]
            done = subprocess.run(call, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  env={"PATH": os.environ["PATH"], "HOME": folder, "TERM": "dumb", "USER": "ada"})
            told = done.stderr + done.stdout
            if done.returncode < 0 or (done.returncode == 2 and not WANTING.search(told)):
                return f"`{shlex.join(command)}` ends with {done.returncode}: {told.strip().splitlines()[:1]}"
        return None


def check_expressions(expressions):
    """[(where, expression)] -> findings."""
    known = check_rules.catalogue() | check_rules.FOREIGN | {
        rule["record"] for rule in check_rules.rules_of(check_rules.FOLDER / "recording.yml")}
    for where, expression in expressions:
        for name in sorted(check_rules.series_in(expression) - known):
            yield f"{where}: {name} is neither in docs/metrics.md nor recorded"
    if not shutil.which("promtool"):
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, (where, expression) in enumerate(expressions):
            quoted = expression.replace("'", "''")
            rules = pathlib.Path(folder, f"{number}.yml")
            rules.write_text(f"groups: [{{name: a, rules: [{{record: a, expr: '{quoted}'}}]}}]\n")
        files = sorted(pathlib.Path(folder).iterdir(), key=lambda p: int(p.stem))
        done = subprocess.run(["promtool", "check", "rules", *map(str, files)], capture_output=True, text=True)
        if done.returncode != 0:
            for number, (where, expression) in enumerate(expressions):
                one = subprocess.run(["promtool", "check", "rules", str(files[number])], capture_output=True, text=True)
                if one.returncode != 0:
                    yield f"{where}: no expression: {expression}"


def registered_tests():
    names = set()
    for path in (ROOT / "tests").rglob("*.cmake"):
        text = path.read_text()
        names |= set(re.findall(r"NAME\s+(\w+)", text)) | set(re.findall(r"ncclscope_\w+\(\s*(\w+)", text))
    return names


def elsewhere_findings(used, tests):
    for name in sorted(used):
        what = ELSEWHERE[name]
        if what.startswith("test:") and not any(t == what[5:] or t.startswith(what[5:] + "_") for t in tests):
            yield f"{name}: ELSEWHERE names the test {what[5:]}, which there is not"


def findings(texts, programs, tests):
    """texts: {name of a page: its text}"""
    expressions, calls, used = [], [], set()
    for page, text in texts.items():
        for number, command, unknown in commands(text):
            where = f"{page}:{number}"
            if command is None:
                yield f"{where}: no test is known to run '{unknown}' (see ELSEWHERE)"
                continue
            name = command[0].rsplit("/", 1)[-1]
            if name in OURS:
                calls.append((where, command))
            elif name == "promtool":
                if command[1:3] == ["query", "instant"]:
                    expressions.append((where, command[-1]))
            elif name in ELSEWHERE and "/" not in command[0]:
                used.add(name)
            else:
                problem = check_script(command)
                if problem:
                    yield f"{where}: {problem}"
    yield from check_expressions(expressions)
    yield from elsewhere_findings(used, tests)
    if programs is not None:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (where, _), problem in zip(calls, pool.map(lambda c: programs.check(c[1]), calls)):
                if problem:
                    yield f"{where}: {problem}"
        print(f"{len(calls)} calls of our programs, {len(expressions)} expressions, {len(used)} other programs")


def selftest():
    class Refusing:
        def check(self, command):
            return "refused" if "--no-such-option" in command else None
    good = {"a.md": "```\nncclscope top --once   # a comment\n```\n```sh\nscripts/try.sh --for 60s\n```\n"
                    "```\n$ ncclscope top\nJOB x\n```\n```\nsum(a)\n```\n"}
    tests = registered_tests()
    assert list(findings(good, Refusing(), tests)) == [], list(findings(good, Refusing(), tests))
    for bad in ("```\nncclscope top --no-such-option\n```", "```sh\nscripts/no-such-script.sh\n```",
                "```sh\nscripts/try.sh --no-such-option\n```", "```sh\nno-such-program\n```",
                "```\npromtool query instant http://p:9090 'sum(('\n```",
                "```\npromtool query instant http://p:9090 'ncclscope_no_such_metric'\n```",
                "```\n(cd x && ncclscope top --no-such-option) | head\n```",
                "```\nA=b ncclscope top \\\n  --no-such-option > file\n```"):
        if "((" in bad and not shutil.which("promtool"):
            continue
        assert list(findings({"a.md": bad}, Refusing(), tests)), bad
    assert list(elsewhere_findings({"helm"}, {"other"}))
    print("selftest: every kind of fault is found")


def main():
    if sys.argv[1:] == ["--selftest"]:
        selftest()
        return 0
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in pages()}
    found = list(findings(texts, Programs(*map(os.path.abspath, sys.argv[1:])), registered_tests()))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
