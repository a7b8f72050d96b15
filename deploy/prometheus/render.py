#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes recording.yml and alerts.yml from recording.yml.in and alerts.yml.in: "@name@" becomes the parameter's value.
Without --out it also writes verdict/thresholds.h, the same values for C++.

  render.py [--out DIR] [--set NAME=VALUE]...   default: the shipped files, into this folder
  render.py --check                             1 if the shipped files are not what the templates give
  render.py --list                              the parameters and their defaults

Windows, thresholds and the place of the runbooks are parameters, so that a site can have its own rules from the same
source; names of recorded series carry the window (…:rate5m), so files of different windows can live side by side.
"""
import argparse
import json
import pathlib
import re
import sys
import textwrap

FOLDER = pathlib.Path(__file__).resolve().parent
FILES = ("recording.yml", "alerts.yml")
HEADER = FOLDER.parents[1] / "verdict" / "thresholds.h"
DURATION = re.compile(r"(\d+)(s|m|h|d|w)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

# name: (default, what it is)
# Windows and thresholds, of the rules and of verdict/, which evaluates the same formulas: name: (default, what it is).
THRESHOLDS = json.loads((FOLDER / "thresholds.json").read_text())
PARAMETERS = {name: (str(entry["value"]), entry["what"]) for name, entry in THRESHOLDS.items()}
PARAMETERS["runbooks"] = ("docs/runbooks", "where the runbooks are; a URL makes them links")


def lookup(expression, *labels, then=". | first | value | toTime"):
    """A piece of an annotation: `then` of the first result of a query, in which each %q is the alert's label."""
    arguments = "".join(f" $labels.{label}" for label in labels)
    return f'{{{{ with printf "{expression}"{arguments} | query }}}}{{{{ {then} }}}}{{{{ end }}}}'


LISTED = 8  # of longer lists an annotation tells the first, and how many there are
A_GPU = "GPU {{ .Labels.gpu }} of {{ .Labels.node }}"


def listing(expression, *labels, item=A_GPU, by=("gpu", "node"), none="none"):
    """A piece of an annotation: the results of a query, in which each %q is the alert's label, with commas between."""
    arguments = "".join(f" $labels.{label}" for label in labels)
    order = "".join(f' | sortByLabel "{label}"' for label in by)
    return (f'{{{{ with printf "{expression}"{arguments} | query }}}}{{{{ range $i, $each := .{order} }}}}'
            f"{{{{ if lt $i {LISTED} }}}}{{{{ if $i }}}}, {{{{ end }}}}{item}{{{{ end }}}}{{{{ end }}}}"
            f"{{{{ if gt (len .) {LISTED} }}}} and others, {{{{ len . }}}} in all{{{{ end }}}}{{{{ else }}}}{none}{{{{ end }}}}")


PROCESS = ("cluster", "job_id", "instance", "pid")
PROCESS_SELECTOR = "{cluster=%q,job_id=%q,instance=%q,pid=%q}"
GPU = ("cluster", "job_id", "node", "gpu")
GPU_SELECTOR = "{cluster=%q,job_id=%q,node=%q,gpu=%q}"
GPU_ARGUMENTS = "$labels.cluster $labels.job_id $labels.node $labels.gpu"


def since_culprit(*labels):
    """Recorded beside the verdict; groups are evaluated side by side, so it may not be there yet when the alert fires first."""
    selector = ",".join(f"{label}=%q" for label in labels)
    return lookup(f"floor(min(gpu:ncclscope_culprit_timestamp_seconds:min{{{selector}}}) or on () "
                  "vector(time() - @two_windows_seconds@))", *labels)


# Mean time between enqueue and GPU start, over the operations of which it is known: of all GPUs of the job, and of this one.
JOB = "cluster=%[1]q,job_id=%[2]q"
QUEUE = (f"(sum by (instance, gpu) (rate(ncclscope_rank_queue_seconds_total{{{JOB},comm!='other'}}[@window@])) / "
         f"sum by (instance, gpu) (rate(ncclscope_rank_queue_operations_total{{{JOB},comm!='other'}}[@window@]) > 0))")
