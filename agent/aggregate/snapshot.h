// SPDX-License-Identifier: Apache-2.0
//
// The immutable picture of a node that everything outside the reactor reads: /metrics, the API, the
// page. Unique in one snapshot: job_id; comm in a job; (comm, rank) where the rank is known; a
// row's key in its communicator. Built by the reactor thread, published as shared_ptr<const
// Snapshot>, never changed after that. Times: seconds and nanoseconds as named; counters are
// absolute since this agent started unless said otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/aggregate/node_findings.h"
#include "agent/identity/job_identity.h"
#include "agent/ingest/process_environment.h"
#include "agent/ingest/quota.h"
#include "proto/model/inspector.h"
#include "proto/model/operation.h"
#include "proto/wire/frame.h"

namespace ncclscope::agent {

/// Ranges of message sizes: the label `size`. Upper bounds in bytes; the last one has none.
inline constexpr std::size_t kSizeClasses = 7;
inline constexpr std::array<std::uint64_t, kSizeClasses - 1> kSizeClassBounds = {
    4ull << 10, 64ull << 10, 1ull << 20, 16ull << 20, 256ull << 20, 4ull << 30};
inline constexpr std::array<const char*, kSizeClasses> kSizeClassNames = {
    "<=4KiB", "<=64KiB", "<=1MiB", "<=16MiB", "<=256MiB", "<=4GiB", ">4GiB"};

/// As the label `size` spells it; "other" once folded.
inline constexpr const char* size_class_name(std::uint8_t size_class) {
  return size_class < kSizeClasses ? kSizeClassNames[size_class] : "other";
}

/// What a label shows of keys that were folded: "other". Beside the known values, so that a folded
/// series is a new one and no series that was there before jumps.
inline constexpr std::uint8_t kOtherSize = kSizeClasses;
inline constexpr auto kOtherFunction = static_cast<model::Function>(model::kFunctionCount);
inline constexpr auto kOtherAlgorithm = static_cast<model::Algorithm>(0xF);
inline constexpr auto kOtherProtocol = static_cast<model::Protocol>(0xF);
inline constexpr const char* kOtherCommunicator = "other";

/// How far a job's series are folded. Each step holds those before it, and a job never goes back.
enum class FoldStep : std::uint8_t {
  kNothing,
  kAlgorithm,     // algorithm and protocol are "other"
  kSize,          // and so is the size, in histograms too
  kCommunicator,  // counters of communicators are those of comm="other"
  kProcess,       // plugin totals have pid="other", network phases an empty gpu
  kRank,          // the newest communicators, and all later ones, have no series of their own
  kOperation,     // collectives are "other": nothing more to fold
};
inline constexpr std::size_t kFoldSteps = 7;
inline constexpr std::array<const char*, kFoldSteps> kFoldStepNames = {
    "nothing", "algorithm", "size", "communicator", "process", "rank", "operation"};

/// Bounds of ncclscope_collective_duration_seconds: 10 us * 4^i.
inline constexpr std::size_t kDurationBounds = 12;

/// Bounds of ncclscope_step_seconds: 5 ms to 200 s, three a decade. From a step of a small model to
/// one of a large model on few GPUs.
inline constexpr std::size_t kStepBounds = 15;
inline constexpr std::array<std::uint64_t, kStepBounds> kStepBoundsNs = {
    5'000'000,      10'000'000,     20'000'000,     50'000'000,      100'000'000,
    200'000'000,    500'000'000,    1'000'000'000,  2'000'000'000,   5'000'000'000,
    10'000'000'000, 20'000'000'000, 50'000'000'000, 100'000'000'000, 200'000'000'000};

/// Of what a job says that it does so much per second.
enum class ThroughputUnit : std::uint8_t { kTokens, kSamples, kSteps, kFlops };
inline constexpr std::size_t kThroughputUnits = 4;
/// As the label `unit` spells it.
inline constexpr std::array<std::string_view, kThroughputUnits> kThroughputUnitNames = {
    "tokens", "samples", "steps", "flops"};

enum class RankState : std::uint8_t { kRunning, kFinalized, kVanished };
/// As the label `state` spells it.
[[nodiscard]] constexpr const char* name(RankState state) {
  switch (state) {
    case RankState::kRunning:
      return "running";
    case RankState::kFinalized:
      return "finalized";
    case RankState::kVanished:
      return "vanished";
  }
  return "unknown";
}

/// An operation in short.
struct OperationShort {
  model::Function function{};
  model::DataType datatype{};
  std::int32_t root_or_peer = -1;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint32_t index = 0;  // low 32 bits
  double age_seconds = 0;   // since its record came
};

/// One local rank of one communicator.
struct RankSnapshot {
  std::int32_t rank = -1;  // in the communicator, -1 = unknown
  std::string global_rank, local_rank;
  std::int32_t gpu = -1;  // index on the node in PCI bus order, -1 = unknown
  std::string gpu_uuid, pci_bus_id;
  std::int64_t pid = 0;
  std::uint64_t session_id = 0;
  std::uint16_t communicator_id = 0;
  RankState state = RankState::kRunning;
  // progress, absolute since the communicator's init (from the plugin's own totals)
  std::uint64_t collectives_enqueued = 0, collectives_started = 0, collectives_completed = 0;
  std::uint64_t p2p_enqueued = 0, p2p_started = 0, p2p_completed = 0;
  std::uint64_t seen = 0, recorded = 0, dropped = 0;
  std::uint64_t missing = 0;  // indexes passed over: no record of these operations came (dropped
                              // ones included), since this agent knows the rank
  std::uint64_t oldest_index = ~std::uint64_t{0};
  std::uint64_t oldest_signature = 0;
  std::uint16_t progress_flags = 0;  // wire::kProgress...
  double inflight_seconds = 0;       // age of the oldest unfinished operation at snapshot time
  double sample_age_seconds = 0;
  double still_seconds = 0;  // since when no call, start or end was seen
  bool stalled = false;      // for long enough to be shown as such
  /// The last of the collectives (Sends, Receives) that count as completed may be running: nobody
  /// sees them end. Only of calls in the last minute in which the process called anything.
  bool collective_ends_unknown = false, p2p_ends_unknown = false;
  bool last_waits_for_all = false;    // its last collective ends nowhere before all have called it
  std::uint64_t calls_signature = 0;  // of its last collectives, to compare ranks that called
                                      // equally many; 0 = not known
  double queue_seconds = 0;           // sum of GPU start - enqueue over queue_operations
  std::uint64_t queue_operations =
      0;  // those whose queue time is known (GPU and host clocks could be matched)
  std::optional<OperationShort> last;    // completed
  std::optional<OperationShort> oldest;  // unfinished, where one like it has completed
  std::vector<wire::Neighbour> neighbours;
};

/// Sums of one (communicator, function, size class, algorithm, protocol).
struct OperationSumsRow {
  model::Function function{};
  std::uint8_t size_class = 0;
  model::Algorithm algorithm{};
  model::Protocol protocol{};
  std::array<std::uint64_t, 3> operations_by_timing{};  // index wire::TimingSource
  std::array<std::uint64_t, 3> bytes_by_timing{};
  std::uint64_t timed_operations =
      0;                    // those in busy_seconds: GPU time known and bandwidth defined
  double bus_bytes = 0;     // over timed_operations only
  double busy_seconds = 0;  // over timed_operations only
};

/// Sums of one (communicator, rank, function): GPU-timed operations only, first operations left
/// out, and fused batches too unless they are all Send and Recv (of those the Receives take the
/// batch's time, if there are any).
struct RankSumsRow {
  std::int32_t rank = -1;
  std::int32_t gpu = -1;
  model::Function function{};
  std::uint64_t operations = 0;
  double seconds = 0;
  double bus_bytes = 0;
};

struct CommunicatorSnapshot {
  std::string comm;  // 16 hex digits (hash, or a local name where the hash is unknown), or "other"
  bool hash_known = true;
  std::string name;
  std::uint32_t nranks = 0, nnodes = 0;  // 0 = unknown
  std::string dimension;                 // of parallelism; empty = unknown or none
  std::vector<RankSnapshot> ranks;       // local ranks, by (rank, pid)
  std::vector<OperationSumsRow> sums;    // collectives and p2p
  std::vector<RankSumsRow> rank_sums;    // of "other": of all that was folded, rank and gpu unknown
  std::optional<double> untimed_share;   // of the last operations, those without GPU time
  std::uint64_t folded_missing = 0;  // of "other": missing operations of the ranks that were folded
  double folded_queue_seconds = 0;   // of "other": queue time of the ranks that were folded
  std::uint64_t folded_queue_operations = 0;  // those it is the sum of
};

struct DurationRow {
  model::Function function{};
  std::uint8_t size_class = 0;
  std::array<std::uint64_t, kDurationBounds + 1> counts{};  // not cumulative
  double sum_seconds = 0;
};

/// Network phases of one GPU (or, where the GPU is unknown, of its process): seconds by phase.
struct NetworkRow {
  std::int32_t gpu = -1;
  bool is_send = false;
  std::array<double, 3> phase_seconds{};
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
};

/// The books of one process (session), plugin's side and agent's side.
struct ProcessSnapshot {
  std::int64_t pid = 0;
  std::uint64_t session_id = 0;
  std::string global_rank, local_rank;
  ProcessEnvironmentPtr environment;  // its NCCL_* variables, arbitrary bytes; null: unknown
  std::string plugin_version;
  std::optional<std::uint64_t> rdma_devices;  // that it has open, as it says; none: unknown
  std::uint32_t nccl_version = 0;
  std::uint16_t interface_version = 0;
  bool connected = false;
  bool said_goodbye = false;
  bool claimed = false;  // came over gRPC Ingest
  std::uint64_t start_time_ns =
      0;  // Hello::start_time_ns (CLOCK_MONOTONIC of the plugin's first init)
  double books_age_seconds = 0;
  bool books_seen = false;
  wire::Books books{};                 // plugin's side, last received
  std::uint64_t records_received = 0;  // distinct indexes counted
  std::uint64_t operations_received = 0;
  std::uint64_t operations_unknown =
      0;  // of operations_received: their communicator had not been announced
  std::uint64_t records_before = 0;  // acknowledged by an earlier agent instance
  std::uint64_t records_lost = 0;    // indexes passed over
  std::uint64_t records_duplicate = 0;
  std::uint64_t highest_index = 0;
};

/// What adds up over processes of their books.
struct ProcessSums {
  std::uint64_t seen = 0, recorded = 0, callbacks = 0, callback_ns = 0, sender_ns = 0;
  std::array<std::uint64_t, wire::kDropReasonCount> dropped{};
  std::uint64_t written = 0, received = 0, earlier = 0, lost = 0;  // records

  void add(const ProcessSums& other) {
    seen += other.seen;
    recorded += other.recorded;
    callbacks += other.callbacks;
    callback_ns += other.callback_ns;
    sender_ns += other.sender_ns;
    for (std::size_t i = 0; i < dropped.size(); ++i) dropped[i] += other.dropped[i];
    written += other.written;
    received += other.received;
    earlier += other.earlier;
    lost += other.lost;
  }
};

/// Steps of a job's processes: every local process counts each of its own.
struct StepRow {
  std::array<std::uint64_t, kStepBounds + 1> counts{};  // not cumulative
  double sum_seconds = 0;
};

/// One GPU in a job.
struct GpuRow {
  std::int32_t gpu = -1;
  double communication_seconds = 0;           // with at least one kernel of NCCL
  std::optional<double> communication_ratio;  // of the last steps
};

/// Time of one GPU's ranks in what GPUs wait in: the sums of RankSumsRow over its communicators,
/// those that have ended included.
struct GpuSumsRow {
  std::int32_t gpu = -1;
  double collective_seconds = 0;  // in collectives that no rank leaves before all have come
  double blocking_seconds = 0;    // in all collectives and Receives
};

/// Operations of one window with equal labels of NCCL Inspector, over all ranks that share them.
struct InspectorRow {
  std::string comm_name;
  std::uint32_t nranks = 0, nnodes = 0;
  std::int32_t gpu = -1;  // index on the node, -1 = unknown
  model::Function function{};
  model::Algorithm algorithm{};
  model::Protocol protocol{};
  model::inspector::SizeRange size;  // of one rank's bytes
  std::uint64_t operations = 0;      // with GPU time
  double microseconds = 0;           // sum
  std::uint64_t with_bandwidth = 0;  // those whose bus bandwidth is defined and not 0
  double logarithms = 0;             // natural, of those bandwidths in 10^9 bytes/s, sum
};

struct JobSnapshot {
  JobIdentity identity;
  std::vector<CommunicatorSnapshot> communicators;  // by comm
  std::vector<DurationRow> durations;
  std::vector<NetworkRow> network;
  std::optional<StepRow> steps;      // none as long as no step is known
  std::vector<GpuRow> gpus;          // by gpu
  std::vector<GpuSumsRow> gpu_sums;  // by gpu, of those that a rank in `communicators` has
  std::vector<ProcessSnapshot> processes;
  std::array<std::uint64_t, wire::kUntimedReasonCount>
      unobserved{};  // operations without GPU time, by reason
  std::uint64_t lost_operations =
      0;  // records passed over (an upper bound of operations lost on the way)
  std::array<std::optional<double>, kThroughputUnits> throughput;  // per second, as it says itself
  FoldStep fold = FoldStep::kNothing;
  std::uint64_t folded = 0;  // rows, processes and communicators that were folded
  /// From step kProcess on: totals of processes that are forgotten.
  std::optional<ProcessSums> forgotten;
  /// The last complete window, if the agent keeps them. Null: no operation in it, or nobody of the
  /// job is there any more.
  std::shared_ptr<const std::vector<InspectorRow>> inspector;
};

/// What became of the operations that the archive keeps.
struct ArchiveCounts {
  std::uint64_t operations = 0;            // written
  std::uint64_t written_bytes = 0;         // since the agent started
  std::uint64_t dropped_queue = 0;         // operations: the disk was too slow
  std::uint64_t dropped_disk = 0;          // operations: it failed
  std::uint64_t stored_bytes = 0;          // segments of this node that are there now
  std::uint64_t limit_bytes = 0;           // that they may have together
  std::uint64_t segments = 0;              // likewise there now
  std::array<std::uint64_t, 3> deleted{};  // segments: too old, job's limit, limit of all
};
inline constexpr std::array<const char*, 3> kArchiveDeletions = {"age", "job", "total"};

/// The agent about itself. Filled by the reactor; scrape costs are added by the exporter.
struct AgentStats {
  std::uint64_t connections_accepted = 0;
  std::uint32_t connections_open = 0;
  std::uint64_t frames = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t records = 0;
  std::uint64_t unknown_records = 0;
  std::vector<std::pair<std::string, std::uint64_t>> decode_errors;  // by reason
  std::uint64_t refused_connections = 0;
  QuotaCounts quota_exceeded{};  // by Quota
  std::uint64_t series_per_job = 0, series_per_principal = 0, series_limit = 0;
  std::array<std::uint64_t, kFoldSteps> folds{};  // of rows, processes, communicators, by step
  std::uint64_t jobs_refused = 0;                 // sessions refused because a limit was reached
  std::uint64_t identity_mismatches = 0;
  std::uint64_t squeue_failures = 0;
  std::uint64_t rdma_ports = 0;             // of the node that are active
  std::optional<ArchiveCounts> archive;     // where there is one
  std::vector<NodeFindings> node_findings;  // by check; empty: no GPUs, or not looked at yet
  /// Operations that no row of Inspector's could be made for: too many rows.
  std::uint64_t inspector_left_out = 0;
};

struct Snapshot {
  std::string node;
  std::string agent_version;
  std::uint64_t agent_instance = 0;
  std::int64_t realtime_ns = 0;    // when it was built, since the epoch
  std::uint64_t monotonic_ns = 0;  // likewise, for time that has passed: the other one can be set
  std::uint64_t generation = 0;
  std::vector<JobSnapshot> jobs;  // by job_id
  AgentStats agent;
};

using SnapshotPtr = std::shared_ptr<const Snapshot>;

}  // namespace ncclscope::agent
