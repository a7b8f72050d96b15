// SPDX-License-Identifier: Apache-2.0
#include "cli/top_model.h"

#include <gtest/gtest.h>

namespace ncclscope::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

/// One node with ranks `first` and `first + 1` of a communicator of four, after `n` operations of
/// each rank.
v1::GetSnapshotResponse snapshot(const std::string& node, std::int64_t seconds, int first,
                                 std::uint64_t n, double mean_first = 0.010,
                                 double mean_second = 0.010) {
  v1::GetSnapshotResponse s;
  s.set_node(node);
  s.set_time_ns(seconds * kSecond);
  v1::JobSnapshot& job = *s.add_jobs();
  job.mutable_job()->set_job_id("4711");
  v1::Communicator& c = *job.add_communicators();
  c.set_comm("00c0ffee12345678");
  c.set_name("dp");
  c.set_nranks(4);
  for (int r = 0; r < 2; ++r) {
    c.add_ranks()->set_rank(first + r);
    v1::RankSums& sums = *job.add_rank_sums();
    sums.set_comm(c.comm());
    sums.set_collective("AllReduce");
    sums.set_rank(first + r);
    sums.set_timed_operations(n);
    sums.set_seconds(static_cast<double>(n) * (r == 0 ? mean_first : mean_second));
  }
  v1::OperationSums& sums = *job.add_sums();
  sums.set_comm(c.comm());
  sums.set_collective("AllReduce");
  sums.set_size("<=1MiB");
  sums.set_operations(2 * n);
  sums.set_timed_operations(2 * n);
  sums.set_bytes(2 * n * 1'000'000);
  sums.set_bus_bytes(static_cast<double>(2 * n) * 1'500'000);
  sums.set_busy_seconds(static_cast<double>(n) * (mean_first + mean_second));
  v1::DurationHistogram& h = *job.add_durations();
  h.set_collective("AllReduce");
  h.set_size("<=1MiB");
  for (const double bound : {0.001, 0.004, 0.016}) h.add_bounds(bound);
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{0}, 2 * n, 2 * n})
    h.add_counts(count);
  return s;
}

TEST(TopRows, ShowTheDifferenceOfTwoSnapshots) {
  const std::vector<TopRow> rows =
      top_rows({{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 120)}});
  ASSERT_EQ(rows.size(), 1u);
  const TopRow& row = rows[0];
  EXPECT_EQ(row.comm_name, "dp");
  EXPECT_EQ(row.ranks_reporting, 2u);
  EXPECT_EQ(row.nranks, 4u);
  EXPECT_DOUBLE_EQ(row.operations_per_second, 10);
  EXPECT_DOUBLE_EQ(row.bytes_per_second, 20e6);
  EXPECT_NEAR(row.busbw, 1.5e6 / 0.010, 1);
  EXPECT_NEAR(row.busy_ratio, 0.1, 1e-9);
  EXPECT_NEAR(row.p50_seconds, 0.010, 1e-9) << "half way between 4 and 16 ms";
}

TEST(TopRows, AddUpNodes) {
  const std::vector<TopRow> rows =
      top_rows({{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 120)},
                {snapshot("b", 10, 2, 100), snapshot("b", 12, 2, 120)}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].ranks_reporting, 4u);
  EXPECT_DOUBLE_EQ(rows[0].operations_per_second, 10) << "per rank";
  EXPECT_DOUBLE_EQ(rows[0].bytes_per_second, 40e6);
}

TEST(TopRows, TheSlowestRankIsTheOneThatWaitedLeast) {
  const std::vector<TopRow> rows = top_rows(
      {{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 120)},
       {snapshot("b", 10, 2, 100, 0.010, 0.002), snapshot("b", 12, 2, 120, 0.010, 0.002)}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].slowest_rank, 3);
  EXPECT_EQ(rows[0].slowest_node, "b");
  EXPECT_NEAR(rows[0].others_waited_seconds, 0.008, 1e-9);
}

