// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/judgement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/aggregate/snapshot.h"
#include "cli/probe/baseline.h"
#include "cli/probe/output.h"

namespace ncclscope::cli::probe {
namespace {

using model::Function;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// 8 ranks; AllReduces of 1 GB in 10 ms (175 GB/s on the bus), of 1 MB in 1 ms (1.75 GB/s).
std::vector<Measured> measured() {
  std::vector<Measured> out(2);
  out[0].row = {Function::kAllReduce, 250'000, 1'000'000, true};
  out[1].row = {Function::kAllReduce, 250'000'000, 1'000'000'000, false};
  for (Measured& m : out) {
    m.heard = 8;
    m.seconds_sum = 8 * (m.row.bytes == 1'000'000 ? 1e-3 : 1e-2);
  }
  out[0].checked_ranks = 8;
  return out;
}

References references(topology::Limit allowed, topology::Limit baseline) {
  return {[allowed](Function) { return allowed; },
          [baseline](Function, std::uint64_t) { return baseline; }};
}
const References kNothingKnown = references({0, "why not"}, {0, "no --prometheus"});

TEST(Judgement, IsFineWithoutThresholds) {
  const Judgement j = judge(measured(), 8, {}, kNothingKnown);
  EXPECT_EQ(j.status, kOk);
  EXPECT_THAT(j.reasons, IsEmpty());
  ASSERT_EQ(j.comparisons.size(), 1U);
  EXPECT_DOUBLE_EQ(j.comparisons[0].bus, 175);
}

TEST(Judgement, LooksAtTheLargestSizeOnly) {
  Thresholds t;
  t.min_bus = {{std::nullopt, 175}};
  EXPECT_EQ(judge(measured(), 8, t, kNothingKnown).status, kOk);
  t.min_bus = {{std::nullopt, 175.1}};
  const Judgement j = judge(measured(), 8, t, kNothingKnown);
  EXPECT_EQ(j.status, kBelow);
  EXPECT_THAT(
      j.reasons,
      ElementsAre(
          "AllReduce of 1000000000 bytes reaches 175 GB/s on the bus, wanted at least 175.1"));
}

TEST(Judgement, TakesACollectivesOwnThresholdBeforeTheCommonOne) {
  Thresholds t;
  t.min_bus = {*parse_min_bus("AllReduce=100"), *parse_min_bus("1000")};
  EXPECT_EQ(judge(measured(), 8, t, kNothingKnown).status, kOk);
  EXPECT_EQ(t.min_bus_of(Function::kAllGather), 1000);
  for (const char* bad : {"", "x", "1x", "-1", "nan", "inf", "Broadcast=5", "AllReduce="})
    EXPECT_FALSE(parse_min_bus(bad)) << bad;
}

TEST(Judgement, ComparesWithWhatThePathsAllowAndWithTheFleet) {
  const References known = references({350, "NVL between GPU0 and GPU1"}, {200, "size <=4GiB"});
  Thresholds t;
  t.min_fraction = 0.5;
  t.min_baseline_fraction = 0.8;
  EXPECT_EQ(judge(measured(), 8, t, known).status, kOk);
  t.min_fraction = 0.51;
  t.min_baseline_fraction = 0.9;
  const Judgement j = judge(measured(), 8, t, known);
  EXPECT_EQ(j.status, kBelow);
  ASSERT_EQ(j.reasons.size(), 2U);
  EXPECT_THAT(j.reasons[0],
              HasSubstr("50 % of what the paths allow, 350 GB/s (NVL between GPU0 and GPU1)"));
  EXPECT_THAT(j.reasons[1], HasSubstr("87.5 % of the fleet's baseline, 200 GB/s"));
}

TEST(Judgement, IsNotFineWhereAWantedComparisonCannotBeMade) {
  Thresholds t;
  t.min_fraction = 0.5;
  Judgement j = judge(measured(), 8, t, kNothingKnown);
  EXPECT_EQ(j.status, kCouldNotRun);
  EXPECT_THAT(j.reasons, ElementsAre(HasSubstr("why not")));
  t.min_fraction = 0;
  t.min_baseline_fraction = 0.5;
  j = judge(measured(), 8, t, kNothingKnown);
  EXPECT_EQ(j.status, kCouldNotRun);
}

TEST(Judgement, CountsWrongResultsOfAllSizes) {
  std::vector<Measured> m = measured();
  m[0].wrong = 3;
  const Judgement j = judge(m, 8, {}, kNothingKnown);
  EXPECT_EQ(j.status, kBelow);
  EXPECT_THAT(
      j.reasons,
      ElementsAre("AllReduce of 1000000 bytes: 3 elements of all ranks' results are wrong"));
}

TEST(Baseline, NamesSizesAsTheAgentsDo) {
  for (std::size_t i = 0; i < agent::kSizeClassBounds.size(); ++i) {
    EXPECT_EQ(size_label(agent::kSizeClassBounds[i]), agent::kSizeClassNames[i]);
    EXPECT_EQ(size_label(agent::kSizeClassBounds[i] + 1), agent::kSizeClassNames[i + 1]);
  }
}

TEST(Baseline, AsksForTheShapeAndTakesTheBestOfItsSize) {
  EXPECT_EQ(baseline_query(16, 2, "west\"1"),
            "max by (collective, size) (shape:ncclscope_transfer_bus_bytes_per_second:baseline"
            "{nranks=\"16\",nnodes=\"2\",cluster=\"west\\\"1\"})");
  const auto answer = parse_vector(
      R"({"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"collective":"AllReduce","size":"<=4GiB"},"value":[1,"150e9"]},
        {"metric":{"collective":"AllReduce","size":"<=16MiB"},"value":[1,"90e9"]},
        {"metric":{"collective":"AllGather","size":"<=4GiB"},"value":[1,"80e9"]}]}})");
  EXPECT_DOUBLE_EQ(baseline_of(answer, Function::kAllReduce, 1'000'000'000).gigabytes, 150);
  EXPECT_DOUBLE_EQ(baseline_of(answer, Function::kAllGather, 1'000'000'000).gigabytes, 80);
  EXPECT_DOUBLE_EQ(baseline_of(answer, Function::kAllGather, 1'000).gigabytes, 0);
  EXPECT_THAT(baseline_of(answer, Function::kAllToAll, 1'000).what,
              HasSubstr("none of this shape"));
}

/// Two ranks on one node; the second line is not complete.
Conductor two_ranks() {
  Plan plan;
  plan.collectives = {Function::kAllReduce};
  plan.min_bytes = 1024;
  plan.max_bytes = 4096;
  Conductor c(plan, 1);
  c.arrived(0, "the worker", "n1");
  c.take(0, "version 22809 12080 13000");
  c.take(0, "gpu 0000:1b:00.0 NVIDIA H100 80GB HBM3");
  c.take(0, "gpu 0000:2c:00.0 NVIDIA H100 80GB HBM3");
  c.take(0, "ready");
  c.begin();
  c.take(0, "id " + to_hex(std::string(kIdBytes, 'i')));
  c.take(0, "result 0 0 10240 0");
  c.take(0, "result 0 1 10240 0");
  c.take(0, "result 1 0 20000 0");
  return c;
}

TEST(Output, IsTheTableThatPeopleKnow) {
  const Conductor c = two_ranks();
  Judgement j;
  j.comparisons = {
      {c.measured()[0].row, 0.1, {24, "PIX between GPU0 and GPU1"}, {0, "no --prometheus"}}};
  EXPECT_EQ(
      report_text({c, j, false, true, ""}),
      "# ncclscope probe: 2 ranks on 1 node, NCCL 2.28.9, CUDA runtime 12.8, driver for CUDA 13.0\n"
      "#   rank    0  n1  0000:1b:00.0  NVIDIA H100 80GB HBM3\n"
      "#   rank    1  n1  0000:2c:00.0  NVIDIA H100 80GB HBM3\n"
      "#\n"
      "# AllReduce\n"
      "#        size        count    type   redop        time     algbw     busbw     wrong\n"
      "#         (B)   (elements)                        (us)    (GB/s)    (GB/s)\n"
      "         1024          256   float     sum       10.24      0.10      0.10         0\n"
      "#\n"
      "# AllReduce of 1024 bytes: 0.10 GB/s on the bus; the paths allow 24.0 GB/s (PIX between "
      "GPU0 and GPU1), "
      "reached 0 %; the fleet's baseline is unknown (no --prometheus)\n"
      "# ok\n");
}

TEST(Output, IsJsonForScriptsWithNullForWhatIsNotKnown) {
  const Conductor c = two_ranks();
  Judgement j;
  j.status = kNoEnd;
  j.reasons = {"not done"};
  j.comparisons = {{c.measured()[0].row, 0.1, {24, "PIX"}, {0, "no --prometheus"}}};
  const nlohmann::json json = report_json({c, j, true, true, "Prometheus is away"});
  EXPECT_EQ(json["outcome"], "timeout");
  EXPECT_EQ(json["exit_status"], 4);
  EXPECT_EQ(json["reasons"][0], "not done");
  EXPECT_EQ(json["nccl"], "2.28.9");
  EXPECT_EQ(json["gpus"][1]["pci"], "0000:2c:00.0");
  EXPECT_EQ(json["gpus"][1]["rank"], 1);
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_EQ(json["rows"][0]["collective"], "AllReduce");
  EXPECT_NEAR(json["rows"][0]["busbw_gigabytes_per_second"].get<double>(), 0.1, 1e-9);
  EXPECT_EQ(json["rows"][0]["wrong"], 0);
  EXPECT_EQ(json["comparisons"][0]["allowed"]["gigabytes_per_second"], 24);
  EXPECT_TRUE(json["comparisons"][0]["baseline"]["gigabytes_per_second"].is_null());
  EXPECT_EQ(json["shared_gpu"], true);
  EXPECT_EQ(json["baseline_problem"], "Prometheus is away");
}

}  // namespace
}  // namespace ncclscope::cli::probe
