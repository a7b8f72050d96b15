// SPDX-License-Identifier: Apache-2.0
//
// Which series a job has: the one place that counts them, for the budget and for what the agent
// says of itself, and the rules that the exposition shares with the count.
//   Thread: any; reads an immutable snapshot.   Cost: some nanoseconds per row.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

/// How labels spell what may be folded.
[[nodiscard]] inline std::string_view shown_name(model::Function f) {
  return f == kOtherFunction ? "other" : name(f);
}
[[nodiscard]] inline std::string_view shown_name(model::Algorithm a) {
  return a == kOtherAlgorithm ? "other" : name(a);
}
[[nodiscard]] inline std::string_view shown_name(model::Protocol p) {
  return p == kOtherProtocol ? "other" : name(p);
}

/// Lines of one histogram: buckets, +Inf, _sum, _count.
inline constexpr std::uint64_t kSeriesPerHistogram = kDurationBounds + 3;
inline constexpr std::uint64_t kSeriesPerStepHistogram = kStepBounds + 3;

/// A job that is folded as far as it can be has at most so many series.
inline constexpr std::uint64_t kLeastSeriesOfAJob = 180;

/// Which series of a rank's are its own. Where NCCL did not tell the rank, two ranks of a
/// communicator can have equal labels: only the first of them has the series concerned.
struct RankSeries {
  bool by_rank = true;
  bool by_gpu = true;
  bool by_pid = true;
};

/// Sees the ranks of one communicator in their order.
class RankSeriesRule {
 public:
  RankSeries next(const RankSnapshot& rank);

 private:
  bool unknown_seen_ = false;
  std::set<std::int32_t> gpus_seen_;
  std::set<std::pair<std::int32_t, std::int64_t>> pids_seen_;
};

/// Totals of the processes that share the label `pid`: those of one pid (the plugin loaded anew),
/// or all of them where the job is folded that far.
struct ProcessTotals {
  const ProcessSnapshot* newest = nullptr;  // null: processes of which none is remembered
  std::optional<std::int64_t> pid;          // none: "other"
  bool books_seen = false;
  ProcessSums sums;
  std::uint64_t open = 0;
  bool balanced = true;  // the books of each

  /// Sum of the reasons without a name.
  [[nodiscard]] std::uint64_t dropped_unnamed() const;
  /// One process's own state is shown, not a sum over several.
  [[nodiscard]] bool shows_state() const { return pid && newest->books_seen; }
  /// Plugins of before say nothing of their governor: their budget is 0.
  [[nodiscard]] bool shows_governor() const {
    return shows_state() && newest->books.budget_ratio > 0;
  }
  [[nodiscard]] bool shows_governor_change() const {
    return shows_governor() && newest->books.governor_since_ns != 0;
  }
  [[nodiscard]] bool shows_governor_trigger() const {
    return shows_governor() && newest->books.governor_trigger_ratio > 0;
  }
  /// Enough blocks of operations were compared for an estimate with an error.
  [[nodiscard]] bool shows_nccl_cost() const {
    return shows_governor() && newest->books.nccl_cost_blocks >= kEnoughBlocks;
  }
  static constexpr std::uint64_t kEnoughBlocks = 32;
  /// Only of processes that write files themselves.
  [[nodiscard]] bool shows_files() const {
    if (!shows_state()) return false;
    const wire::Books& b = newest->books;
    return (b.file_lines | b.file_lines_late | b.file_lines_failed) != 0;
  }
  /// Only live processes of version 0.1 on say it, and only where they can tell.
  [[nodiscard]] bool shows_rdma_devices() const { return pid && newest->rdma_devices.has_value(); }
  [[nodiscard]] bool shows_overhead() const {
    return shows_state() && newest->start_time_ns != 0 &&
           newest->books.time_ns > newest->start_time_ns;
  }
};
/// Those of one process; `session` is what both the live session and a snapshot call its books.
template <typename Session>
[[nodiscard]] ProcessSums process_sums(const wire::Books& books, const Session& session) {
  ProcessSums sums;
  sums.seen = books.seen;
  sums.recorded = books.recorded;
  sums.callbacks = books.callbacks;
  sums.callback_ns = books.callback_ns;
  sums.sender_ns = books.sender_cpu_ns;
  for (std::size_t i = 0; i < sums.dropped.size(); ++i) sums.dropped[i] = books.dropped[i];
  sums.written = books.records_written;
  sums.received = session.records_received;
  sums.earlier = session.records_before;
  sums.lost = session.records_lost;
  return sums;
}
[[nodiscard]] std::vector<ProcessTotals> process_totals(const JobSnapshot& job);

