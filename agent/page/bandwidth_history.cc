// SPDX-License-Identifier: Apache-2.0
#include "agent/page/bandwidth_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "proto/model/bandwidth.h"

namespace ncclscope::agent {
namespace {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

/// NaN where there is none.
float median(std::vector<float> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](float v) { return std::isnan(v); }),
               values.end());
  if (values.empty()) return kNothing;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void BandwidthHistory::observe(const Snapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  const auto passed_ns = static_cast<std::int64_t>(snapshot.monotonic_ns - observed_ns_);
  const bool first = observations_ == 0;
  if (!first && passed_ns < kIntervalNs) return;
  observed_ns_ = snapshot.monotonic_ns;
  end_ns_ = snapshot.realtime_ns;
  ++observations_;
  left_out_ = 0;
  const double seconds = first ? 0 : static_cast<double>(passed_ns) * 1e-9;
  for (const JobSnapshot& job : snapshot.jobs) {
    for (const CommunicatorSnapshot& communicator : job.communicators)
      take(job, communicator, seconds);
  }
  std::erase_if(rows_, [this](const auto& item) { return item.second.seen != observations_; });
}

void BandwidthHistory::take(const JobSnapshot& job, const CommunicatorSnapshot& communicator,
                            double seconds) {
  std::map<model::Function, Sums> by_function;
  for (const OperationSumsRow& row : communicator.sums) {
    Sums& sums = by_function[row.function];
    sums.bus_bytes += row.bus_bytes;
    sums.busy_seconds += row.busy_seconds;
    for (const std::uint64_t operations : row.operations_by_timing) sums.operations += operations;
  }
  for (const auto& [function, sums] : by_function) {
    const Key key{job.identity.job_id, communicator.comm, function};
    auto it = rows_.find(key);
    if (it == rows_.end()) {
      if (rows_.size() >= kMaxSeries) {
        ++left_out_;
        continue;
      }
      it = rows_.emplace(key, Row{}).first;
    }
    Row& row = it->second;
    row.seen = observations_;
    add_sample(row, sums, seconds, communicator.ranks.size());
    const Last last =
        model::is_synchronising(function) ? take_ranks(row, communicator, function) : Last{};
    row.lasts[row.lasts_next] = last.rank;
    row.lasts_next = (row.lasts_next + 1) % kRecent;
    row.lasts_count = std::min(row.lasts_count + 1, kRecent);
    if (last.rank >= 0) row.others_waited_seconds = last.others_waited_seconds;
  }
}

void BandwidthHistory::add_sample(Row& row, const Sums& now, double seconds, std::size_t ranks) {
  const Sums before = std::exchange(row.sums, now);
  // Sums that went down are those of a communicator that was folded or began anew.
  const bool grown = now.busy_seconds > before.busy_seconds && now.bus_bytes >= before.bus_bytes;
  row.samples[row.next] = grown ? static_cast<float>((now.bus_bytes - before.bus_bytes) /
                                                     (now.busy_seconds - before.busy_seconds))
                                : kNothing;
  row.next = (row.next + 1) % kSamples;
  row.count = std::min(row.count + 1, kSamples);
  row.operations_per_second = 0;
  if (seconds > 0 && now.operations > before.operations) {
    row.operations_per_second = static_cast<double>(now.operations - before.operations) / seconds /
                                static_cast<double>(std::max<std::size_t>(ranks, 1));
  }
}

BandwidthHistory::Last BandwidthHistory::take_ranks(Row& row,
                                                    const CommunicatorSnapshot& communicator,
                                                    model::Function function) {
  Last last;
  double least = 0, total = 0;
  std::size_t count = 0;
  std::vector<RankMark> marks;
  for (const RankSumsRow& now : communicator.rank_sums) {
    if (now.function != function || now.rank < 0 || marks.size() >= kMaxRanks) continue;
    marks.push_back({now.rank, now.operations, now.seconds});
    RankMark before;
    for (const RankMark& mark : row.marks) {
      if (mark.rank == now.rank) before = mark;
    }
    if (now.operations <= before.operations || now.seconds < before.seconds) continue;
    const double mean =
        (now.seconds - before.seconds) / static_cast<double>(now.operations - before.operations);
    total += mean;
    if (count++ == 0 || mean < least) {
      least = mean;
      last.rank = now.rank;
    }
  }
  row.marks = std::move(marks);
  if (count < 2) return {};  // nobody to compare with
  last.others_waited_seconds = (total - least) / static_cast<double>(count - 1) - least;
  return last;
}

std::map<BandwidthHistory::Key, BandwidthSeries> BandwidthHistory::series() const {
  const std::lock_guard lock(mutex_);
  std::map<Key, BandwidthSeries> out;
  for (const auto& [key, row] : rows_) {
    BandwidthSeries& series = out[key];
    series.samples.reserve(row.count);
    for (std::size_t i = 0; i < row.count; ++i)
      series.samples.push_back(row.samples[(row.next + kSamples - row.count + i) % kSamples]);
    series.operations_per_second = row.operations_per_second;
    std::map<std::int32_t, std::size_t> times;
    for (std::size_t i = 0; i < row.lasts_count; ++i) {
      if (row.lasts[i] < 0) continue;
      ++series.of_intervals;
      if (const std::size_t n = ++times[row.lasts[i]]; n > series.last_intervals) {
        series.last_intervals = n;
        series.last_rank = row.lasts[i];
      }
    }
    series.others_waited_seconds = row.others_waited_seconds;
  }
  return out;
}

std::int64_t BandwidthHistory::end_ns() const {
  const std::lock_guard lock(mutex_);
  return end_ns_;
}

std::size_t BandwidthHistory::left_out() const {
  const std::lock_guard lock(mutex_);
  return left_out_;
}

std::optional<BandwidthVerdict> judge_bandwidth(const std::vector<float>& samples) {
  constexpr std::size_t kNow = BandwidthHistory::kNowSamples;
  if (samples.size() < kNow + BandwidthHistory::kEnoughSamples) return {};
  const auto split = samples.end() - static_cast<std::ptrdiff_t>(kNow);
  const float now = median({split, samples.end()});
  const float past = median({samples.begin(), split});
  if (std::isnan(now) || std::isnan(past) || past <= 0) return {};
  BandwidthVerdict verdict{static_cast<double>(now), static_cast<double>(past), {}};
  const float low = past * static_cast<float>(BandwidthHistory::kLowShare);
  if (now >= low) return verdict;
  std::size_t intervals = 0;
  for (auto it = samples.rbegin(); it != samples.rend() && !(*it >= low); ++it) ++intervals;
  verdict.low_for_seconds =
      static_cast<double>(intervals) * static_cast<double>(BandwidthHistory::kIntervalNs) / 1e9;
  return verdict;
}

}  // namespace ncclscope::agent
