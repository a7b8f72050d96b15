// SPDX-License-Identifier: Apache-2.0
//
// The live tables behind a snapshot: job -> communicator -> rank, and job -> process. Private to
// the aggregator.
//   Thread:    reactor.
//   Ownership: a job owns its communicators and processes; a communicator owns its ranks. A process
//   points at its
//              ranks through slots (by the session's communicator id), a rank back at its process.
//   Life:      counters belong to (job, communicator, rank), so they survive reconnects and new
//   processes;
//              what has ended stays for the grace time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/aggregate/call_tail.h"
#include "agent/aggregate/dimension.h"
#include "agent/aggregate/fused_batch.h"
#include "agent/aggregate/gpu_clock.h"
#include "agent/aggregate/index_window.h"
#include "agent/aggregate/inspector_windows.h"
#include "agent/aggregate/job_signals.h"
#include "agent/aggregate/operation_sums.h"
#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/point_to_point.h"
#include "agent/aggregate/series_budget.h"
#include "agent/aggregate/slot_table.h"
#include "agent/aggregate/snapshot.h"
#include "agent/identity/gpu_table.h"
#include "agent/ingest/session_state.h"

namespace ncclscope::agent {

struct Job;
struct Communicator;

/// What one principal holds of the tables.
struct Tenant {
  std::string principal;
  std::size_t processes = 0;
  std::size_t jobs = 0;            // that it was the first to bring
  std::size_t communicators = 0;   // likewise
  std::size_t pending_items = 0;   // operations waiting for the rest of their plan
  std::size_t inspector_rows = 0;  // of the window that is open
  bool in_use = false;             // room is being made for it: not forgotten, whatever it loses
};

struct RankSums {
  std::uint64_t operations = 0;
  double seconds = 0;
  double bus_bytes = 0;
};

/// By function: of the sixteen a rank's communicator sees a few, and there are thousands of those.
class SumsByFunction {
 public:
  struct Entry {
    model::Function function;
    RankSums sums;
  };

  RankSums& of(model::Function function) {
    for (Entry& entry : entries_) {
      if (entry.function == function) return entry.sums;
    }
    return entries_.emplace_back(Entry{function, {}}).sums;
  }
  void add(const SumsByFunction& others) {
    for (const Entry& other : others.entries_) {
      RankSums& sums = of(other.function);
      sums.operations += other.sums.operations;
      sums.seconds += other.sums.seconds;
      sums.bus_bytes += other.sums.bus_bytes;
    }
  }
  /// Those that there were operations of.
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

/// The last operations of a rank that were unlike each other, to know an unfinished one by its
/// signature.
class RecentOperations {
 public:
  /// What makes an operation like another.
  struct Kind {
    std::uint64_t count = 0;
    std::int32_t root_or_peer = -1;
    model::Function function{};
    model::DataType datatype{};

    bool operator==(const Kind&) const = default;
  };

  void add(const Kind& kind, std::uint32_t index, std::uint64_t now_ns) {
    last_ = kind;
    last_index_ = index;
    last_ns_ = now_ns;
    const auto end = kinds_.begin() + used_;
    if (std::find(kinds_.begin(), end, kind) != end) return;
    kinds_[next_] = kind;
    next_ = static_cast<std::uint8_t>((next_ + 1) % kinds_.size());
    if (used_ < kinds_.size()) ++used_;
  }
  [[nodiscard]] bool empty() const { return used_ == 0; }
  // Of the newest one, only where not empty().
  [[nodiscard]] const Kind& last() const { return last_; }
  [[nodiscard]] std::uint32_t last_index() const { return last_index_; }
  [[nodiscard]] std::uint64_t last_ns() const { return last_ns_; }
  /// Null if there was none like it.
  [[nodiscard]] const Kind* find(std::uint64_t signature) const {
    const auto end = kinds_.begin() + used_;
    const auto found = std::find_if(kinds_.begin(), end, [&](const Kind& k) {
      return model::operation_signature(k.function, k.count, k.datatype, k.root_or_peer) ==
             signature;
    });
    return found == end ? nullptr : &*found;
  }

 private:
  std::array<Kind, 8> kinds_{};
  Kind last_;
  std::uint64_t last_ns_ = 0;
  std::uint32_t last_index_ = 0;
  std::uint8_t used_ = 0, next_ = 0;
};

/// Share of about the last thousand operations that had no GPU time.
class UntimedShare {
 public:
  void add(bool untimed) {
    if (operations_ < kOperations) ++operations_;
    share_ += ((untimed ? 1.0 : 0.0) - share_) / operations_;
  }
  /// None before the first one.
  [[nodiscard]] std::optional<double> share() const {
    return operations_ > 0 ? std::optional(share_) : std::nullopt;
  }

 private:
  static constexpr double kOperations = 1024;
  double operations_ = 0, share_ = 0;
};

/// Where a rank runs, as its process says: the same for all communicators on a GPU of a process.
struct RankPlace {
  std::string gpu_uuid, pci_bus_id;
  std::string global_rank, local_rank;
  bool operator==(const RankPlace&) const = default;
};

/// One local rank of one communicator.
struct CommRank {
  static constexpr OperationTail::SourceId kNoSource = ~OperationTail::SourceId{0};