/// Network rows as shown: rows with equal labels are added up.
[[nodiscard]] std::vector<NetworkRow> network_rows(const JobSnapshot& job);

/// What a rank is in, as far as it is known: vanished; started, called (a collective that the GPU
/// has not started); queued (the same, and those before it may be running, unseen); point_to_point,
/// point_to_point_called (one that the GPU has not started);
/// unobserved (nothing is known to be unfinished, but its last collective may be: no rank can leave
/// it before all have called it); unobserved_other (likewise, another operation); idle.
[[nodiscard]] std::string_view stalled_state(const RankSnapshot& rank);

/// A GPU as shown: one of its ranks, and its place in the job.
struct GpuInfo {
  const RankSnapshot* rank = nullptr;
  std::int32_t stage = -1, expert = -1;  // its rank in a communicator of that dimension
  std::uint32_t nnodes = 0;              // the most of any of its communicators
};
/// One of each (GPU, rank of the job), by GPU.
[[nodiscard]] std::vector<GpuInfo> gpu_rows(const JobSnapshot& job);

/// In which communicators a GPU of the job is, by communicator; those without a hash are left out.
struct GpuMembership {
  std::int32_t gpu = -1;
  std::string_view global_rank;
  std::vector<std::pair<const CommunicatorSnapshot*, const RankSnapshot*>> members;

  /// So many are told by one series.
  static constexpr std::size_t kPerSeries = 8;
  [[nodiscard]] std::size_t series() const {
    return (members.size() + kPerSeries - 1) / kPerSeries;
  }
};
[[nodiscard]] std::vector<GpuMembership> gpu_memberships(const JobSnapshot& job);

/// Peers of a rank as shown: to which it sends over the network. None if they are many (an
/// all-to-all), since then none of them can slow it down much.
inline constexpr std::size_t kMostShownPeers = 4;
[[nodiscard]] std::vector<std::int32_t> network_peers(const RankSnapshot& rank);

[[nodiscard]] std::uint64_t unnamed_untimed(const JobSnapshot& job);

/// Time of a communicator's local ranks in its collectives, by function.
struct CollectiveSeconds {
  model::Function function{};
  double seconds = 0;
};
[[nodiscard]] std::vector<CollectiveSeconds> collective_seconds(
    const CommunicatorSnapshot& communicator);

inline constexpr std::uint64_t kSeriesPerGpuSums = 2;  // in collectives, and in all that blocks

/// Series of a job by kind.
struct SeriesCount {
  std::uint64_t job = 0;            // job_info, throughput, reasons of missing times, its series
                                    // and fold step
  std::uint64_t steps = 0;          // step times, and communication time of GPUs
  std::uint64_t counters = 0;       // operations, bytes, bus bytes, busy seconds of communicators
  std::uint64_t durations = 0;      // histograms
  std::uint64_t ranks = 0;          // rank_info, rank_state, progress and queue
  std::uint64_t rank_sums = 0;      // rank_collective_*, rank_p2p_*
  std::uint64_t stalled = 0;        // of ranks that do not get on
  std::uint64_t gpus = 0;           // gpu_info, gpu_communicators, time in collectives
  std::uint64_t communicators = 0;  // communicator_info, its local ranks, coverage, untimed share
  std::uint64_t network = 0;
  std::uint64_t plugin = 0;
  std::uint64_t not_stalled = 0;  // not shown: those that would be, did nobody get on

  [[nodiscard]] std::uint64_t total() const {
    return job + steps + counters + durations + ranks + rank_sums + stalled + gpus + communicators +
           network + plugin;
  }
  /// What it can become without anything new: a job must not be folded because it hangs.
  [[nodiscard]] std::uint64_t most() const { return total() + not_stalled; }
};
/// Adds those of one communicator.
void count_series(const CommunicatorSnapshot& communicator, SeriesCount& count);
[[nodiscard]] SeriesCount count_series(const JobSnapshot& job);

}  // namespace ncclscope::agent
