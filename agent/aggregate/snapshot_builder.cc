// SPDX-License-Identifier: Apache-2.0
//
// Copies the live tables into a snapshot. Runs on the reactor about once a second; readers never
// see live tables.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "agent/aggregate/aggregator.h"
#include "proto/model/bandwidth.h"

namespace ncclscope::agent {
namespace {

/// What has been in flight for so long is looked up by name.
constexpr double kNameSeconds = 1;

/// What was called so long before the process's last call is taken to have ended: a process does
/// not go on calling for a minute while something hangs.
constexpr std::uint64_t kRecentNs = 60'000'000'000;

/// now - then in seconds, where `then` may be on a clock that differs by `offset_ns`; not below 0.
double age_seconds(std::uint64_t now, std::uint64_t then, std::int64_t offset_ns) {
  // Both come from peers: bounded, so that their difference cannot overflow.
  constexpr std::int64_t kBound = std::int64_t{1} << 61;
  const auto age = std::clamp(static_cast<std::int64_t>(now - then), -kBound, kBound) -
                   std::clamp(offset_ns, -kBound, kBound);
  return age > 0 ? static_cast<double>(age) * 1e-9 : 0.0;
}

/// Ranks whose number and GPU are unknown have equal labels. Rows are sorted.
void add_up_equal_labels(std::vector<RankSumsRow>& rows) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool equal = kept > 0 && rows[kept - 1].rank == rows[i].rank &&
                       rows[kept - 1].gpu == rows[i].gpu &&
                       rows[kept - 1].function == rows[i].function;
    if (equal) {
      rows[kept - 1].operations += rows[i].operations;
      rows[kept - 1].seconds += rows[i].seconds;
      rows[kept - 1].bus_bytes += rows[i].bus_bytes;
    } else {
      rows[kept++] = rows[i];
    }
  }
  rows.resize(kept);
}

OperationShort in_short(const RecentOperations::Kind& kind, std::uint32_t nranks,
                        std::uint64_t index) {
  OperationShort out;
  out.function = kind.function;
  out.datatype = kind.datatype;
  out.root_or_peer = kind.root_or_peer;
  out.count = kind.count;
  out.bytes = model::message_bytes(kind.function, kind.count, kind.datatype, nranks);
  out.index = static_cast<std::uint32_t>(index);
  return out;
}

/// The operation that a signature stands for, if one like it has completed on any local rank.
std::optional<OperationShort> known_operation(const Communicator& communicator,
                                              std::uint64_t signature, std::uint64_t index) {
  for (const auto& rank : communicator.ranks) {
    if (const RecentOperations::Kind* found = rank->recent.find(signature))
      return in_short(*found, communicator.nranks, index);
  }
  return {};
}

/// What is not known of the operations that a rank called.
void fill_unobserved(const CommRank& from, RankSnapshot& to) {
  const wire::Progress& p = from.progress;
  if (from.state != RankState::kRunning || from.process == nullptr) return;
  const auto recent = [&](std::uint64_t called_ns) {
    return from.process->called_ns - called_ns <= kRecentNs;
  };
  to.collective_ends_unknown =
      (p.flags & wire::kProgressCollectiveEndsUnknown) != 0 && recent(from.collective_called_ns);
  to.p2p_ends_unknown =
      (p.flags & wire::kProgressP2pEndsUnknown) != 0 && recent(from.p2p_called_ns);
  if (!to.collective_ends_unknown) return;
  to.last_waits_for_all = from.calls.waits_for_all(p.collectives_enqueued);
  to.calls_signature = from.calls.signature(p.collectives_enqueued);
}

/// What the ranks counted that have no series of their own.
void fill_folded(const Communicator& other, CommunicatorSnapshot& out) {
  const FoldedRanks& ranks = *other.folded;
  const bool by_operation = other.job->fold < FoldStep::kOperation;
  for (auto [function, sums] : ranks.sums.entries()) {
    if (!by_operation && !model::is_point_to_point(function)) function = kOtherFunction;
    out.rank_sums.push_back(
        RankSumsRow{-1, -1, function, sums.operations, sums.seconds, sums.bus_bytes});
  }
  out.folded_missing = ranks.missing;
  out.folded_queue_seconds = ranks.queue_seconds;
  out.folded_queue_operations = ranks.queue_operations;
}

}  // namespace

