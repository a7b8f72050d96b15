// SPDX-License-Identifier: Apache-2.0
//
// The definition of every sample. One function per family or group of families, in catalogue order.
#include "agent/export/visit.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "agent/aggregate/books.h"
#include "agent/aggregate/series.h"
#include "proto/model/operation.h"
#include "proto/wire/decode.h"
#include "proto/wire/names.h"

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kOne = 1;

/// A whole number as a label value.
class Number {
 public:
  Number() = default;
  template <typename Integer>
  explicit Number(Integer value) {
    size_ = static_cast<std::size_t>(
        std::to_chars(text_.data(), text_.data() + text_.size(), value).ptr - text_.data());
  }
  /// Empty where the value is negative, which means unknown.
  static Number unless_negative(std::int32_t value) { return value < 0 ? Number() : Number(value); }
  static Number unless_zero(std::uint32_t value) { return value == 0 ? Number() : Number(value); }
  [[nodiscard]] std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 20> text_{};
  std::size_t size_ = 0;
};

std::string_view algorithm_name(model::Algorithm a) {
  return a == model::Algorithm::kUnknown ? "unknown" : shown_name(a);
}
std::string_view protocol_name(model::Protocol p) {
  return p == model::Protocol::kUnknown ? "unknown" : shown_name(p);
}

constexpr std::size_t kTimings = 3;

/// "2.28.9" from NCCL's number; empty when unknown.
class NcclVersion {
 public:
  explicit NcclVersion(std::uint32_t code) {
    if (code == 0) return;
    const bool old = code < 10'000;  // 2.8 and earlier: major * 1000 + minor * 100 + patch
    append(old ? code / 1'000 : code / 10'000);
    text_[size_++] = '.';
    append(old ? code % 1'000 / 100 : code % 10'000 / 100);
    text_[size_++] = '.';
    append(code % 100);
  }
  [[nodiscard]] std::string_view view() const { return {text_.data(), size_}; }

 private:
  void append(std::uint32_t value) {
    size_ = static_cast<std::size_t>(
        std::to_chars(text_.data() + size_, text_.data() + text_.size(), value).ptr - text_.data());
  }
  std::array<char, 20> text_{};
  std::size_t size_ = 0;
};

class Mask {
 public:
  explicit Mask(std::uint32_t mask) {
    size_ = static_cast<std::size_t>(
        std::to_chars(text_.data() + 2, text_.data() + text_.size(), mask, 16).ptr - text_.data());
  }
  [[nodiscard]] std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 12> text_{'0', 'x'};
  std::size_t size_ = 0;
};

/// A signature of an operation.
class Hex {
 public:
  explicit Hex(std::uint64_t value) {
    size_ = static_cast<std::size_t>(
        std::to_chars(text_.data(), text_.data() + text_.size(), value, 16).ptr - text_.data());
  }
  [[nodiscard]] std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 16> text_{};
  std::size_t size_ = 0;
};

/// What a stalled rank is in, in hex; empty where that is no collective.
class StalledSignature {
 public:
  explicit StalledSignature(const RankSnapshot& rank) : hex_(value_of(rank)) {
    known_ = value_of(rank) != 0 || in_collective(rank);
  }
  [[nodiscard]] std::string_view view() const { return known_ ? hex_.view() : std::string_view{}; }

 private:
  static bool in_collective(const RankSnapshot& rank) {
    const std::string_view state = stalled_state(rank);
    return state == "called" || state == "started" || state == "queued";
  }
  static std::uint64_t value_of(const RankSnapshot& rank) {
    if (in_collective(rank)) return rank.oldest_signature;
    return stalled_state(rank).starts_with("unobserved") ? rank.calls_signature : 0;
  }
  Hex hex_;
  bool known_ = false;
};

/// A rank with its label values, rendered once per visit.
struct RankText {
  const CommunicatorSnapshot* communicator;
  const RankSnapshot* rank;
  Number rank_label;
  Number gpu_label;
  RankSeries own;
};

struct ProcessText {
  ProcessTotals totals;
  Number pid_number;
  [[nodiscard]] std::string_view pid() const { return totals.pid ? pid_number.view() : "other"; }
};

struct CommunicatorText {
  const CommunicatorSnapshot* communicator;
  std::vector<RankText> ranks;
};

struct JobText {
  const JobSnapshot* job;
  std::uint64_t series;
  std::vector<CommunicatorText> communicators;
  std::vector<ProcessText> processes;
  std::vector<NetworkRow> network;
  std::vector<GpuInfo> gpus;
};

