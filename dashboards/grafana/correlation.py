# SPDX-License-Identifier: Apache-2.0
"""The row of a job that holds communication against what others measure: DCGM's exporter, and the job's own throughput.

Both are optional: without them the panels stay empty. GPUs are joined by their UUID, which DCGM's exporter and
ncclscope_rank_info spell alike; the job's throughput comes as ncclscope_job_throughput (docs/metrics.md).
"""
from style import NO_DCGM, curves, row, to_dashboard

JOB = 'cluster="$cluster", job_id="$job"'
GPUS = f"""* on (gpu_uuid) group_left (node, gpu) topk by (gpu_uuid) (1,
    count by (gpu_uuid, node, gpu) (ncclscope_rank_info{{{JOB}, gpu_uuid!=""}})) ^ 0"""


def dcgm(metric):
    """A metric of DCGM's exporter for the job's GPUs, with our node and gpu."""
    return f"""max by (node, gpu) (max by (gpu_uuid) (label_replace({metric}, "gpu_uuid", "$1", "UUID", "(.+)")) {GPUS})"""


def mean(metric):
    return f"avg({dcgm(metric)})"


def add(made, w):
    to_node = to_dashboard("Open the node", "ncclscope-node", cluster="$cluster", node="${__field.labels.node}",
                           gpu="${__field.labels.gpu}")
    made = made.with_row(row("Correlation: throughput, steps and GPUs"))
    made = made.with_panel(curves(
        "Throughput, steps and communication, against their own mean", """100 % is the mean over the range shown. If throughput falls when
        communication rises, communication explains it; if it falls alone, look elsewhere. Throughput is what the job reports
        itself (ncclscope_job_throughput); without it there are the other two.""", "percentunit",
        [(f"""sum by (unit) (ncclscope_job_throughput{{{JOB}}})
             / on (unit) avg_over_time(sum by (unit) (ncclscope_job_throughput{{{JOB}}})[$__range:])""", "throughput ({{unit}})"),
         (f"avg_over_time(job:ncclscope_step_seconds:mean{w}{{{JOB}}}[$__range]) / job:ncclscope_step_seconds:mean{w}{{{JOB}}}",
          "steps per second"),
         (f"""job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}
             / avg_over_time(job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}[$__range])""", "time in NCCL kernels")], low=0))
    made = made.with_panel(curves(
        "Throughput as the job reports it", "ncclscope_job_throughput, summed over its reporters, by unit.", "short",
        [(f"sum by (unit) (ncclscope_job_throughput{{{JOB}}})", "{{unit}} per second")], low=0,
        none="the job does not report ncclscope_job_throughput (docs/metrics.md)"))
    made = made.with_panel(curves(
        "SM activity and communication", """Mean over the job's GPUs: share of time in which a warp runs (DCGM), and in which a kernel of
        NCCL runs. Kernels of NCCL count as activity of the SMs too, also while they only wait.""", "percentunit",
        [(mean("DCGM_FI_PROF_SM_ACTIVE"), "SM active"), (mean("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), "tensor cores active"),
         (f"job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}", "NCCL kernels")], low=0, high=1))
    made = made.with_panel(curves(
        "NVLink and PCIe traffic", "Bytes per second, sent, summed over the job's GPUs (DCGM), and bus bytes of collectives as ncclscope counts them.",
        "Bps", [(f"sum({dcgm('DCGM_FI_PROF_NVLINK_TX_BYTES')})", "NVLink"), (f"sum({dcgm('DCGM_FI_PROF_PCIE_TX_BYTES')})", "PCIe"),
                (f"sum(comm:ncclscope_collective_bus_bytes:rate{w}{{{JOB}}})", "collectives")], low=0, none=NO_DCGM))
    made = made.with_panel(curves(
        "GPU clocks", "Clock of the SMs by GPU (DCGM). A GPU below the others is throttled: late GPUs are often slow ones.", "hertz",
        [(f"1e6 * {dcgm('DCGM_FI_DEV_SM_CLOCK')}", "GPU {{gpu}} of {{node}}")], low=0, links=[to_node], none=NO_DCGM))
    made = made.with_panel(curves(
        "GPU power", "By GPU (DCGM). A GPU that waits draws less.", "watt",
        [(dcgm("DCGM_FI_DEV_POWER_USAGE"), "GPU {{gpu}} of {{node}}")], low=0, links=[to_node], none=NO_DCGM))
    return made