void Aggregator::fill(const Communicator& communicator, CommunicatorSnapshot& out,
                      std::uint64_t now) const {
  out.comm = communicator.comm;
  out.hash_known = communicator.hash_known;
  out.name = communicator.name;
  out.nranks = communicator.nranks;
  out.nnodes = communicator.nnodes;
  const NamedDimension named = dimension_of_name(communicator.name);
  out.dimension = named.decided ? named.dimension : communicator.inferred_dimension;
  if (communicator.own_counters != nullptr) out.sums = communicator.own_counters->rows();
  if (communicator.comm != kOtherCommunicator) out.untimed_share = communicator.untimed.share();
  out.ranks.reserve(communicator.ranks.size());
  for (const auto& from : communicator.ranks) {
    const wire::Progress& p = from->progress;
    const std::int64_t offset =
        from->process != nullptr ? from->process->session->clock_offset_ns : 0;
    RankSnapshot& to = out.ranks.emplace_back();
    to.rank = from->rank;
    if (from->place != nullptr) {
      to.global_rank = from->place->global_rank;
      to.local_rank = from->place->local_rank;
      to.gpu_uuid = from->place->gpu_uuid;
      to.pci_bus_id = from->place->pci_bus_id;
    }
    to.gpu = gpus_.index(from->gpu);
    to.pid = from->pid;
    to.session_id = from->session_id;
    to.communicator_id = from->id;
    to.state = from->state;
    to.queue_seconds = from->queue_seconds;
    to.queue_operations = from->queue_operations;
    to.missing = from->missing();
    to.neighbours = from->neighbours;
    if (!from->recent.empty()) {
      to.last = in_short(from->recent.last(), communicator.nranks, from->recent.last_index());
      to.last->age_seconds = age_seconds(now, from->recent.last_ns(), 0);
    }
    if (from->has_progress) {
      to.collectives_enqueued = p.collectives_enqueued;
      to.collectives_started = p.collectives_started;
      to.collectives_completed = p.collectives_completed;
      to.p2p_enqueued = p.p2p_enqueued;
      to.p2p_started = p.p2p_started;
      to.p2p_completed = p.p2p_completed;
      to.seen = p.seen;
      to.recorded = p.recorded;
      to.dropped = p.dropped;
      to.oldest_index = p.oldest_index;
      to.oldest_signature = p.oldest_signature;
      to.progress_flags = p.flags;
      to.sample_age_seconds = age_seconds(now, p.time_ns, offset);
      // A process that has gone waits for nothing: its state says what became of it.
      if (from->state == RankState::kRunning && p.oldest_index != ~std::uint64_t{0} &&
          p.oldest_time_ns != 0) {
        to.inflight_seconds = age_seconds(now, p.oldest_time_ns, offset);
      }
      to.still_seconds = age_seconds(now, from->moved_ns, 0);
      fill_unobserved(*from, to);
      if (to.inflight_seconds >= kNameSeconds)
        to.oldest = known_operation(communicator, p.oldest_signature, p.oldest_index);
    }
    to.stalled = to.rank >= 0 &&
                 (to.state == RankState::kVanished ||
                  (from->has_progress && std::max(to.inflight_seconds, to.still_seconds) >=
                                             static_cast<double>(options_.stalled_ns) * 1e-9));
    for (const auto& [function, sums] : from->sums.entries()) {
      out.rank_sums.push_back(
          RankSumsRow{from->rank, to.gpu, function, sums.operations, sums.seconds, sums.bus_bytes});
    }
  }
  if (communicator.folded) fill_folded(communicator, out);
  std::sort(out.ranks.begin(), out.ranks.end(), [](const RankSnapshot& a, const RankSnapshot& b) {
    return std::tie(a.rank, a.pid, a.communicator_id) < std::tie(b.rank, b.pid, b.communicator_id);
  });
  std::sort(out.rank_sums.begin(), out.rank_sums.end(),
            [](const RankSumsRow& a, const RankSumsRow& b) {
              return std::tie(a.rank, a.gpu, a.function) < std::tie(b.rank, b.gpu, b.function);
            });
  add_up_equal_labels(out.rank_sums);
}

