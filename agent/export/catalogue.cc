// SPDX-License-Identifier: Apache-2.0
//
// The rows of the catalogue, and docs/metrics.md written from them.
#include "agent/export/catalogue.h"

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {
namespace {

template <typename... Names>
consteval LabelNames job_labels(Names... names) {
  static_assert(sizeof...(names) + 2 <= kMaxLabels);
  return LabelNames{{"cluster", "job_id", names...}, 2 + sizeof...(names)};
}
template <typename... Names>
consteval LabelNames labels(Names... names) {
  static_assert(sizeof...(names) <= kMaxLabels);
  return LabelNames{{names...}, sizeof...(names)};
}

constexpr auto kCounter = MetricType::kCounter;
constexpr auto kGauge = MetricType::kGauge;
constexpr auto kHistogram = MetricType::kHistogram;
using G = MetricGroup;
using M = Metric;

constexpr std::array<MetricDefinition, kMetricCount> kCatalogue = {{
    // ---- who ------------------------------------------------------------------------------------
    {M::kJobInfo, G::kIdentity, "ncclscope_job_info", kGauge, "",
     job_labels("user", "partition", "account", "job_name", "array_task", "run", "namespace", "pod",
                "identity_source"),
     "Always 1. Who the job is; identity_source tells whether the kernel proved it (cgroup) or it "
     "was only claimed.",
     "0.1"},
    {M::kJobThroughput, G::kIdentity, "ncclscope_job_throughput", kGauge, "", job_labels("unit"),
     "Work that the job does per second, as it says itself; unit says of what: tokens, samples, "
     "steps or flops. Absent unless it is reported. Series of one job and unit are added up.",
     "0.1"},
    {M::kCommunicatorInfo, G::kIdentity, "ncclscope_communicator_info", kGauge, "",
     job_labels("comm", "comm_name", "nranks", "nnodes", "dimension", "local_ranks"),
     "Always 1. A communicator that has ranks on this node; nranks, nnodes and dimension are empty "
     "where unknown. dimension is tp, pp, dp, ep, cp or mp (tp and pp together): from the name, "
     "else "
     "from what is done on it.",
     "0.1"},
    {M::kRankInfo, G::kIdentity, "ncclscope_rank_info", kGauge, "",
     job_labels("comm", "rank", "global_rank", "local_rank", "node", "gpu", "gpu_uuid",
                "pci_bus_id", "pid", "dimension"),
     "Always 1. Where a rank of a communicator runs; gpu is the index on the node in PCI bus "
     "order, dimension that of the communicator.",
     "0.1"},
    {M::kRankState, G::kIdentity, "ncclscope_rank_state", kGauge, "",
     job_labels("comm", "rank", "state"),
     "Always 1. State of a rank of a communicator: running, finalized (in good order) or vanished.",
     "0.1"},
    {M::kGpuInfo, G::kIdentity, "ncclscope_gpu_info", kGauge, "",
     job_labels("gpu", "node", "global_rank", "gpu_uuid", "pci_bus_id", "stage", "expert",
                "nnodes"),
     "Always 1. A GPU that the job uses on this node, and the rank of the job that drives it. The "
     "short way from gpu to node and global_rank: one series where ncclscope_rank_info has one "
     "for each communicator. stage and expert are its ranks in communicators of dimension pp and "
     "ep, empty where it is in none; nnodes is the most of any of its communicators.",
     "0.1"},
    {M::kGpuCommunicators, G::kIdentity, "ncclscope_gpu_communicators", kGauge, "",
     job_labels("gpu", "node", "global_rank", "part", "members"),
     "Always 1. What ncclscope_rank_info and ncclscope_network_peer_info tell, in few series: "
     "members has comm:rank:peers of up to eight communicators that the GPU is in, with blanks "
     "between, and commas between peers; more follow in the next part.",
     "0.1"},
    {M::kCommunicatorLocalRanks, G::kIdentity, "ncclscope_communicator_local_ranks", kGauge, "",
     job_labels("comm"),
     "Ranks of a communicator on this node, ended ones included as long as they are shown. Their "
     "sum over nodes is nranks where all report.",
     "0.1"},
    // ---- collectives ----------------------------------------------------------------------------
    {M::kCollectiveOperations, G::kCollective, "ncclscope_collective_operations_total", kCounter,
     "", job_labels("comm", "collective", "size", "algorithm", "protocol", "timing"),
     "Collectives that ended, summed over local ranks. timing tells where their duration came "
     "from: gpu, host_callback "
     "or none.",
     "0.1"},
    {M::kCollectiveBytes, G::kCollective, "ncclscope_collective_bytes_total", kCounter, "bytes",
     job_labels("comm", "collective", "size", "algorithm", "protocol", "timing"),
     "Message bytes of the collectives that ended (size as nccl-tests counts it), summed over "
     "local ranks.",
     "0.1"},
    {M::kCollectiveBusBytes, G::kCollective, "ncclscope_collective_bus_bytes_total", kCounter,
     "bytes", job_labels("comm", "collective", "size", "algorithm", "protocol"),
     "Bus bytes (message bytes times the nccl-tests factor) of exactly the collectives in "
     "ncclscope_collective_busy_seconds_total: the ratio of both rates is the bus bandwidth.",
     "0.1"},
    {M::kCollectiveBusySeconds, G::kCollective, "ncclscope_collective_busy_seconds_total", kCounter,
     "seconds", job_labels("comm", "collective", "size", "algorithm", "protocol", "holds_rank"),
     "Duration of collectives with a GPU time, summed over local ranks. holds_rank is 0 on the "
     "node "
     "of the communicator's rank 0, else empty: one node's mix of sizes tells for all.",
     "0.1"},
    {M::kCollectiveDuration, G::kCollective, "ncclscope_collective_duration_seconds", kHistogram,
     "seconds", job_labels("collective", "size"),
     "Duration of collectives with a GPU time, every local rank counted.", "0.1"},
    // ---- point to point -------------------------------------------------------------------------
    {M::kP2pOperations, G::kPointToPoint, "ncclscope_p2p_operations_total", kCounter, "",
     job_labels("comm", "operation", "size", "algorithm", "protocol", "timing"),
     "Sends and receives that ended, summed over local ranks. timing as for collectives.", "0.1"},
    {M::kP2pBytes, G::kPointToPoint, "ncclscope_p2p_bytes_total", kCounter, "bytes",
     job_labels("comm", "operation", "size", "algorithm", "protocol", "timing"),
     "Message bytes of the sends and receives that ended, summed over local ranks.", "0.1"},
    {M::kP2pBusBytes, G::kPointToPoint, "ncclscope_p2p_bus_bytes_total", kCounter, "bytes",
     job_labels("comm", "operation", "size", "algorithm", "protocol"),
     "Bus bytes of exactly the sends and receives in ncclscope_p2p_busy_seconds_total.", "0.1"},
    {M::kP2pBusySeconds, G::kPointToPoint, "ncclscope_p2p_busy_seconds_total", kCounter, "seconds",
     job_labels("comm", "operation", "size", "algorithm", "protocol"),
     "Duration of sends and receives with a GPU time, summed over local ranks; each takes its "
     "share of its batch.",
     "0.1"},
    {M::kP2pDuration, G::kPointToPoint, "ncclscope_p2p_duration_seconds", kHistogram, "seconds",
     job_labels("operation", "size"),
     "Duration of sends and receives with a GPU time, every local rank counted.", "0.1"},
    // ---- ranks ----------------------------------------------------------------------------------
    {M::kCommunicatorCollectiveSeconds, G::kRank, "ncclscope_communicator_collective_seconds_total",
     kCounter, "seconds", job_labels("comm", "collective"),
     "ncclscope_rank_collective_seconds_total, summed over local ranks: fewer series where all are "
     "asked for.",
     "0.1"},
    {M::kRankCollectiveSeconds, G::kRank, "ncclscope_rank_collective_seconds_total", kCounter,
     "seconds", job_labels("comm", "rank", "gpu", "collective"),
     "Time a rank spent in collectives, waiting for late ranks included. GPU-timed ones only; a "
     "communicator's first "
     "operations and fused batches are left out.",
     "0.1"},
    {M::kRankCollectiveOperations, G::kRank, "ncclscope_rank_collective_operations_total", kCounter,
     "", job_labels("comm", "rank", "gpu", "collective"),
     "Number of exactly the collectives in ncclscope_rank_collective_seconds_total.", "0.1"},
    {M::kRankCollectiveBusBytes, G::kRank, "ncclscope_rank_collective_bus_bytes_total", kCounter,
     "bytes", job_labels("comm", "rank", "gpu", "collective"),
     "Bus bytes of exactly the collectives in ncclscope_rank_collective_seconds_total.", "0.1"},
    {M::kRankP2pSeconds, G::kRank, "ncclscope_rank_p2p_seconds_total", kCounter, "seconds",
     job_labels("comm", "rank", "gpu", "operation"),
     "Time a rank spent in sends and receives, waiting included. Of a batch of both the receives "
     "take all the time.",
     "0.1"},
    {M::kRankP2pOperations, G::kRank, "ncclscope_rank_p2p_operations_total", kCounter, "",
     job_labels("comm", "rank", "gpu", "operation"),
     "Number of exactly the sends and receives in ncclscope_rank_p2p_seconds_total.", "0.1"},
    {M::kRankP2pBusBytes, G::kRank, "ncclscope_rank_p2p_bus_bytes_total", kCounter, "bytes",
     job_labels("comm", "rank", "gpu", "operation"),
     "Bus bytes of exactly the sends and receives in ncclscope_rank_p2p_seconds_total.", "0.1"},
    {M::kRankQueueSeconds, G::kRank, "ncclscope_rank_queue_seconds_total", kCounter, "seconds",
     job_labels("comm", "rank", "gpu"),
     "Time between enqueue and GPU start, summed over operations: shorter than other ranks' when "
     "the "
     "host is late, longer when the GPU was still computing.",
     "0.1"},
    {M::kRankQueueOperations, G::kRank, "ncclscope_rank_queue_operations_total", kCounter, "",
     job_labels("comm", "rank", "gpu"),
     "Number of exactly the operations in ncclscope_rank_queue_seconds_total: those whose queue "
     "time is known, because the clocks of host and GPU could be matched.",
     "0.1"},
    // ---- progress -------------------------------------------------------------------------------
    {M::kCommunicatorOperations, G::kProgress, "ncclscope_communicator_operations_total", kCounter,
     "", job_labels("comm", "rank", "gpu", "stage"),
     "Collectives of a communicator that were enqueued, started on the GPU and completed, since "
     "the communicator's "
     "init as the plugin counts them: equal numbers mean the same operation on every rank.",
     "0.1"},
    {M::kCommunicatorInflight, G::kProgress, "ncclscope_communicator_inflight_seconds", kGauge,
     "seconds", job_labels("comm", "rank", "gpu"),
     "Age of the oldest operation that has not completed, 0 if there is none.", "0.1"},
    {M::kCommunicatorOldestSignature, G::kProgress, "ncclscope_communicator_oldest_signature",
     kGauge, "", job_labels("comm", "rank"),
     "48-bit hash of operation, size, datatype and root of the oldest unfinished collective, 0 if "
     "there is none. "
     "Compare only ranks with the same number of completed collectives.",
     "0.1"},
    {M::kStalledRankSeconds, G::kProgress, "ncclscope_stalled_rank_seconds", kGauge, "seconds",
     job_labels("comm", "rank", "global_rank", "node", "gpu", "state", "signature"),
     "Age of the oldest unfinished operation, only for ranks that did not get on in a communicator "
     "for stalled_seconds: nothing called, started or completed. state: idle (nothing unfinished: "
     "0), called (a collective that the GPU has not started), started, point_to_point (a Send or "
     "Recv, no collective), point_to_point_called (one that the GPU has not started), vanished (0, "
     "at once). signature as above, in hex, for called and started. Where GPU times are not asked "
     "for, ends are not seen: queued is called, behind collectives that may be running; unobserved "
     "(time since its last call) has nothing known to be unfinished, but its last collective may "
     "be, and no rank leaves that before all have called it; unobserved_other likewise, of another "
     "operation; their signature is that of the last 16 collectives. Absent while all is well.",
     "0.1"},
    {M::kStalledRankOperations, G::kProgress, "ncclscope_stalled_rank_operations", kGauge, "",
     job_labels("comm", "rank", "global_rank", "node", "gpu", "state", "signature"),
     "Collectives that the ranks in ncclscope_stalled_rank_seconds completed, as in "
     "ncclscope_communicator_operations_total.",
     "0.1"},
    // ---- network --------------------------------------------------------------------------------
    {M::kNetworkPhaseSeconds, G::kNetwork, "ncclscope_network_phase_seconds_total", kCounter,
     "seconds", job_labels("gpu", "direction", "phase"),
     "Time the network proxy spent by phase, over sampled operations. send: gpu_wait, peer_wait, "
     "wire. receive: "
     "data_wait, flush, gpu_wait.",
     "0.1"},
    {M::kNetworkBytes, G::kNetwork, "ncclscope_network_bytes_total", kCounter, "bytes",
     job_labels("gpu", "direction"),
     "Bytes of exactly the operations in ncclscope_network_phase_seconds_total.", "0.1"},
    {M::kNetworkOperations, G::kNetwork, "ncclscope_network_operations_total", kCounter, "",
     job_labels("gpu", "direction"),
     "Number of operations in ncclscope_network_phase_seconds_total.", "0.1"},
    {M::kNetworkPeerInfo, G::kNetwork, "ncclscope_network_peer_info", kGauge, "",
     job_labels("comm", "rank", "gpu", "peer"),
     "Always 1. A rank of the communicator to which this one sends over the network. Of a rank "
     "that "
     "sends to more than four there is none.",
     "0.1"},
    // ---- steps ----------------------------------------------------------------------------------
    {M::kStepSeconds, G::kStep, "ncclscope_step_seconds", kHistogram, "seconds", job_labels(),
     "Length of training steps, inferred from the rhythm of operations; every local process counts "
     "its own. Warm-up, evaluations and checkpoints are left out.",
     "0.1"},
    {M::kStepCommunicationRatio, G::kStep, "ncclscope_step_communication_ratio", kGauge, "ratio",
     job_labels("gpu"),
     "Share of the last steps during which at least one kernel of NCCL ran on a GPU. Hidden behind "
     "computing or not: it is no loss by itself.",
     "0.1"},
    {M::kGpuCommunicationSeconds, G::kStep, "ncclscope_gpu_communication_seconds_total", kCounter,
     "seconds", job_labels("gpu"),
     "Time during which at least one kernel of NCCL ran on a GPU for this job: the union over "
     "communicators and streams, nothing counted twice. What came too late to tell is left out.",
     "0.1"},
    {M::kGpuCollectiveSeconds, G::kStep, "ncclscope_gpu_collective_seconds_total", kCounter,
     "seconds", job_labels("gpu"),
     "Time a GPU's ranks spent in collectives that no rank leaves before all have come: AllReduce, "
     "AllGather, ReduceScatter and AlltoAll of ncclscope_rank_collective_seconds_total, summed "
     "over communicators, those that have ended included.",
     "0.1"},
    {M::kGpuBlockingSeconds, G::kStep, "ncclscope_gpu_blocking_seconds_total", kCounter, "seconds",
     job_labels("gpu"),
     "Time a GPU's ranks spent in all collectives and in Receives, of "
     "ncclscope_rank_collective_seconds_total and ncclscope_rank_p2p_seconds_total, summed "
     "likewise.",
     "0.1"},
    // ---- what could not be seen -----------------------------------------------------------------
    {M::kOperationsUnobserved, G::kTelemetry, "ncclscope_operations_unobserved_total", kCounter, "",
     job_labels("reason"),
     "Operations that enter no bandwidth because their GPU time is unknown, by reason; "
     "lost_in_transit counts records "
     "that never reached the agent.",
     "0.1"},
    {M::kOperationsMissing, G::kTelemetry, "ncclscope_communicator_missing_operations_total",
     kCounter, "", job_labels("comm", "rank", "gpu"),
     "Operations of a rank of which no record came: their index was passed over. Dropped by the "
     "plugin, overwritten in its ring, or lost on the way.",
     "0.1"},
    {M::kTelemetryCoverage, G::kTelemetry, "ncclscope_telemetry_coverage_ratio", kGauge, "ratio",
     job_labels("comm"),
     "Share of the operations of a communicator that are not missing, local ranks only. Below 1 "
     "telemetry is partly blind.",
     "0.1"},
    {M::kUntimedRatio, G::kTelemetry, "ncclscope_communicator_untimed_ratio", kGauge, "ratio",
     job_labels("comm"),
     "Share of about the last thousand operations of a communicator, local ranks only, that have "
     "no GPU time. Of most of these nobody sees whether they end: a hang in them can be told by "
     "who did not call, but not whether a GPU or the network is stuck.",
     "0.1"},
    {M::kJobSeries, G::kTelemetry, "ncclscope_job_series", kGauge, "", job_labels(),
     "Series of the job in this exposition, this one included.", "0.1"},
    {M::kJobFoldStep, G::kTelemetry, "ncclscope_job_fold_step", kGauge, "", job_labels(),
     "How far the job's series are folded: 0 nothing, 1 algorithm, 2 size, 3 communicator, 4 "
     "process, 5 rank, 6 operation.",
     "0.1"},
    // ---- plugin ---------------------------------------------------------------------------------
    {M::kPluginInfo, G::kPlugin, "ncclscope_plugin_info", kGauge, "",
     job_labels("pid", "version", "nccl_version", "interface", "mask"),
     "Always 1. Versions of the plugin, of NCCL and of the profiler interface in a process, and "
     "the activation mask.",
     "0.1"},
    {M::kPluginRdmaDevices, G::kPlugin, "ncclscope_plugin_rdma_devices", kGauge, "",
     job_labels("pid"),
     "RDMA devices (verbs or Slingshot) that the process had open when it connected to the agent. "
     "0: "
     "its traffic between nodes goes over TCP sockets, unless a vendor's own transport carries it. "
     "Absent: not known.",
     "0.1"},
    {M::kPluginEventsSeen, G::kPlugin, "ncclscope_plugin_events_seen_total", kCounter, "",
     job_labels("pid"),
     "Operations that NCCL told the plugin of. seen = recorded + dropped (other than overwritten) "
     "+ open.",
     "0.1"},
    {M::kPluginEventsRecorded, G::kPlugin, "ncclscope_plugin_events_recorded_total", kCounter, "",
     job_labels("pid"), "Operations the plugin wrote a record of.", "0.1"},
    {M::kPluginEventsDropped, G::kPlugin, "ncclscope_plugin_events_dropped_total", kCounter, "",
     job_labels("pid", "reason"),
     "Operations no record will tell of, by reason. Those with reason overwritten had been "
     "recorded, but the ring was "
     "full before the agent acknowledged them.",
     "0.1"},
    {M::kPluginEventsOpen, G::kPlugin, "ncclscope_plugin_events_open", kGauge, "",
     job_labels("pid"), "Operations in flight.", "0.1"},
    {M::kPluginRecordsWritten, G::kPlugin, "ncclscope_plugin_records_written_total", kCounter, "",
     job_labels("pid"),
     "Records the plugin wrote: operations, network phases, channel details, ends of "
     "communicators. written = received + earlier + lost + those on their way.",
     "0.1"},
    {M::kPluginRecordsReceived, G::kPlugin, "ncclscope_plugin_records_received_total", kCounter, "",
     job_labels("pid"), "Records of the process that this agent received, each once.", "0.1"},
    {M::kPluginRecordsEarlier, G::kPlugin, "ncclscope_plugin_records_earlier_total", kCounter, "",
     job_labels("pid"),
     "Records of the process that an earlier agent on this node had acknowledged.", "0.1"},
    {M::kPluginRecordsLost, G::kPlugin, "ncclscope_plugin_records_lost_total", kCounter, "",
     job_labels("pid"),
     "Records of the process that were overwritten in its ring before any agent received them.",
     "0.1"},
    {M::kPluginBooksBalanced, G::kPlugin, "ncclscope_plugin_books_balanced", kGauge, "",
     job_labels("pid"),
     "1 if the books of the process balance on both sides, 0 if something was lost that nobody "
     "counted.",
     "0.1"},
    {M::kPluginCallbacks, G::kPlugin, "ncclscope_plugin_callbacks_total", kCounter, "",
     job_labels("pid"), "Calls of NCCL into the plugin.", "0.1"},
    {M::kPluginCallbackSeconds, G::kPlugin, "ncclscope_plugin_callback_seconds_total", kCounter,
     "seconds", job_labels("pid"),
     "Estimated time the plugin spent on threads of NCCL and of the application.", "0.1"},
    {M::kPluginSenderSeconds, G::kPlugin, "ncclscope_plugin_sender_cpu_seconds_total", kCounter,
     "seconds", job_labels("pid"), "CPU time of the plugin's sender thread.", "0.1"},
    {M::kPluginOverhead, G::kPlugin, "ncclscope_plugin_overhead_ratio", kGauge, "ratio",
     job_labels("pid"), "Callback seconds divided by the wall time since the plugin's first init.",
     "0.1"},
    {M::kPluginRecentOverhead, G::kPlugin, "ncclscope_plugin_recent_overhead_ratio", kGauge,
     "ratio", job_labels("pid"),
     "Callback seconds divided by wall time over about the last second, on the thread with most of "
     "them. The governor compares it with the budget.",
     "0.1"},
    {M::kPluginBudget, G::kPlugin, "ncclscope_plugin_overhead_budget_ratio", kGauge, "ratio",
     job_labels("pid"), "Overhead that the governor allows (NCCLSCOPE_OVERHEAD_BUDGET).", "0.1"},
    {M::kPluginGovernor, G::kPlugin, "ncclscope_plugin_governor_level", kGauge, "",
     job_labels("pid"),
     "What the plugin gave up to stay within its overhead budget: 0 nothing, 1 network phases, 2 "
     "GPU times except of "
     "one block of operations in 16 or 64, 3 counters only.",
     "0.1"},
    {M::kPluginGovernorChanges, G::kPlugin, "ncclscope_plugin_governor_changes_total", kCounter, "",
     job_labels("pid"), "Steps the governor took, in either direction.", "0.1"},
    {M::kPluginGovernorSince, G::kPlugin, "ncclscope_plugin_governor_change_timestamp_seconds",
     kGauge, "seconds", job_labels("pid"),
     "When the governor took its last step, in seconds since the Unix epoch. Absent: never.",
     "0.1"},
    {M::kPluginGovernorTrigger, G::kPlugin, "ncclscope_plugin_governor_trigger_ratio", kGauge,
     "ratio", job_labels("pid"),
     "Why: the overhead that made the governor take its last step down. Absent: it took none.",
     "0.1"},
    {M::kPluginDetail, G::kPlugin, "ncclscope_plugin_detail_info", kGauge, "",
     job_labels("pid", "asked", "in_force"),
     "Always 1. Detail level that was asked for (low, normal or full) and the one in force, lower "
     "where the governor "
     "took some of it.",
     "0.1"},
    {M::kPluginGpuTiming, G::kPlugin, "ncclscope_plugin_gpu_timing_ratio", kGauge, "ratio",
     job_labels("pid"),
     "Share of the collectives for which NCCL is asked for GPU times: 1, or one block of 16 in N, "
     "or 0.",
     "0.1"},
    {M::kPluginNcclCost, G::kPlugin, "ncclscope_plugin_nccl_overhead_ratio", kGauge, "ratio",
     job_labels("pid"),
     "What NCCL's own work for GPU times costs: by how much longer blocks of 16 collectives last "
     "with them than the "
     "neighbouring blocks without. Absent until 32 comparisons; see its error.",
     "0.1"},
    {M::kPluginNcclCostError, G::kPlugin, "ncclscope_plugin_nccl_overhead_error_ratio", kGauge,
     "ratio", job_labels("pid"),
     "Standard error of ncclscope_plugin_nccl_overhead_ratio: within twice this nothing is proved.",
     "0.1"},
    {M::kPluginNcclCostBlocks, G::kPlugin, "ncclscope_plugin_nccl_overhead_blocks_total", kCounter,
     "", job_labels("pid"), "Comparisons of blocks behind ncclscope_plugin_nccl_overhead_ratio.",
     "0.1"},
    {M::kPluginInspectorLines, G::kPlugin, "ncclscope_plugin_inspector_lines_total", kCounter, "",
     job_labels("pid", "outcome"),
     "Operations for the files of NCCL_INSPECTOR_DUMP_DIR: written, late (lost because the files "
     "took too long) or failed (refused by the file system). Only of processes that write such "
     "files.",
     "0.1"},
    // ---- agent ----------------------------------------------------------------------------------
    {M::kAgentBuildInfo, G::kAgent, "ncclscope_agent_build_info", kGauge, "",
     labels("version", "schema"), "Always 1. Version of the agent, and of this catalogue.", "0.1"},
    {M::kAgentStartTime, G::kAgent, "ncclscope_agent_start_time_seconds", kGauge, "seconds",
     labels(), "When the agent started, in seconds since the Unix epoch.", "0.1"},
    {M::kAgentConnections, G::kAgent, "ncclscope_agent_connections", kGauge, "", labels(),
     "Plugin connections that are open.", "0.1"},
    {M::kAgentConnectionsAccepted, G::kAgent, "ncclscope_agent_connections_accepted_total",
     kCounter, "", labels(), "Plugin connections that were accepted.", "0.1"},
    {M::kAgentConnectionsRefused, G::kAgent, "ncclscope_agent_connections_refused_total", kCounter,
     "", labels(),
     "Plugin connections that were refused: another protocol version, no Hello, or a quota.",
     "0.1"},
    {M::kAgentSessionsRefused, G::kAgent, "ncclscope_agent_sessions_refused_total", kCounter, "",
     labels(), "Sessions that were refused because a limit on jobs or series was reached.", "0.1"},
    {M::kAgentIdentityMismatches, G::kAgent, "ncclscope_agent_identity_mismatches_total", kCounter,
     "", labels(),
     "Sessions that claimed another job than the kernel proved (the kernel wins), or a rank that "
     "another living process holds.",
     "0.1"},
    {M::kAgentSqueueFailures, G::kAgent, "ncclscope_agent_squeue_failures_total", kCounter, "",
     labels(),
     "Runs of squeue_command that failed: not started, exit status, time limit, or an answer that "
     "is no list of jobs.",
     "0.1"},
    {M::kAgentRdmaPorts, G::kAgent, "ncclscope_agent_rdma_ports", kGauge, "", labels(),
     "InfiniBand and RoCE ports of the node that are active.", "0.1"},
    {M::kNodeFindings, G::kAgent, "ncclscope_agent_node_findings", kGauge, "",
     labels("check", "level"),
     "What ncclscope doctor finds on this node, by check and level: ok, unknown (not seen, often "
     "because only root can), warning or problem. Nodes without GPUs have none.",
     "0.1"},
    {M::kAgentFrames, G::kAgent, "ncclscope_agent_frames_total", kCounter, "", labels(),
     "Frames received from plugins.", "0.1"},
    {M::kAgentReceivedBytes, G::kAgent, "ncclscope_agent_received_bytes_total", kCounter, "bytes",
     labels(), "Bytes received from plugins.", "0.1"},
    {M::kAgentRecords, G::kAgent, "ncclscope_agent_records_total", kCounter, "", labels(),
     "Records received from plugins.", "0.1"},
    {M::kAgentUnknownRecords, G::kAgent, "ncclscope_agent_unknown_records_total", kCounter, "",
     labels(), "Records of a type this agent does not know, skipped: the plugin is newer.", "0.1"},
    {M::kAgentDecodeErrors, G::kAgent, "ncclscope_agent_decode_errors_total", kCounter, "",
     labels("reason"), "Frames that could not be decoded, by reason.", "0.1"},
    {M::kAgentQuotaExceeded, G::kAgent, "ncclscope_agent_quota_exceeded_total", kCounter, "",
     labels("quota"),
     "How often a user (or pod) asked for more than its quota, or the agent reached its memory "
     "limit: connections, sessions and jobs were refused, communicators folded, bytes read later, "
     "environments not kept.",
     "0.1"},
    {M::kAgentSeries, G::kAgent, "ncclscope_agent_series", kGauge, "", labels(),
     "Series of jobs in this exposition; those of the agent itself are not counted.", "0.1"},
    {M::kAgentSeriesLimit, G::kAgent, "ncclscope_agent_series_limit", kGauge, "", labels("level"),
     "Series of jobs the agent allows: for each job, for all jobs of one principal, for the whole "
     "agent.",
     "0.1"},
    {M::kAgentSeriesFolded, G::kAgent, "ncclscope_agent_series_folded", kGauge, "", labels(),
     "Rows, processes and communicators that were folded in the jobs shown now. Sums stay right.",
     "0.1"},
    {M::kAgentFolds, G::kAgent, "ncclscope_agent_folds_total", kCounter, "", labels("step"),
     "Rows, processes and communicators that were folded to stay within a limit, by step.", "0.1"},
    {M::kAgentArchiveOperations, G::kAgent, "ncclscope_agent_archive_operations_total", kCounter,
     "", labels(), "Operations that were written to the archive. Absent without archive_directory.",
     "0.1"},
    {M::kAgentArchiveDropped, G::kAgent, "ncclscope_agent_archive_operations_dropped_total",
     kCounter, "", labels("reason"),
     "Operations that the archive lost: the disk was too slow for them (queue), or refused them "
     "(disk). They are in all other metrics.",
     "0.1"},
    {M::kAgentArchiveWrittenBytes, G::kAgent, "ncclscope_agent_archive_written_bytes_total",
     kCounter, "bytes", labels(), "Bytes written to the archive.", "0.1"},
    {M::kAgentArchiveStoredBytes, G::kAgent, "ncclscope_agent_archive_stored_bytes", kGauge,
     "bytes", labels(), "Bytes of the segments that are there.", "0.1"},
    {M::kAgentArchiveLimitBytes, G::kAgent, "ncclscope_agent_archive_limit_bytes", kGauge, "bytes",
     labels(), "Bytes of segments beyond which the oldest are deleted (archive_total_mb).", "0.1"},
    {M::kAgentArchiveSegments, G::kAgent, "ncclscope_agent_archive_segments", kGauge, "", labels(),
     "Segments of the archive that are there.", "0.1"},
    {M::kAgentArchiveDeleted, G::kAgent, "ncclscope_agent_archive_segments_deleted_total", kCounter,
     "", labels("reason"),
     "Segments of the archive that were deleted: too old (age), beyond what a job may take (job), "
     "or all may (total).",
     "0.1"},
    {M::kAgentSnapshotAge, G::kAgent, "ncclscope_agent_snapshot_age_seconds", kGauge, "seconds",
     labels(), "Age of the data in this exposition.", "0.1"},
    {M::kAgentScrapes, G::kAgent, "ncclscope_agent_scrapes_total", kCounter, "", labels(),
     "Expositions written before this one.", "0.1"},
    {M::kAgentScrapeSeconds, G::kAgent, "ncclscope_agent_scrape_cpu_seconds_total", kCounter,
     "seconds", labels(),
     "CPU time of the expositions written before this one, compression included.", "0.1"},
    {M::kAgentCpuSeconds, G::kAgent, "ncclscope_agent_cpu_seconds_total", kCounter, "seconds",
     labels(), "CPU time of the agent, user and system.", "0.1"},
    {M::kAgentResidentMemory, G::kAgent, "ncclscope_agent_resident_memory_bytes", kGauge, "bytes",
     labels(), "Resident memory of the agent.", "0.1"},
}};

consteval bool well_formed() {
  for (std::size_t i = 0; i < kMetricCount; ++i) {
    const MetricDefinition& m = kCatalogue[i];
    if (static_cast<std::size_t>(m.id) != i || m.help.empty() || m.since.empty()) return false;
    if (!m.name.starts_with("ncclscope_")) return false;
    if (m.name.ends_with("_total") != (m.type == MetricType::kCounter)) return false;
    if (!m.unit.empty() && !m.family().ends_with(m.unit)) return false;
    const bool of_a_job = m.group != MetricGroup::kAgent;
    if (of_a_job && (m.labels.size() < 2 || m.labels[0] != "cluster" || m.labels[1] != "job_id"))
      return false;
  }
  return true;
}
static_assert(well_formed(),
              "rows in enum order, prefix, _total on counters, unit as suffix, cluster and job_id");

constexpr std::array<double, kDurationBounds> kBounds = {1e-05,   4e-05,   0.00016,  0.00064,
                                                         0.00256, 0.01024, 0.04096,  0.16384,
                                                         0.65536, 2.62144, 10.48576, 41.94304};
constexpr std::array<std::string_view, kDurationBounds> kBoundLabels = {
    "1e-05",   "4e-05",   "0.00016", "0.00064", "0.00256",  "0.01024",
    "0.04096", "0.16384", "0.65536", "2.62144", "10.48576", "41.94304"};

constexpr std::array<double, kStepBounds> kStepBoundSeconds = {
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200};
constexpr std::array<std::string_view, kStepBounds> kStepBoundLabels = {
    "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1",
    "2",     "5",    "10",   "20",   "50",  "100", "200"};

struct GroupText {
  std::string_view title;
  std::string_view text;
};
constexpr std::array<GroupText, kMetricGroupCount> kGroups = {{
    {"Jobs, communicators and ranks",
     "Join these to the series below to name them: `* on (cluster, job_id, comm) group_left "
     "(comm_name) "
     "ncclscope_communicator_info`."},
    {"Collectives",
     "Bus bandwidth in bytes per second is `rate(ncclscope_collective_bus_bytes_total[5m]) / "
     "rate(ncclscope_collective_busy_seconds_total[5m])`, summed on both sides before the "
     "division."},
    {"Sends and receives",
     "The same for point-to-point operations; `operation` is Send or Recv. Where the Sends and "
     "Receives of one launch are an all-to-all (one with every rank of the communicator; the rank "
     "itself included, or with all others where these are at least three), they are counted above "
     "as one collective AlltoAll, and not here: its size "
     "is what the rank sent or received in all, whichever is more. With NCCL before 2.27 the "
     "number "
     "of ranks is not known, and all of them are counted here."},
    {"Ranks",
     "Who waits, and who is waited for: the rank that spends the least time in a collective came "
     "last."},
    {"Progress", "Where each rank is. For hangs: who is behind, who differs, since when."},
    {"Network", "Phases are sampled; divide by the bytes or operations of the same row."},
    {"Steps and communication time",
     "A step is what a process's operations repeat: layers, microbatches and pipeline stages are "
     "within one. It is shown once the rhythm is beyond doubt, after 64 steps in at least a minute "
     "or after ten minutes; the steps until then are not lost. A window eight times as long as the "
     "median of the last steps is a pause, unless three follow each other."},
    {"What telemetry could not see", ""},
    {"Plugin",
     "From the plugin's own totals, one process (`pid` on its node) each; an agent restart changes "
     "nothing."},
    {"Agent", "These have neither `cluster` nor `job_id`."},
}};

constexpr std::string_view kReportedText = R"md(
## What a job may report itself

How much work a job does only the job knows. Where it is reported, as `ncclscope_job_throughput`, the dashboards hold it against step time and communication. Series of one job and unit are added up, so one process reports for all, or each its share.

To the agent of the process's node, over its API (`AgentService.ReportThroughput`), or with the command line:

```
ncclscope throughput --job "$SLURM_JOB_ID" --unit tokens 91000
```

Users report for their own jobs; root, administrators and the role *operator* for all. The job must be one that the agent knows. What was reported is shown for five minutes (`--for`), so that nothing is left of a job that ended.

Without the API a file for node_exporter's textfile collector does as well, written by one process of the job every some steps and removed at its end (by the job, or by SLURM's epilog). `cluster` and `job_id` are those that the agent shows for the job:

```python
import os


def report_throughput(folder, cluster, job_id, unit, per_second):
    """Replaces the file at once: the collector never reads half of it."""
    path = os.path.join(folder, f"ncclscope_job_{job_id.replace('/', '_')}_{unit}.prom")
    with open(path + ".new", "w") as file:
        file.write("# HELP ncclscope_job_throughput Work that a job does per second, as it says itself.\n"
                   "# TYPE ncclscope_job_throughput gauge\n"
                   f'ncclscope_job_throughput{{cluster="{cluster}",job_id="{job_id}",unit="{unit}"}} {per_second}\n')
    os.replace(path + ".new", path)
```

The folder is the one that `node_exporter --collector.textfile.directory` names; whoever can write there can report for any job. A Pushgateway with the same series does as well, scraped with `honor_labels: true`.
)md";