THIS = f"and on (instance, gpu) gpu:ncclscope_rank_info:topk{{{JOB},node=%[3]q,gpu=%[4]q}}"
THIS_QUEUE = f"({QUEUE} {THIS})"
# Against the median of the job's GPUs, in seconds per second. Hosts run ahead of their GPUs, so operations queue everywhere; but
# who calls late lets the others' operations queue behind the one that waits for it, and who computes longer starts its own late.
QUEUE_EXCESS = (
    f"(scalar({THIS_QUEUE}) - scalar(quantile(0.5, {QUEUE}))) * "
    f"scalar(sum(rate(ncclscope_communicator_operations_total{{{JOB},stage='enqueued'}}[@window@]) {THIS}))")
LAG = f"gpu:ncclscope_lag_seconds:rate@window@{{{JOB},node=%[3]q,gpu=%[4]q}} * @queue_share@"
# Pieces of annotations that several alerts share.
TEXTS = {
    "since_age": '{{ with printf "floor(vector(time() - %f))" $value | query }}{{ . | first | value | toTime }}{{ end }}',
    # The alert began when nobody had called for so long.
    "since_outside": lookup("floor((ALERTS_FOR_STATE{alertname='NcclscopeJobOutsideNccl',cluster=%q,job_id=%q,class=%q} or on () "
                            "vector(time())) - @outside_for_seconds@)", "cluster", "job_id", "class"),
    "since_culprit": since_culprit(*GPU),
    "since_culprit_node": since_culprit(*GPU[:3]),
    "since_culprit_job": since_culprit(*GPU[:2]),
    "worst_communicator": lookup(
        "topk(1, rank:ncclscope_caused_seconds:rate@window@" + GPU_SELECTOR +
        " * on (cluster, job_id, comm) group_left (comm_name) comm:ncclscope_communicator_info:topk)", *GPU,
        then='range . }}({{ .Labels.collective }} of communicator {{ .Labels.comm }}, {{ .Labels.comm_name }}, '
             'in which it is rank {{ .Labels.rank }}){{ end'),
    # Asked for only while the alert fires: over all ranks it would cost too much to be recorded.
    "queue_is_unknown": f'not (printf "{THIS_QUEUE}" {GPU_ARGUMENTS} | query)',
    "queue_is_short": f'printf "{LAG} < -1 * {QUEUE_EXCESS}" {GPU_ARGUMENTS} | query',
    "queue_is_long": f'printf "{LAG} < {QUEUE_EXCESS}" {GPU_ARGUMENTS} | query',
    # Senders to it find the way slow, or all that it receives comes late (an all-to-all).
    "nic_is_slow": 'printf "gpu:ncclscope_network_seconds_per_byte:nic@window@{cluster=%[1]q,job_id=%[2]q,node=%[3]q,gpu=%[4]q}'
                   " or gpu:ncclscope_network_seconds_per_byte:outlier@window@"
                   "{cluster=%[1]q,job_id=%[2]q,node=%[3]q,gpu=%[4]q,direction='receive'}\" "
                   "$labels.cluster $labels.job_id $labels.node $labels.gpu | query",
    "is_unobserved": 'printf "ncclscope_stalled_rank_seconds{cluster=%q,job_id=%q,comm=%q,rank=%q,state=~\'unobserved.*\'}" '
                     "$labels.cluster $labels.job_id $labels.comm $labels.rank | query",
    # A communicator without a name (NCCL before 2.27, or no torch) is called by its hash.
    "comm_called": "{{ or $labels.comm_name $labels.comm }}",
    "comm": "communicator {{ $labels.comm }} ({{ with $labels.comm_name }}{{ . }}, {{ end }}{{ $labels.nranks }} ranks",
    "comm_nodes": listing("count by (node) (ncclscope_rank_info{cluster=%q,job_id=%q,comm=%q})", "cluster", "job_id", "comm",
                          item="{{ .Labels.node }}", by=("node",), none="none reports it"),
    "job_nodes": listing("count by (node) (gpu:ncclscope_caused_seconds:rate@window@{cluster=%q,job_id=%q})", "cluster", "job_id",
                         item="{{ .Labels.node }}", by=("node",)),
    "accused": "rank {{ $labels.rank }} (global rank {{ $labels.global_rank }}, GPU {{ $labels.gpu }} of node {{ $labels.node }})",
    "late_members": listing("gpu:ncclscope_lag_seconds:culprit{cluster=%q,job_id=%q,node=%q}", *GPU[:3]),
    "late_members_job": listing("gpu:ncclscope_lag_seconds:culprit{cluster=%q,job_id=%q}", *GPU[:2]),
    "uneven_gpus": listing("gpu:ncclscope_lag_seconds:imbalance@window@{cluster=%q,job_id=%q}", *GPU[:2]),
    "suspects": listing("gpu:ncclscope_transfer_suspect:count{cluster=%q,job_id=%q}", *GPU[:2], none="none stands out"),
    "jobs_it_was_late_in": listing(
        "count by (job_id) (max_over_time(gpu:ncclscope_lag_seconds:culprit{cluster=%q,node=%q,gpu=%q}[@fleet_range@]))",
        "cluster", "node", "gpu", item="{{ .Labels.job_id }}", by=("job_id",)),
    "blind_ranks": listing(
        "topk(3, ncclscope_communicator_missing_operations_total{cluster=%q,job_id=%q,comm=%q} > 0)", "cluster", "job_id", "comm",
        item="rank {{ .Labels.rank }} on {{ .Labels.instance }} ({{ .Value }} operations)", by=("rank",), none="not known"),
    "own_overhead": lookup("ncclscope_plugin_overhead_ratio" + PROCESS_SELECTOR, *PROCESS, then=". | first | value | humanizePercentage"),
    "overhead_budget": lookup("ncclscope_plugin_overhead_budget_ratio" + PROCESS_SELECTOR, *PROCESS,
                              then=". | first | value | humanizePercentage"),
    "jobs_of_agent": listing("count by (job_id, node) (last_over_time(ncclscope_rank_info{instance=%q}[1h]))", "instance",
                             item="{{ .Labels.job_id }} (node {{ .Labels.node }})", by=("job_id",)),
}