  Communicator* communicator = nullptr;
  SinkProcess* process = nullptr;  // null once the session is forgotten
  GpuClock* clock = nullptr;       // of its GPU, owned by the process; null with it
  std::uint16_t id = 0;            // in the session
  std::uint64_t session_id = 0;
  std::int64_t pid = 0;
  std::int32_t rank = -1;
  GpuRef gpu;
  std::shared_ptr<const RankPlace> place;  // null for what is folded
  RankState state = RankState::kRunning;
  std::uint64_t ended_ns = 0;  // since when it is not running
  std::uint64_t init_time_ns = 0;
  bool has_progress = false;
  wire::Progress progress{};
  std::uint64_t moved_ns = 0;  // when this agent last saw it call, start or complete something
  std::uint64_t collective_called_ns = 0, p2p_called_ns = 0;  // likewise, call one of those
  RecentOperations recent;
  CallTail calls;
  double queue_seconds = 0;
  std::uint64_t queue_operations = 0;
  IndexWindow collectives, p2p;      // which of its operations have come
  std::uint64_t missing_before = 0;  // of processes that had its place earlier
  SumsByFunction sums;
  PlanBatch pending;           // empty without a process
  PendingTransfers transfers;  // likewise
  // What its Sends and Receives were, for its dimension.
  PeerPattern peers;
  std::uint64_t all_to_alls = 0, uneven_all_to_alls = 0;
  std::vector<wire::Neighbour> neighbours;
  OperationTail::SourceId source = kNoSource;

  /// Operations whose index was passed over: no record of them came.
  [[nodiscard]] std::uint64_t missing() const {
    return missing_before + collectives.missing() + p2p.missing();
  }
};

/// What the ranks counted that have no series of their own.
struct FoldedRanks {
  SumsByFunction sums;
  std::uint64_t missing = 0;
  double queue_seconds = 0;
  std::uint64_t queue_operations = 0;
};

struct Communicator {
  Job* job = nullptr;
  Tenant* tenant = nullptr;  // whose quota it is counted in
  std::string_view comm;     // key in the job
  std::uint64_t hash = 0;
  bool hash_known = false;
  std::unique_ptr<FoldedRanks> folded;  // of "other" only
  std::uint64_t serial = 0;             // in the order they were made
  std::string name;
  std::uint32_t nranks = 0, nnodes = 0;
  std::string_view inferred_dimension;  // once it could be told without a name
  std::vector<std::unique_ptr<CommRank>> ranks;
  UntimedShare untimed;
  /// Where its operations are counted: its own table, or that of "other" once they are folded.
  OperationSums* counters = nullptr;
  std::unique_ptr<OperationSums> own_counters;
};

struct NetworkSums {
  GpuRef gpu;
  bool is_send = false;
  std::array<double, 3> phase_seconds{};
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
};

/// Time of one GPU's ranks in what GPUs wait in. Stays when communicators end, so that it never
/// goes down.
struct GpuSums {
  GpuRef gpu;
  double collective_seconds = 0, blocking_seconds = 0;
};

/// What the aggregator keeps per session.
class SinkProcess {
 public:
  SessionState* session = nullptr;
  Job* job = nullptr;
  Tenant* tenant = nullptr;
  std::string plugin_version;
  std::optional<std::uint64_t> rdma_devices;  // that the process has open, as it says
  std::string global_rank, local_rank;
  std::int32_t local_index = -1;
  GpuRef gpu;  // of its first communicator
  bool several_gpus = false;
  SlotTable slots;                   // by communicator id
  std::unique_ptr<CommRank> folded;  // shared by its communicators that are folded
  struct Gpu {
    GpuRef gpu;
    std::unique_ptr<GpuClock> clock;
    GpuActivity* activity = nullptr;         // owned by the job
    std::shared_ptr<const RankPlace> place;  // of the rank that was described last
  };
  std::vector<Gpu> gpus;
  StepPeriod steps;
  std::uint64_t communicators_made = 0;
  std::uint64_t called_ns = 0;  // when this agent last saw it call anything
  bool mismatched = false;      // has been counted as an identity mismatch
  bool books_seen = false;
  wire::Books books{};
  std::uint64_t books_at_ns = 0;
  std::uint64_t clock_followed_ns = 0;                   // when its time of day was last taken over
  bool books_came = false;                               // in the frame being handled
  bool gone = false;                                     // its ranks have been marked as ended
  OperationTail::SourceId source = CommRank::kNoSource;  // for work done for other processes
};

struct Job {
  std::string key;
  Tenant* tenant = nullptr;  // whose quota it is counted in
  JobIdentity identity;
  std::string claimed_id;    // what identity.job_id would be without others of that name
  bool through_api = false;  // its processes came through the API
  std::map<std::string, std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<SinkProcess>> processes;
  DurationTable durations;
  std::vector<NetworkSums> network;
  std::vector<GpuSums> gpu_sums;
  std::vector<std::unique_ptr<GpuActivity>> activities;
  std::uint64_t ended_busy_ns = 0;  // of processes whose GPU was not known
  std::optional<StepRow> steps;
  std::uint64_t dimensions_at_ns = 0;  // when they were inferred last
  std::array<std::uint64_t, wire::kUntimedReasonCount> unobserved{};
  std::uint64_t lost_records = 0;  // of processes that are forgotten
  struct Throughput {
    double per_second = 0;
    std::uint64_t until_ns = 0;
  };
  std::array<Throughput, kThroughputUnits> throughput{};  // as it says itself

  // How its series stay within the budget.
  SeriesBudget::Account account;
  std::uint64_t allowance = 0;  // when it was last counted
  std::uint64_t growth = 0;     // series since then, at least
  FoldStep fold = FoldStep::kNothing;
  bool closed = false;  // new communicators are folded: from the first that was on, so that a
                        // communicator is never half there
  std::uint64_t folded = 0;
  Communicator* other = nullptr;
  std::optional<ProcessSums> forgotten;  // of processes, from step kProcess on

  InspectorWindows inspector;
  std::size_t inspector_rows = 0;  // of the window that is open

  /// Surely more series than it may have, and something left to fold.
  [[nodiscard]] bool over_allowance() const {
    return account.charged + growth > allowance && growth > 0 && fold != FoldStep::kOperation;
  }
};

}  // namespace ncclscope::agent
