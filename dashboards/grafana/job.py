# SPDX-License-Identifier: Apache-2.0
"""Job: is its communication healthy, who is slow, does it hang, and does that explain its throughput?"""
import correlation
from style import (CLASSES, CRITICAL, GOOD, NEUTRAL, NOTICE, RANK_SECONDS, WARNING, Column, alerts, bars, board, curves, heat,
                   listing, number, row, to_dashboard, to_runbook, values, worst)

JOB = 'cluster="$cluster", job_id="$job"'
NO_WAITING = "nothing to compare: no collectives that wait for all ranks, or not all ranks report"
NO_STEPS = "no rhythm known: after 64 steps in at least a minute, or ten minutes"
NO_PHASES = "no network phases: one node, or none sampled yet"
SMALL = 'size=~"<=(4KiB|64KiB|1MiB)"'


def job_variables():
    return [values("cluster", "Cluster", "The job's cluster", "label_values(ncclscope_job_info, cluster)"),
            values("job", "Job", "SLURM job, or namespace/job in Kubernetes",
                   'label_values(ncclscope_job_info{cluster="$cluster"}, job_id)')]


def make(w):
    to_communicator = to_dashboard("Open the communicator", "ncclscope-communicator", cluster="$cluster", job="$job",
                                   comm="${__data.fields.comm}")
    series_to_communicator = to_dashboard("Open the communicator", "ncclscope-communicator", cluster="$cluster", job="$job",
                                          comm="${__field.labels.comm}")
    to_node = to_dashboard("Open the node", "ncclscope-node", cluster="$cluster", node="${__field.labels.node}",
                           gpu="${__field.labels.gpu}")
    row_to_node = to_dashboard("Open the node", "ncclscope-node", cluster="$cluster", node="${__data.fields.Node}")
    compare = to_dashboard("Compare with before, or with another job", "ncclscope-compare", cluster="$cluster", job="$job")
    made = board("ncclscope-job", """One job: bandwidth by collective and size against its past, step time, who waits for whom, and
        what hangs.""", [*job_variables(), values(
            "collective", "Collective", "Which collectives the bandwidth panels show",
            'label_values(ncclscope_collective_operations_total{cluster="$cluster", job_id="$job"}, collective)', several=True)])
    chosen = f'{JOB}, collective=~"$collective"'

    made = made.with_panel(number(
        "Longest in flight", "Age of the oldest operation that has not completed, over all communicators.", "s",
        f"max(ncclscope_communicator_inflight_seconds{{{JOB}}})", steps=((None, GOOD), (30, WARNING), (60, CRITICAL)),
        links=[to_runbook("Runbook: hang", "NcclscopeHang")]))
    made = made.with_panel(number(
        "Late GPUs", "GPUs that the others wait for, in three windows running.", "none",
        f"count(gpu:ncclscope_lag_seconds:culprit{{{JOB}}}) or vector(0)", steps=((None, GOOD), (1, WARNING)),
        links=[to_runbook("Runbook: late GPU", "NcclscopeLateGpu")]))
    made = made.with_panel(number(
        "Transfer of its past", """Transfer bandwidth divided by the median of the same job before, the lowest of its collectives and
        sizes. Lateness does not lower it.""", "percentunit",
        f"""min(job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{JOB}}}
          / job:ncclscope_transfer_bus_bytes_per_second:baseline)""", decimals=0,
        steps=((None, CRITICAL), (0.7, WARNING), (0.9, GOOD)), none="no past yet", links=[compare]))
    made = made.with_panel(number(
        "Step time of its past", "Mean step time divided by the median of the same job before.", "percentunit",
        f"job:ncclscope_step_seconds:mean{w}{{{JOB}}} / job:ncclscope_step_seconds:baseline", decimals=0,
        steps=((None, GOOD), (1.05, WARNING), (1.5, CRITICAL)), none="no past yet", links=[compare]))
    made = made.with_panel(number(
        "In NCCL kernels", "Share of time during which at least one kernel of NCCL runs, mean over the job's GPUs.", "percentunit",
        f"job:ncclscope_gpu_communication_seconds:ratio{w}{{{JOB}}}", decimals=0))
    made = made.with_panel(number(
        "Lowest coverage", "Share of operations that telemetry recorded, of the communicator with the lowest. Below 99 % the rules accuse nobody.",
        "percentunit", f"min(comm:ncclscope_telemetry_coverage_ratio:min{{{JOB}}})", decimals=2,
        steps=((None, WARNING), (0.99, GOOD)), links=[to_runbook("Runbook: low coverage", "NcclscopeLowCoverage")]))

    made = made.with_panel(listing(
        "Job", "Who it is. identity_source tells whether the kernel proved it (cgroup) or it was only claimed.",
        [f"count by (cluster, job_id, user, account, partition, job_name, namespace, pod, run, identity_source) (ncclscope_job_info{{{JOB}}})"],
        [Column("job_id", "Job"), Column("job_name", "Name"), Column("user", "User"), Column("account", "Account"),
         Column("partition", "Partition"), Column("namespace", "Namespace"), Column("pod", "Pod"), Column("run", "Run"),
         Column("identity_source", "Identity"), Column("Value", "Nodes", "none")], width=12, height=5))
    made = made.with_panel(alerts(
        "Alerts of this job", "What fires now, and since when. The alert opens its runbook.", (JOB,), [
            Column("node", "Node"), Column("gpu", "GPU"), Column("comm_name", "Communicator"), Column("rank", "Rank"),
            Column("global_rank", "Global rank"), Column("class", "Class", texts=CLASSES)], width=12, height=5))

    made = made.with_row(row("Bandwidth"))
    made = made.with_panel(curves(
        "Bus bandwidth as the job sees it", "Mean over ranks, time spent waiting for late ranks included, by collective and message size.",
        "Bps", [(f"job:ncclscope_user_bus_bytes_per_second:rate{w}{{{chosen}}}", "{{collective}} {{size}}")], low=0))
    made = made.with_panel(curves(
        "Transfer bandwidth against its past", """Bus bandwidth of the rank that waits least: what links and NICs give. Dashed: the median
        of the same job before. If only the panel to the left falls, somebody is late; if this one falls, the transfer is slow.""", "Bps",
        [(f"job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{chosen}}}", "{{collective}} {{size}} {{dimension}} {{nranks}} ranks"),
         (f"job:ncclscope_transfer_bus_bytes_per_second:baseline{{{chosen}}}",
          "before: {{collective}} {{size}} {{dimension}} {{nranks}} ranks")], low=0,
        links=[to_runbook("Runbook: transfer below own baseline", "NcclscopeTransferBelowOwnBaseline"), compare]))
    made = made.with_panel(curves(
        "Time by message size", "Rank-seconds per second spent in collectives, by range of message sizes.", RANK_SECONDS,
        [(f"sum by (size) (comm:ncclscope_collective_busy_seconds:rate{w}{{{chosen}}})", "{{size}}")], stacked=True, width=9, low=0))
    made = made.with_panel(number(
        "Below 1 MiB", """Share of the time in collectives that is spent on messages of at most 1 MiB, where latency counts and not
        bandwidth. Much of it: fuse messages, or use larger buckets.""", "percentunit",
        f"""(sum(comm:ncclscope_collective_busy_seconds:rate{w}{{{chosen}, {SMALL}}}) or vector(0))
          / sum(comm:ncclscope_collective_busy_seconds:rate{w}{{{chosen}}})""", width=3, height=8, decimals=0,
        steps=((None, GOOD), (0.3, NOTICE), (0.6, WARNING))))
    made = made.with_panel(curves(
        "Duration of collectives", "Median and 99th percentile over operations and ranks, waiting included.", "s",
        [(f"""histogram_quantile({q}, sum by (collective, le)
             (rate(ncclscope_collective_duration_seconds_bucket{{{chosen}}}[$__rate_interval])))""", f"{name} {{{{collective}}}}")
         for q, name in ((0.5, "median"), (0.99, "99 %"))], low=0))
    made = made.with_panel(curves(
        "Operations", "Collectives, and sends and receives, per second of one rank on average.", "ops",
        [(f"""sum by (collective) (rate(ncclscope_rank_collective_operations_total{{{chosen}}}[$__rate_interval]))
             / scalar(count(count by (instance, gpu) (ncclscope_rank_info{{{JOB}}})))""", "{{collective}}"),
         (f"""sum by (operation) (rate(ncclscope_rank_p2p_operations_total{{{JOB}}}[$__rate_interval]))
             / scalar(count(count by (instance, gpu) (ncclscope_rank_info{{{JOB}}})))""", "{{operation}}")], low=0))
    made = made.with_panel(bars(
        "Communicators by time spent in them", "Rank-seconds per second in collectives, the ten with most.", RANK_SECONDS,
        [(f"""topk(10, sum by (comm) (comm:ncclscope_collective_busy_seconds:rate{w}{{{JOB}}})
             * on (comm) group_left (comm_name, dimension, nranks) max by (comm, comm_name, dimension, nranks)
               (comm:ncclscope_communicator_info:topk{{{JOB}}}))""", "{{comm_name}} {{dimension}} {{nranks}} ranks {{comm}}")],
        links=[series_to_communicator]))

    made = made.with_row(row("Steps"))
    made = made.with_panel(curves(
        "Step time", "Mean of a training step, inferred from the rhythm of operations. Dashed: the median of the same job before.", "s",
        [(f"job:ncclscope_step_seconds:mean{w}{{{JOB}}}", "mean"), (f"job:ncclscope_step_seconds:baseline{{{JOB}}}", "before"),
         (f"histogram_quantile(0.95, sum by (le) (rate(ncclscope_step_seconds_bucket{{{JOB}}}[$__rate_interval])))", "95 %")],
        low=0, links=[to_runbook("Runbook: step time above baseline", "NcclscopeStepTimeAboveBaseline")], none=NO_STEPS))
    made = made.with_panel(curves(
        "Communication share of steps", "Share of the last steps during which a kernel of NCCL ran, by GPU. Hidden behind computing or not.",
        "percentunit", [(f"""max by (node, gpu) (ncclscope_step_communication_ratio{{{JOB}}}
             * on (cluster, job_id, instance, gpu) group_left (node) gpu:ncclscope_rank_info:topk)""", "GPU {{gpu}} of {{node}}")],
        low=0, high=1, links=[to_node], none=NO_STEPS))

    made = made.with_row(row("Who waits for whom"))
    caused = f"gpu:ncclscope_caused_seconds:rate{w}{{{JOB}}}"
    made = made.with_panel(heat(
        "Waited for: seconds that a GPU costs each of the others", """Heat map by GPU, in seconds per second, of the GPUs with most. The
        culprit's row glows here and is cool in the map to the right; a victim's row the other way round.""", "percentunit",
        [(worst(caused, "cluster, job_id, node, gpu"), "{{node}} GPU {{gpu}}")], high=0.25, links=[to_node], none=NO_WAITING))
    made = made.with_panel(heat(
        "Waiting: seconds that a GPU waits for others", "The same GPUs, in seconds per second.", "percentunit",
        [(worst(f"gpu:ncclscope_wait_seconds:rate{w}{{{JOB}}}", "cluster, job_id, node, gpu", caused), "{{node}} GPU {{gpu}}")],
        high=0.25, links=[to_node], none=NO_WAITING))
    made = made.with_panel(bars(
        "GPUs that cost others most", "Newest window, the ten with most, in seconds per second.", "percentunit",
        [(f"topk(10, {caused})", "GPU {{gpu}} of {{node}}")],
        links=[to_node, to_runbook("Runbook: late GPU", "NcclscopeLateGpu")], width=8, steps=((None, NOTICE), (0.05, WARNING), (0.2, CRITICAL))))
    made = made.with_panel(curves(
        "Late on the host, or still computing", """Queue time: GPU start minus enqueue, mean of the operations of which it is known. No
        longer than the others' for a late GPU: its host called late. Longer: its GPU was still computing.""", "s",
        [(f"""topk(10, max by (node, gpu) (
            sum by (cluster, job_id, instance, gpu) (rate(ncclscope_rank_queue_seconds_total{{{JOB}}}[{w}]))
            / (sum by (cluster, job_id, instance, gpu) (rate(ncclscope_rank_queue_operations_total{{{JOB}}}[{w}])) > 0)
            * on (cluster, job_id, instance, gpu) group_left (node) gpu:ncclscope_rank_info:topk))""", "GPU {{gpu}} of {{node}}")],
        width=8, low=0, none="not known: clocks of host and GPU not matched", links=[to_node]))
    made = made.with_panel(curves(
        "Lag against the verdict's threshold", """The GPU that works longest compared with its peers, and from where on the job's rules
        call it late: 1 % of time, or 13 times the job's noise.""", "percentunit",
        [(f"max(gpu:ncclscope_lag_seconds:rate{w}{{{JOB}}})", "worst GPU"),
         (f"job:ncclscope_lag_seconds:threshold{{{JOB}}}", "threshold")], width=8, low=0))

    made = made.with_row(row("Hangs"))
    made = made.with_panel(listing(
        "Who is accused", """Ranks (or communicators) that others wait for since long, with the class of the fault. Empty as long as nothing
        stands still.""",
        [f"rank:ncclscope_hang_seconds:accused{{{JOB}}}"],
        [Column("class", "Class", texts=CLASSES), Column("comm_name", "Communicator"), Column("comm", "comm", links=[to_communicator]),
         Column("rank", "Rank"), Column("global_rank", "Global rank"), Column("node", "Node", links=[row_to_node]),
         Column("gpu", "GPU"), Column("Value", "Waited for", "s")], height=8, sort="Waited for",
        none="nobody is accused"))
    made = made.with_panel(curves(
        "Oldest operation in flight", "By communicator, and from where on it is a hang.", "s",
        [(f"""max by (comm, comm_name) (max by (cluster, job_id, comm) (ncclscope_communicator_inflight_seconds{{{JOB}}})
             * on (cluster, job_id, comm) group_left (comm_name) comm:ncclscope_communicator_info:topk)""", "{{comm_name}} {{comm}}"),
         (f"job:ncclscope_hang_threshold_seconds:max{{{JOB}}}", "threshold")], low=0, links=[series_to_communicator]))
    made = made.with_panel(curves(
        "Calls that the last rank is behind", """Collectives that the furthest rank has enqueued minus those of the last one, by communicator.
        It stays above zero in a hang.""", "none",
        [(f"""max by (comm) (ncclscope_communicator_operations_total{{{JOB}, stage="enqueued"}})
             - min by (comm) (ncclscope_communicator_operations_total{{{JOB}, stage="enqueued"}})""", "{{comm}}")],
        low=0, links=[series_to_communicator]))

    made = made.with_row(row("Network"))
    made = made.with_panel(curves(
        "Seconds on the wire per byte sent", "By GPU, over sampled operations. A GPU above the others has a slow way out.", "s",
        [(f'gpu:ncclscope_network_seconds_per_byte:rate{w}{{{JOB}, direction="send"}}', "GPU {{gpu}} of {{node}}")], low=0,
        links=[to_node, to_runbook("Runbook: slow link", "NcclscopeSlowLink")], none=NO_PHASES))
    made = made.with_panel(curves(
        "What the network proxy waits for", """Share by phase over sampled operations. send: gpu_wait (starved from upstream), peer_wait
        (blocked from downstream), wire. receive: data_wait (nothing came yet), flush, gpu_wait.""", "percentunit",
        [(f"""sum by (direction, phase) (rate(ncclscope_network_phase_seconds_total{{{JOB}}}[$__rate_interval]))
             / on (direction) group_left () sum by (direction) (rate(ncclscope_network_phase_seconds_total{{{JOB}}}[$__rate_interval]))""",
          "{{direction}}: {{phase}}")], low=0, high=1, none=NO_PHASES))
    return correlation.add(made, w)