def seconds(duration):
    match = DURATION.fullmatch(duration)
    if match is None:
        raise SystemExit(f"render.py: duration {duration!r}: wanted a whole number with s, m, h, d or w, such as 5m")
    return int(match[1]) * SECONDS[match[2]]


def values(settings):
    result = {name: default for name, (default, _) in PARAMETERS.items()}
    for setting in settings:
        name, equal, value = setting.partition("=")
        if not equal or name not in PARAMETERS:
            raise SystemExit(f"render.py: --set {setting!r}: wanted NAME=VALUE, NAME one of {', '.join(PARAMETERS)}")
        result[name] = value
    window = seconds(result["window"])
    result["two_windows"] = f"{2 * window}s" if window % 60 else f"{2 * window // 60}m"
    result["three_windows"] = f"{3 * window}s" if window % 60 else f"{3 * window // 60}m"
    result["two_windows_seconds"] = str(2 * window)
    result["outside_for_seconds"] = str(seconds(result["outside_for"]))
    result.update({name: re.sub(r"@([a-z_]+)@", lambda m: result[m[1]], text) for name, text in TEXTS.items()})
    return result


MEMBERS_PER_SERIES = 8  # as agents write ncclscope_gpu_communicators
MOST_PEERS = 4


def at_least(place, separator):
    """A selector's expression for lists that go on to that place. Prometheus reads it anew at each evaluation, which takes it
    milliseconds where there are classes of characters ("[^ ]"), and none here."""
    return f"(.+{separator}){{{place}}}.+" if place else ".+"


