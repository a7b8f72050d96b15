// SPDX-License-Identifier: Apache-2.0
//
// Counts what agent/export/visit.cc writes, without writing it; a test compares the two.
#include "agent/aggregate/series.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "agent/aggregate/books.h"
#include "proto/wire/names.h"

namespace ncclscope::agent {
namespace {

// Families of which a row or a rank has one series each.
constexpr std::uint64_t kPerTiming = 2;       // operations, bytes
constexpr std::uint64_t kPerTimedRow = 2;     // bus bytes, busy seconds
constexpr std::uint64_t kPerRankByRank = 2;   // state, signature
constexpr std::uint64_t kPerRankByGpu = 7;    // queue (2), inflight, operations by stage, missing
constexpr std::uint64_t kPerStalledRank = 2;  // seconds, operations
constexpr std::uint64_t kPerRankSums = 3;     // seconds, operations, bus bytes
constexpr std::uint64_t kPerNetworkRow = 5;   // three phases, bytes, operations
constexpr std::uint64_t kPerProcessTotals = 11;  // seen, recorded, open, four of records, balanced,
                                                 // callbacks, two times
constexpr std::uint64_t kPerGovernor = 6;        // recent overhead, budget, changes, detail, GPU
                                                 // times, blocks compared
constexpr std::uint64_t kPerNcclCost = 2;        // ratio, its error
constexpr std::uint64_t kPerFiles = 3;           // lines by outcome
constexpr std::uint64_t kPerJob = 3;             // info, series, fold step

void add(ProcessTotals& to, const ProcessSnapshot& process) {
  if (!process.books_seen) return;
  to.books_seen = true;
  to.sums.add(process_sums(process.books, process));
  to.open += process.books.open;
  to.balanced = to.balanced && check_books(process).balanced();
}

std::uint64_t plugin_series(const ProcessTotals& p) {
  std::uint64_t count = 0;
  if (p.pid) ++count;  // info
  if (p.books_seen) count += kPerProcessTotals + wire::kNamedDropReasons;
  if (p.dropped_unnamed() > 0) ++count;
  if (p.shows_state()) ++count;  // governor
  if (p.shows_governor()) count += kPerGovernor;
  if (p.shows_governor_change()) ++count;
  if (p.shows_governor_trigger()) ++count;
  if (p.shows_nccl_cost()) count += kPerNcclCost;
  if (p.shows_files()) count += kPerFiles;
  if (p.shows_overhead()) ++count;  // overhead ratio
  if (p.shows_rdma_devices()) ++count;
  return count;
}

}  // namespace

RankSeries RankSeriesRule::next(const RankSnapshot& rank) {
  RankSeries out;
  if (rank.rank >= 0) return out;
  out.by_rank = !std::exchange(unknown_seen_, true);
  out.by_gpu = gpus_seen_.insert(std::max(rank.gpu, -1)).second;
  out.by_pid = pids_seen_.emplace(std::max(rank.gpu, -1), rank.pid).second;
  return out;
}

std::uint64_t ProcessTotals::dropped_unnamed() const {
  std::uint64_t sum = 0;
  for (std::size_t i = wire::kNamedDropReasons; i < sums.dropped.size(); ++i) {
    sum += sums.dropped[i];
  }
  return sum;
}

std::vector<ProcessTotals> process_totals(const JobSnapshot& job) {
  std::vector<ProcessTotals> out;
  if (job.fold >= FoldStep::kProcess) {
    ProcessTotals& all = out.emplace_back();
    if (job.forgotten) {
      all.books_seen = true;
      all.sums = *job.forgotten;
    }
    for (const ProcessSnapshot& process : job.processes) add(all, process);
    return out;
  }
  out.reserve(job.processes.size());
  std::unordered_map<std::int64_t, std::size_t> by_pid;
  for (const ProcessSnapshot& process : job.processes) {
    const auto [it, fresh] = by_pid.emplace(process.pid, out.size());
    if (fresh) {
      ProcessTotals& made = out.emplace_back();
      made.newest = &process;
      made.pid = process.pid;
    }
    ProcessTotals& totals = out[it->second];
    if (process.connected || !totals.newest->connected) totals.newest = &process;
    add(totals, process);
  }
  return out;
}

std::vector<NetworkRow> network_rows(const JobSnapshot& job) {
  std::vector<NetworkRow> out = job.network;
  for (NetworkRow& row : out) row.gpu = std::max(row.gpu, -1);
  std::sort(out.begin(), out.end(), [](const NetworkRow& a, const NetworkRow& b) {
    return std::pair(a.gpu, a.is_send) < std::pair(b.gpu, b.is_send);
  });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (kept > 0 && out[kept - 1].gpu == out[i].gpu && out[kept - 1].is_send == out[i].is_send) {
      for (std::size_t p = 0; p < 3; ++p) out[kept - 1].phase_seconds[p] += out[i].phase_seconds[p];
      out[kept - 1].bytes += out[i].bytes;
      out[kept - 1].operations += out[i].operations;
    } else {
      out[kept++] = out[i];
    }
  }
  out.resize(kept);
  return out;
}

