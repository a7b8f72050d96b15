// SPDX-License-Identifier: Apache-2.0
//
// What the page remembers of bandwidth and of who comes last.
#include "agent/page/bandwidth_history.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ncclscope::agent {
namespace {

using model::Function;

constexpr std::int64_t kBegin = 1'764'000'000'000'000'000;

/// A node on which one communicator of two ranks runs AllReduces.
class Node {
 public:
  Node() {
    snapshot_.realtime_ns = kBegin;
    JobSnapshot job;
    job.identity.job_id = "7";
    CommunicatorSnapshot communicator;
    communicator.comm = "00c0ffee12345678";
    communicator.ranks.resize(2);
    OperationSumsRow row;
    row.function = Function::kAllReduce;
    communicator.sums = {row};
    communicator.rank_sums = {{0, 0, Function::kAllReduce, 0, 0, 0},
                              {1, 1, Function::kAllReduce, 0, 0, 0}};
    job.communicators = {communicator};
    snapshot_.jobs = {job};
    history_.observe(snapshot_);
  }

  /// An interval with `operations` per rank at `bandwidth`; ranks spend `seconds` in each of them.
  void pass(double bandwidth, std::uint64_t operations = 100, double seconds0 = 0.01,
            double seconds1 = 0.01) {
    wait(BandwidthHistory::kIntervalNs);
    CommunicatorSnapshot& communicator = communicator_now();
    OperationSumsRow& row = communicator.sums[0];
    row.operations_by_timing[1] += 2 * operations;
    row.busy_seconds += static_cast<double>(operations) * (seconds0 + seconds1);
    row.bus_bytes += static_cast<double>(operations) * (seconds0 + seconds1) * bandwidth;
    communicator.rank_sums[0].operations += operations;
    communicator.rank_sums[1].operations += operations;
    communicator.rank_sums[0].seconds += static_cast<double>(operations) * seconds0;
    communicator.rank_sums[1].seconds += static_cast<double>(operations) * seconds1;
    history_.observe(snapshot_);
  }
  void wait(std::int64_t ns) {
    snapshot_.realtime_ns += ns;
    snapshot_.monotonic_ns += static_cast<std::uint64_t>(ns);
  }
  CommunicatorSnapshot& communicator_now() { return snapshot_.jobs[0].communicators[0]; }
  [[nodiscard]] BandwidthSeries series() const {
    const auto all = history_.series();
    const auto it =
        all.find({snapshot_.jobs[0].identity.job_id, "00c0ffee12345678", Function::kAllReduce});
    return it == all.end() ? BandwidthSeries{} : it->second;
  }