void Aggregator::fill_gpus(const Job& job, JobSnapshot& out) const {
  const bool folded = job.fold >= FoldStep::kProcess;
  const auto row = [&](std::int32_t gpu) -> GpuRow& {
    const auto known = std::find_if(out.gpus.begin(), out.gpus.end(),
                                    [&](const GpuRow& r) { return r.gpu == gpu; });
    if (known != out.gpus.end()) return *known;
    out.gpus.emplace_back().gpu = gpu;
    return out.gpus.back();
  };
  for (const auto& activity : job.activities) {
    GpuRow& to = row(folded ? -1 : std::max(gpus_.index(activity->gpu), -1));
    to.communication_seconds += static_cast<double>(activity->busy.busy_ns()) * 1e-9;
    if (to.gpu >= 0) to.communication_ratio = activity->communication_ratio();
  }
  if (job.ended_busy_ns > 0) {
    row(-1).communication_seconds += static_cast<double>(job.ended_busy_ns) * 1e-9;
  }
  std::sort(out.gpus.begin(), out.gpus.end(),
            [](const GpuRow& a, const GpuRow& b) { return a.gpu < b.gpu; });
}

void Aggregator::fill_gpu_sums(const Job& job, JobSnapshot& out) const {
  std::set<std::int32_t> shown;
  for (const CommunicatorSnapshot& communicator : out.communicators) {
    for (const RankSnapshot& rank : communicator.ranks) shown.insert(rank.gpu);
  }
  std::map<std::int32_t, GpuSumsRow> rows;
  for (const GpuSums& from : job.gpu_sums) {
    const std::int32_t gpu = gpus_.index(from.gpu);
    if (gpu < 0 || !shown.contains(gpu)) continue;
    GpuSumsRow& to = rows[gpu];  // two references can turn out to be the same GPU
    to.gpu = gpu;
    to.collective_seconds += from.collective_seconds;
    to.blocking_seconds += from.blocking_seconds;
  }
  for (const auto& [gpu, row] : rows) out.gpu_sums.push_back(row);
}