std::string_view stalled_state(const RankSnapshot& rank) {
  if (rank.state == RankState::kVanished) return "vanished";
  if (rank.collectives_started > rank.collectives_completed) return "started";
  if (rank.collectives_enqueued > rank.collectives_completed)
    return rank.collective_ends_unknown ? "queued" : "called";
  if (rank.inflight_seconds > 0) {
    const bool begun = rank.p2p_started > rank.p2p_completed;
    return rank.p2p_enqueued > rank.p2p_completed && !begun ? "point_to_point_called"
                                                            : "point_to_point";
  }
  if (rank.collective_ends_unknown && rank.last_waits_for_all) return "unobserved";
  return rank.collective_ends_unknown || rank.p2p_ends_unknown ? "unobserved_other" : "idle";
}

std::vector<GpuInfo> gpu_rows(const JobSnapshot& job) {
  struct Made {
    GpuInfo info;
    std::uint32_t stage_of = 0, expert_of = 0;  // sizes of the communicators that tell
  };
  const auto key = [](const RankSnapshot& r) {
    return std::tie(r.gpu, r.global_rank, r.gpu_uuid, r.pci_bus_id);
  };
  using Key = decltype(key(std::declval<const RankSnapshot&>()));
  std::map<Key, Made> found;
  const auto take = [](const CommunicatorSnapshot& from, std::int32_t rank, std::uint32_t& size,
                       std::int32_t& place) {
    if (rank < 0 || (place >= 0 && from.nranks <= size)) return;
    size = from.nranks;
    place = rank;
  };
  for (const CommunicatorSnapshot& communicator : job.communicators) {
    for (const RankSnapshot& rank : communicator.ranks) {
      if (rank.gpu < 0) continue;
      Made& made = found[key(rank)];
      made.info.rank = &rank;
      made.info.nnodes = std::max(made.info.nnodes, communicator.nnodes);
      if (communicator.dimension == "pp")
        take(communicator, rank.rank, made.stage_of, made.info.stage);
      if (communicator.dimension == "ep")
        take(communicator, rank.rank, made.expert_of, made.info.expert);
    }
  }
  std::vector<GpuInfo> out;
  out.reserve(found.size());
  for (const auto& [unused, made] : found) out.push_back(made.info);
  return out;
}

std::vector<CollectiveSeconds> collective_seconds(const CommunicatorSnapshot& communicator) {
  std::vector<CollectiveSeconds> out;
  for (const RankSumsRow& row : communicator.rank_sums) {
    if (model::is_point_to_point(row.function)) continue;
    auto it = std::find_if(out.begin(), out.end(), [&](const CollectiveSeconds& known) {
      return known.function == row.function;
    });
    if (it == out.end()) it = out.insert(out.end(), CollectiveSeconds{row.function, 0});
    it->seconds += row.seconds;
  }
  return out;
}

