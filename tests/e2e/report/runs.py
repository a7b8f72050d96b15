# SPDX-License-Identifier: Apache-2.0
"""Logs as NCCL Inspector writes them, of a small run that never was, and what they hold as plain rows.

Two nodes with four GPUs each, one communicator over all; three collectives a step. Rank `late` comes `late_ms` late from step
`late_from` on, and the others wait for it. The same for the same seed.
"""
import json
import random

RANKS, NODES = 8, 2
START_US = 1_764_000_000_000_000
STEP_US = 500_000
COMMUNICATOR = "0xabcdef0123456789"
HOSTILE = "<img src=x onerror='window.attacked=1'></script>"
# collective, bytes of one rank, algorithm, protocol, microseconds
STEP = (("AllGather", 2097152, "RING", "SIMPLE", 400), ("ReduceScatter", 4194304, "RING", "SIMPLE", 700),
        ("AllReduce", 67108864, "NVLS", "SIMPLE", 1500))


def write(folder, seed=1, steps=400, late=None, late_ms=3, late_from=200, slower=None, algorithms=None, version="v4.2", name=HOSTILE):
    """Writes one log per rank. slower: {collective: factor of its time}; algorithms: {collective: algorithm}. Returns the rows:
    dicts with collective, rank, bytes, seconds, busbw, as the report must have them."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    lines = [[] for _ in range(RANKS)]
    rows = []
    numbers = {name: 0 for name, *_ in STEP}
    for step in range(steps):
        for place, (collective, size, algorithm, protocol, base) in enumerate(STEP):
            wanted = base * (slower or {}).get(collective, 1) * rng.lognormvariate(0, 0.02)
            lags = [rng.uniform(0, 30) for _ in range(RANKS)]
            if late is not None and step >= late_from:
                lags[late] += late_ms * 1000
            end_us = START_US + step * STEP_US + place * 50_000 + int(wanted)
            for rank in range(RANKS):
                us = max(1, int(wanted + max(lags) - lags[rank]))
                factor = 2 * (RANKS - 1) / RANKS if collective == "AllReduce" else (RANKS - 1) / RANKS
                moved = size if collective == "AllReduce" else size * RANKS
                algbw = float(f"{moved / (us * 1e-6) / 1e9:.6f}")
                busbw = float(f"{moved / (us * 1e-6) / 1e9 * factor:.6f}")
                perf = {"coll": collective}
                if version == "v4.2":
                    perf |= {"coll_algo": (algorithms or {}).get(collective, algorithm), "coll_proto": protocol}
                perf |= {"coll_sn": numbers[collective], "coll_msg_size_bytes": size, "coll_exec_time_us": us,
                         "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": algbw, "coll_busbw_gbs": busbw}
                lines[rank].append({
                    "header": {"id": COMMUNICATOR, "comm_name": name, "rank": rank, "n_ranks": RANKS, "nnodes": NODES},
                    "metadata": {"inspector_output_format_version": version, "git_rev": "v2.30.7-1-g5067397",
                                 "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": end_us,
                                 "hostname": f"node{rank // 4}", "pid": 1000 + rank},
                    "coll_perf": perf})
                rows.append({"collective": collective, "rank": rank, "bytes": moved, "seconds": us * 1e-6, "busbw": busbw * 1e9,
                             "number": numbers[collective]})
            numbers[collective] += 1
    for rank in range(RANKS):
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines[rank])
        (folder / f"node{rank // 4}-pid{1000 + rank}.log").write_text(text)
    return rows
