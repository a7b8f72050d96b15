# SPDX-License-Identifier: Apache-2.0
"""Communicator: where each of its ranks is, how they differ, and what its operations are made of."""
from job import NO_PHASES, job_variables
from style import (CRITICAL, GOOD, NOTICE, RANK_SECONDS, WARNING, Column, bars, board, curves, heat, listing, number, row,
                   to_dashboard, to_runbook, values)

COMM = 'cluster="$cluster", job_id="$job", comm="$comm"'
RANK = f'{COMM}, rank=~"$rank"'
STATES = (("running", "running", GOOD), ("finalized", "finalized", NOTICE), ("vanished", "vanished", CRITICAL))
WHERE = f"""* on (rank) group_left (node, gpu) topk by (rank) (1,
    count by (rank, node, gpu) (ncclscope_rank_info{{{COMM}}})) ^ 0"""
ITS_GPUS = f"* on (instance, gpu) group_left (node, rank) max by (instance, gpu, node, rank) (ncclscope_rank_info{{{RANK}}})"


def make(w):
    synchronising = f'{RANK}, collective=~"AllReduce|AllGather|ReduceScatter|AlltoAll"'
    mean = (f"rate(ncclscope_rank_collective_seconds_total{{{synchronising}}}[{w}]) / "
            f"(rate(ncclscope_rank_collective_operations_total{{{synchronising}}}[{w}]) > 0)")
    to_node = to_dashboard("Open the node", "ncclscope-node", cluster="$cluster", node="${__data.fields.Node}",
                           gpu="${__data.fields.GPU}")
    series_to_node = to_dashboard("Open the node", "ncclscope-node", cluster="$cluster", node="${__field.labels.node}",
                                  gpu="${__field.labels.gpu}")
    to_job = to_dashboard("Open the job", "ncclscope-job", cluster="$cluster", job="$job")
    made = board("ncclscope-communicator", "One communicator: its ranks side by side, and what its operations are made of.", [
        *job_variables(),
        values("comm", "Communicator", "Name and hash of a communicator of the job",
               """query_result(count by (comm, text) (label_join(ncclscope_communicator_info{cluster="$cluster", job_id="$job"},
               "text", " ", "comm_name", "comm")))""".replace("\n", " "), regex='/comm="(?<value>[^"]+)".*text="(?<text>[^"]+)"/'),
        values("rank", "Rank", "Ranks in the communicator, for the panels by rank",
               'label_values(ncclscope_rank_info{cluster="$cluster", job_id="$job", comm="$comm"}, rank)', several=True)])

    made = made.with_panel(number(
        "Ranks that report", "Ranks of this communicator that agents know. Fewer than it has: a node is missing.", "none",
        f"count(count by (rank) (ncclscope_rank_info{{{COMM}}}))", links=[to_job]))
    made = made.with_panel(number(
        "Longest in flight", "Age of the oldest operation that has not completed.", "s",
        f"max(ncclscope_communicator_inflight_seconds{{{COMM}}})", steps=((None, GOOD), (30, WARNING), (60, CRITICAL)),
        links=[to_runbook("Runbook: hang", "NcclscopeHang")]))
    made = made.with_panel(number(
        "Calls behind", "Collectives that the furthest rank has enqueued minus those of the last one.", "none",
        f"""max(ncclscope_communicator_operations_total{{{COMM}, stage="enqueued"}})
          - min(ncclscope_communicator_operations_total{{{COMM}, stage="enqueued"}})""", steps=((None, GOOD), (10, NOTICE))))
    made = made.with_panel(number(
        "Transfer bandwidth", "Bus bandwidth of the rank that waits least, the collective with most.", "Bps",
        f"max(comm:ncclscope_transfer_bus_bytes_per_second:max{w}{{{COMM}}})", none="no synchronising collective"))
    made = made.with_panel(number(
        "Bytes per operation", "Mean bus bytes of one collective of one rank.", "bytes",
        f"max(comm:ncclscope_bus_bytes_per_operation:mean{w}{{{COMM}}})"))
    made = made.with_panel(number(
        "Coverage", "Share of its operations that telemetry recorded.", "percentunit",
        f"comm:ncclscope_telemetry_coverage_ratio:min{{{COMM}}}", decimals=2, steps=((None, WARNING), (0.99, GOOD)),
        links=[to_runbook("Runbook: low coverage", "NcclscopeLowCoverage")]))

    made = made.with_panel(listing(
        "Communicator", "What NCCL and its users say of it. The dimension comes from its name, else from what is done on it.",
        [f"count by (comm, comm_name, nranks, nnodes, dimension) (ncclscope_communicator_info{{{COMM}}})"],
        [Column("comm_name", "Name"), Column("comm", "Hash"), Column("dimension", "Dimension"), Column("nranks", "Ranks"),
         Column("nnodes", "Nodes"), Column("Value", "Agents that report it", "none")], height=4))
    made = made.with_panel(listing(
        "Ranks", """One line for each rank: where it is, how far, and what it costs. Equal numbers of calls mean the same operation.
        Spends is the mean time in an operation: the rank that spends least came last. Queues is how long its operations wait for the GPU
        to start them, in seconds per second.""",
        [f'count by (rank, global_rank, node, gpu) (ncclscope_rank_info{{{RANK}}})',
         f"count by (rank, state) (ncclscope_rank_state{{{RANK}}})",
         f'max by (rank) (ncclscope_communicator_operations_total{{{RANK}, stage="enqueued"}})',
         f'max by (rank) (ncclscope_communicator_operations_total{{{RANK}, stage="started"}})',
         f'max by (rank) (ncclscope_communicator_operations_total{{{RANK}, stage="completed"}})',
         f"max by (rank) (ncclscope_communicator_inflight_seconds{{{RANK}}})",
         f"avg by (rank) ({mean})",
         f"""max by (rank) (rank:ncclscope_caused_seconds:rate{w}{{{RANK}}})
            or 0 * max by (rank) (ncclscope_communicator_inflight_seconds{{{RANK}}})""",
         f"max by (rank) (rate(ncclscope_rank_queue_seconds_total{{{RANK}}}[$__rate_interval]))"],
        [Column("rank", "Rank"), Column("global_rank", "Global rank"), Column("node", "Node", links=[to_node]), Column("gpu", "GPU"),
         Column("state", "State", texts=STATES), Column("Value #C", "Enqueued", "none", decimals=0),
         Column("Value #D", "Started", "none", decimals=0), Column("Value #E", "Completed", "none", decimals=0),
         Column("Value #F", "In flight", "s", ((None, GOOD), (30, WARNING), (60, CRITICAL))), Column("Value #G", "Spends", "s"),
         Column("Value #H", "Costs others", "percentunit", ((None, GOOD), (0.01, NOTICE), (0.05, WARNING))),
         Column("Value #I", "Queues", RANK_SECONDS)], height=9))

    made = made.with_row(row("Ranks over time"))
    made = made.with_panel(heat(
        "Time in an operation, by rank", """Heat map of the mean time of an operation. Who is late spends least: his row is cool where all
        others glow.""", "s", [(f"avg by (rank, node, gpu) (({mean}) {WHERE})",
                                "rank {{rank}}: {{node}} GPU {{gpu}}")], links=[series_to_node]))
    made = made.with_panel(heat(
        "In flight, by rank", "Heat map of the age of the oldest operation in flight. A hang is a row that glows more and more.", "s",
        [(f"max by (rank, node, gpu) (max by (rank) (ncclscope_communicator_inflight_seconds{{{RANK}}}) {WHERE})",
          "rank {{rank}}: {{node}} GPU {{gpu}}")], links=[series_to_node]))
    made = made.with_panel(bars(
        "How long ranks spend in an operation", "Distribution over ranks, newest window: mean time of an operation by rank.", "s",
        [(f"avg by (rank, node, gpu) (({mean}) {WHERE})",
          "rank {{rank}}: {{node}} GPU {{gpu}}")], links=[series_to_node]))
    made = made.with_panel(curves(
        "Progress", "Collectives per second by rank that were enqueued, started on the GPU and completed.", "ops",
        [(f'max by (rank, stage) (rate(ncclscope_communicator_operations_total{{{RANK}}}[$__rate_interval]))', "rank {{rank}} {{stage}}")],
        low=0))

    made = made.with_row(row("Operations"))
    made = made.with_panel(curves(
        "Bus bandwidth by collective and size", "Mean over ranks, waiting included; and transfer, of the rank that waits least.", "Bps",
        [(f"comm:ncclscope_user_bus_bytes_per_second:rate{w}{{{COMM}}}", "{{collective}} {{size}}"),
         (f"comm:ncclscope_transfer_bus_bytes_per_second:max{w}{{{COMM}}}", "transfer: {{collective}}")], low=0))
    made = made.with_panel(curves(
        "Time by collective and size", "Rank-seconds per second spent in collectives.", RANK_SECONDS,
        [(f"sum by (collective, size) (comm:ncclscope_collective_busy_seconds:rate{w}{{{COMM}}})", "{{collective}} {{size}}")],
        stacked=True, low=0))
    made = made.with_panel(curves(
        "Algorithms and protocols", "Share of operations by what NCCL chose. A change of it changes the bandwidth too.", "percentunit",
        [(f"""sum by (algorithm, protocol) (rate(ncclscope_collective_operations_total{{{COMM}}}[$__rate_interval]))
             / scalar(sum(rate(ncclscope_collective_operations_total{{{COMM}}}[$__rate_interval])))""", "{{algorithm}} {{protocol}}")],
        stacked=True, low=0, high=1))
    made = made.with_panel(curves(
        "Duration of the job's collectives", """Quantiles over all communicators of the job: histograms have no communicator, to keep
        series few.""", "s",
        [(f"""histogram_quantile({q}, sum by (le)
             (rate(ncclscope_collective_duration_seconds_bucket{{cluster="$cluster", job_id="$job"}}[$__rate_interval])))""", name)
         for q, name in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))], low=0))

    made = made.with_row(row("Network phases of its GPUs"))
    made = made.with_panel(curves(
        "Sending: what takes the time", """Seconds per second over sampled operations of the GPUs of this communicator (all their
        communicators). gpu_wait: starved from upstream; peer_wait: blocked from downstream; wire: on its way.""", RANK_SECONDS,
        [(f"""sum by (phase) (sum by (instance, gpu, phase)
             (rate(ncclscope_network_phase_seconds_total{{cluster="$cluster", job_id="$job", direction="send"}}[$__rate_interval]))
             {ITS_GPUS})""", "{{phase}}")], stacked=True, low=0, none=NO_PHASES))
    made = made.with_panel(curves(
        "Receiving: what takes the time", "The same for receives. data_wait: nothing has come yet; flush; gpu_wait.", RANK_SECONDS,
        [(f"""sum by (phase) (sum by (instance, gpu, phase)
             (rate(ncclscope_network_phase_seconds_total{{cluster="$cluster", job_id="$job", direction="receive"}}[$__rate_interval]))
             {ITS_GPUS})""", "{{phase}}")], stacked=True, low=0, none=NO_PHASES))
    return made
