# SPDX-License-Identifier: Apache-2.0
"""What files must be like to be taken for NCCL Inspector's, and what its readers make of them.

check_tree() holds every byte of a folder's lines to the rules of the format; exporter_rows() and exporter_groups() do with
them what NVIDIA's performance exporter does, and fail where that would log an error or give a file up.
"""
import collections
import json
import math
import re

HEADER = ["id", "comm_name", "rank", "n_ranks", "nnodes"]
METADATA = ["inspector_output_format_version", "git_rev", "rec_mechanism", "dump_timestamp_us", "hostname", "pid"]
OPERATION = ["sn", "msg_size_bytes", "exec_time_us", "timing_source", "algobw_gbs", "busbw_gbs"]
STATISTICS = ["coll_records", "coll_dropped_total", "coll_dropped_since_last_dump", "p2p_records", "p2p_dropped_total",
              "p2p_dropped_since_last_dump"]
TRACES = ["event_trace_sn", "event_trace_ts"]
STRINGS = {"id", "comm_name", "inspector_output_format_version", "git_rev", "rec_mechanism", "hostname", "coll", "p2p",
           "timing_source", "algo", "proto"}
FUNCTIONS = {"AllGather", "AllReduce", "Broadcast", "Reduce", "ReduceScatter", "SendRecv", "All2All", "AllGatherV", "Invalid"}
ALGORITHMS = {"RING", "TREE", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"}
PROTOCOLS = {"LL", "LL128", "SIMPLE"}
FILE = re.compile(r"^.+-pid(\d+)\.log$")


class Decimal(float):
    """A number with decimals, and how it was written."""

    def __new__(cls, text):
        number = super().__new__(cls, text)
        number.text = text
        return number


def written(value):
    """The one way to write a value down: no spaces, slashes escaped, decimals as they were."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{written(k)}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("/", "\\/")
    return value.text if isinstance(value, Decimal) else str(value)


def unique_keys(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return dict(pairs)


def factor(function, ranks):
    """(bytes of all : bytes of one rank, bus bandwidth : algorithm bandwidth)."""
    if function == "AllReduce":
        return 1, 2 * (ranks - 1) / ranks
    if function in ("AllGather", "ReduceScatter"):
        return ranks, (ranks - 1) / ranks
    return 1, 1


def check_types(record):
    for key, value in record.items():
        short = key.removeprefix("coll_").removeprefix("p2p_")
        if short in STRINGS:
            assert isinstance(value, str), f"{key} is no string: {value!r}"
        elif short.endswith("_gbs"):
            assert isinstance(value, Decimal) and re.fullmatch(r"\d+\.\d{6}", value.text), f"{key} without 6 decimals: {value!r}"
        elif key not in TRACES:
            assert isinstance(value, int) and not isinstance(value, bool), f"{key} is no whole number: {value!r}"


def check_operation(record, prefix, ranks, version):
    first = "coll" if prefix == "coll_" else "p2p"
    keys = [first]
    if version == "v4.2" and first == "coll":
        keys += [prefix + "algo", prefix + "proto"]
    keys += [prefix + k for k in OPERATION]
    if first == "p2p":
        keys.insert(2, "p2p_peer")
    have = list(record)
    if have[-2:] == TRACES:
        check_traces(record, prefix)
        have = have[:-2]
    assert have == keys, f"keys {have}, wanted {keys}"
    function = record[first]
    assert function in ({"Send", "Recv"} if first == "p2p" else FUNCTIONS), function
    if prefix + "algo" in record:
        assert record["coll_algo"] in ALGORITHMS and record["coll_proto"] in PROTOCOLS, f"{record}"
    assert record[prefix + "timing_source"] in ("kernel_gpu", "kernel_cpu", "collective_cpu")
    micros, algorithm, bus = (record[prefix + k] for k in ("exec_time_us", "algobw_gbs", "busbw_gbs"))
    assert micros > 0, f"{record}"
    whole, share = factor(function, ranks)
    # Bandwidths are rounded to 10^-6, times to a microsecond and never to 0.
    thousands = record[prefix + "msg_size_bytes"] * whole / 1000
    least, most = thousands / (algorithm + 5e-7), thousands / (algorithm - 5e-7) if algorithm > 5e-7 else math.inf
    assert least - 0.501 <= micros <= max(most, 0.5) + 0.501, f"{micros} us, by bandwidth {least} to {most} us"
    assert abs(bus - algorithm * share) <= 2e-6, f"bus {bus}, algorithm {algorithm}, {ranks} ranks"


def check_traces(record, prefix):
    sn, ts = (record[k] for k in TRACES)
    numbers = [sn[prefix + "start_sn"], sn[prefix + "stop_sn"]]
    for trace, kind in ((sn, "sn"), (ts, "ts")):
        assert list(trace) == [f"{prefix}start_{kind}", f"{prefix}stop_{kind}", "kernel_events"], f"{trace}"
        for event in trace["kernel_events"]:
            assert list(event) == ["channel_id"] + [f"kernel_{k}_{kind}" for k in ("start", "stop", "record")], f"{event}"
            assert all(isinstance(v, int) for v in event.values()), f"{event}"
    assert [e["channel_id"] for e in sn["kernel_events"]] == [e["channel_id"] for e in ts["kernel_events"]]
    for event in sn["kernel_events"]:
        numbers += [event[f"kernel_{k}_sn"] for k in ("start", "stop", "record")]
        assert event["kernel_start_sn"] < event["kernel_record_sn"] < event["kernel_stop_sn"], f"{event}"
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"callbacks are numbered {sorted(numbers)}"
    for event in ts["kernel_events"]:
        assert ts[prefix + "start_ts"] <= event["kernel_start_ts"] <= event["kernel_record_ts"] <= event["kernel_stop_ts"], f"{ts}"


def check_line(line, version, pid):
    """Returns the line's object."""
    text = line.decode("utf-8")
    data = json.loads(text, parse_float=Decimal, object_pairs_hook=unique_keys)
    assert written(data) == text, f"not compact, or another spelling:\n{text}\n{written(data)}"
    parts = list(data)
    assert parts[:2] == ["header", "metadata"] and len(parts) == 3, f"{parts}"
    header, metadata = data["header"], data["metadata"]
    assert list(header) == HEADER and list(metadata) == METADATA, f"{list(header)} {list(metadata)}"
    assert re.fullmatch(r"0x(0|[1-9a-f][0-9a-f]*)", header["id"]), header["id"]
    assert metadata["inspector_output_format_version"] == version, f"{metadata}"
    assert metadata["rec_mechanism"] == "nccl_profiler_interface" and metadata["pid"] == pid, f"{metadata}"
    assert 0 <= header["rank"] < header["n_ranks"] and 0 < header["nnodes"] <= header["n_ranks"], f"{header}"
    body = data[parts[2]]
    for part in (header, metadata, body):
        check_types(part)
        assert "comm_type" not in part
    assert len(set(header) | set(metadata) | set(body)) == len(header) + len(metadata) + len(body), "a key in two parts"
    if parts[2] == "dump_stats":
        assert version != "v4.0" and list(body) == STATISTICS, f"{body}"
    else:
        assert parts[2] in ("coll_perf", "p2p_perf"), parts[2]
        check_operation(body, "coll_" if parts[2] == "coll_perf" else "p2p_", header["n_ranks"], version)
    return data


def check_tree(root, version="v4.0", parts=("coll_perf",)):
    """{file: [objects]} of all files below `root`, every one of which must be right. `parts` are those that may occur."""
    found = {}
    names = [p for p in sorted(root.rglob("*")) if p.is_file()]
    assert names, f"no file below {root}"
    assert len({p.name for p in names}) == len(names), f"base names are not unique: {names}"
    for path in names:
        match = FILE.match(path.name)
        assert match, f"{path}: not <hostname>-pid<pid>.log"
        data = path.read_bytes()
        assert data.endswith(b"\n"), f"{path}: the last line is cut"
        assert path.stat().st_mode & 0o133 == 0, f"{path}: mode {path.stat().st_mode:o}"
        objects = []
        for number, line in enumerate(data[:-1].split(b"\n"), 1):
            try:
                objects.append(check_line(line, version, int(match[1])))
            except (AssertionError, KeyError, ValueError) as error:
                raise AssertionError(f"{path}:{number}: {error}\n{line[:2000]!r}") from error
            assert list(objects[-1])[2] in parts, f"{path}:{number}: {list(objects[-1])[2]}"
        found[path] = objects
    return found


def communicator_type(header):
    if header["n_ranks"] == 1:
        return "single-rank"
    if header["nnodes"] == 1:
        return "nvlink-only"
    return "hca-only" if header["n_ranks"] == header["nnodes"] else "mixed"


def exporter_rows(root):
    """The rows of NVIDIA's exporter: one flat dictionary a line. What it would skip or give up fails."""
    kinds = {"".join(p.suffixes[-2:] if p.suffix == ".gz" else [p.suffix]) for p in root.rglob("*") if p.is_file()}
    assert len(kinds & {".log", ".log.gz", ".jsonl", ".jsonl.gz"}) == 1, f"it refuses a folder with {kinds}"
    rows = []
    for path in sorted(root.rglob("*.log")):
        for line in path.read_text().splitlines():
            data = json.loads(line)
            assert all(k in data for k in ("header", "metadata", "coll_perf")), f"{path}: it logs an error for {line[:200]}"
            # A key that occurs in two of them is a TypeError, and the file is lost.
            rows.append(dict(**data["header"], comm_type=communicator_type(data["header"]), **data["coll_perf"],
                             **data["metadata"]))
    columns = {tuple(row) for row in rows}
    assert len(columns) == 1, f"columns differ between rows: {columns}"
    return rows


def exporter_groups(rows):
    """{(type, collective): {(id, sn, bytes): rows}}: what its plots and tables are made of."""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        if row["coll"] in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast"):
            groups[row["comm_type"], row["coll"]][row["id"], row["coll_sn"], row["coll_msg_size_bytes"]].append(row)
    return groups