  Snapshot snapshot_;
  BandwidthHistory history_;
};

TEST(BandwidthHistory, DividesWhatCameInAnInterval) {
  Node node;
  node.pass(200e9);
  node.pass(100e9, 50);
  const BandwidthSeries series = node.series();
  ASSERT_EQ(series.samples.size(), 3u);
  EXPECT_TRUE(std::isnan(series.samples[0]));
  EXPECT_NEAR(series.samples[1], 200e9, 1e6);
  EXPECT_NEAR(series.samples[2], 100e9, 1e6);
  EXPECT_DOUBLE_EQ(series.operations_per_second, 10);
  EXPECT_EQ(node.history_.end_ns(), kBegin + 2 * BandwidthHistory::kIntervalNs);
}

TEST(BandwidthHistory, TakesOneSampleAnInterval) {
  Node node;
  node.pass(200e9);
  node.wait(BandwidthHistory::kIntervalNs - 1);
  node.history_.observe(node.snapshot_);
  EXPECT_EQ(node.series().samples.size(), 2u);
  node.wait(1);
  node.history_.observe(node.snapshot_);
  const BandwidthSeries series = node.series();
  ASSERT_EQ(series.samples.size(), 3u);
  EXPECT_TRUE(std::isnan(series.samples[2])) << "nothing was timed in it";
  EXPECT_EQ(series.operations_per_second, 0);
}

TEST(BandwidthHistory, GoesOnWhenTheClockIsSet) {
  Node node;
  node.pass(200e9);
  std::size_t samples = node.series().samples.size();
  for (const std::int64_t step_ns : {-3'600'000'000'000, 86'400'000'000'000}) {
    node.snapshot_.realtime_ns += step_ns;
    node.history_.observe(node.snapshot_);
    EXPECT_EQ(node.series().samples.size(), samples) << "no time has passed";
    node.pass(200e9);
    EXPECT_EQ(node.series().samples.size(), ++samples);
    EXPECT_DOUBLE_EQ(node.series().operations_per_second, 20);
    EXPECT_NEAR(node.series().samples.back(), 200e9, 1e6);
    EXPECT_EQ(node.history_.end_ns(), node.snapshot_.realtime_ns);
  }
}

TEST(BandwidthHistory, KeepsTheLastQuarterOfAnHour) {
  Node node;
  for (int i = 0; i < 400; ++i) node.pass(i < 300 ? 100e9 : 200e9);
  const BandwidthSeries series = node.series();
  ASSERT_EQ(series.samples.size(), BandwidthHistory::kSamples);
  EXPECT_NEAR(series.samples[79], 100e9, 1e6);
  EXPECT_NEAR(series.samples[80], 200e9, 1e6);
  EXPECT_NEAR(series.samples.back(), 200e9, 1e6);
}

TEST(BandwidthHistory, ForgetsWhatIsGone) {
  Node node;
  node.pass(200e9);
  node.wait(BandwidthHistory::kIntervalNs);
  node.snapshot_.jobs.clear();
  node.history_.observe(node.snapshot_);
  EXPECT_TRUE(node.history_.series().empty());
}

TEST(BandwidthHistory, IgnoresSumsThatWentDown) {
  Node node;
  node.pass(200e9);
  node.communicator_now().sums[0].busy_seconds = 0;
  node.communicator_now().sums[0].bus_bytes = 0;
  node.communicator_now().rank_sums[0] = {0, 0, Function::kAllReduce, 0, 0, 0};
  node.pass(0, 0);
  EXPECT_TRUE(std::isnan(node.series().samples.back()));
  node.pass(150e9);
  EXPECT_NEAR(node.series().samples.back(), 150e9, 1e6);
}

TEST(BandwidthHistory, IsBounded) {
  Snapshot snapshot;
  snapshot.realtime_ns = kBegin;
  snapshot.jobs.resize(1);
  for (std::size_t i = 0; i < BandwidthHistory::kMaxSeries + 30; ++i) {
    CommunicatorSnapshot communicator;
    communicator.comm = std::to_string(i);
    communicator.sums.resize(1);
    communicator.sums[0].function = Function::kAllGather;
    for (std::int32_t rank = 0; rank < 64; ++rank)
      communicator.rank_sums.push_back({rank, rank, Function::kAllGather, 1, 1, 1});
    snapshot.jobs[0].communicators.push_back(communicator);
  }
  BandwidthHistory history;
  history.observe(snapshot);
  EXPECT_EQ(history.series().size(), BandwidthHistory::kMaxSeries);
  EXPECT_EQ(history.left_out(), 30u);
}

TEST(BandwidthHistory, SaysWhoComesLastAndWhatItCosts) {
  Node node;
  for (int i = 0; i < 20; ++i) node.pass(200e9, 100, 0.09, i % 6 == 5 ? 0.1 : 0.01);
  const BandwidthSeries series = node.series();
  EXPECT_EQ(series.last_rank, 1) << "the rank that waits least came last";
  EXPECT_EQ(series.last_intervals, 10u);
  EXPECT_EQ(series.of_intervals, BandwidthHistory::kRecent);
  EXPECT_NEAR(series.others_waited_seconds, 0.08, 1e-6);
}

TEST(BandwidthHistory, AccusesNobodyWithoutAnother) {
  Node node;
  node.communicator_now().rank_sums.pop_back();
  node.communicator_now().rank_sums.push_back({-1, 1, Function::kAllReduce, 0, 0, 0});
  for (int i = 0; i < 5; ++i) node.pass(200e9);
  EXPECT_EQ(node.series().last_rank, -1);
  EXPECT_EQ(node.series().of_intervals, 0u);
}

TEST(BandwidthHistory, AccusesNobodyOfWhatDoesNotSynchronise) {
  Node node;
  node.communicator_now().sums[0].function = Function::kBroadcast;
  for (RankSumsRow& row : node.communicator_now().rank_sums) row.function = Function::kBroadcast;
  node.history_.observe(node.snapshot_);
  for (int i = 0; i < 5; ++i) node.pass(200e9, 100, 0.09, 0.01);
  const auto all = node.history_.series();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.begin()->second.last_rank, -1);
}

std::vector<float> samples(std::size_t normal, std::size_t low, float share) {
  std::vector<float> out(normal, 100e9f);
  out.insert(out.end(), low, 100e9f * share);
  return out;
}

TEST(BandwidthVerdict, ComparesNowWithBefore) {
  const auto same = judge_bandwidth(samples(60, 5, 0.95f));
  ASSERT_TRUE(same);
  EXPECT_NEAR(same->past, 100e9, 1e6);
  EXPECT_NEAR(same->now, 95e9, 1e6);
  EXPECT_FALSE(same->low_for_seconds);
  const auto low = judge_bandwidth(samples(60, 24, 0.5f));
  ASSERT_TRUE(low);
  EXPECT_NEAR(low->now, 50e9, 1e6);
  EXPECT_EQ(low->low_for_seconds, 120.0);
}

TEST(BandwidthVerdict, BridgesIntervalsWithoutOperations) {
  std::vector<float> gaps = samples(60, 10, 0.5f);
  gaps[64] = std::nanf("");
  const auto verdict = judge_bandwidth(gaps);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->low_for_seconds, 50.0);
}

TEST(BandwidthVerdict, SaysNothingTooEarly) {
  EXPECT_FALSE(judge_bandwidth({}));
  EXPECT_FALSE(judge_bandwidth(samples(10, 4, 0.5f)));
  EXPECT_FALSE(judge_bandwidth(std::vector<float>(100, std::nanf(""))));
}

}  // namespace
}  // namespace ncclscope::agent
