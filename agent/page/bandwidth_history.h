// SPDX-License-Identifier: Apache-2.0
//
// The recent past of a node, for its page: bus bandwidth of every (communicator, collective) in
// intervals of kIntervalNs, and which of the local ranks came last in them. The past begins with
// the agent, not with the first look, so that the page can say since when.
//   Thread: observe() on the reactor; series() anywhere.
//   Memory: at most kMaxSeries series of kSamples floats, and the marks of kMaxRanks ranks each:
//   about 1.2 KB a series. Series beyond that have no past, and are counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

/// What is known of one (communicator, collective) over the last minutes.
struct BandwidthSeries {
  std::vector<float> samples;  // bytes per second, oldest first; NaN: nothing timed in the interval
  double operations_per_second = 0;  // in the last interval, of one rank on average
  /// The local rank that waited least in most of the recent intervals; -1: none, or it makes no
  /// sense for the operation.
  std::int32_t last_rank = -1;
  std::size_t last_intervals = 0;    // in so many
  std::size_t of_intervals = 0;      // of these
  double others_waited_seconds = 0;  // per operation, in the last interval that rank was last
};

/// Bandwidth now against the past.
struct BandwidthVerdict {
  double now = 0;   // median of the last kNowSamples, bytes per second
  double past = 0;  // median of all before them
  /// Since when without a break it has been below kLowShare of the past; none: it is not.
  std::optional<double> low_for_seconds;
};

class BandwidthHistory {
 public:
  using Key = std::tuple<std::string, std::string, model::Function>;  // job_id, comm, function

  static constexpr std::int64_t kIntervalNs = 5'000'000'000;
  static constexpr std::size_t kSamples = 180;  // a quarter of an hour
  static constexpr std::size_t kMaxSeries = 512;
  static constexpr std::size_t kMaxRanks = 16;
  static constexpr std::size_t kRecent = 12;  // intervals that say who comes last
  static constexpr std::size_t kNowSamples = 3;
  static constexpr std::size_t kEnoughSamples = 12;  // of a past worth comparing with
  static constexpr double kLowShare = 0.9;

  /// Takes a sample if an interval has passed since the last one.
  void observe(const Snapshot& snapshot);

  /// Of all keys, by key.
  [[nodiscard]] std::map<Key, BandwidthSeries> series() const;
  /// When the newest samples end, since the epoch; 0: there are none.
  [[nodiscard]] std::int64_t end_ns() const;
  /// (communicator, collective) pairs without a past because there were too many.
  [[nodiscard]] std::size_t left_out() const;

 private:
  struct Sums {
    double bus_bytes = 0, busy_seconds = 0;
    std::uint64_t operations = 0;
  };
  struct RankMark {
    std::int32_t rank = -1;
    std::uint64_t operations = 0;
    double seconds = 0;
  };
  struct Row {
    std::array<float, kSamples> samples{};  // a ring
    std::size_t count = 0, next = 0;
    Sums sums;
    std::vector<RankMark> marks;                // at most kMaxRanks
    std::array<std::int32_t, kRecent> lasts{};  // a ring of who came last, -1: nobody known
    std::size_t lasts_count = 0, lasts_next = 0;
    double operations_per_second = 0, others_waited_seconds = 0;
    std::uint64_t seen = 0;  // generation of observe()
  };
  struct Last {
    std::int32_t rank = -1;
    double others_waited_seconds = 0;
  };
  void take(const JobSnapshot& job, const CommunicatorSnapshot& communicator, double seconds);
  static void add_sample(Row& row, const Sums& now, double seconds, std::size_t ranks);
  static Last take_ranks(Row& row, const CommunicatorSnapshot& communicator,
                         model::Function function);

  mutable std::mutex mutex_;
  std::map<Key, Row> rows_;
  std::int64_t end_ns_ = 0;
  std::uint64_t observed_ns_ = 0;  // CLOCK_MONOTONIC
  std::uint64_t observations_ = 0;
  std::size_t left_out_ = 0;
};

/// None where there is no recent sample, or too short a past.
[[nodiscard]] std::optional<BandwidthVerdict> judge_bandwidth(const std::vector<float>& samples);

}  // namespace ncclscope::agent
