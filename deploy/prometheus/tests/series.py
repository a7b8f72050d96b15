# SPDX-License-Identifier: Apache-2.0
"""Input series of promtool's rule tests: what agents of a job expose, as promtool writes it down.

Everything is one sample per interval of the test. A counter is a list of (samples, increase per sample), a gauge a list of
(samples, value); None stands for no sample.
"""
import re

CLUSTER = "c1"
JOB = "4711"


def number(value):
    return f"{value:.10g}"


def counter(*pieces):
    out, value, first = [], 0.0, True
    for samples, step in pieces:
        if step is None:
            out.append(f"_x{samples}")
            continue
        start = value if first else value + step
        out.append(f"{number(start)}+{number(step)}x{samples - 1}")
        value = start + step * (samples - 1)
        first = False
    return " ".join(out)


def gauge(*pieces):
    return " ".join(f"_x{samples}" if value is None else f"{number(value)}+0x{samples - 1}" for samples, value in pieces)


def age(*pieces):
    """A gauge that grows with time: (samples, first value, growth per sample)."""
    return " ".join(f"{number(first)}+{number(step)}x{samples - 1}" for samples, first, step in pieces)


def shown(*pieces):
    """A gauge that is not always there: (samples, first value, growth per sample), or (samples, None)."""
    out, there = [], False
    for samples, first, *step in pieces:
        if first is None:
            out.append((f"stale _x{samples - 1}" if samples > 1 else "stale") if there else f"_x{samples}")
        else:
            out.append(f"{number(first)}+{number(step[0] if step else 0)}x{samples - 1}")
        there = first is not None
    return " ".join(out)


class Job:
    """Collects the series of one job. A rank is (communicator, rank, node, gpu)."""

    def __init__(self, samples, job_id=JOB, cluster=CLUSTER):
        self.samples, self.job_id, self.cluster = samples, job_id, cluster
        self.series = {}
        self.dimensions, self.local, self.nodes, self.members, self.infos = {}, {}, {}, {}, {}

    def add(self, name, values, **labels):
        everything = {"cluster": self.cluster, "job_id": self.job_id} | labels
        text = ", ".join(f'{key}="{value}"' for key, value in everything.items())
        self.series[f"{name}{{{text}}}"] = values
        return self

    def drop(self, **labels):
        """Takes away every series with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        self.series = {name: values for name, values in self.series.items() if not all(w in name for w in wanted)}
        return self

    def communicator(self, comm, nranks, nodes, name="dp_group", dimension="", coverage=None, alive=None):
        self.dimensions[comm], self.nodes[comm] = dimension, len(nodes)
        for node in nodes:
            where = {"comm": comm, "instance": f"{node}:9400", "job": "ncclscope"}
            self.add("ncclscope_communicator_info", alive or gauge((self.samples, 1)), comm_name=name, nranks=nranks,
                     nnodes=len(nodes), dimension=dimension, local_ranks=nranks // len(nodes), **where)
            self.add("ncclscope_telemetry_coverage_ratio", coverage or gauge((self.samples, 1)), **where)
        return self

    def rank(self, comm, rank, node, gpu, global_rank=None, alive=None, state="running"):
        where = {"comm": comm, "rank": rank, "instance": f"{node}:9400", "job": "ncclscope"}
        alive = alive or gauge((self.samples, 1))
        self.add("ncclscope_rank_info", alive, global_rank=rank if global_rank is None else global_rank, local_rank=gpu,
                 node=node, gpu=gpu, gpu_uuid="", pci_bus_id="", pid=1000 + rank, dimension=self.dimensions[comm], **where)
        global_rank = rank if global_rank is None else global_rank
        self.gpu(comm, rank, node, gpu, global_rank, alive)
        self.local[comm, node] = self.local.get((comm, node), set()) | {rank}
        self.add("ncclscope_communicator_local_ranks", gauge((self.samples, len(self.local[comm, node]))), comm=comm,
                 instance=f"{node}:9400", job="ncclscope")
        self.add("ncclscope_rank_state", alive, state=state, **where)
        return self

    def gpu(self, comm, rank, node, gpu, global_rank, alive):
        """What tells of the GPU; called again for each of its communicators."""
        where = {"gpu": gpu, "node": node, "global_rank": global_rank}
        key = tuple(where.values())
        place = self.infos.setdefault(key, {"stage": "", "expert": "", "nnodes": 0})
        self.forget("ncclscope_gpu_info", **where)
        if self.dimensions[comm] == "pp":
            place["stage"] = rank
        if self.dimensions[comm] == "ep":
            place["expert"] = rank
        place["nnodes"] = max(place["nnodes"], self.nodes[comm])
        self.add("ncclscope_gpu_info", alive, gpu_uuid="", pci_bus_id="", instance=f"{node}:9400", job="ncclscope", **where, **place)
        # Communicators that come and go together are a part of their own.
        parts = self.members.setdefault(key, {})
        members = parts.setdefault(alive, [])
        members.append(f"{comm}:{rank}:")
        part = list(parts).index(alive)
        self.forget("ncclscope_gpu_communicators", part=part, **where)
        self.add("ncclscope_gpu_communicators", alive, part=part, members=" ".join(members), instance=f"{node}:9400",
                 job="ncclscope", **where)

    def peer(self, comm, rank, peer, alive, **where):
        """To whom a rank sends over the network."""
        self.series = {series.replace(f"{comm}:{rank}:", f"{comm}:{rank}:{peer}") if f'gpu="{where["gpu"]}"' in series else series:
                       values for series, values in self.series.items()}
        return self.add("ncclscope_network_peer_info", alive, comm=comm, rank=rank, peer=peer, **where)

    def forget(self, name, **labels):
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        self.series = {series: values for series, values in self.series.items()
                       if not (series.startswith(name + "{") and all(w in series for w in wanted))}

    def collective(self, comm, rank, node, gpu, seconds, operations, bus_bytes=None, collective="AllReduce"):
        """Counters of a rank; values as text."""
        where = {"comm": comm, "rank": rank, "gpu": gpu, "collective": collective, "instance": f"{node}:9400",
                 "job": "ncclscope"}
        self.add("ncclscope_rank_collective_seconds_total", seconds, **where)
        self.add("ncclscope_rank_collective_operations_total", operations, **where)
        if bus_bytes:
            self.add("ncclscope_rank_collective_bus_bytes_total", bus_bytes, **where)
        return self

    def queue(self, comm, rank, node, gpu, seconds, operations):
        where = {"comm": comm, "rank": rank, "gpu": gpu, "instance": f"{node}:9400", "job": "ncclscope"}
        self.add("ncclscope_rank_queue_seconds_total", seconds, **where)
        return self.add("ncclscope_rank_queue_operations_total", operations, **where)

    def stalled(self, comm, rank, node, gpu, state, seconds, operations, signature="", global_rank=None):
        """A rank that does not get on."""
        where = {"comm": comm, "rank": rank, "instance": f"{node}:9400", "job": "ncclscope"}
        where |= {"global_rank": rank if global_rank is None else global_rank, "node": node, "gpu": gpu, "state": state,
                  "signature": signature}
        self.add("ncclscope_stalled_rank_operations", operations, **where)
        return self.add("ncclscope_stalled_rank_seconds", seconds, **where)

    def progress(self, comm, rank, node, gpu, enqueued, started, completed, inflight, signature=None):
        where = {"comm": comm, "rank": rank, "gpu": gpu, "instance": f"{node}:9400", "job": "ncclscope"}
        for stage, values in (("enqueued", enqueued), ("started", started), ("completed", completed)):
            self.add("ncclscope_communicator_operations_total", values, stage=stage, **where)
        self.add("ncclscope_communicator_inflight_seconds", inflight, **where)
        self.add("ncclscope_plugin_events_seen_total", enqueued, pid=1000 + rank, instance=f"{node}:9400", job="ncclscope")
        if signature:
            del where["gpu"]
            self.add("ncclscope_communicator_oldest_signature", signature, **where)
        return self


def expanded(values):
    """promtool's notation as a list: a number, or None where there is no sample."""
    out = []
    for piece in values.split():
        match = re.fullmatch(r"(_|stale|-?[\d.e+]+?(?:e-\d+)?)(?:([+-])([\d.]+(?:e[+-]?\d+)?))?(?:x(\d+))?", piece)
        if match is None:
            raise ValueError(f"{piece!r} in {values!r} is none of _, stale, a, _xN, a+bxN")
        first, sign, step, times = match.groups()
        if first in ("_", "stale"):
            out += [None] * int(times or 1)
        else:
            by = float(step or 0) * (-1 if sign == "-" else 1)
            out += [float(first) + by * i for i in range(int(times or 0) + 1)]
    return out