/// "comm:rank:peers" of each of a part's communicators, with blanks between; peers as in
/// ncclscope_network_peer_info, with commas between.
std::string members_text(const GpuMembership& gpu, std::size_t part) {
  std::string out;
  const std::size_t end = std::min(gpu.members.size(), (part + 1) * GpuMembership::kPerSeries);
  for (std::size_t i = part * GpuMembership::kPerSeries; i < end; ++i) {
    const auto& [communicator, rank] = gpu.members[i];
    if (!out.empty()) out += ' ';
    out += communicator->comm;
    out += ':';
    out += Number::unless_negative(rank->rank).view();
    char before = ':';
    for (const std::int32_t peer : network_peers(*rank)) {
      out += before;
      out += Number(peer).view();
      before = ',';
    }
    if (before == ':') out += before;
  }
  return out;
}

std::vector<RankText> rank_texts(const CommunicatorSnapshot& communicator) {
  std::vector<RankText> out;
  out.reserve(communicator.ranks.size());
  RankSeriesRule rule;
  for (const RankSnapshot& rank : communicator.ranks) {
    out.push_back(RankText{&communicator, &rank, Number::unless_negative(rank.rank),
                           Number::unless_negative(rank.gpu), rule.next(rank)});
  }
  return out;
}

std::vector<ProcessText> process_texts(const JobSnapshot& job) {
  std::vector<ProcessText> out;
  for (const ProcessTotals& totals : process_totals(job)) {
    out.push_back(ProcessText{totals, Number(totals.pid.value_or(0))});
  }
  return out;
}

class Visit {
 public:
  Visit(const Snapshot& snapshot, const SelfStats& self, MetricSink& sink)
      : snapshot_(snapshot), self_(self), sink_(sink) {
    jobs_.reserve(snapshot.jobs.size());
    for (const JobSnapshot& job : snapshot.jobs) {
      JobText& text = jobs_.emplace_back(JobText{&job,
                                                 count_series(job).total(),
                                                 {},
                                                 process_texts(job),
                                                 network_rows(job),
                                                 gpu_rows(job)});
      text.communicators.reserve(job.communicators.size());
      for (const CommunicatorSnapshot& c : job.communicators)
        text.communicators.push_back(CommunicatorText{&c, rank_texts(c)});
    }
  }

  VisitCounts run() {
    identity();
    operations(false);
    operations(true);
    rank_sums(false);
    rank_sums(true);
    progress();
    network();
    steps();
    telemetry();
    plugin();
    counts_.job_series = std::exchange(series_, 0);
    agent();
    counts_.agent_series = series_;
    return counts_;
  }

 private:
  void family(Metric metric) {
    metric_ = &definition(metric);
    announced_ = false;
  }
  void announce() {
    if (!announced_) sink_.begin_family(*metric_);
    announced_ = true;
  }
  template <typename Value>
  void emit(std::initializer_list<std::string_view> values, Value value) {
    assert(values.size() == metric_->labels.size());
    announce();
    sink_.sample(std::span(values.begin(), values.size()), value);
    ++series_;
  }
  void emit_histogram(std::initializer_list<std::string_view> values, const DurationRow& row) {
    assert(values.size() == metric_->labels.size());
    announce();
    sink_.histogram(std::span(values.begin(), values.size()), row.counts, row.sum_seconds);
    series_ += kSeriesPerHistogram;
  }

  // f(cluster, job_id, job text)
  template <typename F>
  void each_job(F&& f) {
    for (const JobText& job : jobs_)
      f(std::string_view(job.job->identity.cluster), std::string_view(job.job->identity.job_id),
        job);
  }
  // f(cluster, job_id, communicator text)
  template <typename F>
  void each_communicator(F&& f) {
    each_job([&](std::string_view cluster, std::string_view job_id, const JobText& job) {
      for (const CommunicatorText& c : job.communicators) f(cluster, job_id, c);
    });
  }
  // f(cluster, job_id, comm, rank text)
  template <typename F>
  void each_rank(F&& f) {
    each_communicator(
        [&](std::string_view cluster, std::string_view job_id, const CommunicatorText& c) {
          for (const RankText& rank : c.ranks)
            f(cluster, job_id, std::string_view(c.communicator->comm), rank);
        });
  }
  // f(cluster, job_id, comm, row)
  template <typename F>
  void each_sum(bool p2p, F&& f) {
    each_communicator(
        [&](std::string_view cluster, std::string_view job_id, const CommunicatorText& c) {
          for (const OperationSumsRow& row : c.communicator->sums)
            if (is_point_to_point(row.function) == p2p)
              f(cluster, job_id, std::string_view(c.communicator->comm), row);
        });
  }
  template <typename F>
  void each_process(F&& f) {
    each_job([&](std::string_view cluster, std::string_view job_id, const JobText& job) {
      for (const ProcessText& p : job.processes) f(cluster, job_id, p);
    });
  }

