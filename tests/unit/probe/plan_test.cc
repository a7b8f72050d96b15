// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace ncclscope::cli::probe {
namespace {

using model::Function;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan plan_of(std::vector<Function> collectives, std::uint64_t least, std::uint64_t most,
             std::uint32_t factor) {
  Plan plan;
  plan.collectives = std::move(collectives);
  plan.min_bytes = least;
  plan.max_bytes = most;
  plan.factor = factor;
  return plan;
}

std::vector<std::uint64_t> sizes(const std::vector<Row>& rows) {
  std::vector<std::uint64_t> out;
  for (const Row& row : rows) out.push_back(row.bytes);
  return out;
}

TEST(Plan, GoesFromTheSmallestToTheLargestSizeByTheFactor) {
  const auto rows = rows_of(plan_of({Function::kAllReduce}, 1024, 65'536, 4), 8);
  EXPECT_THAT(sizes(rows), ElementsAre(1024, 4096, 16'384, 65'536));
  EXPECT_EQ(rows[0].count, 256U);
}

TEST(Plan, LeavesOutTheLastSizeWhereTheFactorPassesIt) {
  EXPECT_THAT(sizes(rows_of(plan_of({Function::kAllReduce}, 8, 100, 3), 2)),
              ElementsAre(8, 24, 72));
}

TEST(Plan, RunsOneSizeWhateverTheFactor) {
  EXPECT_THAT(sizes(rows_of(plan_of({Function::kAllReduce}, 64, 64, 0), 2)), ElementsAre(64));
}

TEST(Plan, DividesTheMessageAmongRanksAsNcclTestsDo) {
  const auto rows = rows_of(
      plan_of({Function::kAllGather, Function::kReduceScatter, Function::kAllToAll}, 4096, 4096, 2),
      8);
  ASSERT_EQ(rows.size(), 3U);
  for (const Row& row : rows) {
    EXPECT_EQ(row.count, 128U) << collective_name(row.collective);
    EXPECT_EQ(row.bytes, 4096U);
  }
}

TEST(Plan, GivesEachRankAnElementAndRunsEqualSizesOnce) {
  // 100 ranks: 8, 16, ... bytes would be less than an element each.
  const auto rows = rows_of(plan_of({Function::kAllGather}, 8, 1024, 2), 100);
  EXPECT_THAT(sizes(rows), ElementsAre(400, 800));
  EXPECT_EQ(rows[0].count, 1U);
}

TEST(Plan, DoesNotOverflowAtTheLargestSizes) {
  const std::uint64_t most = std::uint64_t{1} << 40;
  const auto rows = rows_of(plan_of({Function::kAllReduce}, 4, most, 4'000'000'000U), 2);
  EXPECT_EQ(rows.size(), 2U);
}

TEST(Plan, ChecksSmallMessagesOnly) {
  Plan plan = plan_of({Function::kAllReduce}, 1024, 4096, 2);
  plan.check_bytes = 2048;
  std::vector<bool> checked;
  for (const Row& row : rows_of(plan, 2)) checked.push_back(row.checked);
  EXPECT_THAT(checked, ElementsAre(true, true, false));
}

TEST(Plan, SaysWhatCannotBeRun) {
  EXPECT_EQ(problem_of(plan_of({Function::kAllReduce}, 4, 8, 2)), "");
  EXPECT_THAT(problem_of(plan_of({}, 4, 8, 2)), HasSubstr("no collective"));
  EXPECT_THAT(problem_of(plan_of({Function::kAllReduce}, 16, 8, 2)), HasSubstr("from 16 to 8"));
  EXPECT_THAT(problem_of(plan_of({Function::kAllReduce}, 0, 8, 2)), HasSubstr("at least 4"));
  EXPECT_THAT(problem_of(plan_of({Function::kAllReduce}, 4, 8, 1)), HasSubstr("factor"));
  Plan none = plan_of({Function::kAllReduce}, 4, 8, 2);
  none.iterations = 0;
  EXPECT_THAT(problem_of(none), HasSubstr("0 iterations"));
}

TEST(Plan, ComputesBandwidthsAsNcclTestsDo) {
  const Row reduce{Function::kAllReduce, 250'000'000, 1'000'000'000, false};
  EXPECT_DOUBLE_EQ(algorithm_gigabytes(reduce, 0.01), 100);
  EXPECT_DOUBLE_EQ(bus_gigabytes(reduce, 8, 0.01), 175);  // 2 * 7 / 8
  const Row gather{Function::kAllGather, 31'250'000, 1'000'000'000, false};
  EXPECT_DOUBLE_EQ(bus_gigabytes(gather, 8, 0.01), 87.5);  // 7 / 8
  EXPECT_DOUBLE_EQ(bus_gigabytes(gather, 1, 0.01), 0);
  EXPECT_DOUBLE_EQ(algorithm_gigabytes(reduce, 0), 0);
}

TEST(Plan, ReadsSizesAndNamesAsPeopleWriteThem) {
  EXPECT_EQ(parse_size("8"), 8U);
  EXPECT_EQ(parse_size("64K"), 65'536U);
  EXPECT_EQ(parse_size("1m"), 1'048'576U);
  EXPECT_EQ(parse_size("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_size("5B"), 5U);
  for (const char* bad :
       {"", "K", "-1", "1.5M", "1X", "1Kb", "99999999999G", "18446744073709551616"})
    EXPECT_FALSE(parse_size(bad)) << bad;
  EXPECT_EQ(collective_of("all_reduce"), Function::kAllReduce);
  EXPECT_EQ(collective_of("ALLTOALL"), Function::kAllToAll);
  EXPECT_FALSE(collective_of("broadcast"));
}

TEST(Plan, TravelsAsOneWord) {
  Plan plan = plan_of({Function::kAllToAll, Function::kAllGather}, 12, 345'678, 3);
  plan.iterations = 7;
  plan.warmup = 0;
  plan.check_bytes = 99;
  const std::string text = plan_text(plan);
  EXPECT_EQ(text.find(' '), std::string::npos);
  const auto read = parse_plan(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(plan_text(*read), text);
  EXPECT_EQ(read->warmup, 0U);
  for (const char* bad :
       {"", "AllReduce", "AllReduce:1:2:3:4:5", "Bogus:8:8:2:1:1:1", "AllReduce:8:4:2:1:1:1",
        "AllReduce:8:8:2:1:1:x", "AllReduce:8:8:2:0:1:1"})
    EXPECT_FALSE(parse_plan(bad)) << bad;
}

/// What rank `rank` would receive if all went well, computed element by element.
std::vector<float> right(const Row& row, std::uint64_t rank, std::uint64_t ranks) {
  std::vector<float> out(received_elements(row, ranks));
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    float sum = 0;
    switch (row.collective) {
      case Function::kAllReduce:
        for (std::uint64_t r = 0; r < ranks; ++r) sum += contribution(r, i);
        break;
      case Function::kReduceScatter:
        for (std::uint64_t r = 0; r < ranks; ++r) sum += contribution(r, rank * row.count + i);
        break;
      case Function::kAllGather:
        sum = contribution(i / row.count, i % row.count);
        break;
      default:
        sum = contribution(i / row.count, rank * row.count + i % row.count);
    }
    out[i] = sum;
  }
  return out;
}

TEST(Results, AreRightWhereEveryElementIs) {
  for (const std::uint64_t ranks : {1U, 2U, 126U, 127U, 128U, 300U}) {
    for (const Function f : {Function::kAllReduce, Function::kAllGather, Function::kReduceScatter,
                             Function::kAllToAll}) {
      const Row row{f, 777, 0, true};
      EXPECT_EQ(count_wrong(row, ranks - 1, ranks, right(row, ranks - 1, ranks)), 0U)
          << collective_name(f) << " of " << ranks;
    }
  }
}

TEST(Results, CountWhatIsWrongMisplacedMissingOrNoNumber) {
  const Row row{Function::kAllGather, 1000, 0, true};
  std::vector<float> values = right(row, 0, 4);
  values[5] += 1;
  values[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_wrong(row, 0, 4, values), 2U);
  values = right(row, 0, 4);
  std::swap_ranges(values.begin(), values.begin() + 1000, values.begin() + 1000);  // two ranks
  EXPECT_EQ(count_wrong(row, 0, 4, values), 2000U);
  values = right(row, 0, 4);
  std::rotate(values.begin(), values.begin() + 64, values.begin() + 1000);  // a displaced chunk
  EXPECT_EQ(count_wrong(row, 0, 4, values), 1000U);
  values = right(row, 0, 4);
  values.resize(3990);
  EXPECT_EQ(count_wrong(row, 0, 4, values), 10U);
}

}  // namespace
}  // namespace ncclscope::cli::probe