TEST(TopRows, NobodyIsSlowWhereRanksAreTimedInOtherOperations) {
  for (const std::uint64_t timed :
       {std::uint64_t{100}, std::uint64_t{105}}) {  // none of 20 in the window, and a quarter
    const std::vector<TopRow> rows = top_rows(
        {{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 120)},
         {snapshot("b", 10, 2, 100, 0.010, 0.002), snapshot("b", 12, 2, timed, 0.010, 0.002)}});
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].slowest_rank, -1) << timed;
  }
}

TEST(TopRows, NobodyIsSlowWhereRanksDoNotWaitForEachOther) {
  v1::GetSnapshotResponse before = snapshot("a", 10, 0, 100, 0.010, 0.002);
  v1::GetSnapshotResponse after = snapshot("a", 12, 0, 120, 0.010, 0.002);
  for (v1::GetSnapshotResponse* s : {&before, &after}) {
    s->mutable_jobs(0)->mutable_sums(0)->set_collective("Broadcast");
    for (v1::RankSums& r : *s->mutable_jobs(0)->mutable_rank_sums()) r.set_collective("Broadcast");
  }
  const std::vector<TopRow> rows = top_rows({{before, after}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].slowest_rank, -1);
}

TEST(TopRows, CountFromZeroAfterARestartOfTheAgent) {
  const std::vector<TopRow> rows =
      top_rows({{snapshot("a", 10, 0, 1'000), snapshot("a", 12, 0, 20)}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_DOUBLE_EQ(rows[0].operations_per_second, 10);
  EXPECT_NEAR(rows[0].busbw, 1.5e6 / 0.010, 1);
}

TEST(TopRows, LeaveOutWhatDidNotHappen) {
  EXPECT_TRUE(top_rows({{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 100)}}).empty());
  EXPECT_TRUE(top_rows({{snapshot("a", 10, 0, 100), snapshot("a", 10, 0, 120)}}).empty())
      << "the same moment";
  EXPECT_TRUE(top_rows({}).empty());
}

TEST(TopRows, ABusBandwidthNeedsTime) {
  v1::GetSnapshotResponse before = snapshot("a", 10, 0, 100);
  v1::GetSnapshotResponse after = snapshot("a", 12, 0, 120);
  for (v1::GetSnapshotResponse* s : {&before, &after}) {
    s->mutable_jobs(0)->mutable_sums(0)->set_busy_seconds(0);
    s->mutable_jobs(0)->mutable_sums(0)->set_bus_bytes(0);
  }
  EXPECT_EQ(top_rows({{before, after}}).at(0).busbw, 0);
}

TEST(TopTotals, CountJobsCommunicatorsAndRanksOnce) {
  const TopTotals totals = top_totals({{snapshot("a", 10, 0, 100), snapshot("a", 12, 0, 120)},
                                       {snapshot("b", 10, 2, 100), snapshot("b", 13, 2, 120)}});
  EXPECT_EQ(totals.jobs, 1u);
  EXPECT_EQ(totals.communicators, 1u);
  EXPECT_EQ(totals.ranks, 4u);
  EXPECT_DOUBLE_EQ(totals.seconds, 2.5);
}

TEST(HistogramQuantile, IsLinearWithinABucket) {
  const std::vector<double> bounds = {1, 2, 4};
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {0, 10, 10, 10}), 1.5);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.99, bounds, {100, 100, 100, 100}), 0.99);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {0, 0, 0, 10}), 4) << "above all bounds";
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {0, 0, 0, 0}), 0);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {1, 2}), 0) << "another shape";
}

TEST(OldestUnfinished, NamesTheOldestOfRunningRanks) {
  v1::GetProgressResponse node;
  node.set_node("a");
  for (int i = 0; i < 3; ++i) {
    v1::RankProgress& rank = *node.add_ranks();
    rank.set_rank(i);
    rank.set_state(i == 2 ? "vanished" : "running");
    rank.set_inflight_seconds(i == 0 ? 7 : 60 + i);
  }
  const Oldest oldest = oldest_unfinished({node}, 5);
  EXPECT_EQ(oldest.rank, 1);
  EXPECT_EQ(oldest.ranks, 2u);
  EXPECT_EQ(oldest_unfinished({}, 5).seconds, 0);
}

}  // namespace
}  // namespace ncclscope::cli