def each_member(series, *labels):
    """A series for each communicator that one of `series` tells of in its label "listed", with comm, rank and peers as labels,
    as far as asked for. PromQL cannot take a list apart: one term for each place in it. Costs little where `series` are few,
    and no others have that label, whose every value Prometheus looks at."""
    before = {"comm": "", "rank": "[^:]*:", "peers": "[^:]*:[^:]*:"}
    terms = []
    for place in range(MEMBERS_PER_SERIES):
        skip = "" if place == 0 else f"(?:[^ ]+ ){{{place}}}"
        part = f'{series}{{listed=~"{at_least(place, " ")}"}}'
        for label in labels:
            part = f'label_replace({part}, "{label}", "$1", "listed", "{skip}{before[label]}([^: ]*).*")'
        terms.append(part)
    return terms


def each_peer(series):
    """A series for each of the peers in the label "peers"."""
    skips = ["" if place == 0 else f"(?:[^,]+,){{{place}}}" for place in range(MOST_PEERS)]
    return [f'label_replace({series}{{peers=~"{at_least(place, ",")}"}}, "peer", "$1", "peers", "{skip}([^,]*).*")'
            for place, skip in enumerate(skips)]


def render(name, parameters):
    text = (FOLDER / f"{name}.in").read_text()

    def terms(match):
        """Each on a line of its own, in line with the first."""
        indent = "\n" + re.sub(r"\S", " ", match[1])
        found = {"member": each_member, "peer": each_peer}[match[2]](*match[3].split(","))
        return match[1] + f"{indent}or{indent}".join(found)

    def since(match):
        """Since when an alert is active: Prometheus keeps that as a series, from the second evaluation on."""
        alert, *labels = [part.strip() for part in match[1].split(",")]
        selector = ",".join(f"{label}=%q" for label in labels)
        return lookup(f"floor(ALERTS_FOR_STATE{{alertname='{alert}',{selector}}} or on () vector(time()))", *labels)

    def put(match):
        if match[1] not in parameters:
            raise SystemExit(f"render.py: {name}.in uses @{match[1]}@, which is no parameter")
        return parameters[match[1]]
    head, _, body = text.partition("\n")
    notice = f"# Written by render.py from {name}.in: change that, not this."
    body = re.sub(r"@since\(([^)]*)\)@", since, body)
    body = re.sub(r"^(.*)@each_(member|peer)\(([a-z_:@,]*)\)@", terms, body, flags=re.MULTILINE)
    return f"{head}\n{notice}\n" + re.sub(r"@([a-z_]+)@", put, body)


def header():
    """The shipped values for C++."""
    lines = []
    for name, entry in THRESHOLDS.items():
        value = entry["value"]
        unit = "" if not isinstance(value, str) or name.endswith("_seconds") else "_seconds"
        constant = "k" + "".join(part.capitalize() for part in (name + unit).split("_"))
        lines += [f"/// {part}" for part in textwrap.wrap(entry["what"], 96)]
        lines.append(f"inline constexpr double {constant} = {seconds(value) if isinstance(value, str) else value};")
    return ("// SPDX-License-Identifier: Apache-2.0\n//\n"
            "// Written by deploy/prometheus/render.py from thresholds.json: change that, not this. Windows and\n"
            "// thresholds of verdicts, the same as those of the recording rules and alerts.\n"
            "#pragma once\n\nnamespace ncclscope::verdict::thresholds {\n\n" + "\n".join(lines) +
            "\n\n}  // namespace ncclscope::verdict::thresholds\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, (default, what) in PARAMETERS.items():
            print(f"{name:22} {default:14} {what}")
        return 0
    parameters = values(options.set)
    drifted = []
    files = {options.out / name: render(name, parameters) for name in FILES}
    if options.out == FOLDER and not options.set:
        files[HEADER] = header()
    for path, text in files.items():
        if not options.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            drifted.append(path.name)
    if drifted:
        print(f"not what the templates give: {', '.join(drifted)}; run deploy/prometheus/render.py")
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
