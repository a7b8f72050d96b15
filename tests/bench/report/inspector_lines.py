# SPDX-License-Identifier: Apache-2.0
"""Logs as NCCL Inspector writes them, of a training job that never was: the same for the same seed.

A job of `nodes` x 8 GPUs, one file per rank. Each rank is in a tensor-parallel communicator (the node's GPUs), a
data-parallel one (the same GPU of every node), the whole job's, and one of its own; it also sends to and receives from the
next node. Times are log-normal around what the size needs, with a slow rank and a slow hour.
"""
import gzip
import json
import math
import pathlib
import random

GPUS = 8
GIT_REV = "v2.30.7-1-g5067397"

# (communicator, collective, per-rank bytes, algorithm, protocol, bus bandwidth in GB/s that it reaches)
STEP = [
    ("tp", "AllReduce", 33554432, "NVLS", "SIMPLE", 380.0),
    ("tp", "AllReduce", 67108864, "NVLS", "SIMPLE", 410.0),
    ("tp", "AllGather", 8388608, "RING", "SIMPLE", 310.0),
    ("tp", "ReduceScatter", 8388608, "RING", "SIMPLE", 305.0),
    ("pp", "Send", 16777216, "", "", 42.0),
    ("pp", "Recv", 16777216, "", "", 42.0),
    ("dp", "ReduceScatter", 26214400, "RING", "SIMPLE", 46.0),
    ("dp", "ReduceScatter", 104857600, "RING", "SIMPLE", 47.5),
    ("dp", "AllGather", 26214400, "RING", "LL128", 45.0),
    ("dp", "AllGather", 104857600, "RING", "SIMPLE", 47.0),
    ("world", "AllReduce", 8192, "TREE", "LL", 0.3),
    ("world", "Broadcast", 1048576, "TREE", "SIMPLE", 20.0),
    ("self", "AllReduce", 1048576, "RING", "SIMPLE", 0.0),
]


def bandwidths(collective: str, size: int, ranks: int, seconds: float) -> tuple[float, float]:
    """algbw and busbw in GB/s, as Inspector computes them."""
    if seconds == 0:
        return 0.0, 0.0
    if collective in ("AllGather", "ReduceScatter"):
        algbw = size * ranks / seconds / 1e9
        return algbw, algbw * (ranks - 1) / ranks
    algbw = size / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks if collective == "AllReduce" else algbw


def communicators(rank: int, nodes: int) -> dict[str, dict]:
    """The header of each communicator of a rank."""
    node, gpu = divmod(rank, GPUS)
    world = nodes * GPUS

    def header(number, name, own, ranks, on_nodes):
        return {"id": f"0x{0x9e3779b97f4a7c15 * (number + 1) & 0xFFFFFFFFFFFFFFFF:x}", "comm_name": name, "rank": own,
                "n_ranks": ranks, "nnodes": on_nodes}

    return {"world": header(0, "unknown", rank, world, nodes), "tp": header(100 + node, "tp", gpu, GPUS, 1),
            "dp": header(200 + gpu, "dp", node, nodes, nodes), "pp": header(300, "pp", rank, world, nodes),
            "self": header(400 + rank, "unknown", 0, 1, 1)}


def rank_lines(rank: int, nodes: int, count: int, seed: int, version: str = "v4.2"):
    """`count` lines of one rank, without newlines."""
    rng = random.Random(f"{seed}/{rank}")
    node = rank // GPUS
    headers = communicators(rank, nodes)
    pid = 40000 + rank
    before, after = {}, ""
    compact = {"separators": (",", ":")}
    for name, header in headers.items():
        before[name] = (f'{{"header":{json.dumps(header, **compact)},"metadata":{{"inspector_output_format_version":"{version}",'
                        f'"git_rev":"{GIT_REV}","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":')
    after = f',"hostname":"node{node:04d}","pid":{pid}}},"'
    slow_rank = 1.35 if rank == 11 else 1.0
    sequence: dict = {}
    clock_us = 1_764_000_000_000_000 + rank * 17
    written = step = 0
    while written < count:
        step += 1
        slow_hour = 1.2 if 400 < step % 2000 < 600 else 1.0
        for name, collective, size, algorithm, protocol, reached in STEP:
            if written == count:
                return
            ranks = headers[name]["n_ranks"]
            factor = {"AllReduce": 2 * (ranks - 1) / ranks, "AllGather": ranks - 1, "ReduceScatter": ranks - 1}.get(collective, 1.0)
            ideal_us = size * factor / (reached * 1e3) if reached and factor else 12.0
            network = slow_hour if name in ("dp", "pp", "world") else 1.0
            time_us = max(1, int(ideal_us * slow_rank * network * math.exp(rng.gauss(0.0, 0.06))))
            clock_us += time_us + rng.randrange(40)
            algbw, busbw = bandwidths(collective, size, ranks, time_us / 1e6)
            number = sequence.get((name, collective), 0)
            sequence[name, collective] = number + 1
            dump_us = clock_us - clock_us % 1_000_000 + 1_000_000 + rng.randrange(400)
            if collective in ("Send", "Recv"):
                peer = (rank + GPUS) % (nodes * GPUS)
                payload = (f'p2p_perf":{{"p2p":"{collective}","p2p_sn":{number + 1},"p2p_peer":{peer},"p2p_msg_size_bytes":{size},'
                           f'"p2p_exec_time_us":{time_us},"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":{algbw:.6f},'
                           f'"p2p_busbw_gbs":{busbw:.6f}}}}}')
            else:
                chosen = f'"coll_algo":"{algorithm}","coll_proto":"{protocol}",' if version == "v4.2" else ""
                payload = (f'coll_perf":{{"coll":"{collective}",{chosen}"coll_sn":{number},"coll_msg_size_bytes":{size},'
                           f'"coll_exec_time_us":{time_us},"coll_timing_source":"kernel_gpu","coll_algobw_gbs":{algbw:.6f},'
                           f'"coll_busbw_gbs":{busbw:.6f}}}}}')
            yield f"{before[name]}{dump_us}{after}{payload}"
            written += 1


def write_rank(arguments) -> str:
    """(folder, rank, nodes, lines, seed): one file; for a pool of processes."""
    folder, rank, nodes, count, seed = arguments
    path = pathlib.Path(folder) / f"node{rank // GPUS:04d}-pid{40000 + rank}.log.gz"
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as file:
        for line in rank_lines(rank, nodes, count, seed):
            file.write(line + "\n")
    return str(path)
