// SPDX-License-Identifier: Apache-2.0
#include "cli/top_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"

namespace ncclscope::cli {
namespace {

template <typename Number>
double difference(Number after, Number before) {
  return static_cast<double>(after >= before ? after - before : after);
}

bool is_synchronising(std::string_view collective) {
  for (std::size_t i = 0; i < model::kFunctionCount; ++i) {
    const auto function = static_cast<model::Function>(i);
    if (name(function) == collective) return model::is_synchronising(function);
  }
  return false;
}

struct JobKey {
  std::string cluster, job_id;
  bool operator<(const JobKey& other) const {
    return std::tie(cluster, job_id) < std::tie(other.cluster, other.job_id);
  }
};
JobKey key_of(const v1::JobSnapshot& job) {
  return {job.job().cluster(), job.job().job_id()};
}

struct Sums {
  double operations = 0, bytes = 0, timed = 0, bus_bytes = 0, busy_seconds = 0;
};
struct RankSums {
  double operations = 0, seconds = 0;
  std::string node;
};
struct Communicator {
  std::string name;
  std::uint32_t nranks = 0;
  std::set<std::pair<std::string, std::int64_t>> ranks;  // (node, pid and rank)
};
struct Histogram {
  std::vector<double> bounds, counts;
};

struct Collected {
  std::map<JobKey, std::string> job_names;
  std::map<std::tuple<JobKey, std::string>, Communicator> communicators;
  std::map<std::tuple<JobKey, std::string, std::string, std::string>, Sums>
      sums;  // comm, collective, size
  std::map<std::tuple<JobKey, std::string, std::string>, std::map<std::int32_t, RankSums>>
      ranks;                                                                    // comm, collective
  std::map<std::tuple<JobKey, std::string, std::string>, Histogram> durations;  // collective, size
  double seconds = 0;
  std::size_t nodes = 0;
};

void collect(const TopInterval& interval, Collected& out) {
  const double seconds =
      static_cast<double>(interval.after.time_ns() - interval.before.time_ns()) * 1e-9;
  if (seconds <= 0) return;
  out.seconds += seconds;
  ++out.nodes;
  const std::string& node = interval.after.node();

  std::map<JobKey, const v1::JobSnapshot*> earlier_jobs;
  for (const v1::JobSnapshot& job : interval.before.jobs()) earlier_jobs[key_of(job)] = &job;
  static const v1::JobSnapshot kNone;

  for (const v1::JobSnapshot& job : interval.after.jobs()) {
    const JobKey key = key_of(job);
    const auto found = earlier_jobs.find(key);
    const v1::JobSnapshot& before = found == earlier_jobs.end() ? kNone : *found->second;
    out.job_names[key] = job.job().job_name();
    for (const v1::Communicator& c : job.communicators()) {
      Communicator& communicator = out.communicators[{key, c.comm()}];
      communicator.name = c.name();
      communicator.nranks = c.nranks();
      for (const v1::Rank& r : c.ranks())
        communicator.ranks.emplace(node, r.rank() >= 0 ? r.rank() : -r.pid() - 1);
    }

    std::map<std::tuple<std::string, std::string, std::string, std::string, std::string>,
             const v1::OperationSums*>
        sums;
    const auto sums_key = [](const v1::OperationSums& s) {
      return std::tuple(s.comm(), s.collective(), s.size(), s.algorithm(), s.protocol());
    };
    for (const v1::OperationSums& s : before.sums()) sums[sums_key(s)] = &s;
    static const v1::OperationSums kNoSums;
    for (const v1::OperationSums& s : job.sums()) {
      const auto it = sums.find(sums_key(s));
      const v1::OperationSums& b =
          it == sums.end() || it->second->operations() > s.operations() ? kNoSums : *it->second;
      Sums& to = out.sums[{key, s.comm(), s.collective(), s.size()}];
      to.operations += difference(s.operations(), b.operations());
      to.bytes += difference(s.bytes(), b.bytes());
      to.timed += difference(s.timed_operations(), b.timed_operations());
      to.bus_bytes += difference(s.bus_bytes(), b.bus_bytes());
      to.busy_seconds += difference(s.busy_seconds(), b.busy_seconds());
    }

    std::map<std::tuple<std::string, std::string, std::int32_t>, const v1::RankSums*> ranks;
    const auto rank_key = [](const v1::RankSums& r) {
      return std::tuple(r.comm(), r.collective(), r.rank());
    };
    for (const v1::RankSums& r : before.rank_sums()) ranks[rank_key(r)] = &r;
    static const v1::RankSums kNoRank;
    for (const v1::RankSums& r : job.rank_sums()) {
      if (r.rank() < 0) continue;
      const auto it = ranks.find(rank_key(r));
      const v1::RankSums& b =
          it == ranks.end() || it->second->timed_operations() > r.timed_operations() ? kNoRank
                                                                                     : *it->second;
      RankSums& to = out.ranks[{key, r.comm(), r.collective()}][r.rank()];
      to.operations += difference(r.timed_operations(), b.timed_operations());
      to.seconds += difference(r.seconds(), b.seconds());
      to.node = node;
    }

    std::map<std::pair<std::string, std::string>, const v1::DurationHistogram*> durations;
    for (const v1::DurationHistogram& h : before.durations())
      durations[{h.collective(), h.size()}] = &h;
    for (const v1::DurationHistogram& h : job.durations()) {
      Histogram& to = out.durations[{key, h.collective(), h.size()}];
      if (to.bounds.empty()) {
        to.bounds.assign(h.bounds().begin(), h.bounds().end());
        to.counts.assign(static_cast<std::size_t>(h.counts_size()), 0.0);
      }
      if (to.counts.size() != static_cast<std::size_t>(h.counts_size())) continue;
      const auto it = durations.find({h.collective(), h.size()});
      const int last = h.counts_size() - 1;
      const bool usable = it != durations.end() && it->second->counts_size() == h.counts_size() &&
                          last >= 0 && it->second->counts(last) <= h.counts(last);
      for (int i = 0; i <= last; ++i)
        to.counts[static_cast<std::size_t>(i)] +=
            difference(h.counts(i), usable ? it->second->counts(i) : std::uint64_t{0});
    }
  }
}

/// Not told where ranks' GPU times are of other operations: the governor of each chooses its own.
void find_slowest(const std::map<std::int32_t, RankSums>& ranks, TopRow& row) {
  constexpr double kComparable = 0.5;  // the fewest operations of a rank, of the most
  double total = 0;
  double least = 0;
  double fewest = std::numeric_limits<double>::max();
  double most = 0;
  std::size_t count = 0;
  for (const auto& [rank, sums] : ranks) {
    if (sums.operations <= 0) {
      fewest = 0;
      continue;
    }
    const double mean = sums.seconds / sums.operations;
    fewest = std::min(fewest, sums.operations);
    most = std::max(most, sums.operations);
    total += mean;
    if (count++ == 0 || mean < least) {
      least = mean;
      row.slowest_rank = rank;
      row.slowest_node = sums.node;
    }
  }
  if (count < 2 || fewest < kComparable * most) {
    row.slowest_rank = -1;  // nobody to compare with
    row.slowest_node.clear();
    return;
  }
  row.others_waited_seconds = (total - least) / static_cast<double>(count - 1) - least;
}

}  // namespace

double histogram_quantile(double q, const std::vector<double>& bounds,
                          const std::vector<double>& cumulative) {
  if (cumulative.size() != bounds.size() + 1 || bounds.empty() || cumulative.back() <= 0) return 0;
  const double wanted = q * cumulative.back();
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (cumulative[i] < wanted) continue;
    const double below = i == 0 ? 0 : cumulative[i - 1];
    const double low = i == 0 ? 0 : bounds[i - 1];
    const double inside = cumulative[i] - below;
    return inside <= 0 ? bounds[i] : low + (bounds[i] - low) * (wanted - below) / inside;
  }
  return bounds.back();
}

