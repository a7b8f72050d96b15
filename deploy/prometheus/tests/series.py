# SPDX-License-Identifier: Apache-2.0
"""Input series of promtool's rule tests: what agents of a job expose, as promtool writes it down.

Everything is one sample per interval of the test. A counter is a list of (samples, increase per sample), a gauge a list of
(samples, value); None stands for no sample.
"""
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
        self.dimensions, self.local = {}, {}

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
        self.dimensions[comm] = dimension
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
        self.add("ncclscope_gpu_info", alive, gpu=gpu, node=node, global_rank=rank if global_rank is None else global_rank,
                 gpu_uuid="", pci_bus_id="", instance=f"{node}:9400", job="ncclscope")
        self.local[comm, node] = self.local.get((comm, node), set()) | {rank}
        self.add("ncclscope_communicator_local_ranks", gauge((self.samples, len(self.local[comm, node]))), comm=comm,
                 instance=f"{node}:9400", job="ncclscope")
        self.add("ncclscope_rank_state", alive, state=state, **where)
        return self

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
        self.add("ncclscope_stalled_rank_operations", operations, **where)
        return self.add("ncclscope_stalled_rank_seconds", seconds, global_rank=rank if global_rank is None else global_rank,
                        node=node, gpu=gpu, state=state, signature=signature, **where)

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