void Aggregator::fill(const Job& job, JobSnapshot& out, std::uint64_t now) const {
  out.identity = job.identity;
  out.durations = job.durations.rows();
  out.unobserved = job.unobserved;
  out.lost_operations = job.lost_records;
  out.fold = job.fold;
  out.folded = job.folded;
  out.forgotten = job.forgotten;
  const bool anybody =
      std::any_of(job.processes.begin(), job.processes.end(),
                  [](const auto& process) { return process->session->connection != nullptr; });
  if (anybody) out.inspector = job.inspector.last();
  out.communicators.reserve(job.communicators.size());
  for (const auto& [comm, communicator] : job.communicators) {
    fill(*communicator, out.communicators.emplace_back(), now);
  }
  out.steps = job.steps;
  for (std::size_t unit = 0; unit < kThroughputUnits; ++unit) {
    if (job.throughput[unit].until_ns > now) out.throughput[unit] = job.throughput[unit].per_second;
  }
  fill_gpus(job, out);
  fill_gpu_sums(job, out);
  for (const NetworkSums& from : job.network) {
    const std::int32_t gpu = gpus_.index(from.gpu);
    // Two references can turn out to be the same GPU (a fallback index, and a bus id).
    auto to = std::find_if(out.network.begin(), out.network.end(), [&](const NetworkRow& row) {
      return row.gpu == gpu && row.is_send == from.is_send;
    });
    if (to == out.network.end()) {
      to = out.network.insert(out.network.end(), NetworkRow{});
      to->gpu = gpu;
      to->is_send = from.is_send;
    }
    for (std::size_t i = 0; i < to->phase_seconds.size(); ++i) {
      to->phase_seconds[i] += from.phase_seconds[i];
    }
    to->bytes += from.bytes;
    to->operations += from.operations;
  }
  for (const auto& from : job.processes) {
    const SessionState& session = *from->session;
    ProcessSnapshot& to = out.processes.emplace_back();
    to.pid = session.peer.pid != 0 ? session.peer.pid : session.claims.hello.pid;
    to.session_id = session.session_id;
    to.global_rank = from->global_rank;
    to.local_rank = from->local_rank;
    to.environment = session.environment;
    to.plugin_version = from->plugin_version;
    to.rdma_devices = from->rdma_devices;
    to.nccl_version = session.claims.hello.nccl_version;
    to.interface_version = session.claims.hello.interface_version;
    to.connected = session.connection != nullptr;
    to.said_goodbye = session.said_goodbye;
    to.claimed = session.peer.claimed;
    to.start_time_ns = session.claims.hello.start_time_ns;
    to.books_seen = from->books_seen;
    if (from->books_seen) {
      to.books = from->books;
      to.books_age_seconds = age_seconds(now, from->books_at_ns, 0);
    }
    to.records_received = session.records_received;
    to.operations_received = session.operations_received;
    to.operations_unknown = session.operations_unknown;
    to.records_before = session.records_before;
    to.records_lost = session.records_lost;
    to.records_duplicate = session.records_duplicate;
    to.highest_index = session.highest_index;
    out.lost_operations += session.records_lost;
  }
  std::sort(out.processes.begin(), out.processes.end(),
            [](const ProcessSnapshot& a, const ProcessSnapshot& b) {
              return std::tie(a.pid, a.session_id) < std::tie(b.pid, b.session_id);
            });
}

SnapshotPtr Aggregator::build(const IngestStats& stats, const QuotaCounts& quotas) {
  auto snapshot = std::make_shared<Snapshot>();
  const std::uint64_t now = clock_.monotonic_ns();
  snapshot->node = options_.node;
  snapshot->agent_version = options_.agent_version;
  snapshot->agent_instance = options_.agent_instance;
  snapshot->realtime_ns = clock_.realtime_ns();
  snapshot->monotonic_ns = now;
  snapshot->generation = ++generation_;
  snapshot->jobs.reserve(jobs_.size());
  now_ns_ = now;
  for (const auto& [key, job] : jobs_) settle(*job, snapshot->jobs.emplace_back(), now);
  std::sort(snapshot->jobs.begin(), snapshot->jobs.end(),
            [](const JobSnapshot& a, const JobSnapshot& b) {
              return a.identity.job_id < b.identity.job_id;
            });
  AgentStats& agent = snapshot->agent;
  agent.connections_accepted = stats.connections_accepted;
  agent.connections_open = stats.connections_open;
  agent.frames = stats.frames;
  agent.bytes_received = stats.bytes_received;
  agent.records = stats.records;
  agent.unknown_records = stats.unknown_records;
  for (std::size_t i = 1; i < kIngestErrorCount; ++i) {
    agent.decode_errors.emplace_back(name(static_cast<IngestError>(i)), stats.errors[i]);
  }
  agent.refused_connections = stats.refused_connections;
  agent.quota_exceeded = quotas;
  for (std::size_t i = 0; i < kQuotaCount; ++i) agent.quota_exceeded[i] += quotas_.counts()[i];
  agent.series_per_job = options_.series.job;
  agent.series_per_principal = options_.series.principal;
  agent.series_limit = options_.series.agent;
  agent.folds = folds_;
  agent.jobs_refused = jobs_refused_;
  agent.identity_mismatches = identity_mismatches_;
  agent.squeue_failures = squeue_failures_;
  agent.archive = archive_;
  agent.rdma_ports = rdma_ports_;
  agent.inspector_left_out = inspector_left_out_;
  agent.node_findings = node_findings_;
  return snapshot;
}

}  // namespace ncclscope::agent