std::vector<GpuMembership> gpu_memberships(const JobSnapshot& job) {
  std::map<std::pair<std::int32_t, std::string_view>, GpuMembership> found;
  for (const CommunicatorSnapshot& communicator : job.communicators) {
    if (!communicator.hash_known) continue;
    for (const RankSnapshot& rank : communicator.ranks) {
      GpuMembership& to = found[{std::max(rank.gpu, -1), rank.global_rank}];
      to.gpu = std::max(rank.gpu, -1);
      to.global_rank = rank.global_rank;
      // A rank that a new process took over from one that has gone is there twice.
      const bool again = !to.members.empty() && to.members.back().first == &communicator &&
                         to.members.back().second->rank == rank.rank;
      if (!again) to.members.emplace_back(&communicator, &rank);
    }
  }
  std::vector<GpuMembership> out;
  out.reserve(found.size());
  for (auto& [unused, membership] : found) out.push_back(std::move(membership));
  return out;
}

std::vector<std::int32_t> network_peers(const RankSnapshot& rank) {
  std::vector<std::int32_t> out;
  for (const wire::Neighbour& n : rank.neighbours) {
    if (n.is_send != 0) out.push_back(n.peer);
  }
  if (out.size() > kMostShownPeers) out.clear();
  return out;
}

std::uint64_t unnamed_untimed(const JobSnapshot& job) {
  std::uint64_t sum = 0;
  for (std::size_t i = wire::kNamedUntimedReasons; i < job.unobserved.size(); ++i) {
    sum += job.unobserved[i];
  }
  return sum;
}

void count_series(const CommunicatorSnapshot& communicator, SeriesCount& count) {
  for (const OperationSumsRow& row : communicator.sums) {
    for (const std::uint64_t operations : row.operations_by_timing) {
      if (operations > 0) count.counters += kPerTiming;
    }
    if (row.timed_operations > 0) count.counters += kPerTimedRow;
  }
  RankSeriesRule rule;
  for (const RankSnapshot& rank : communicator.ranks) {
    const RankSeries own = rule.next(rank);
    if (own.by_pid) ++count.ranks;  // info
    if (own.by_rank) count.ranks += kPerRankByRank;
    if (own.by_gpu) count.ranks += kPerRankByGpu;
    if (own.by_rank && rank.rank >= 0) count.network += network_peers(rank).size();
    if (own.by_rank && rank.rank >= 0) {
      (rank.stalled ? count.stalled : count.not_stalled) += kPerStalledRank;
    }
  }
  if (communicator.folded_queue_operations > 0) count.ranks += 2;
  if (communicator.folded_missing > 0) ++count.ranks;
  count.rank_sums += kPerRankSums * communicator.rank_sums.size();
  count.communicators += collective_seconds(communicator).size();
  if (communicator.comm != kOtherCommunicator) count.communicators += 2;  // info, local ranks
  if (coverage(communicator)) ++count.communicators;
  if (communicator.untimed_share) ++count.communicators;
}

SeriesCount count_series(const JobSnapshot& job) {
  SeriesCount count;
  // Reasons are shown from 0 on, so that the first one is seen as an increase; and what was lost.
  count.job = kPerJob + (wire::kNamedUntimedReasons - 1) + 1;
  if (unnamed_untimed(job) > 0) ++count.job;
  for (const std::optional<double>& throughput : job.throughput) count.job += throughput ? 1u : 0u;
  for (const CommunicatorSnapshot& communicator : job.communicators) {
    count_series(communicator, count);
  }
  count.gpus = gpu_rows(job).size() + kSeriesPerGpuSums * job.gpu_sums.size();
  for (const GpuMembership& gpu : gpu_memberships(job)) count.gpus += gpu.series();
  if (job.steps) count.steps += kSeriesPerStepHistogram;
  for (const GpuRow& row : job.gpus) count.steps += row.communication_ratio ? 2u : 1u;
  count.durations = kSeriesPerHistogram * job.durations.size();
  count.network += kPerNetworkRow * network_rows(job).size();
  for (const ProcessTotals& p : process_totals(job)) count.plugin += plugin_series(p);
  return count;
}

}  // namespace ncclscope::agent