  void identity() {
    family(Metric::kJobInfo);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      const JobIdentity& i = text.job->identity;
      emit({cluster, job_id, i.user, i.partition, i.account, i.job_name, i.array_task,
            Number(i.run).view(), i.kubernetes_namespace, i.pod, i.identity_source},
           kOne);
    });
    family(Metric::kJobThroughput);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      for (std::size_t unit = 0; unit < kThroughputUnits; ++unit) {
        if (const std::optional<double>& value = text.job->throughput[unit])
          emit({cluster, job_id, kThroughputUnitNames[unit]}, *value);
      }
    });
    family(Metric::kCommunicatorInfo);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& text) {
      const CommunicatorSnapshot& c = *text.communicator;
      if (c.comm == kOtherCommunicator) return;
      emit({cluster, job_id, c.comm, c.name, Number::unless_zero(c.nranks).view(),
            Number::unless_zero(c.nnodes).view(), c.dimension, Number(c.ranks.size()).view()},
           kOne);
    });
    family(Metric::kRankInfo);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& text) {
      if (!text.own.by_pid) return;
      const RankSnapshot& r = *text.rank;
      emit({cluster, job_id, comm, text.rank_label.view(), r.global_rank, r.local_rank,
            snapshot_.node, text.gpu_label.view(), r.gpu_uuid, r.pci_bus_id, Number(r.pid).view(),
            text.communicator->dimension},
           kOne);
    });
    family(Metric::kRankState);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& text) {
      if (!text.own.by_rank) return;
      emit({cluster, job_id, comm, text.rank_label.view(), name(text.rank->state)}, kOne);
    });
    family(Metric::kGpuInfo);
    each_job([&](auto cluster, auto job_id, const JobText& job) {
      for (const GpuInfo& gpu : job.gpus) {
        const RankSnapshot& r = *gpu.rank;
        emit({cluster, job_id, Number(r.gpu).view(), snapshot_.node, r.global_rank, r.gpu_uuid,
              r.pci_bus_id, Number::unless_negative(gpu.stage).view(),
              Number::unless_negative(gpu.expert).view(), Number::unless_zero(gpu.nnodes).view()},
             kOne);
      }
    });
    family(Metric::kGpuCommunicators);
    each_job([&](auto cluster, auto job_id, const JobText& job) {
      for (const GpuMembership& gpu : gpu_memberships(*job.job)) {
        for (std::size_t part = 0; part < gpu.series(); ++part)
          emit({cluster, job_id, Number::unless_negative(gpu.gpu).view(), snapshot_.node,
                gpu.global_rank, Number(part).view(), members_text(gpu, part)},
               kOne);
      }
    });
    family(Metric::kCommunicatorLocalRanks);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& text) {
      if (text.communicator->comm == kOtherCommunicator) return;
      std::uint64_t ranks = 0;
      for (const RankText& r : text.ranks) ranks += r.own.by_rank ? 1u : 0u;
      emit({cluster, job_id, text.communicator->comm}, ranks);
    });
  }

  void busy_seconds_of_collectives() {
    family(Metric::kCollectiveBusySeconds);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& text) {
      const CommunicatorSnapshot& c = *text.communicator;
      const bool first = std::any_of(c.ranks.begin(), c.ranks.end(),
                                     [](const RankSnapshot& rank) { return rank.rank == 0; });
      for (const OperationSumsRow& row : c.sums) {
        if (is_point_to_point(row.function) || row.timed_operations == 0) continue;
        emit({cluster, job_id, c.comm, shown_name(row.function), size_class_name(row.size_class),
              algorithm_name(row.algorithm), protocol_name(row.protocol), first ? "0" : ""},
             row.busy_seconds);
      }
    });
  }

  void operations(bool p2p) {
    const auto by_timing = [&](Metric metric, auto member) {
      family(metric);
      each_sum(p2p, [&](auto cluster, auto job_id, auto comm, const OperationSumsRow& row) {
        for (std::size_t t = 0; t < kTimings; ++t) {
          if (row.operations_by_timing[t] == 0) continue;
          emit({cluster, job_id, comm, shown_name(row.function), size_class_name(row.size_class),
                algorithm_name(row.algorithm), protocol_name(row.protocol),
                name(static_cast<wire::TimingSource>(t))},
               (row.*member)[t]);
        }
      });
    };
    const auto timed = [&](Metric metric, double OperationSumsRow::*member) {
      family(metric);
      each_sum(p2p, [&](auto cluster, auto job_id, auto comm, const OperationSumsRow& row) {
        if (row.timed_operations == 0) return;
        emit({cluster, job_id, comm, shown_name(row.function), size_class_name(row.size_class),
              algorithm_name(row.algorithm), protocol_name(row.protocol)},
             row.*member);
      });
    };
    by_timing(p2p ? Metric::kP2pOperations : Metric::kCollectiveOperations,
              &OperationSumsRow::operations_by_timing);
    by_timing(p2p ? Metric::kP2pBytes : Metric::kCollectiveBytes,
              &OperationSumsRow::bytes_by_timing);
    timed(p2p ? Metric::kP2pBusBytes : Metric::kCollectiveBusBytes, &OperationSumsRow::bus_bytes);
    if (p2p) {
      timed(Metric::kP2pBusySeconds, &OperationSumsRow::busy_seconds);
    } else {
      busy_seconds_of_collectives();
    }
    family(p2p ? Metric::kP2pDuration : Metric::kCollectiveDuration);
    each_job([&](auto cluster, auto job_id, const JobText& job) {
      for (const DurationRow& row : job.job->durations)
        if (is_point_to_point(row.function) == p2p)
          emit_histogram(
              {cluster, job_id, shown_name(row.function), size_class_name(row.size_class)}, row);
    });
  }

  void rank_sums(bool p2p) {
    const auto sums = [&](Metric metric, auto member) {
      family(metric);
      each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
        for (const RankSumsRow& row : c.communicator->rank_sums) {
          if (is_point_to_point(row.function) != p2p) continue;
          emit({cluster, job_id, c.communicator->comm, Number::unless_negative(row.rank).view(),
                Number::unless_negative(row.gpu).view(), shown_name(row.function)},
               row.*member);
        }
      });
    };
    if (!p2p) {
      family(Metric::kCommunicatorCollectiveSeconds);
      each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
        for (const CollectiveSeconds& row : collective_seconds(*c.communicator))
          emit({cluster, job_id, c.communicator->comm, shown_name(row.function)}, row.seconds);
      });
    }
    sums(p2p ? Metric::kRankP2pSeconds : Metric::kRankCollectiveSeconds, &RankSumsRow::seconds);
    sums(p2p ? Metric::kRankP2pOperations : Metric::kRankCollectiveOperations,
         &RankSumsRow::operations);
    sums(p2p ? Metric::kRankP2pBusBytes : Metric::kRankCollectiveBusBytes, &RankSumsRow::bus_bytes);
  }

  void progress() {
    family(Metric::kRankQueueSeconds);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
      const std::string_view comm = c.communicator->comm;
      for (const RankText& r : c.ranks) {
        if (r.own.by_gpu)
          emit({cluster, job_id, comm, r.rank_label.view(), r.gpu_label.view()},
               r.rank->queue_seconds);
      }
      if (c.communicator->folded_queue_operations > 0)
        emit({cluster, job_id, comm, "", ""}, c.communicator->folded_queue_seconds);
    });
    family(Metric::kRankQueueOperations);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
      const std::string_view comm = c.communicator->comm;
      for (const RankText& r : c.ranks) {
        if (r.own.by_gpu)
          emit({cluster, job_id, comm, r.rank_label.view(), r.gpu_label.view()},
               r.rank->queue_operations);
      }
      if (c.communicator->folded_queue_operations > 0)
        emit({cluster, job_id, comm, "", ""}, c.communicator->folded_queue_operations);
    });
    family(Metric::kCommunicatorOperations);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& r) {
      if (!r.own.by_gpu) return;
      const auto stage = [&](std::string_view stage_name, std::uint64_t count) {
        emit({cluster, job_id, comm, r.rank_label.view(), r.gpu_label.view(), stage_name}, count);
      };
      stage("enqueued", r.rank->collectives_enqueued);
      stage("started", r.rank->collectives_started);
      stage("completed", r.rank->collectives_completed);
    });
    family(Metric::kCommunicatorInflight);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& r) {
      if (r.own.by_gpu)
        emit({cluster, job_id, comm, r.rank_label.view(), r.gpu_label.view()},
             r.rank->inflight_seconds);
    });
    family(Metric::kCommunicatorOldestSignature);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& r) {
      if (!r.own.by_rank) return;
      const bool p2p = (r.rank->progress_flags & wire::kProgressOldestIsP2p) != 0;
      emit({cluster, job_id, comm, r.rank_label.view()},
           p2p ? std::uint64_t{0} : r.rank->oldest_signature);
    });
    family(Metric::kStalledRankSeconds);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& r) {
      if (!r.own.by_rank || !r.rank->stalled) return;
      const std::string_view state = stalled_state(*r.rank);
      emit({cluster, job_id, comm, r.rank_label.view(), r.rank->global_rank, snapshot_.node,
            r.gpu_label.view(), state, StalledSignature(*r.rank).view()},
           state.starts_with("unobserved") ? r.rank->still_seconds : r.rank->inflight_seconds);
    });
    family(Metric::kStalledRankOperations);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& r) {
      if (!r.own.by_rank || !r.rank->stalled) return;
      emit({cluster, job_id, comm, r.rank_label.view(), r.rank->global_rank, snapshot_.node,
            r.gpu_label.view(), stalled_state(*r.rank), StalledSignature(*r.rank).view()},
           r.rank->collectives_completed);
    });
  }

  void network() {
    constexpr std::array<std::string_view, 3> kSend = {"gpu_wait", "peer_wait", "wire"};
    constexpr std::array<std::string_view, 3> kReceive = {"data_wait", "flush", "gpu_wait"};
    const auto each_row = [&](auto&& f) {
      each_job([&](auto cluster, auto job_id, const JobText& job) {
        for (const NetworkRow& row : job.network)
          f(cluster, job_id, row, Number::unless_negative(row.gpu),
            std::string_view(row.is_send ? "send" : "receive"));
      });
    };
    family(Metric::kNetworkPhaseSeconds);
    each_row(
        [&](auto cluster, auto job_id, const NetworkRow& row, const Number& gpu, auto direction) {
          for (std::size_t p = 0; p < 3; ++p)
            emit({cluster, job_id, gpu.view(), direction, row.is_send ? kSend[p] : kReceive[p]},
                 row.phase_seconds[p]);
        });
    family(Metric::kNetworkBytes);
    each_row(
        [&](auto cluster, auto job_id, const NetworkRow& row, const Number& gpu, auto direction) {
          emit({cluster, job_id, gpu.view(), direction}, row.bytes);
        });
    family(Metric::kNetworkOperations);
    each_row(
        [&](auto cluster, auto job_id, const NetworkRow& row, const Number& gpu, auto direction) {
          emit({cluster, job_id, gpu.view(), direction}, row.operations);
        });
    family(Metric::kNetworkPeerInfo);
    each_rank([&](auto cluster, auto job_id, auto comm, const RankText& text) {
      if (!text.own.by_rank || text.rank->rank < 0) return;
      for (const std::int32_t peer : network_peers(*text.rank))
        emit({cluster, job_id, comm, text.rank_label.view(), text.gpu_label.view(),
              Number(peer).view()},
             kOne);
    });
  }

  void steps() {
    family(Metric::kStepSeconds);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      if (!text.job->steps) return;
      announce();
      const std::array<std::string_view, 2> labels = {cluster, job_id};
      sink_.histogram(labels, text.job->steps->counts, text.job->steps->sum_seconds);
      series_ += kSeriesPerStepHistogram;
    });
    const auto each_gpu = [&](Metric metric, auto&& value) {
      family(metric);
      each_job([&](auto cluster, auto job_id, const JobText& text) {
        for (const GpuRow& row : text.job->gpus) {
          const std::optional<double> v = value(row);
          if (v) emit({cluster, job_id, Number::unless_negative(row.gpu).view()}, *v);
        }
      });
    };
    each_gpu(Metric::kStepCommunicationRatio,
             [](const GpuRow& row) { return row.communication_ratio; });
    each_gpu(Metric::kGpuCommunicationSeconds,
             [](const GpuRow& row) { return std::optional(row.communication_seconds); });
    const auto gpu_sums = [&](Metric metric, double GpuSumsRow::*member) {
      family(metric);
      each_job([&](auto cluster, auto job_id, const JobText& text) {
        for (const GpuSumsRow& row : text.job->gpu_sums)
          emit({cluster, job_id, Number(row.gpu).view()}, row.*member);
      });
    };
    gpu_sums(Metric::kGpuCollectiveSeconds, &GpuSumsRow::collective_seconds);
    gpu_sums(Metric::kGpuBlockingSeconds, &GpuSumsRow::blocking_seconds);
  }

  void telemetry() {
    family(Metric::kOperationsUnobserved);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      for (std::size_t i = 1; i < wire::kNamedUntimedReasons; ++i) {
        emit({cluster, job_id, name(static_cast<wire::UntimedReason>(i))}, text.job->unobserved[i]);
      }
      const std::uint64_t unnamed = unnamed_untimed(*text.job);
      if (unnamed > 0) emit({cluster, job_id, "unknown"}, unnamed);
      emit({cluster, job_id, "lost_in_transit"}, text.job->lost_operations);
    });
    family(Metric::kOperationsMissing);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
      const std::string_view comm = c.communicator->comm;
      for (const RankText& r : c.ranks) {
        if (r.own.by_gpu)
          emit({cluster, job_id, comm, r.rank_label.view(), r.gpu_label.view()},
               missing_operations(*r.rank));
      }
      if (c.communicator->folded_missing > 0)
        emit({cluster, job_id, comm, "", ""}, c.communicator->folded_missing);
    });
    family(Metric::kTelemetryCoverage);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
      if (const std::optional<double> ratio = coverage(*c.communicator))
        emit({cluster, job_id, c.communicator->comm}, *ratio);
    });
    family(Metric::kUntimedRatio);
    each_communicator([&](auto cluster, auto job_id, const CommunicatorText& c) {
      if (c.communicator->untimed_share)
        emit({cluster, job_id, c.communicator->comm}, *c.communicator->untimed_share);
    });
    family(Metric::kJobSeries);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      emit({cluster, job_id}, text.series);
    });
    family(Metric::kJobFoldStep);
    each_job([&](auto cluster, auto job_id, const JobText& text) {
      emit({cluster, job_id}, static_cast<std::uint64_t>(text.job->fold));
    });
  }

  void plugin() {
    family(Metric::kPluginInfo);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (!p.totals.pid) return;
      const ProcessSnapshot& n = *p.totals.newest;
      emit({cluster, job_id, p.pid(), n.plugin_version, NcclVersion(n.nccl_version).view(),
            Number::unless_zero(n.interface_version).view(),
            n.books_seen ? Mask(n.books.mask).view() : ""},
           kOne);
    });
    family(Metric::kPluginRdmaDevices);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (p.totals.shows_rdma_devices())
        emit({cluster, job_id, p.pid()}, *p.totals.newest->rdma_devices);
    });
    const auto totals = [&](Metric metric, auto value) {
      family(metric);
      each_process([&](auto cluster, auto job_id, const ProcessText& p) {
        if (p.totals.books_seen) emit({cluster, job_id, p.pid()}, value(p.totals));
      });
    };
    totals(Metric::kPluginEventsSeen, [](const ProcessTotals& p) { return p.sums.seen; });
    totals(Metric::kPluginEventsRecorded, [](const ProcessTotals& p) { return p.sums.recorded; });
    family(Metric::kPluginEventsDropped);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (!p.totals.books_seen) return;
      for (std::size_t i = 0; i < wire::kNamedDropReasons; ++i) {
        emit({cluster, job_id, p.pid(), name(static_cast<wire::DropReason>(i))},
             p.totals.sums.dropped[i]);
      }
      const std::uint64_t unnamed = p.totals.dropped_unnamed();
      if (unnamed > 0) emit({cluster, job_id, p.pid(), "unknown"}, unnamed);
    });
    const auto seconds = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
    totals(Metric::kPluginEventsOpen, [](const ProcessTotals& p) { return p.open; });
    totals(Metric::kPluginRecordsWritten, [](const ProcessTotals& p) { return p.sums.written; });
    totals(Metric::kPluginRecordsReceived, [](const ProcessTotals& p) { return p.sums.received; });
    totals(Metric::kPluginRecordsEarlier, [](const ProcessTotals& p) { return p.sums.earlier; });
    totals(Metric::kPluginRecordsLost, [](const ProcessTotals& p) { return p.sums.lost; });
    totals(Metric::kPluginBooksBalanced,
           [](const ProcessTotals& p) { return std::uint64_t{p.balanced ? 1u : 0u}; });
    totals(Metric::kPluginCallbacks, [](const ProcessTotals& p) { return p.sums.callbacks; });
    totals(Metric::kPluginCallbackSeconds,
           [&](const ProcessTotals& p) { return seconds(p.sums.callback_ns); });
    totals(Metric::kPluginSenderSeconds,
           [&](const ProcessTotals& p) { return seconds(p.sums.sender_ns); });
    family(Metric::kPluginOverhead);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (!p.totals.shows_overhead()) return;
      const ProcessSnapshot& n = *p.totals.newest;
      emit({cluster, job_id, p.pid()}, static_cast<double>(n.books.callback_ns) /
                                           static_cast<double>(n.books.time_ns - n.start_time_ns));
    });
    governor();
  }

  void governor() {
    const auto shown = [&](Metric metric, bool (ProcessTotals::*shows)() const, auto value) {
      family(metric);
      each_process([&](auto cluster, auto job_id, const ProcessText& p) {
        if ((p.totals.*shows)()) emit({cluster, job_id, p.pid()}, value(p.totals.newest->books));
      });
    };
    using P = ProcessTotals;
    shown(Metric::kPluginRecentOverhead, &P::shows_governor,
          [](const wire::Books& b) { return b.recent_ratio; });
    shown(Metric::kPluginBudget, &P::shows_governor,
          [](const wire::Books& b) { return b.budget_ratio; });
    shown(Metric::kPluginGovernor, &P::shows_state,
          [](const wire::Books& b) { return std::uint64_t{b.governor}; });
    shown(Metric::kPluginGovernorChanges, &P::shows_governor,
          [](const wire::Books& b) { return std::uint64_t{b.governor_changes}; });
    shown(Metric::kPluginGovernorSince, &P::shows_governor_change, [](const wire::Books& b) {
      // Modulo 2^64: the offset is signed, and the sender may write anything.
      const auto realtime_ns = static_cast<std::int64_t>(
          b.governor_since_ns + static_cast<std::uint64_t>(b.realtime_offset_ns));
      return static_cast<double>(realtime_ns) * 1e-9;
    });
    shown(Metric::kPluginGovernorTrigger, &P::shows_governor_trigger,
          [](const wire::Books& b) { return b.governor_trigger_ratio; });
    family(Metric::kPluginDetail);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (!p.totals.shows_governor()) return;
      const wire::Books& b = p.totals.newest->books;
      emit({cluster, job_id, p.pid(), wire::name(static_cast<wire::DetailLevel>(b.detail_asked)),
            wire::name(static_cast<wire::DetailLevel>(b.detail))},
           kOne);
    });
    shown(Metric::kPluginGpuTiming, &P::shows_governor, [](const wire::Books& b) {
      return b.kernel_slice == 0 ? 0.0 : 1.0 / static_cast<double>(b.kernel_slice);
    });
    shown(Metric::kPluginNcclCost, &P::shows_nccl_cost,
          [](const wire::Books& b) { return b.nccl_cost_ratio; });
    shown(Metric::kPluginNcclCostError, &P::shows_nccl_cost,
          [](const wire::Books& b) { return b.nccl_cost_error; });
    shown(Metric::kPluginNcclCostBlocks, &P::shows_governor,
          [](const wire::Books& b) { return b.nccl_cost_blocks; });
    family(Metric::kPluginInspectorLines);
    each_process([&](auto cluster, auto job_id, const ProcessText& p) {
      if (!p.totals.shows_files()) return;
      const wire::Books& b = p.totals.newest->books;
      emit({cluster, job_id, p.pid(), "written"}, b.file_lines);
      emit({cluster, job_id, p.pid(), "late"}, b.file_lines_late);
      emit({cluster, job_id, p.pid(), "failed"}, b.file_lines_failed);
    });
  }

  template <typename Value>
  void agent_value(Metric metric, Value value) {
    family(metric);
    emit({}, value);
  }

  void agent() {
    const AgentStats& a = snapshot_.agent;
    family(Metric::kAgentBuildInfo);
    emit({snapshot_.agent_version, kMetricSchema}, kOne);
    agent_value(Metric::kAgentStartTime, self_.start_time_seconds);
    agent_value(Metric::kAgentConnections, std::uint64_t{a.connections_open});
    agent_value(Metric::kAgentConnectionsAccepted, a.connections_accepted);
    agent_value(Metric::kAgentConnectionsRefused, a.refused_connections);
    agent_value(Metric::kAgentSessionsRefused, a.jobs_refused);
    agent_value(Metric::kAgentIdentityMismatches, a.identity_mismatches);
    agent_value(Metric::kAgentSqueueFailures, a.squeue_failures);
    agent_value(Metric::kAgentRdmaPorts, a.rdma_ports);
    node_findings(a.node_findings);
    agent_value(Metric::kAgentFrames, a.frames);
    agent_value(Metric::kAgentReceivedBytes, a.bytes_received);
    agent_value(Metric::kAgentRecords, a.records);
    agent_value(Metric::kAgentUnknownRecords, a.unknown_records);
    decode_errors();
    family(Metric::kAgentQuotaExceeded);
    for (std::size_t i = 0; i < kQuotaCount; ++i)
      emit({name(static_cast<Quota>(i))}, a.quota_exceeded[i]);
    series();
    if (a.archive) archive(*a.archive);
    if (snapshot_.realtime_ns > 0) {
      const auto age_ns = std::max<std::int64_t>(0, self_.now_ns - snapshot_.realtime_ns);
      agent_value(Metric::kAgentSnapshotAge, static_cast<double>(age_ns) * 1e-9);
    }
    agent_value(Metric::kAgentScrapes, self_.scrapes);
    agent_value(Metric::kAgentScrapeSeconds, self_.scrape_cpu_seconds);
    agent_value(Metric::kAgentCpuSeconds, self_.cpu_seconds);
    agent_value(Metric::kAgentResidentMemory, self_.resident_bytes);
  }

  /// All levels of a check, so that one that is well again falls to 0.
  void node_findings(const std::vector<NodeFindings>& findings) {
    if (findings.empty()) return;
    family(Metric::kNodeFindings);
    for (const NodeFindings& f : findings) {
      for (std::size_t level = 0; level < kFindingLevels.size(); ++level)
        emit({f.check, kFindingLevels[level]}, f.by_level[level]);
    }
  }

  void archive(const ArchiveCounts& a) {
    agent_value(Metric::kAgentArchiveOperations, a.operations);
    family(Metric::kAgentArchiveDropped);
    emit({"queue"}, a.dropped_queue);
    emit({"disk"}, a.dropped_disk);
    agent_value(Metric::kAgentArchiveWrittenBytes, a.written_bytes);
    agent_value(Metric::kAgentArchiveStoredBytes, a.stored_bytes);
    agent_value(Metric::kAgentArchiveLimitBytes, a.limit_bytes);
    agent_value(Metric::kAgentArchiveSegments, a.segments);
    family(Metric::kAgentArchiveDeleted);
    for (std::size_t i = 0; i < a.deleted.size(); ++i) emit({kArchiveDeletions[i]}, a.deleted[i]);
  }

  void series() {
    const AgentStats& a = snapshot_.agent;
    std::uint64_t all = 0;
    std::uint64_t folded = 0;
    for (const JobText& text : jobs_) {
      all += text.series;
      folded += text.job->folded;
    }
    agent_value(Metric::kAgentSeries, all);
    family(Metric::kAgentSeriesLimit);
    emit({"job"}, a.series_per_job);
    emit({"principal"}, a.series_per_principal);
    emit({"agent"}, a.series_limit);
    agent_value(Metric::kAgentSeriesFolded, folded);
    family(Metric::kAgentFolds);
    for (std::size_t step = 1; step < kFoldSteps; ++step) {
      emit({kFoldStepNames[step]}, a.folds[step]);
    }
  }

  void decode_errors() {
    family(Metric::kAgentDecodeErrors);
    const auto& errors = snapshot_.agent.decode_errors;
    for (const auto& [reason, count] : errors) emit({reason}, count);
    // Known reasons begin at 0, so that the first error is seen as an increase.
    for (auto e = wire::DecodeError::kTooShort; e <= wire::DecodeError::kBadString;
         e = static_cast<wire::DecodeError>(static_cast<int>(e) + 1)) {
      const bool given = std::any_of(errors.begin(), errors.end(),
                                     [&](const auto& known) { return known.first == name(e); });
      if (!given) emit({name(e)}, std::uint64_t{0});
    }
  }

  const Snapshot& snapshot_;
  const SelfStats& self_;
  MetricSink& sink_;
  std::vector<JobText> jobs_;
  const MetricDefinition* metric_ = nullptr;
  bool announced_ = false;
  std::uint64_t series_ = 0;
  VisitCounts counts_;
};

}  // namespace

VisitCounts visit_metrics(const Snapshot& snapshot, const SelfStats& self, MetricSink& sink) {
  return Visit(snapshot, self, sink).run();
}

}  // namespace ncclscope::agent
