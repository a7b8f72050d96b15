# SPDX-License-Identifier: Apache-2.0
"""Node / GPU: is this hardware the reason, in whichever job?"""
from style import (CRITICAL, GOOD, NEUTRAL, NO_DCGM, NOTICE, WARNING, Column, bars, board, curves, heat, listing, number, row,
                   to_dashboard, to_runbook, values)

NODE = 'cluster="$cluster", node="$node"'
GPU = f'{NODE}, gpu=~"$gpu"'
GPUS = f"""* on (gpu_uuid) group_left (gpu) topk by (gpu_uuid) (1,
    count by (gpu_uuid, gpu) (ncclscope_rank_info{{{GPU}, gpu_uuid!=""}})) ^ 0"""
ITS = f"and on (instance) ncclscope_rank_info{{{NODE}}}"


def dcgm(metric):
    return f"""max by (gpu) (max by (gpu_uuid) (label_replace({metric}, "gpu_uuid", "$1", "UUID", "(.+)")) {GPUS})"""


def make(w):
    to_job = to_dashboard("Open the job", "ncclscope-job", cluster="$cluster", job="${__data.fields.Job}")
    series_to_job = to_dashboard("Open the job", "ncclscope-job", cluster="$cluster", job="${__field.labels.job_id}")
    made = board("ncclscope-node", "One node: the jobs on it, its GPUs and network side by side, over all jobs.", [
        values("cluster", "Cluster", "The node's cluster", "label_values(ncclscope_job_info, cluster)"),
        values("node", "Node", "As its agent is named", 'label_values(ncclscope_rank_info{cluster="$cluster"}, node)'),
        values("gpu", "GPU", "Index on the node, in PCI bus order",
               'label_values(ncclscope_rank_info{cluster="$cluster", node="$node"}, gpu)', several=True)])

    made = made.with_panel(number(
        "Jobs here", "Jobs with a rank on this node.", "none", f"count(count by (job_id) (ncclscope_rank_info{{{NODE}}}))"))
    made = made.with_panel(number(
        "Late GPUs here", "GPUs of this node that the others of their job wait for, in three windows running.", "none",
        f"count(gpu:ncclscope_lag_seconds:culprit{{{NODE}}}) or vector(0)", steps=((None, GOOD), (1, WARNING)),
        links=[to_runbook("Runbook: late node", "NcclscopeLateNode")]))
    made = made.with_panel(number(
        "Jobs in which it was late", "Jobs in which a GPU of this node was the late one lately, the GPU with most.", "none",
        f"max(gpu:ncclscope_lag_seconds:jobs{{{NODE}}}) or vector(0)", steps=((None, GOOD), (1, NOTICE), (2, WARNING)),
        links=[to_runbook("Runbook: slow across jobs", "NcclscopeSlowAcrossJobs")]))
    made = made.with_panel(number(
        "Costs others most", "Seconds per second that each of the others waits for the worst GPU of this node.", "percentunit",
        f"max(gpu:ncclscope_caused_seconds:rate{w}{{{NODE}}})", decimals=1, steps=((None, GOOD), (0.01, NOTICE), (0.05, WARNING))))
    made = made.with_panel(number(
        "In NCCL kernels", "Share of time during which a kernel of NCCL runs, mean over the node's GPUs and jobs.", "percentunit",
        f"avg(gpu:ncclscope_gpu_communication_seconds:rate{w}{{{NODE}}})", decimals=0))
    made = made.with_panel(number(
        "Longest in flight", "Age of the oldest operation in flight of the node's ranks.", "s",
        f"max(ncclscope_communicator_inflight_seconds {ITS})", steps=((None, GOOD), (30, WARNING), (60, CRITICAL))))

    made = made.with_panel(listing(
        "Ranks here", "Where the ranks of jobs run. The agent's page shows the node live.",
        [f"count by (job_id, global_rank, gpu, gpu_uuid, pci_bus_id, pid, instance) (ncclscope_rank_info{{{GPU}}})"],
        [Column("job_id", "Job", links=[to_job]), Column("global_rank", "Global rank"), Column("gpu", "GPU"), Column("gpu_uuid", "UUID", width=330),
         Column("pci_bus_id", "PCI bus"), Column("pid", "Process"), Column("instance", "Agent", width=160, links=[
             to_page()]), Column("Value", "Communicators", "none")], height=7))

    made = made.with_row(row("Waiting"))
    made = made.with_panel(heat(
        "Waited for: seconds that a GPU costs each of the others", "Heat map by GPU and job, in seconds per second.", "percentunit",
        [(f"gpu:ncclscope_caused_seconds:rate{w}{{{GPU}}}", "GPU {{gpu}}, job {{job_id}}")], high=0.25, links=[series_to_job]))
    made = made.with_panel(heat(
        "Waiting: seconds that a GPU waits for others", "Heat map by GPU and job, in seconds per second.", "percentunit",
        [(f"gpu:ncclscope_wait_seconds:rate{w}{{{GPU}}}", "GPU {{gpu}}, job {{job_id}}")], high=0.25, links=[series_to_job]))
    made = made.with_panel(curves(
        "Time in NCCL kernels", "Share of time by GPU and job.", "percentunit",
        [(f"gpu:ncclscope_gpu_communication_seconds:rate{w}{{{GPU}}}", "GPU {{gpu}}, job {{job_id}}")], low=0, high=1,
        links=[series_to_job]))
    made = made.with_panel(bars(
        "Jobs in which a GPU was late", "Lately, by GPU. Two or more point at the hardware or the node's set-up.", "none",
        [(f"gpu:ncclscope_lag_seconds:jobs{{{GPU}}}", "GPU {{gpu}}")], steps=((None, NEUTRAL), (2, WARNING)),
        links=[to_runbook("Runbook: slow across jobs", "NcclscopeSlowAcrossJobs")]))

    made = made.with_row(row("Network"))
    made = made.with_panel(curves(
        "Seconds on the wire per byte sent", "By GPU, over sampled operations; dashed: the median of the job's GPUs on all nodes.", "s",
        [(f'gpu:ncclscope_network_seconds_per_byte:rate{w}{{{GPU}, direction="send"}}', "GPU {{gpu}}, job {{job_id}}"),
         (f"""quantile by (job_id) (0.5, gpu:ncclscope_network_seconds_per_byte:rate{w}{{cluster="$cluster", direction="send"}}
             and on (job_id) gpu:ncclscope_rank_info:topk{{{NODE}}})""", "baseline: median of job {{job_id}}")], low=0,
        links=[to_runbook("Runbook: slow link", "NcclscopeSlowLink")]))
    made = made.with_panel(curves(
        "Seconds until data came, per byte received", "By GPU, over sampled operations; dashed: the median of the job's GPUs on all nodes.", "s",
        [(f'gpu:ncclscope_network_seconds_per_byte:rate{w}{{{GPU}, direction="receive"}}', "GPU {{gpu}}, job {{job_id}}"),
         (f"""quantile by (job_id) (0.5, gpu:ncclscope_network_seconds_per_byte:rate{w}{{cluster="$cluster", direction="receive"}}
             and on (job_id) gpu:ncclscope_rank_info:topk{{{NODE}}})""", "baseline: median of job {{job_id}}")], low=0))

    made = made.with_row(row("GPUs as DCGM sees them (where its exporter runs)"))
    made = made.with_panel(curves(
        "SM activity", "Share of time in which a warp runs. Waiting kernels of NCCL count too.", "percentunit",
        [(dcgm("DCGM_FI_PROF_SM_ACTIVE"), "GPU {{gpu}}")], none=NO_DCGM, width=8, low=0, high=1))
    made = made.with_panel(curves(
        "SM clock", "A GPU below the others is throttled.", "hertz", [(f"1e6 * {dcgm('DCGM_FI_DEV_SM_CLOCK')}", "GPU {{gpu}}")],
        none=NO_DCGM, width=8, low=0))
    made = made.with_panel(curves(
        "Temperature", "Of the GPU. Hot ones throttle and come late.", "celsius", [(dcgm("DCGM_FI_DEV_GPU_TEMP"), "GPU {{gpu}}")], none=NO_DCGM, width=8))
    made = made.with_panel(curves(
        "Power", "A GPU that waits draws less.", "watt", [(dcgm("DCGM_FI_DEV_POWER_USAGE"), "GPU {{gpu}}")], none=NO_DCGM, width=8, low=0))
    made = made.with_panel(curves(
        "NVLink and PCIe, sent", "Bytes per second by GPU.", "Bps",
        [(dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES"), "NVLink GPU {{gpu}}"), (dcgm("DCGM_FI_PROF_PCIE_TX_BYTES"), "PCIe GPU {{gpu}}")],
        none=NO_DCGM, width=8, low=0))
    made = made.with_panel(curves(
        "Last XID error", "The driver's error number, 0 where there was none. An XID explains a process that is gone.", "none",
        [(dcgm("DCGM_FI_DEV_XID_ERRORS"), "GPU {{gpu}}")], none=NO_DCGM, width=8, low=0))
    return made


def to_page():
    from grafana_foundation_sdk.builders import dashboard as boards
    return boards.DashboardLink("The agent's page").url("http://${__data.fields.Agent}/").target_blank(True)