def shortened(samples):
    """The other way round; only what grows evenly is put together."""
    out, i = [], 0
    while i < len(samples):
        end = i + 1
        if samples[i] is None:
            while end < len(samples) and samples[end] is None:
                end += 1
            out.append(f"_x{end - i}")
            i = end
            continue
        step = samples[end] - samples[i] if end < len(samples) and samples[end] is not None else -1
        while step >= 0 and end < len(samples) and samples[end] is not None and (
                abs(samples[end] - samples[end - 1] - step) < 1e-9 * max(1, samples[end])):
            end += 1
        out.append(f"{number(samples[i])}+{number(step)}x{end - i - 1}" if end > i + 1 else number(samples[i]))
        i = end
    return " ".join(out)


def with_sums(series):
    """Adds what agents add up: time in collectives and Receives over a GPU's communicators, and over a communicator's ranks."""
    synchronising = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")
    sums, of_communicators = {}, {}
    for name, values in series.items():
        metric, text = re.fullmatch(r"(\w+)\{(.*)\}", name).groups()
        labels = dict(re.findall(r'(\w+)="([^"]*)"', text))
        if metric == "ncclscope_rank_collective_seconds_total" and labels["comm"] != "other":
            text = ", ".join(f'{key}="{value}"' for key, value in labels.items() if key not in ("rank", "gpu"))
            of_communicators.setdefault(f"ncclscope_communicator_collective_seconds_total{{{text}}}", []).append(expanded(values))
        if labels.get("gpu", "") == "" or labels.get("comm") == "other":
            continue
        collective = metric == "ncclscope_rank_collective_seconds_total"
        if not collective and not (metric == "ncclscope_rank_p2p_seconds_total" and labels["operation"] == "Recv"):
            continue
        where = {key: labels[key] for key in ("cluster", "job_id", "gpu", "instance", "job") if key in labels}
        for total, counts in (("collective", labels.get("collective") in synchronising), ("blocking", True)):
            text = ", ".join(f'{key}="{value}"' for key, value in where.items())
            sums.setdefault(f"ncclscope_gpu_{total}_seconds_total{{{text}}}", []).append(
                expanded(values) if counts else [value and 0.0 for value in expanded(values)])
    out = dict(series)
    for name, parts in (sums | of_communicators).items():
        length = max(len(part) for part in parts)
        samples, last = [], [0.0] * len(parts)
        for i in range(length):
            now = [part[i] if i < len(part) else None for part in parts]
            last = [before if value is None else value for before, value in zip(last, now)]
            samples.append(None if all(value is None for value in now) else sum(last))
        out[name] = shortened(samples)
    return out
