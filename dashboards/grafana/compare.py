# SPDX-License-Identifier: Apache-2.0
"""Compare jobs: today against yesterday, and a job against another of the same shape."""
from style import (CRITICAL, GOOD, WARNING, Column, board, choice, curves, listing, number, row, to_dashboard, to_runbook,
                   values)

JOB = 'cluster="$cluster", job_id="$job"'
OTHER = 'cluster="$cluster", job_id="$other"'
SHAPE = "collective, size, dimension, nranks, nnodes, algorithm"
LEGEND = "{{collective}} {{size}} {{dimension}} {{nranks}} ranks"
SHARES = ((None, CRITICAL), (0.7, WARNING), (0.9, GOOD))


def make(w):
    to_job = to_dashboard("Open the job", "ncclscope-job", cluster="$cluster", job="$job")
    made = board("ncclscope-compare", """Was it faster before, and is it slower than its like? A job against itself some time ago, against
        another job, and against earlier jobs of the same shape.""", [
            values("cluster", "Cluster", "Both jobs' cluster", "label_values(ncclscope_job_info, cluster)"),
            values("job", "Job", "The job in question", 'label_values(ncclscope_job_info{cluster="$cluster"}, job_id)'),
            values("other", "Other job", "The job to hold it against",
                   'label_values(ncclscope_job_info{cluster="$cluster"}, job_id)'),
            choice("before", "Before", "How long ago the job is held against itself", ["10m", "1h", "6h", "1d", "2d", "1w"], "1d")])

    made = made.with_row(row("Job $job: now against $before ago"))
    made = made.with_panel(number(
        "Transfer now / before", "Transfer bandwidth of the same collectives, sizes and communicators' shapes, the lowest of them.",
        "percentunit", f"""min(job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}}
          / job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}} offset $before)""", width=6, decimals=0, steps=SHARES,
        none="nothing so long ago", links=[to_job]))
    made = made.with_panel(number(
        "Step time now / before", "Mean length of a training step, now divided by before.", "percentunit",
        f"job:ncclscope_step_seconds:mean{w}{{{JOB}}} / job:ncclscope_step_seconds:mean{w}{{{JOB}}} offset $before", width=6,
        decimals=0, steps=((None, GOOD), (1.05, WARNING), (1.5, CRITICAL)), none="nothing so long ago", links=[to_job]))
    made = made.with_panel(number(
        "Waiting now - before", "Share of time that GPUs of the job wait for late ones, mean over its GPUs: difference.", "percentunit",
        f"""avg(gpu:ncclscope_wait_seconds:rate{w}{{{JOB}}}) - avg(gpu:ncclscope_wait_seconds:rate{w}{{{JOB}}} offset $before)""",
        width=6, decimals=1, steps=((None, GOOD), (0.02, WARNING), (0.1, CRITICAL)), none="nothing so long ago"))
    made = made.with_panel(number(
        "In NCCL kernels now - before", "Share of time during which a kernel of NCCL runs: difference.", "percentunit",
        f"""job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}
          - job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}} offset $before""", width=6, decimals=1,
        steps=((None, GOOD), (0.05, WARNING)), none="nothing so long ago"))
    made = made.with_panel(curves(
        "Transfer bandwidth", "Now, and dashed $before ago.", "Bps",
        [(f"job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}}", LEGEND),
         (f"job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}} offset $before", f"before: {LEGEND}")], low=0,
        links=[to_runbook("Runbook: transfer below own baseline", "NcclscopeTransferBelowOwnBaseline")]))
    made = made.with_panel(curves(
        "Step time", "Now, and dashed $before ago.", "s",
        [(f"job:ncclscope_step_seconds:mean{w}{{{JOB}}}", "step"),
         (f"job:ncclscope_step_seconds:mean{w}{{{JOB}}} offset $before", "before")], low=0))
    made = made.with_panel(curves(
        "Time in collectives by size", """Share of the time in collectives by message size, now and before. If the mix of messages has changed,
        bandwidths cannot be compared.""", "percentunit",
        [(f"""sum by (size) (comm:ncclscope_collective_busy_seconds:rate{w}{{{JOB}}})
             / scalar(sum(comm:ncclscope_collective_busy_seconds:rate{w}{{{JOB}}}))""", "{{size}}"),
         (f"""sum by (size) (comm:ncclscope_collective_busy_seconds:rate{w}{{{JOB}}} offset $before)
             / scalar(sum(comm:ncclscope_collective_busy_seconds:rate{w}{{{JOB}}} offset $before))""", "before: {{size}}")], low=0, high=1))
    made = made.with_panel(curves(
        "Waiting for late GPUs", "Mean over the job's GPUs, now and dashed $before ago.", "percentunit",
        [(f"avg(gpu:ncclscope_wait_seconds:rate{w}{{{JOB}}})", "waiting"),
         (f"avg(gpu:ncclscope_wait_seconds:rate{w}{{{JOB}}} offset $before)", "before")], low=0))

    made = made.with_row(row("Job $job against job $other, where they have the same shape"))
    made = made.with_panel(listing(
        "Same shape, side by side", """Collectives, sizes and shapes of communicators that both jobs have. Ratio: the job divided by the
        other one.""",
        [f"max by ({SHAPE}) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}})",
         f"max by ({SHAPE}) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{OTHER}}})",
         f"""max by ({SHAPE}) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}})
            / max by ({SHAPE}) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{OTHER}}})""",
         f"""max by ({SHAPE}) (shape:ncclscope_transfer_bus_bytes_per_second:baseline{{cluster="$cluster"}}
            and on (cluster, {SHAPE}) job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}})"""],
        [Column("collective", "Collective"), Column("size", "Size"), Column("dimension", "Dimension"), Column("nranks", "Ranks"),
         Column("nnodes", "Nodes"), Column("algorithm", "Algorithm"), Column("Value #A", "Job", "Bps"), Column("Value #B", "Other job", "Bps"),
         Column("Value #C", "Ratio", "percentunit", SHARES), Column("Value #D", "Median of earlier jobs", "Bps")], height=8))
    made = made.with_panel(curves(
        "Transfer bandwidth of both", "Of the rank that waits least; same shapes only.", "Bps",
        [(f"""job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{cluster="$cluster", job_id=~"$job|$other"}}
             and on ({SHAPE}) job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}}
             and on ({SHAPE}) job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{OTHER}}}""", "{{job_id}}: " + LEGEND)], low=0))
    made = made.with_panel(curves(
        "Step time of both", "Comparable if both train the same model with the same batch.", "s",
        [(f"job:ncclscope_step_seconds:mean{w}{{{JOB}}} or job:ncclscope_step_seconds:mean{w}{{{OTHER}}}", "{{job_id}}")], low=0))
    made = made.with_panel(curves(
        "Time in NCCL kernels of both", "Share of time, mean over a job's GPUs.", "percentunit",
        [(f"""job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}
             or job:ncclscope_gpu_communication_seconds:ratio{w}{{{OTHER}}}""", "{{job_id}}")], low=0, high=1))
    made = made.with_panel(curves(
        "Against earlier jobs of the same shape", """Transfer bandwidth divided by the median over earlier jobs of the same shape, where there
        are enough of them.""", "percentunit",
        [(f"""job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}}
             / on (cluster, {SHAPE}) group_left () shape:ncclscope_transfer_bus_bytes_per_second:baseline""", LEGEND)], low=0,
        links=[to_runbook("Runbook: transfer below fleet", "NcclscopeTransferBelowFleet")]))
    return made
