#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The chart deploy/helm/ncclscope with the real helm, 4 and 3, and no cluster: lint, rendering against golden files, manifests
against Kubernetes' types, refusals of the schema, and that rules, dashboards, README and documents say the same as their sources.

  chart.py [--agent PROGRAM]   runs the tests; with the agent's program rendered settings are checked by it too
  chart.py --renew             writes golden/*.yaml and the table in the chart's README from values.yaml

scripts/fetch-helm.sh brings helm and the types; without them everything is skipped (exit 77).
"""
import argparse
import copy
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
CHART = ROOT / "deploy/helm/ncclscope"
README = CHART / "README.md"
GUIDE = ROOT / "docs/install-kubernetes.md"
GOLDEN = HERE / "golden"
CASES = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml"))
HELMS = ("helm4", "helm3")
AGENT = None
PACKAGES = {"monitoring.coreos.com": "@kubernetes-models/prometheus-operator", "kyverno.io": "@kubernetes-models/kyverno"}


def tools() -> pathlib.Path:
    """Where scripts/fetch-helm.sh puts things; it may be absent."""
    sources = (HERE / "tools/package-lock.json", HERE / "tools/validate.mjs", ROOT / "scripts/fetch-helm.sh")
    contents = b"".join(path.read_bytes() for path in sources)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "ncclscope" / ("helm-" + hashlib.sha256(contents).hexdigest()[:12])


TOOLS = tools()


def helm(version: str, *arguments, check=True) -> subprocess.CompletedProcess:
    """Runs helm without the user's settings."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home}
        done = subprocess.run([TOOLS / "bin" / version, *map(str, arguments)], env=environment, capture_output=True, text=True,
                              timeout=60, check=False)
    done.stderr = "\n".join(line for line in done.stderr.splitlines() if "symbolic link" not in line)
    if check and done.returncode != 0:
        raise AssertionError(f"{version} {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}\n{done.stdout}")
    return done


@functools.lru_cache(maxsize=None)
def render(version: str, case: str, chart: pathlib.Path = CHART) -> str:
    return helm(version, "template", "ncclscope", chart, "--namespace", "ncclscope-system",
                "--values", CHART / f"ci/{case}-values.yaml").stdout


def manifests(case: str):
    return [document for document in yaml.safe_load_all(render("helm4", case)) if document]


def of_kind(case: str, kind: str):
    return [document for document in manifests(case) if document["kind"] == kind]


def for_golden(text: str) -> str:
    """Rules and dashboards are compared with their sources elsewhere; golden files only say that they are there."""
    out = []
    for document in text.split("\n---\n"):
        if "\nkind: PrometheusRule\n" in document:
            document = re.sub(r"\nspec:\n.*", "\nspec: (as in deploy/prometheus)", document, flags=re.S)
        elif "-dashboard-" in document and "\nkind: ConfigMap\n" in document:
            document = re.sub(r"(\ndata:\n  \S+: \|).*", r"\1 (as in dashboards/grafana)", document, flags=re.S)
        out.append(document)
    return "\n---\n".join(out).rstrip("\n") + "\n"


def documented_values():
    """(name, default, text) of every value with a `# --` comment, and the names of leaves without one."""
    rows, undocumented, stack, comment = [], [], [], []
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def look_up(name):
        value = values
        for part in name.split("."):
            value = value[part]
        return value

    for line in (CHART / "values.yaml").read_text().splitlines():
        if match := re.match(r"\s*# -- (.*)", line):
            comment = [match.group(1)]
        elif (match := re.match(r"( *)([A-Za-z]+):(.*)", line)) and not (rows and is_below(rows[-1][0], match, stack)):
            depth = len(match.group(1)) // 2
            stack[depth:] = [match.group(2)]
            name = ".".join(stack)
            if comment:
                rows.append((name, json.dumps(look_up(name)), " ".join(comment)))
            elif match.group(3).strip():
                undocumented.append(name)
            comment = []
    return rows, undocumented


def is_below(documented: str, match: re.Match, stack) -> bool:
    """Whether this key is part of the default of the value documented last."""
    depth = len(match.group(1)) // 2
    return ".".join(stack[:depth]).startswith(documented) and depth > documented.count(".")


def table() -> str:
    rows, _ = documented_values()
    cell = lambda text: text.replace("|", "\\|")  # noqa: E731
    return "\n".join(["| value | default | meaning |", "|---|---|---|"] +
                     [f"| `{name}` | `{cell(default)}` | {cell(text)} |" for name, default, text in rows])


def with_table(text: str) -> str:
    return re.sub(r"(<!-- values -->\n).*?(\n<!-- end of values -->)", lambda m: m.group(1) + table() + m.group(2), text, flags=re.S)


def findings(documents) -> str:
    """What models and TypeScript have against manifests; empty if nothing."""
    done = subprocess.run(["node", TOOLS / "validate.mjs"], input=json.dumps(documents), capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    source = []
    for index, document in enumerate(documents):
        group, _, version = document["apiVersion"].rpartition("/")
        module = "/".join(filter(None, [PACKAGES.get(group, "kubernetes-models"), group, version]))
        interface = "I" + document["kind"]
        source.append(f"import type {{{interface} as T{index}}} from {json.dumps(module)};")
        source.append(f"export const d{index}: T{index} = {json.dumps(document)};")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "node_modules").symlink_to(TOOLS / "node_modules")
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "manifests.ts").write_text("\n".join(source) + "\n")
        types = subprocess.run(["node", TOOLS / "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--module",
                                "nodenext", "manifests.ts"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + types.stdout


def without_contents(document):
    """Dashboards are text to Kubernetes."""
    if document["kind"] == "ConfigMap":
        document = dict(document, data={key: value[:40] for key, value in document["data"].items()})
    return document


def yaml_blocks(path: pathlib.Path):
    for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(), flags=re.S | re.M):
        yield from (document for document in yaml.safe_load_all(block) if isinstance(document, dict) and "kind" in document)


class Chart(unittest.TestCase):
    maxDiff = None

    def test_passes_lint(self):
        for version in HELMS:
            for case in CASES:
                with self.subTest(version=version, case=case):
                    helm(version, "lint", "--strict", CHART, "--values", CHART / f"ci/{case}-values.yaml")

    def test_renders_what_the_golden_files_have(self):
        self.assertEqual(set(CASES), {path.stem for path in GOLDEN.iterdir()})
        for case in CASES:
            with self.subTest(case=case):
                self.assertEqual((GOLDEN / f"{case}.yaml").read_text(), for_golden(render("helm4", case)),
                                 "if the change is meant: tests/e2e/helm/chart.py --renew")

    def test_renders_the_same_with_both_helms(self):
        for case in CASES:
            with self.subTest(case=case):
                self.assertEqual(render("helm4", case), render("helm3", case))

    def test_manifests_are_as_kubernetes_has_them(self):
        documents = [without_contents(document) for case in CASES for document in manifests(case)]
        self.assertGreater(len(documents), 30)
        self.assertEqual("", findings(documents))

    def test_the_check_of_manifests_finds_mistakes(self):
        def changed(case, kind, change):
            document = copy.deepcopy(of_kind(case, kind)[0])
            change(document)
            return document

        def rename(at, old, new):
            at[new] = at.pop(old)

        pod = lambda document: document["spec"]["template"]["spec"]  # noqa: E731
        mistakes = {
            "hostPidd": changed("default", "DaemonSet", lambda d: rename(pod(d), "hostPID", "hostPidd")),
            "readOnlyRootFileSystem": changed("default", "DaemonSet", lambda d: rename(
                pod(d)["containers"][0]["securityContext"], "readOnlyRootFilesystem", "readOnlyRootFileSystem")),
            "containerPort": changed("default", "DaemonSet", lambda d: pod(d)["containers"][0]["ports"][0].update(containerPort="x")),
            "selector": changed("default", "DaemonSet", lambda d: d["spec"].pop("selector")),
            "sampleLimits": changed("monitoring", "PodMonitor", lambda d: rename(d["spec"], "sampleLimit", "sampleLimits")),
            "ingres": changed("monitoring", "NetworkPolicy", lambda d: rename(d["spec"], "ingress", "ingres")),
            "failurePolici": changed("admission-policy", "MutatingAdmissionPolicy",
                                     lambda d: rename(d["spec"], "failurePolicy", "failurePolici")),
            "patchStrategicMerg": changed("kyverno", "ClusterPolicy", lambda d: rename(
                d["spec"]["rules"][0]["mutate"]["foreach"][0], "patchStrategicMerge", "patchStrategicMerg")),
        }
        found = findings(list(mistakes.values()))
        for mistake in mistakes:
            self.assertIn(mistake, found)

    def test_the_agent_sees_processes_and_has_no_privilege(self):
        pod = of_kind("default", "DaemonSet")[0]["spec"]["template"]["spec"]
        self.assertIs(pod["hostPID"], True)
        self.assertNotIn("hostNetwork", pod)
        self.assertIs(pod["automountServiceAccountToken"], False)
        agent, = pod["containers"]
        self.assertEqual({"runAsNonRoot": True, "runAsUser": 19464, "runAsGroup": 19464, "fsGroup": 19464, "supplementalGroups": [0],
                          "seccompProfile": {"type": "RuntimeDefault"}}, pod["securityContext"])
        self.assertEqual({"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
                         agent["securityContext"])
        installer, = pod["initContainers"]
        self.assertEqual({"drop": ["ALL"], "add": ["CHOWN"]}, installer["securityContext"]["capabilities"])
        host = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
        mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
        self.assertEqual({"sockets", "plugin", "pod-logs"}, set(host))
        self.assertNotIn("plugin", mounts, "an agent that could write there could run code in every job")
        self.assertTrue(mounts["pod-logs"]["readOnly"])

    def test_administrators_socket_stays_in_the_agents_pod(self):
        """Root in a training pod is uid 0 to the agent: it must not reach api.sock."""
        settings = of_kind("default", "ConfigMap")[0]["data"]["agent.toml"]
        self.assertIn('api_socket = "/run/ncclscope-api/api.sock"', settings)
        volumes = {v["name"]: v for v in of_kind("default", "DaemonSet")[0]["spec"]["template"]["spec"]["volumes"]}
        self.assertIn("emptyDir", volumes["api-socket"])

    def test_selectors_hold_no_version(self):
        for case in CASES:
            selector = of_kind(case, "DaemonSet")[0]["spec"]["selector"]["matchLabels"]
            self.assertEqual({"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}, set(selector))

    def test_rules_are_those_of_deploy_prometheus(self):
        rules = of_kind("monitoring", "PrometheusRule")
        self.assertEqual(["ncclscope-recording", "ncclscope-alerts"], [rule["metadata"]["name"] for rule in rules])
        for rule, part in zip(rules, ("recording", "alerts")):
            self.assertEqual(yaml.safe_load((ROOT / f"deploy/prometheus/{part}.yml").read_text()), rule["spec"])

    def test_dashboards_are_those_of_dashboards_grafana(self):
        maps = [m for m in of_kind("monitoring", "ConfigMap") if "-dashboard-" in m["metadata"]["name"]]
        shown = {name.removeprefix("ncclscope-"): json.loads(text) for m in maps for name, text in m["data"].items()}
        sources = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards/grafana").glob("*.json")}
        self.assertEqual(sources, shown)
        for m in maps:
            self.assertLess(len(json.dumps(m)), 900_000, "a ConfigMap holds 1 MiB at most")

    def test_series_keep_their_names_through_upgrades_of_the_agent(self):
        for case, kind, field in (("monitoring", "PodMonitor", "podMetricsEndpoints"), ("tls", "ServiceMonitor", "endpoints")):
            endpoint, = of_kind(case, kind)[0]["spec"][field]
            relabelings = endpoint["relabelings"]
            self.assertIn({"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}, relabelings)
            dropped = next(r["regex"] for r in relabelings if r["action"] == "labeldrop").split("|")
            self.assertLessEqual({"pod", "namespace", "container"}, set(dropped))

    def test_tls_reaches_probes_and_monitors(self):
        agent, = of_kind("tls", "DaemonSet")[0]["spec"]["template"]["spec"]["containers"]
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertEqual("HTTPS", agent[probe]["httpGet"]["scheme"])
        self.assertEqual("https", of_kind("tls", "ServiceMonitor")[0]["spec"]["endpoints"][0]["scheme"])

    def test_wrong_values_are_refused_with_their_name(self):
        cases = [
            (["hostPid=true"], r"hostPid"),
            (["identity.hostPid=true"], r"identity.*hostPid"),
            (["identity.uid=0"], r"identity.uid.*1,?000"),
            (["metrics.port=80"], r"metrics.port.*1,?024"),
            (["metrics.port=high"], r"metrics.port.*(string|integer)"),
            (["metrics.address=::"], r"metrics.address"),
            (["image.agentDigest=latest"], r"image.agentDigest"),
            (["image.registry=https://x y"], r"image.registry"),
            (["paths.plugin=var/lib"], r"paths.plugin.*pattern"),
            (["podMonitor.interval=15"], r"podMonitor.interval"),
            (["podMonitor.sampleLimit=0"], r"podMonitor.sampleLimit"),
            (["nodeSelector.gpu=true"], r"nodeSelector.gpu.*(boolean|string)"),
            (["updateStrategy.type=Recreate"], r"updateStrategy.type"),
            (["injection.containers=some"], r"injection.containers"),
            (["injection.namespaceLabels=null"], r"injection.*namespaceLabels"),
            (["config.Log-Level=debug"], r"Log-Level"),
            (["config.listen=:1"], r"config.listen is set by metrics.address and metrics.port"),
            (["api.enabled=true"], r"api.enabled needs api.secretName"),
            (["podMonitor.enabled=true", "serviceMonitor.enabled=true"], r"scraped twice"),
            (["injection.kyverno.enabled=true", "injection.mutatingAdmissionPolicy.enabled=true"], r"one of them is enough"),
        ]
        for sets, message in cases:
            for version in HELMS:
                with self.subTest(sets=sets, version=version):
                    done = helm(version, "template", CHART, *[a for s in sets for a in ("--set", s)], check=False)
                    self.assertNotEqual(0, done.returncode)
                    self.assertRegex(done.stderr.replace("/", "."), message)

    def test_every_value_is_in_the_readme_and_the_schema(self):
        _, undocumented = documented_values()
        self.assertEqual([], undocumented, "values.yaml: say with `# --` what these are")
        self.assertEqual(README.read_text(), with_table(README.read_text()), "tests/e2e/helm/chart.py --renew")
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = yaml.safe_load((CHART / "values.yaml").read_text())

        def compare(values, schema, name):
            if "properties" not in schema:
                return
            self.assertIs(schema["additionalProperties"], False, name)
            self.assertEqual(set(values), set(schema["properties"]) - {"global"}, name)
            for key, value in values.items():
                if isinstance(value, dict) and schema["properties"][key].get("additionalProperties") is False and \
                        not name.startswith(".probes") and key not in ("updateStrategy",):
                    compare(value, schema["properties"][key], f"{name}.{key}")
        compare(values, schema, "")

    def test_the_packaged_chart_is_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            for version in HELMS:
                helm(version, "package", CHART, "--destination", folder)
                package, = pathlib.Path(folder).glob("*.tgz")
                self.assertEqual(render(version, "monitoring"), render(version, "monitoring", package))
                render.cache_clear()
                package.unlink()

    def test_notes_say_what_to_do_next(self):
        done = helm("helm4", "install", "ncclscope", CHART, "--dry-run=client", "--namespace", "ncclscope-system")
        notes = done.stdout.split("NOTES:", 1)[1]
        self.assertIn("kubectl -n ncclscope-system rollout status daemonset/ncclscope", notes)
        self.assertIn("image.registry is empty", notes)
        self.assertIn("Nothing is injected", notes)
        self.assertIn("Nothing scrapes yet", notes)

    def test_the_agent_accepts_its_settings(self):
        if AGENT is None:
            self.skipTest("no --agent")
        for case in CASES:
            with self.subTest(case=case), tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
                settings.write(next(m for m in of_kind(case, "ConfigMap") if "agent.toml" in m["data"])["data"]["agent.toml"])
                settings.flush()
                done = subprocess.run([AGENT, "--config", settings.name, "--check-config"], capture_output=True, text=True, timeout=30,
                                      check=False)
                self.assertEqual((0, "the settings are good\n"), (done.returncode, done.stdout), done.stderr)


class Guide(unittest.TestCase):
    """What docs/install-kubernetes.md tells people to type."""

    def test_its_helm_commands_work(self):
        """install and upgrade as template: they need a cluster."""
        text = GUIDE.read_text()
        values = re.search(r"^ *```yaml\n( *# my-values.yaml\n.*?)^ *```", text, flags=re.S | re.M).group(1)
        commands = [line.strip().split() for line in text.splitlines() if re.match(r" *helm (install|upgrade|lint|template|package)", line)]
        self.assertGreater(len(commands), 4)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "my-values.yaml").write_text(textwrap.dedent(values))
            for _, action, *rest in commands:
                arguments = [str(ROOT / a) if a == "deploy/helm/ncclscope" else a.replace("my-values.yaml", f"{folder}/my-values.yaml")
                             for a in rest]
                for version in HELMS:
                    with self.subTest(version=version, command=" ".join([action, *rest])):
                        helm(version, action if action == "lint" else "template", *arguments)

    def test_its_values_are_values(self):
        """Every `a.b.c` in backquotes whose first part is a value of the chart."""
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        named = {name for name in re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z_]+)+)", GUIDE.read_text()) if name.split(".")[0] in values and not name.endswith(".sock")}
        self.assertGreater(len(named), 10)
        for name in sorted(named):
            with self.subTest(name=name):
                at = values
                for part in name.split("."):
                    if at == {}:
                        break
                    self.assertIn(part, at)
                    at = at[part]


def pod_of(*containers, labels=None, volumes=None):
    pod = {"metadata": {"name": "p"}, "spec": {"containers": list(containers)}}
    if labels:
        pod["metadata"]["labels"] = labels
    if volumes:
        pod["spec"]["volumes"] = volumes
    return pod


GPU = {"resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "8"}}}
# What is created, which of its containers get the plugin, and the job's name.
PODS = [
    ("a job's pod", pod_of({"name": "a", **GPU}, labels={"job-name": "j", "batch.kubernetes.io/job-name": "j"}), ["a"], ["j"]),
    ("a JobSet's pod", pod_of({"name": "a", **GPU}, labels={"job-name": "set-worker-0", "jobset.sigs.k8s.io/jobset-name": "set"}), ["a"],
     ["set"]),
    ("a Kubeflow pod", pod_of({"name": "pytorch", **GPU}, labels={"training.kubeflow.org/job-name": "bert"}), ["pytorch"], ["bert"]),
    ("other labels", pod_of({"name": "a", **GPU}, labels={"app": "x"}), ["a"], []),
    ("no labels", pod_of({"name": "a", **GPU}), ["a"], []),
    ("a sidecar without GPU", pod_of({"name": "a", **GPU}, {"name": "log"}), ["a"], []),
    ("a slice of a GPU", pod_of({"name": "a", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}), ["a"], []),
    ("a claim", pod_of({"name": "a", "resources": {"claims": [{"name": "gpu"}]}}), ["a"], []),
    ("no GPU", pod_of({"name": "a", "resources": {"limits": {"cpu": "1"}}}), [], []),
    ("no resources", pod_of({"name": "a"}), [], []),
    ("other variables", pod_of({"name": "a", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}], **GPU}), ["a"], []),
    ("a profiler of the user", pod_of({"name": "a", "env": [{"name": "NCCL_PROFILER_PLUGIN", "value": "inspector"}], **GPU}), [], []),
    ("variables that cannot be seen", pod_of({"name": "a", "envFrom": [{"configMapRef": {"name": "nccl"}}], **GPU}), [], []),
    ("one of each", pod_of({"name": "a", "env": [{"name": "NCCL_PROFILER_PLUGIN", "value": "none"}], **GPU}, {"name": "b", **GPU}), ["b"], []),
    ("done by hand", pod_of({"name": "a", **GPU}, volumes=[{"name": "ncclscope-sockets", "hostPath": {"path": "/x"}}]), [], []),
]


class Injection(unittest.TestCase):
    """What both policies and the guide put into a pod is the same. That a cluster does what they say is for a cluster to show."""

    def by_hand(self):
        return next(d for d in yaml_blocks(GUIDE) if d["kind"] == "Pod")["spec"]

    def test_kyverno_adds_what_the_guide_shows(self):
        pod = self.by_hand()
        rule, = of_kind("kyverno", "ClusterPolicy")[0]["spec"]["rules"]
        parts = [each["patchStrategicMerge"]["spec"] for each in rule["mutate"]["foreach"]]
        self.assertEqual(pod["volumes"], parts[-1]["volumes"])
        self.assertEqual(pod["containers"][0]["volumeMounts"], parts[-1]["containers"][0]["volumeMounts"])
        added = {env["name"]: env["value"] for part in parts for env in part["containers"][0]["env"]}
        self.assertEqual("{{ jobName }}", added.pop("NCCLSCOPE_JOB_NAME"))
        for env in pod["containers"][0]["env"]:
            if env["name"] in added:
                self.assertEqual(env["value"], added[env["name"]])

    def test_the_admission_policy_adds_what_the_guide_shows(self):
        pod = self.by_hand()
        policy, = of_kind("admission-policy", "MutatingAdmissionPolicy")
        mutation, = policy["spec"]["mutations"]
        expression = mutation["applyConfiguration"]["expression"]
        for volume in pod["volumes"]:
            self.assertIn(f'Object.spec.volumes{{name: "{volume["name"]}"', expression)
        for mount in pod["containers"][0]["volumeMounts"]:
            self.assertIn(f'volumeMounts{{name: "{mount["name"]}", mountPath: "{mount["mountPath"]}", readOnly: true}}', expression)
        plugin = next(e for e in pod["containers"][0]["env"] if e["name"] == "NCCL_PROFILER_PLUGIN")["value"]
        self.assertIn(f'name: "NCCL_PROFILER_PLUGIN", value: "{plugin}"', expression)
        for pairs in ("()", "{}", "[]"):
            self.assertEqual(expression.count(pairs[0]), expression.count(pairs[1]))

    def test_the_admission_policy_picks_containers_and_names(self):
        """Its conditions and variables, by an evaluator of CEL; it cannot make the objects of the mutation, but parses it."""
        sys.path.append(str(TOOLS / "python"))
        import celpy  # pylint: disable=import-outside-toplevel
        environment = celpy.Environment()

        def evaluate(expression, pod):
            return environment.program(environment.compile(expression)).evaluate({"object": celpy.json_to_cel(pod)})
        spec = of_kind("admission-policy", "MutatingAdmissionPolicy")[0]["spec"]
        variables = {v["name"]: v["expression"] for v in spec["variables"]}
        environment.compile(spec["mutations"][0]["applyConfiguration"]["expression"])
        for name, pod, containers, job in PODS:
            with self.subTest(name):
                conditions = {c["name"]: bool(evaluate(c["expression"], pod)) for c in spec["matchConditions"]}
                self.assertEqual(bool(containers), all(conditions.values()), conditions)
                if containers:
                    self.assertEqual(containers, [str(c["name"]) for c in evaluate(variables["containers"], pod)])
                    self.assertEqual(job, [str(name) for name in evaluate(variables["jobNames"], pod)][:1])

    def test_kyverno_compares_the_right_things(self):
        """The JMESPath expressions of its preconditions, by the library; Kyverno's operators are not tried here."""
        sys.path.append(str(TOOLS / "python"))
        import jmespath  # pylint: disable=import-outside-toplevel

        def evaluate(template, **context):
            return jmespath.search(re.fullmatch(r"\{\{(.*)\}\}", template).group(1), context)
        rule, = of_kind("kyverno", "ClusterPolicy")[0]["spec"]["rules"]
        context = {entry["name"]: entry["variable"]["jmesPath"] for entry in rule["context"]}
        conditions = rule["mutate"]["foreach"][-1]["preconditions"]
        (profiler, env_from), gpus = conditions["all"], conditions["any"]
        self.assertEqual(("NCCL_PROFILER_PLUGIN", "AnyNotIn"), (profiler["key"], profiler["operator"]))
        self.assertEqual(("Equals", 0), (env_from["operator"], env_from["value"]))
        self.assertEqual([("GreaterThan", 0)] * 2, [(c["operator"], c["value"]) for c in gpus])
        for name, pod, containers, job in PODS:
            with self.subTest(name):
                request = {"object": pod}
                by_hand = "ncclscope-sockets" in (jmespath.search(context["volumes"], {"request": request}) or [])
                picked = [c["name"] for c in pod["spec"]["containers"]
                          if profiler["key"] not in evaluate(profiler["value"], element=c) and evaluate(env_from["key"], element=c) == 0
                          and any(evaluate(gpu["key"], element=c) > 0 for gpu in gpus) and not by_hand]
                self.assertEqual(containers, picked)
                self.assertEqual((job or [""])[0], jmespath.search(context["jobName"], {"request": request}))

    def test_no_policy_keeps_a_pod_from_starting(self):
        self.assertEqual("Ignore", of_kind("admission-policy", "MutatingAdmissionPolicy")[0]["spec"]["failurePolicy"])
        self.assertEqual("Ignore", of_kind("kyverno", "ClusterPolicy")[0]["spec"]["failurePolicy"])

    def test_a_profiler_of_the_user_is_left_alone(self):
        rule, = of_kind("kyverno", "ClusterPolicy")[0]["spec"]["rules"]
        for each in rule["mutate"]["foreach"]:
            self.assertIn("NCCL_PROFILER_PLUGIN", [c["key"] for c in each["preconditions"]["all"]])
        policy, = of_kind("admission-policy", "MutatingAdmissionPolicy")
        for expression in (policy["spec"]["matchConditions"][1]["expression"], policy["spec"]["variables"][0]["expression"]):
            self.assertIn('!(has(c.env) && c.env.exists(e, e.name == "NCCL_PROFILER_PLUGIN"))', expression)

    def test_manifests_of_the_documents_are_as_kubernetes_has_them(self):
        documents = list(yaml_blocks(GUIDE))
        self.assertTrue(documents)
        self.assertEqual("", findings(documents))


def renew():
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(for_golden(render("helm4", case)))
    README.write_text(with_table(README.read_text()))
    print(f"{len(CASES)} golden files and the table of {README.relative_to(ROOT)} written")


def main():
    global AGENT  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent")
    parser.add_argument("--renew", action="store_true")
    options, rest = parser.parse_known_args()
    if not (TOOLS / "complete").exists() or shutil.which("node") is None:
        print("SKIPPED: no helm here; scripts/fetch-helm.sh brings it (and needs node)")
        sys.exit(77)
    if options.renew:
        renew()
        return
    AGENT = options.agent
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