std::vector<TopRow> top_rows(const std::vector<TopInterval>& intervals) {
  Collected all;
  for (const TopInterval& interval : intervals) collect(interval, all);
  std::vector<TopRow> rows;
  if (all.nodes == 0) return rows;
  const double seconds = all.seconds / static_cast<double>(all.nodes);

  for (const auto& [key, sums] : all.sums) {
    if (sums.operations <= 0) continue;
    const auto& [job, comm, collective, size] = key;
    TopRow row;
    row.job_id = job.job_id;
    row.job_name = all.job_names[job];
    row.comm = comm;
    const Communicator& communicator = all.communicators[{job, comm}];
    row.comm_name = communicator.name;
    row.nranks = communicator.nranks;
    row.ranks_reporting = static_cast<std::uint32_t>(communicator.ranks.size());
    row.collective = collective;
    row.size = size;
    const double ranks = std::max(1.0, static_cast<double>(row.ranks_reporting));
    row.operations_per_second = sums.operations / seconds / ranks;
    row.bytes_per_second = sums.bytes / seconds;
    if (sums.busy_seconds > 0) row.busbw = sums.bus_bytes / sums.busy_seconds;
    row.busy_ratio = sums.busy_seconds / seconds / ranks;
    if (const auto it = all.durations.find({job, collective, size}); it != all.durations.end()) {
      row.p50_seconds = histogram_quantile(0.50, it->second.bounds, it->second.counts);
      row.p99_seconds = histogram_quantile(0.99, it->second.bounds, it->second.counts);
    }
    if (is_synchronising(collective)) {
      if (const auto it = all.ranks.find({job, comm, collective}); it != all.ranks.end())
        find_slowest(it->second, row);
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TopRow& a, const TopRow& b) { return a.busy_ratio > b.busy_ratio; });
  return rows;
}

TopTotals top_totals(const std::vector<TopInterval>& intervals) {
  Collected all;
  for (const TopInterval& interval : intervals) collect(interval, all);
  TopTotals totals;
  totals.jobs = all.job_names.size();
  totals.communicators = all.communicators.size();
  for (const auto& [key, communicator] : all.communicators)
    totals.ranks += communicator.ranks.size();
  if (all.nodes > 0) totals.seconds = all.seconds / static_cast<double>(all.nodes);
  return totals;
}

Oldest oldest_unfinished(const std::vector<v1::GetProgressResponse>& nodes,
                         double threshold_seconds) {
  Oldest out;
  for (const v1::GetProgressResponse& node : nodes) {
    for (const v1::RankProgress& rank : node.ranks()) {
      if (rank.state() != "running") continue;
      if (rank.inflight_seconds() > threshold_seconds) ++out.ranks;
      if (rank.inflight_seconds() <= out.seconds) continue;
      out.seconds = rank.inflight_seconds();
      out.node = node.node();
      out.job_id = rank.job_id();
      out.comm = rank.comm();
      out.rank = rank.rank();
      out.index = rank.oldest_index();
    }
  }
  return out;
}

}  // namespace ncclscope::cli
