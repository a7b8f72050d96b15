# SPDX-License-Identifier: Apache-2.0
"""Cluster overview: which jobs need somebody, worst first."""
from style import (CLASSES, CRITICAL, GOOD, NEUTRAL, NOTICE, WARNING, Column, alerts, bars, board, curves, listing, number, row,
                   to_dashboard, to_runbook, values)

HERE = 'cluster=~"$cluster"'
FIRING = f'alertname=~"Ncclscope.*", alertstate="firing", job_id!="", {HERE}'
HEALTH = ((0, "healthy", GOOD), (1, "see information", NOTICE), (2, "warning", WARNING), (3, "critical", CRITICAL))


def make(w):
    to_job = to_dashboard("Open the job", "ncclscope-job", cluster="${__data.fields.Cluster}", job="${__data.fields.Job}")
    curve_to_job = to_dashboard("Open the job", "ncclscope-job", cluster="${__field.labels.cluster}",
                                job="${__field.labels.job_id}")
    made = board("ncclscope-cluster", "All jobs that use NCCL, the worst first: what hangs, who is late, whose bandwidth fell.", [
        values("cluster", "Cluster", "Clusters as SLURM or the agents' settings name them",
               "label_values(ncclscope_job_info, cluster)", several=True)])

    made = made.with_panel(number(
        "Jobs", "Jobs with a process that uses NCCL now, or did within the grace time.", "none",
        f"count(count by (cluster, job_id) (ncclscope_job_info{{{HERE}}})) or vector(0)"))
    made = made.with_panel(number(
        "GPUs in jobs", "GPUs on which a process has a communicator.", "none",
        f"count(count by (cluster, instance, gpu) (ncclscope_rank_info{{{HERE}}})) or vector(0)"))
    made = made.with_panel(number(
        "Jobs that hang", "Jobs in which somebody has waited for longer than the job's own threshold, and the rules know a class.",
        "none", f"""count(count by (cluster, job_id) (rank:ncclscope_hang_seconds:accused{{{HERE}}}
          >= on (cluster, job_id) group_left () job:ncclscope_hang_threshold_seconds:max)) or vector(0)""",
        steps=((None, GOOD), (1, CRITICAL))))
    made = made.with_panel(number(
        "Late GPUs", "GPUs that the others of their job wait for, in three windows running.", "none",
        f"count(gpu:ncclscope_lag_seconds:culprit{{{HERE}}}) or vector(0)", steps=((None, GOOD), (1, WARNING))))
    made = made.with_panel(number(
        "GPU time lost to waiting", "Share of all GPUs' time that is spent waiting in collectives for somebody late. "
        "Some of it may be hidden behind computing.", "percentunit",
        f"avg(gpu:ncclscope_wait_seconds:rate{w}{{{HERE}}})", decimals=1, steps=((None, GOOD), (0.05, WARNING), (0.2, CRITICAL))))
    made = made.with_panel(number(
        "Agents that answer", "Agents whose last scrape succeeded.", "none",
        "count(ncclscope_agent_build_info) or vector(0)",
        links=[to_dashboard("Telemetry", "ncclscope-telemetry")]))

    made = made.with_panel(listing(
        "Jobs by health", """One line for each job, the worst first. Health is that of the gravest alert that fires for the job; the other
        columns are what a look at the job would begin with: what its worst GPU costs each of the others, in seconds per second; the
        lowest transfer bandwidth against the job's own past.""",
        [f"""max by (cluster, job_id) (3 * ALERTS{{{FIRING}, severity="critical"}} or 2 * ALERTS{{{FIRING}, severity="warning"}}
            or ALERTS{{{FIRING}, severity="info"}} or 0 * ncclscope_job_info{{{HERE}}})""",
         f"""topk by (cluster, job_id) (1, count by (cluster, job_id, user, job_name) (ncclscope_job_info{{{HERE}}}))""",
         f"count by (cluster, job_id) (count by (cluster, job_id, instance, gpu) (ncclscope_rank_info{{{HERE}}}))",
         f"max by (cluster, job_id) (ncclscope_communicator_inflight_seconds{{{HERE}}})",
         f"max by (cluster, job_id) (gpu:ncclscope_caused_seconds:rate{w}{{{HERE}}})",
         f"""min by (cluster, job_id) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{HERE}}}
            / job:ncclscope_transfer_bus_bytes_per_second:baseline)""",
         f"max by (cluster, job_id) (job:ncclscope_step_seconds:mean{w}{{{HERE}}})",
         f"max by (cluster, job_id) (job:ncclscope_gpu_communication_seconds:ratio{w}{{{HERE}}})",
         f"min by (cluster, job_id) (comm:ncclscope_telemetry_coverage_ratio:min{{{HERE}}})"],
        [Column("Value #A", "Health", texts=HEALTH, width=130), Column("cluster", "Cluster"),
         Column("job_id", "Job", links=[to_job]), Column("job_name", "Name"), Column("user", "User"),
         Column("Value #C", "GPUs", "none", width=80), Column("Value #D", "Longest in flight", "s", ((None, GOOD), (30, WARNING), (60, CRITICAL))),
         Column("Value #E", "Costs others", "percentunit", ((None, GOOD), (0.01, NOTICE), (0.05, WARNING))),
         Column("Value #F", "Transfer of past", "percentunit", ((None, CRITICAL), (0.7, WARNING), (0.95, GOOD))),
         Column("Value #G", "Step", "s"), Column("Value #H", "In NCCL", "percentunit"),
         Column("Value #I", "Coverage", "percentunit", ((None, WARNING), (0.99, GOOD)))],
        height=10, sort="Health"))

    made = made.with_panel(alerts(
        "Alerts that fire", """Alerts of ncclscope for the jobs chosen above, and those of agents, which have no job. The job opens its
        dashboard, the alert its runbook.""", (HERE, 'cluster=""'), [
            Column("cluster", "Cluster"), Column("job_id", "Job", links=[to_job]), Column("node", "Node"), Column("gpu", "GPU"),
            Column("comm_name", "Communicator"), Column("rank", "Rank"), Column("global_rank", "Global rank"),
            Column("class", "Class", texts=CLASSES), Column("instance", "Agent")]))

    made = made.with_row(row("How jobs do"))
    made = made.with_panel(curves(
        "Bandwidth against its past", """Transfer bandwidth of each job divided by the median of the same job before, lowest over its
        collectives and sizes. 100 % is as ever. Jobs appear once they have a past.""", "percentunit",
        [(f"""min by (cluster, job_id) (job:ncclscope_transfer_bus_bytes_per_second:shape{w}{{{HERE}}}
            / job:ncclscope_transfer_bus_bytes_per_second:baseline)""", "{{job_id}}")], links=[curve_to_job], low=0, none="no job has a past yet"))
    made = made.with_panel(curves(
        "Time in NCCL kernels", "Share of time during which at least one kernel of NCCL runs on a GPU, mean over the job's GPUs.",
        "percentunit", [(f"job:ncclscope_gpu_communication_seconds:ratio{w}{{{HERE}}}", "{{job_id}}")], links=[curve_to_job],
        low=0, high=1))
    made = made.with_panel(curves(
        "Waiting for late GPUs", "Share of time that a GPU of the job spends waiting in collectives, mean over its GPUs.", "percentunit",
        [(f"avg by (cluster, job_id) (gpu:ncclscope_wait_seconds:rate{w}{{{HERE}}})", "{{job_id}}")], links=[curve_to_job], low=0))
    made = made.with_panel(curves(
        "Step time", "Mean length of a training step, inferred from the rhythm of operations.", "s",
        [(f"job:ncclscope_step_seconds:mean{w}{{{HERE}}}", "{{job_id}}")], links=[curve_to_job], low=0, none="no job's rhythm is known yet"))

    made = made.with_row(row("Hardware that stands out"))
    made = made.with_panel(bars(
        "GPUs that cost others most", "Seconds per second that each of the others waits for a GPU, the ten worst of all jobs.", "percentunit",
        [(f"topk(10, max by (cluster, job_id, node, gpu) (gpu:ncclscope_caused_seconds:rate{w}{{{HERE}}}))",
          "GPU {{gpu}} of {{node}}, job {{job_id}}")],
        links=[to_dashboard("Open the node", "ncclscope-node", cluster="${__field.labels.cluster}", node="${__field.labels.node}")],
        steps=((None, NOTICE), (0.05, WARNING), (0.2, CRITICAL))))
    made = made.with_panel(bars(
        "GPUs late in several jobs", "In how many jobs a GPU was the late one lately. Two or more point at the hardware or the node.", "none",
        [(f"topk(10, gpu:ncclscope_lag_seconds:jobs{{{HERE}}})", "GPU {{gpu}} of {{node}}")],
        links=[to_dashboard("Open the node", "ncclscope-node", cluster="${__field.labels.cluster}", node="${__field.labels.node}"),
               to_runbook("Runbook", "NcclscopeSlowAcrossJobs")], steps=((None, NEUTRAL), (2, WARNING)), none="no GPU was late"))
    return made
