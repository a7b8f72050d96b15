# SPDX-License-Identifier: Apache-2.0
"""Telemetry: can the other dashboards be believed, and what does it cost?"""
from style import (CRITICAL, GOOD, NOTICE, WARNING, Column, bars, board, curves, listing, number, row, to_dashboard,
                   to_runbook, values)

HERE = 'cluster=~"$cluster"'
PROCESS = f'{HERE}, job_id=~"$job"'


def rate(metric, labels):
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def make(w):
    to_job = to_dashboard("Open the job", "ncclscope-job", cluster="${__data.fields.Cluster}", job="${__data.fields.Job}")
    series_to_job = to_dashboard("Open the job", "ncclscope-job", cluster="${__field.labels.cluster}", job="${__field.labels.job_id}")
    made = board("ncclscope-telemetry", """Whether telemetry can be believed: coverage, books, what was not seen and why; what it costs the jobs;
        and how the agents are.""", [
            values("cluster", "Cluster", "Clusters as SLURM or the agents' settings name them",
                   "label_values(ncclscope_job_info, cluster)", several=True),
            values("job", "Job", "For the panels by job", 'label_values(ncclscope_job_info{cluster=~"$cluster"}, job_id)', several=True)])

    made = made.with_panel(number(
        "Agents that answer", "Agents whose last scrape succeeded.", "none", "count(ncclscope_agent_build_info) or vector(0)"))
    made = made.with_panel(number(
        "Agents that do not", "Agents that were scraped within the last hour and do not answer now.", "none",
        """count(max by (job, instance) (up) == 0 and on (job, instance)
             max by (job, instance) (last_over_time(ncclscope_agent_build_info[1h]))) or vector(0)""",
        steps=((None, GOOD), (1, CRITICAL)), links=[to_runbook("Runbook: agent down", "NcclscopeAgentDown")]))
    made = made.with_panel(number(
        "Lowest coverage", "Of all communicators: share of operations that telemetry recorded.", "percentunit",
        f"min(comm:ncclscope_telemetry_coverage_ratio:min{{{PROCESS}}})", decimals=2, steps=((None, WARNING), (0.99, GOOD)),
        links=[to_runbook("Runbook: low coverage", "NcclscopeLowCoverage")]))
    made = made.with_panel(number(
        "Unbalanced books", "Processes of which something was lost that nobody counted. Zero, or there is a bug.", "none",
        f"count(ncclscope_plugin_books_balanced{{{PROCESS}}} == 0) or vector(0)", steps=((None, GOOD), (1, CRITICAL))))
    made = made.with_panel(number(
        "Overhead of budget", """Time the plugin spends on threads of NCCL and of the application, divided by what its user allowed it (0.1 %
        of wall time unless set otherwise), the process with most.""", "percentunit",
        f"max(ncclscope_plugin_overhead_ratio{{{PROCESS}}} / ncclscope_plugin_overhead_budget_ratio)", decimals=0,
        steps=((None, GOOD), (1, WARNING)),
        links=[to_runbook("Runbook: plugin overhead", "NcclscopePluginOverhead")]))
    made = made.with_panel(number(
        "Series of jobs", "Over all agents; see the limits below.", "none", "sum(ncclscope_agent_series)"))

    made = made.with_row(row("What jobs' telemetry sees"))
    made = made.with_panel(curves(
        "Coverage", "By job, its communicator with the lowest. Below 99 % the rules accuse nobody there.", "percentunit",
        [(f"min by (cluster, job_id) (comm:ncclscope_telemetry_coverage_ratio:min{{{PROCESS}}})", "{{job_id}}")], high=1,
        links=[series_to_job]))
    made = made.with_panel(curves(
        "Operations without a GPU time", "Per second, by reason. They and their bytes count; they enter no bandwidth.", "ops",
        [(f"sum by (reason) ({rate('ncclscope_operations_unobserved_total', PROCESS)})", "{{reason}}")], stacked=True, low=0))
    made = made.with_panel(curves(
        "Operations dropped by plugins", "Per second, by reason.", "ops",
        [(f"sum by (reason) ({rate('ncclscope_plugin_events_dropped_total', PROCESS)})", "{{reason}}")], stacked=True, low=0,
        links=[to_runbook("Runbook: low coverage", "NcclscopeLowCoverage")]))
    made = made.with_panel(curves(
        "Records: written, received, lost", "Per second, over all processes. Written is received and lost, but for those on their way.", "ops",
        [(f"sum({rate('ncclscope_plugin_records_written_total', PROCESS)})", "written"),
         (f"sum({rate('ncclscope_plugin_records_received_total', PROCESS)})", "received"),
         (f"sum({rate('ncclscope_plugin_records_lost_total', PROCESS)})", "lost")], low=0))
    made = made.with_panel(listing(
        "Processes", "Versions, and the books of each process. seen = recorded + dropped + open.",
        [f"count by (cluster, job_id, instance, pid, version, nccl_version, interface) (ncclscope_plugin_info{{{PROCESS}}})",
         f"max by (cluster, job_id, instance, pid) (ncclscope_plugin_events_seen_total{{{PROCESS}}})",
         f"sum by (cluster, job_id, instance, pid) (ncclscope_plugin_events_dropped_total{{{PROCESS}}})",
         f"max by (cluster, job_id, instance, pid) (ncclscope_plugin_records_lost_total{{{PROCESS}}})",
         f"max by (cluster, job_id, instance, pid) (ncclscope_plugin_books_balanced{{{PROCESS}}})",
         f"max by (cluster, job_id, instance, pid) (ncclscope_plugin_overhead_ratio{{{PROCESS}}})",
         f"""max by (cluster, job_id, instance, pid) (ncclscope_plugin_overhead_ratio{{{PROCESS}}}
            / ncclscope_plugin_overhead_budget_ratio)""",
         f"max by (cluster, job_id, instance, pid) (ncclscope_plugin_governor_level{{{PROCESS}}})"],
        [Column("cluster", "Cluster"), Column("job_id", "Job", links=[to_job]), Column("instance", "Agent", width=160), Column("pid", "Process"),
         Column("version", "Plugin"), Column("nccl_version", "NCCL"), Column("interface", "Interface"),
         Column("Value #B", "Seen", "none"), Column("Value #C", "Dropped", "none", ((None, GOOD), (1, WARNING))),
         Column("Value #D", "Lost", "none", ((None, GOOD), (1, WARNING))),
         Column("Value #E", "Books", texts=((1, "balanced", GOOD), (0, "do not balance", CRITICAL))),
         Column("Value #F", "Overhead", "percentunit", decimals=3),
         Column("Value #G", "Of budget", "percentunit", ((None, GOOD), (1, WARNING)), decimals=0),
         Column("Value #H", "Governor", "none", ((None, GOOD), (1, NOTICE), (2, WARNING)))], height=8))

    made = made.with_row(row("What it costs the jobs"))
    made = made.with_panel(curves(
        "Plugin's own time", "Share of time on threads of NCCL and of the application: the ten processes with most, and the budget.",
        "percentunit", [(f"topk(10, max by (job_id, instance, pid) (ncclscope_plugin_recent_overhead_ratio{{{PROCESS}}}))",
                         "{{job_id}} pid {{pid}}"),
                        (f"min(ncclscope_plugin_overhead_budget_ratio{{{PROCESS}}})", "budget")], low=0,
        links=[to_runbook("Runbook: plugin overhead", "NcclscopePluginOverhead")]))
    made = made.with_panel(curves(
        "Governor", """How many processes are at which level: 0 nothing given up, 1 network phases, 2 GPU times but of blocks, 3 counters
        only.""", "none", [(f'count_values by () ("level", ncclscope_plugin_governor_level{{{PROCESS}}})', "level {{level}}")],
        stacked=True, low=0))
    made = made.with_panel(curves(
        "Sender thread", "CPU time per second of the plugin's sender threads, mean over processes.", "percentunit",
        [(f"avg({rate('ncclscope_plugin_sender_cpu_seconds_total', PROCESS)})", "sender")], low=0))
    made = made.with_panel(curves(
        "Share of collectives with GPU times", "By job: 1 unless the governor, or a release that needs it, asks for fewer.", "percentunit",
        [(f"avg by (cluster, job_id) (ncclscope_plugin_gpu_timing_ratio{{{PROCESS}}})", "{{job_id}}")], low=0, high=1,
        links=[series_to_job]))

    made = made.with_row(row("Agents"))
    made = made.with_panel(curves(
        "CPU of agents", "Cores; the ten with most.", "percentunit",
        [("topk(10, rate(ncclscope_agent_cpu_seconds_total[$__rate_interval]))", "{{instance}}")], width=8, low=0))
    made = made.with_panel(curves(
        "Memory of agents", "Resident; the ten with most.", "bytes",
        [("topk(10, ncclscope_agent_resident_memory_bytes)", "{{instance}}")], width=8, low=0))
    made = made.with_panel(curves(
        "CPU time of a scrape", "Mean CPU time of making an exposition; the ten with most.", "s",
        [("""topk(10, rate(ncclscope_agent_scrape_cpu_seconds_total[$__rate_interval])
             / rate(ncclscope_agent_scrapes_total[$__rate_interval]))""", "{{instance}}")], width=8, low=0))
    made = made.with_panel(curves(
        "Series against their limit", "Of jobs, by agent; beyond the limit labels are folded and sums stay right.", "none",
        [("topk(10, ncclscope_agent_series)", "{{instance}}"), ('max(ncclscope_agent_series_limit{level="agent"})', "limit of an agent"),
         ('max(ncclscope_agent_series_limit{level="job"})', "limit of a job")], width=8, low=0,
        links=[to_runbook("Runbook: series folded", "NcclscopeSeriesFolded")]))
    made = made.with_panel(bars(
        "Jobs by fold step", "How far a job's series are folded: 0 nothing, 1 algorithm, 2 size, 3 communicator, 4 process, 5 rank, 6 operation.",
        "none", [(f"topk(10, max by (cluster, job_id) (ncclscope_job_fold_step{{{PROCESS}}}))", "{{job_id}}")], width=8,
        steps=((None, GOOD), (1, NOTICE), (3, WARNING)), links=[series_to_job]))
    made = made.with_panel(curves(
        "Age of the data scraped", "Seconds since an agent's newest snapshot, the ten oldest.", "s",
        [("topk(10, ncclscope_agent_snapshot_age_seconds)", "{{instance}}")], width=8, low=0))
    made = made.with_panel(curves(
        "Records received by agents", "Per second; the ten with most.", "ops",
        [("topk(10, rate(ncclscope_agent_records_total[$__rate_interval]))", "{{instance}}")], width=8, low=0))
    made = made.with_panel(curves(
        "Refused, and over quota", "Per second, over all agents: frames that could not be decoded, connections, sessions, quotas.", "ops",
        [("sum(rate(ncclscope_agent_decode_errors_total[$__rate_interval])) or vector(0)", "frames not decoded"),
         ("sum(rate(ncclscope_agent_connections_refused_total[$__rate_interval]))", "connections"),
         ("sum(rate(ncclscope_agent_sessions_refused_total[$__rate_interval]))", "sessions"),
         ("sum by (quota) (rate(ncclscope_agent_quota_exceeded_total[$__rate_interval]))", "quota: {{quota}}")], width=8, low=0))
    made = made.with_panel(curves(
        "Processes by version", "Of NCCL, as the plugin found it.", "none",
        [(f"count by (nccl_version) (ncclscope_plugin_info{{{PROCESS}}})", "NCCL {{nccl_version}}")], width=8, stacked=True, low=0,
        links=[to_runbook("Runbook: version skew", "NcclscopeVersionSkew")]))
    return made