constexpr std::string_view kFoldingText =
    ".\n\n## Limits on series\n\n"
    "A job has at most `series_per_job` series (4,000), all jobs of one principal together at most "
    "`series_per_principal` (25,000), all jobs at most `series_limit` (50,000). Half of the latter "
    "two is kept for the "
    "least that later jobs need (180 each), and of the agent's other half a job may take a sixth "
    "of what the others leave. A job that grows "
    "beyond what it may have is folded, step by step, until it fits; other jobs keep what they "
    "have. `ncclscope_job_fold_step` shows how far:\n\n"
    "| step | what is folded |\n|---|---|\n"
    "| 1 algorithm | `algorithm` and `protocol` are `other` |\n"
    "| 2 size | `size` is `other`, in histograms too |\n"
    "| 3 communicator | collectives and sends and receives are counted under `comm=\"other\"` |\n"
    "| 4 process | plugin totals have `pid=\"other\"` and no state of single processes; `gpu` of "
    "network phases is empty |\n"
    "| 5 rank | the newest communicators, as many as needed and always whole, lose all series of "
    "their own, and communicators that come later get none. Rank counters are added up under "
    "`comm=\"other\"` with empty `rank` and `gpu`; progress is not shown, queue time no longer "
    "taken, and time of GPUs in collectives leaves them out. How the time of a batch is shared "
    "among its operations is less exact for them |\n"
    "| 6 operation | collectives are `other` |\n\n"
    "A series that is folded disappears and its value moves into the folded one, which is new at "
    "that moment: sums over labels stay right, no counter goes down, and rates see no jump "
    "(communicators that reach step 5 one after another add theirs to what is there). A step is "
    "never taken back while the job lives, so series do not come and go. When not even a wholly "
    "folded job would fit, its processes are refused "
    "(`ncclscope_agent_sessions_refused_total`).\n\n"
    "Series of a job go away `grace_seconds` (300) after its last process left, those of a "
    "communicator as long after its last local rank ended.\n";

}  // namespace

std::span<const MetricDefinition, kMetricCount> catalogue() noexcept {
  return kCatalogue;
}

const MetricDefinition& definition(Metric metric) noexcept {
  return kCatalogue[static_cast<std::size_t>(metric)];
}

std::span<const double> duration_bounds() noexcept {
  return kBounds;
}

std::span<const std::string_view> duration_bound_labels() noexcept {
  return kBoundLabels;
}

std::span<const double> histogram_bounds(Metric metric) noexcept {
  if (metric == Metric::kStepSeconds) return kStepBoundSeconds;
  return kBounds;
}

std::span<const std::string_view> histogram_bound_labels(Metric metric) noexcept {
  if (metric == Metric::kStepSeconds) return kStepBoundLabels;
  return kBoundLabels;
}

std::string metrics_reference() {
  std::string out =
      "<!-- Written from agent/export/catalogue.cc; a test compares them. Do not edit by hand. "
      "-->\n"
      "# Metrics of ncclscope-agent (schema 1)\n\n"
      "Served at `/metrics` as Prometheus text 0.0.4 or OpenMetrics 1.0.0, whichever the scraper "
      "asks for. Within a "
      "schema, metrics, labels and label values are only added and histogram bounds never "
      "change.\n\n"
      "All series of a job carry `cluster` and `job_id` (listed once here, not in the tables). "
      "`comm` is the "
      "communicator's hash in 16 hex digits, equal on all nodes; `rank` is the rank in that "
      "communicator; `gpu` is the "
      "index on the node in PCI bus order. `size` is a range of message sizes:";
  for (const char* name : kSizeClassNames) out.append(" `").append(name).append("`");
  out +=
      ".\nAn empty label value means unknown; `other` takes up what was folded, see below.\n\n"
      "`job_id` is the SLURM job's id (`<array>_<task>` for a task of an array, the leader's id "
      "for "
      "a heterogeneous job) or, in Kubernetes, `<namespace>/<job>`, or `pod:<uid>` where the node "
      "does not tell the pod's name. `unknown` holds processes of which nothing is known. `~` and "
      "more behind an id keeps what another user or place calls by the same id apart. In "
      "Kubernetes "
      "`user` is empty: a uid in a pod names nobody.\n\n"
      "Bounds of all duration histograms, in seconds:";
  for (const std::string_view bound : kBoundLabels) out.append(" ").append(bound);
  out += ".\nBounds of `ncclscope_step_seconds`:";
  for (const std::string_view bound : kStepBoundLabels) out.append(" ").append(bound);
  out += kFoldingText;
  for (std::size_t g = 0; g < kMetricGroupCount; ++g) {
    out.append("\n## ").append(kGroups[g].title).append("\n\n");
    if (!kGroups[g].text.empty()) out.append(kGroups[g].text).append("\n\n");
    out += "| metric | type | unit | labels | meaning | since |\n|---|---|---|---|---|---|\n";
    for (const MetricDefinition& m : kCatalogue) {
      if (static_cast<std::size_t>(m.group) != g) continue;
      out.append("| `")
          .append(m.name)
          .append("` | ")
          .append(name(m.type))
          .append(" | ")
          .append(m.unit);
      out += " | ";
      bool first = true;
      for (const std::string_view label : m.labels) {
        if (label == "cluster" || label == "job_id") continue;
        if (!first) out += ", ";
        out += label;
        first = false;
      }
      out.append(" | ").append(m.help).append(" | ").append(m.since).append(" |\n");
    }
  }
  out += kReportedText;
  return out;
}

}  // namespace ncclscope::agent
