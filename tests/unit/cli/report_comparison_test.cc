// SPDX-License-Identifier: Apache-2.0
//
// Effects, correlations and throughput by known answers; steps and comparisons over small tables in
// DuckDB, where its library is at hand (scripts/fetch-duckdb.sh).
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/diagnose/nodes.h"
#include "cli/report/analysis_memory.h"
#include "cli/report/compare.h"
#include "cli/report/duckdb.h"
#include "cli/report/effect.h"
#include "cli/report/matched.h"
#include "cli/report/page.h"
#include "cli/report/quantiles.h"
#include "cli/report/steps.h"
#include "cli/report/throughput.h"
#include "cli/report/verdicts.h"
#include "tests/support/error_of.h"

namespace ncclscope::cli::report {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using tests::error_of;

std::vector<double> sample(unsigned seed, double median, double deviation, std::size_t count = 20) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> distribution(std::log(median), deviation);
  std::vector<double> out(count);
  for (double& value : out) value = distribution(random);
  return out;
}

// ---- effects

TEST(Effect, IsWhatItsFormulaSays) {
  const Effect e = effect_of({1, 2, 4, 8, 16}, {2, 4, 8, 16, 32});
  EXPECT_DOUBLE_EQ(e.a, 4);
  EXPECT_DOUBLE_EQ(e.b, 8);
  EXPECT_DOUBLE_EQ(e.ratio, 2);
  // MAD of the logarithms: |-2 -1 0 1 2| ln 2, whose median is ln 2; both sides alike.
  const double error = 1.2533 * 1.4826 * std::log(2.0) / std::sqrt(5.0) * std::sqrt(2.0);
  EXPECT_NEAR(e.high, std::exp(std::log(2.0) + student_999(8) * error), 1e-9);
  EXPECT_NEAR(e.low, std::exp(std::log(2.0) - student_999(8) * error), 1e-9);
  // Of 25 pairs, 15 are larger and 6 smaller.
  EXPECT_NEAR(e.delta, 9.0 / 25, 1e-12);
}

TEST(Effect, ChangesAreFoundAndChanceIsNot) {
  EXPECT_TRUE(effect_of(sample(1, 100, 0.02), sample(2, 90, 0.02)).changed(0.03));
  EXPECT_FALSE(effect_of(sample(1, 100, 0.02), sample(2, 99, 0.0005)).changed(0.03));
  int wrong = 0;
  for (unsigned seed = 0; seed < 500; ++seed)
    wrong +=
        effect_of(sample(2 * seed, 100, 0.1), sample(2 * seed + 1, 100, 0.1)).changed(0.03) ? 1 : 0;
  EXPECT_LE(wrong, 2);
}

TEST(Effect, SaysNothingOfFewBlocks) {
  EXPECT_FALSE(effect_of({1, 1, 1, 1}, {2, 2, 2, 2}).changed(0.03));
  EXPECT_FALSE(effect_of({}, {2, 2, 2, 2, 2}).known());
}

TEST(Effect, OneDisturbedBlockChangesNothing) {
  std::vector<double> b = sample(2, 100, 0.01);
  b[3] = 10;
  b[7] = 12;
  EXPECT_FALSE(effect_of(sample(1, 100, 0.01), b).changed(0.03));
}

TEST(Correlation, KnownValues) {
  const Correlation c = correlation_of({1, 2, 3, 4, 5}, {2, 1, 4, 3, 5});
  EXPECT_NEAR(c.pearson, 0.8, 1e-12);
  EXPECT_NEAR(c.spearman, 0.8, 1e-12);
  EXPECT_LT(c.low, 0.8);
  EXPECT_GT(c.high, 0.8);
  // A monotonous curve, with a tie.
  EXPECT_NEAR(correlation_of({1, 2, 3, 4}, {1, 10, 100, 1000}).spearman, 1, 1e-12);
  EXPECT_TRUE(std::isnan(correlation_of({1, 1, 1}, {1, 2, 3}).pearson));
  EXPECT_TRUE(std::isnan(correlation_of({1}, {1}).pearson));
}

// ---- throughput

TEST(Throughput, ReadsTimesInBothForms) {
  const Throughput t = parse_throughput_csv(
      "t.csv",
      "time,loss,\"tokens, per s\"\r\n2026-06-19T06:56:24.5Z,2,1000\r\n1781852185,2,1100\n\n",
      "tokens, per s");
  EXPECT_EQ(t.name, "tokens, per s");
  EXPECT_FALSE(t.by_step);
  ASSERT_THAT(t.samples, SizeIs(2));
  EXPECT_DOUBLE_EQ(t.samples[0].first, 1781852184.5e9);
  EXPECT_DOUBLE_EQ(t.samples[1].second, 1100);
  EXPECT_EQ(
      parse_throughput_csv("t.csv", "step,tflops\n0,300\n1,\n2,310\n3,NaN\n", "").samples.size(),
      2u);
}

TEST(Throughput, ReadsWhatLoggersExport) {
  const Throughput board =
      parse_throughput_csv("t.csv", "\xEF\xBB\xBFWall time,Step,Value\n10.5,0,300\n", "");
  EXPECT_FALSE(board.by_step);
  EXPECT_EQ(board.name, "Value");
  const Throughput biases =
      parse_throughput_csv("t.csv", "\"Step\", \"run - tflops\"\n\"7\",\"300\"\n", "");
  EXPECT_TRUE(biases.by_step);
  EXPECT_EQ(biases.name, "run - tflops");
  EXPECT_EQ(biases.samples.at(0), std::make_pair(7.0, 300.0));
}

TEST(Throughput, NamesFileAndLineOfWhatIsWrong) {
  const auto error = [](const std::string& text, const std::string& column = "") {
    return error_of([&] { (void)parse_throughput_csv("t.csv", text, column); });
  };
  EXPECT_THAT(error("a,b\n1,2\n"), HasSubstr("t.csv:1: the header names neither time nor step"));
  EXPECT_THAT(error("time\n1\n"), HasSubstr("t.csv:1: the header names no column beside"));
  EXPECT_THAT(error("time,x\n1,2\n", "y"), HasSubstr("t.csv:1: the header names no column 'y'"));
  EXPECT_THAT(error("time,x\n1,2\nnoon,3\n"), HasSubstr("t.csv:3: 'noon' is no time"));
  EXPECT_THAT(error("step,x\n1,2\n2,fast\n"),
              HasSubstr("t.csv:3: 'fast' in column x is no number"));
  EXPECT_THAT(error("step,x\n1\n"), HasSubstr("t.csv:2: fewer fields"));
  EXPECT_THAT(error("step,x\n"), HasSubstr("t.csv:1: no rows with a value in column x"));
  EXPECT_THAT(error("\n"), HasSubstr("t.csv:1: no header"));
}

TEST(Throughput, ReadsWhatPrometheusAnswersToARange) {
  const auto series = parse_matrix(
      R"({"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"x"},
          "values":[[1.5,"300"],[2.5,"310.25"]]}]}})");
  ASSERT_THAT(series, SizeIs(1));
  ASSERT_THAT(series[0].samples, SizeIs(2));
  EXPECT_DOUBLE_EQ(series[0].samples[1].first, 2.5);
  EXPECT_DOUBLE_EQ(series[0].samples[1].second, 310.25);
  EXPECT_THROW((void)parse_matrix(R"({"status":"error","error":"bad query"})"), std::runtime_error);
  EXPECT_THROW((void)parse_matrix(R"({"status":"success","data":{"result":[{}]}})"),
               std::runtime_error);
}

RunSteps made_steps(std::size_t count, const std::function<double(std::size_t)>& share) {
  RunSteps out;
  out.process = "pid 1 on node0";
  for (std::size_t i = 0; i < count; ++i) {
    RunStep step;
    step.number = static_cast<std::int64_t>(i);
    step.start_ns = 1'000'000'000 * static_cast<std::int64_t>(i);
    step.stop_ns = step.start_ns + 1'000'000'000;
    step.communication_seconds = share(i);
    step.communication_known = true;
    out.steps.push_back(step);
  }
  return out;
}

TEST(Explanation, HoldsThroughputAgainstTheShareOfCommunication) {
  const auto share = [](std::size_t i) { return i % 20 < 5 ? 0.4 : 0.2; };
  Throughput throughput;
  throughput.name = "tflops";
  throughput.by_step = true;
  for (std::size_t i = 0; i < 100; ++i)
    throughput.samples.emplace_back(static_cast<double>(i), 400 * (1 - share(i)));
  const Explanation e = explain(made_steps(100, share), throughput);
  ASSERT_THAT(e.samples, SizeIs(100));
  EXPECT_NEAR(e.share_throughput.pearson, -1, 1e-9);
  const std::vector<Insight> insights = insights_of(e);
  ASSERT_THAT(insights, SizeIs(1));
  EXPECT_EQ(insights[0].text, "tflops is low where the share of communication is high.");
  ASSERT_THAT(pictures_of(e), SizeIs(2));
  EXPECT_EQ(pictures_of(e)[1].option["series"][0]["data"].size(), 100u);
}

TEST(Explanation, SaysThatThroughputIsOfAnotherTime) {
  Throughput throughput;
  throughput.name = "tflops";
  throughput.samples = {{-3e9, 1}, {-2e9, 2}};
  const std::vector<Insight> insights =
      insights_of(explain(made_steps(20, [](std::size_t) { return 0.2; }), throughput));
  ASSERT_THAT(insights, SizeIs(1));
  EXPECT_EQ(insights[0].kind, "no_sample");
  EXPECT_THAT(insights[0].text, HasSubstr("the steps from 1970-01-01 00:00:00 to"));
  throughput.by_step = true;
  throughput.samples = {{50, 1}, {60, 2}};
  EXPECT_THAT(
      insights_of(explain(made_steps(20, [](std::size_t) { return 0.2; }), throughput)).at(0).text,
      HasSubstr("they are of steps 50 to 60, the steps from 0 to 19."));
}

TEST(Explanation, SaysWhyThereIsNone) {
  RunSteps none;
  none.why_none = "the input does not tell when operations began";
  Throughput throughput;
  throughput.name = "tflops";
  throughput.samples.emplace_back(1.0, 2.0);
  const std::vector<Insight> insights = insights_of(explain(none, throughput));
  ASSERT_THAT(insights, SizeIs(1));
  EXPECT_THAT(insights[0].text, HasSubstr("the input does not tell when operations began"));
}

// ---- over tables

/// A table of a run: 8 ranks of one communicator, 5 collectives a step of 1.5 s, 300 steps.
struct RunModel {
  unsigned seed = 1;
  double big_factor = 1;           // time of the AllReduce of 256 MiB
  std::string algorithm = "RING";  // of the AllGather
  std::string nccl = "2.28.9";
  int late_rank = -1;
  double late_seconds = 0.03;
};

std::string table_of(const std::string& name, const RunModel& model) {
  const std::string seed = std::to_string(model.seed);
  const auto number = [](double value) { return std::to_string(value); };
  return "CREATE OR REPLACE TABLE " + name +
         " AS WITH raw AS (SELECT step, rank, k, 1764000000000000000 + step * 1500000000 + k *"
         " 200000000 AS t, CASE k WHEN 0 THEN 'AllGather' WHEN 1 THEN 'ReduceScatter' ELSE "
         "'AllReduce'"
         " END AS collective, CASE k WHEN 0 THEN 16777216 WHEN 1 THEN 33554432 WHEN 2 THEN 67108864"
         " WHEN 3 THEN 4096 ELSE 268435456 END::BIGINT AS bytes, 0.0004 * CASE k WHEN 3 THEN 0.2 "
         "WHEN 4"
         " THEN 8 * " +
         number(model.big_factor) + " ELSE 1 + k END * (1 + 0.05 * ((hash(step * 1009 + k * 17 + " +
         seed +
         " * 7919) % 1000) / 1000.0)) AS base, 0.00002 * ((hash(step * 1013 + rank * 31 + k + " +
         seed +
         " * 104729) % 1000) / 1000.0) + CASE WHEN rank = " + std::to_string(model.late_rank) +
         " THEN " + number(model.late_seconds) +
         " ELSE 0 END AS late FROM range(300) AS s(step), range(8) AS r(rank), range(5) AS c(k)),"
         " m AS (SELECT *, max(late) OVER (PARTITION BY step, k) AS latest FROM raw)"
         " SELECT 'test' AS source, 'f' AS file, 'c' AS cluster, 'j' AS job, 0::INTEGER AS run,"
         " 'node' || (rank // 4) AS node, (1000 + rank)::BIGINT AS pid, 'GPU-' || rank AS gpu,"
         " '0xabc' AS communicator, 'dp' AS communicator_name, rank::INTEGER AS rank, 8::INTEGER AS"
         " ranks, 2::INTEGER AS nodes, 'dp' AS dimension, collective, (CASE WHEN k >= 2 THEN step "
         "* 3 +"
         " k - 2 ELSE step END)::BIGINT AS sequence, CASE WHEN k = 0 THEN '" +
         model.algorithm +
         "' ELSE 'RING' END AS algorithm, 'SIMPLE' AS protocol, 'ncclBfloat16' AS datatype, bytes,"
         " (t + (latest + base) * 1e9)::BIGINT AS time_ns, t::BIGINT AS enqueued_ns,"
         " (t + late * 1e9)::BIGINT AS start_ns, (t + (latest + base) * 1e9)::BIGINT AS end_ns,"
         " (latest - late + base)::DOUBLE AS seconds, 0.0::DOUBLE AS queue_seconds,"
         " (bytes / (latest - late + base) * CASE collective WHEN 'AllReduce' THEN 1.75 ELSE 0.875"
         " END)::DOUBLE AS busbw, 'gpu' AS timing, '" +
         model.nccl + "' AS nccl_version, '0.1.0' AS plugin_version FROM m";
}

class RunTables : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      database_ = std::make_unique<Database>(DatabaseOptions{
          .memory_bytes = std::uint64_t{400} << 20, .threads = 1, .temporary_folder = ""});
    } catch (const DuckdbError& error) {
      GTEST_SKIP() << error.what();
    }
    connection_ = std::make_unique<Connection>(database_->connect());
  }
  Comparison compare(const RunModel& a, const RunModel& b) {
    connection_->run(table_of("a", a));
    connection_->run(table_of("b", b));
    return compare_runs(*connection_, "a", "b", {"A", "yesterday", {}, {}}, {"B", "today", {}, {}});
  }

  std::unique_ptr<Database> database_;
  std::unique_ptr<Connection> connection_;
};

auto kind(const std::string& name) {
  return Field(&Insight::kind, name);
}

TEST_F(RunTables, EqualRunsNameNothing) {
  const Comparison comparison = compare({.seed = 1}, {.seed = 2});
  EXPECT_THAT(comparison.changes, IsEmpty()) << comparison_text(comparison, 20);
  EXPECT_THAT(comparison.shapes, SizeIs(5));
  EXPECT_THAT(comparison_text(comparison, 20), HasSubstr("Nothing changed"));
}

TEST_F(RunTables, ASlowerTransferIsNamedWithItsSize) {
  const Comparison comparison = compare({.seed = 1}, {.seed = 2, .big_factor = 1.25});
  ASSERT_THAT(comparison.changes, SizeIs(1)) << comparison_text(comparison, 20);
  EXPECT_EQ(comparison.changes[0].kind, "transfer_slower");
  EXPECT_THAT(comparison.changes[0].text, HasSubstr("AllReduce 256 MiB, 8 ranks on 2 nodes (dp)"));
  EXPECT_NEAR(comparison.shapes[0].transfer.ratio, 1 / 1.25, 0.01);
}

TEST_F(RunTables, AnotherAlgorithmAndReleaseAreNamed) {
  const Comparison comparison =
      compare({.seed = 1}, {.seed = 2, .algorithm = "TREE", .nccl = "2.29.1"});
  EXPECT_THAT(comparison.changes, SizeIs(2)) << comparison_text(comparison, 20);
  EXPECT_THAT(comparison.changes,
              Contains(AllOf(kind("algorithm"),
                             Field(&Insight::text,
                                   HasSubstr("RING/SIMPLE 100 % before, TREE/SIMPLE 100 % now")))));
  EXPECT_THAT(comparison.changes,
              Contains(AllOf(kind("nccl_version"),
                             Field(&Insight::text, HasSubstr("2.28.9 before, 2.29.1 now")))));
}

TEST_F(RunTables, WhatOnlyOneSideTellsHasNotChanged) {
  connection_->run(table_of("a", {.seed = 1}));
  connection_->run(table_of("b", {.seed = 2, .algorithm = "TREE"}));
  // As lines v4.0 of NCCL Inspector are.
  connection_->run(
      "UPDATE a SET algorithm = NULL, protocol = NULL, dimension = NULL, gpu = NULL, nccl_version "
      "= NULL");
  const Comparison comparison =
      compare_runs(*connection_, "a", "b", {"A", "inspector", {}, {}}, {"B", "archive", {}, {}});
  EXPECT_THAT(comparison.changes, IsEmpty()) << comparison_text(comparison, 20);
  ASSERT_THAT(comparison.shapes, SizeIs(5));
  for (const ComparedShape& shape : comparison.shapes) {
    EXPECT_GT(shape.operations_a, 0u) << shape.name();
    EXPECT_GT(shape.operations_b, 0u) << shape.name();
    EXPECT_EQ(shape.algorithms_a, "");
    EXPECT_FALSE(shape.algorithms_changed);
  }
}

TEST_F(RunTables, ALateRankIsNamedAndTheNetworkIsNot) {
  const Comparison comparison = compare({.seed = 1}, {.seed = 2, .late_rank = 5});
  EXPECT_THAT(
      comparison.changes,
      Contains(AllOf(kind("late_gpu"),
                     Field(&Insight::text, HasSubstr("(global rank 5) is late, all the time")))))
      << comparison_text(comparison, 20);
  EXPECT_THAT(comparison.changes, Contains(kind("waits_more")));
  EXPECT_THAT(comparison.changes, Not(Contains(kind("transfer_slower"))));
}

TEST_F(RunTables, AShortRunIsSaidNotToHaveBeenJudged) {
  connection_->run(table_of("a", {.late_rank = 5}));
  connection_->run("DELETE FROM a WHERE enqueued_ns > 1764000000000000000 + 5000000000");
  const std::vector<Insight> insights =
      find_insights(*connection_, "a", run_head(*connection_, "a"));
  ASSERT_THAT(insights, SizeIs(1));
  EXPECT_EQ(insights[0].kind, "unjudged");
  EXPECT_THAT(insights[0].text, HasSubstr("the run is shorter than 6.00 s"));
}

/// A communicator of its own for each of its operations beside the run's, with hardly any time.
constexpr const char* kSmallCommunicators =
    "INSERT INTO a SELECT * REPLACE ('0x' || sequence AS communicator, seconds / 1e3 AS seconds)"
    " FROM a WHERE collective = 'AllGather'";

TEST_F(RunTables, CommunicatorsWithMostTimeAreJudgedWhereThereAreVeryMany) {
  connection_->run(table_of("a", {.late_rank = 5}));
  connection_->run(kSmallCommunicators);
  const RunHead head = run_head(*connection_, "a");
  const auto all = find_insights(*connection_, "a", head);
  EXPECT_THAT(all, Contains(kind("late_gpu")));
  EXPECT_THAT(all, Not(Contains(kind("judged_in_part"))));
  for (const JudgeLimits& limits : {JudgeLimits{.communicators = 3}, JudgeLimits{.members = 24}}) {
    const auto some = find_insights(*connection_, "a", head, limits);
    EXPECT_THAT(
        some, Contains(AllOf(kind("late_gpu"), Field(&Insight::text, HasSubstr("global rank 5")))));
    EXPECT_THAT(some,
                Contains(AllOf(kind("judged_in_part"),
                               Field(&Insight::text,
                                     "Of 301 communicators the 3 with most time were judged."))));
  }
}

TEST_F(RunTables, ACommunicatorLargerThanTheLimitIsJudgedAllTheSame) {
  connection_->run(table_of("a", {.late_rank = 5}));
  const auto insights =
      find_insights(*connection_, "a", run_head(*connection_, "a"), {.members = 4});
  EXPECT_THAT(insights, Contains(kind("late_gpu")));
  EXPECT_THAT(insights, Not(Contains(kind("judged_in_part"))));
}

TEST_F(RunTables, NothingStandsOutThoughNotAllIsJudged) {
  connection_->run(table_of("a", {}));
  connection_->run(kSmallCommunicators);
  const auto insights =
      find_insights(*connection_, "a", run_head(*connection_, "a"), {.communicators = 1});
  EXPECT_THAT(insights, ElementsAre(kind("judged_in_part"), kind("nothing")));
}

TEST_F(RunTables, OfMoreStepsThanMayBeKeptTheFirstAreLookedAt) {
  connection_->run(table_of("a", {}));
  const RunSteps all = find_steps(*connection_, "a");
  const RunSteps first = find_steps(*connection_, "a", 100);
  ASSERT_EQ(first.steps.size(), 100u);
  EXPECT_TRUE(first.left_out);
  EXPECT_FALSE(all.left_out);
  for (std::size_t i = 0; i < first.steps.size(); ++i) {
    EXPECT_EQ(first.steps[i].number, all.steps[i].number);
    EXPECT_EQ(first.steps[i].start_ns, all.steps[i].start_ns);
    EXPECT_EQ(first.steps[i].communication_seconds, all.steps[i].communication_seconds);
  }
  EXPECT_THAT(insights_of(explain(first, {})),
              Contains(AllOf(kind("steps_in_part"),
                             Field(&Insight::text, "Of all steps the first 100 were looked at."))));
}

TEST(AnalysisShare, HasAsManyThreadsAsTheMemoryThatIsLeftIsFor) {
  EXPECT_EQ(analysis_share(500'000'000, 60'000'000, 16).threads, 4u);
  EXPECT_EQ(analysis_share(500'000'000, 60'000'000, 2).threads, 2u);
  EXPECT_EQ(analysis_share(500'000'000, 290'000'000, 16).threads, 2u);
  EXPECT_EQ(analysis_share(2'000'000'000, 60'000'000, 16).threads, 16u);
  EXPECT_EQ(analysis_share(500'000'000, 100'000'000, 8).memory_bytes, 160'000'000u);
}

TEST(AnalysisShare, IsEnoughForAThreadWhateverIsLeft) {
  for (const std::uint64_t resident : {90'000'000u, 900'000'000u}) {
    EXPECT_EQ(analysis_share(100'000'000, resident, 8).threads, 1u);
    EXPECT_EQ(analysis_share(100'000'000, resident, 8).memory_bytes, 60'000'000u);
  }
}

TEST_F(RunTables, StepsAreFoundAndTheirCommunicationIsNotCountedTwice) {
  connection_->run(table_of("a", {}));
  const RunSteps found = find_steps(*connection_, "a");
  // All but the last, which has no end.
  ASSERT_EQ(found.steps.size(), 299u) << found.why_none;
  for (const RunStep& step : found.steps) {
    ASSERT_NEAR(step.seconds(), 1.5, 1e-3);
    // 0.4 + 0.8 + 1.2 + 0.08 + 3.2 ms, each up to 5 % more, and waiting.
    ASSERT_GT(step.communication_seconds, 5.6e-3);
    ASSERT_LT(step.communication_seconds, 6.1e-3);
  }
  // The same operations in two communicators at once take no longer.
  // Called a microsecond later: who was called first is not left to chance.
  connection_->run(
      "INSERT INTO a SELECT * REPLACE ('0xdef' AS communicator, enqueued_ns + 1000 AS enqueued_ns) "
      "FROM a");
  const RunSteps twice = find_steps(*connection_, "a");
  ASSERT_GE(twice.steps.size(), 280u) << twice.why_none;
  EXPECT_NEAR(twice.steps[9].communication_seconds, found.steps[9].communication_seconds, 1e-4);
}

TEST_F(RunTables, StepsAreNumberedFromTheRunsFirstAndPausesCount) {
  connection_->run(table_of("a", {}));
  // A checkpoint of a minute in step 100, which is left out.
  connection_->run(
      "UPDATE a SET time_ns = time_ns + 60000000000, enqueued_ns = enqueued_ns + 60000000000,"
      " start_ns = start_ns + 60000000000, end_ns = end_ns + 60000000000"
      " WHERE enqueued_ns >= 1764000000000000000 + 101 * 1500000000::BIGINT");
  const RunSteps found = find_steps(*connection_, "a");
  ASSERT_EQ(found.steps.size(), 298u) << found.why_none;
  EXPECT_EQ(found.steps[0].number, 0);
  EXPECT_EQ(found.steps[99].number, 99);
  EXPECT_EQ(found.steps[100].number, 101);
  EXPECT_EQ(found.steps[297].number, 298);
}

TEST_F(RunTables, StepsNeedOperationsWhoseStartIsKnown) {
  connection_->run(table_of("a", {}));
  connection_->run("UPDATE a SET enqueued_ns = NULL, start_ns = NULL, end_ns = NULL");
  const RunSteps found = find_steps(*connection_, "a");
  EXPECT_THAT(found.steps, IsEmpty());
  EXPECT_EQ(found.why_none, "the input does not tell when operations began");
}

// ---- the page

// ---- operations that all ranks tell of

constexpr const char* kRowsOfRanks =
    " (job VARCHAR, run INTEGER, communicator VARCHAR, collective VARCHAR, sequence BIGINT, rank"
    " INTEGER, ranks INTEGER, time_ns BIGINT, seconds DOUBLE)";

TEST_F(RunTables, OperationsThatAllRanksTellOfAreMatched) {
  connection_->run(std::string("CREATE TABLE o") + kRowsOfRanks);
  connection_->run(
      "INSERT INTO o VALUES "
      // all three ranks, of which two are equally fast
      "('j', NULL, 'c', 'AllReduce', 7, 2, 3, 30, 0.5), ('j', NULL, 'c', 'AllReduce', 7, 0, 3, 20,"
      " 1.5), ('j', NULL, 'c', 'AllReduce', 7, 1, 3, 10, 0.5),"
      // the same number of another run, collective and communicator
      "('j', 1, 'c', 'AllReduce', 7, 0, 2, 40, 2), ('j', 1, 'c', 'AllReduce', 7, 1, 2, 41, 1),"
      "('j', 1, 'c', 'AllGather', 7, 0, 2, 50, 1), ('j', 1, 'c', 'AllGather', 7, 1, 2, 51, 2),"
      "('j', 1, NULL, 'AllGather', 7, 0, 2, 61, 3), ('j', 1, NULL, 'AllGather', 7, 1, 2, 60, 3),"
      // a rank is missing, tells twice, is unknown, or is one too many
      "('j', 1, 'c', 'AllReduce', 8, 0, 2, 0, 1), ('j', 1, 'c', 'AllReduce', 9, 1, 2, 0, 1),"
      "('j', 1, 'c', 'AllReduce', 9, 1, 2, 0, 1), ('j', 1, 'c', 'AllReduce', 10, NULL, 2, 0, 1),"
      "('j', 1, 'c', 'AllReduce', 10, 0, 2, 0, 1), ('j', 1, 'c', 'AllReduce', 11, 0, 2, 0, 1),"
      "('j', 1, 'c', 'AllReduce', 11, 1, 2, 0, 1), ('j', 1, 'c', 'AllReduce', 11, 2, 2, 0, 1),"
      // not let through
      "('j', 1, 'c', 'AllReduce', 12, 0, 1, 0, 1)");
  match_ranks(*connection_, "o", "ranks > 1");
  std::vector<std::string> matched;
  for_each_row(*connection_,
               "SELECT concat_ws(' ', job, run, coalesce(communicator, '-'), collective, sequence,"
               " time_ns, least, most, round(mean, 3), last_rank) FROM matched JOIN matched_kinds"
               " USING (kind) ORDER BY time_ns",
               [&](const Rows& rows, std::size_t r) { matched.emplace_back(rows.text(0, r)); });
  EXPECT_THAT(
      matched,
      ElementsAre("j 0 c AllReduce 7 10 0.5 1.5 0.833 1", "j 1 c AllReduce 7 40 1.0 2.0 1.5 1",
                  "j 1 c AllGather 7 50 1.0 2.0 1.5 0", "j 1 - AllGather 7 60 3.0 3.0 3.0 0"));
}

TEST(MatchedOperations, NeedNoMemoryForTheirNumber) {
  const std::string scratch = ::testing::TempDir() + "matched_" + std::to_string(::getpid());
  // A hash table of that many operations does not fit, and min() of a struct stays in memory.
  constexpr int kOperations = 500'000;
  try {
    Database database({.memory_bytes = 64'000'000, .threads = 2, .temporary_folder = scratch});
    Connection connection = database.connect();
    connection.run(
        "CREATE TABLE o AS SELECT 'j' AS job, NULL::INTEGER AS run, '0x1434ffd16f5ae0bc' AS"
        " communicator, 'AllReduce' AS collective, i // 2 AS sequence, (i % 2)::INTEGER AS rank,"
        " 2::INTEGER AS ranks, i AS time_ns, 1e0 + i % 2 AS seconds FROM range(" +
        std::to_string(2 * kOperations) + ") AS r(i)");
    match_ranks(connection, "o", "ranks > 1");
    for_each_row(connection,
                 "SELECT count(*), min(sequence), max(sequence), max(last_rank), min(least),"
                 " max(most) FROM matched",
                 [&](const Rows& rows, std::size_t r) {
                   EXPECT_EQ(rows.integer(0, r), kOperations);
                   EXPECT_EQ(rows.integer(1, r), 0);
                   EXPECT_EQ(rows.integer(2, r), kOperations - 1);
                   EXPECT_EQ(rows.integer(3, r), 0);
                   EXPECT_EQ(rows.number(4, r), 1);
                   EXPECT_EQ(rows.number(5, r), 2);
                 });
  } catch (const DuckdbError& error) {
    if (std::string(error.what()).find("DuckDB is needed") == std::string::npos) throw;
    GTEST_SKIP() << error.what();
  }
  std::filesystem::remove_all(scratch);
}

// ---- exceptions while DuckDB's threads work for a result

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

/// Reads `sql` and throws at the row with this number.
void stop_at(Connection& connection, const std::string& sql, std::size_t row) {
  std::size_t seen = 0;
  for_each_row(connection, sql, [&](const Rows&, std::size_t) {
    if (seen++ == row) throw Stop();
  });
}

/// Queries whose results come from threads that wait for the reader, and that are far from done
/// when it stops.
class StoppedReaders : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      (void)duckdb_library();
    } catch (const DuckdbError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static DatabaseOptions options() {
    return {.memory_bytes = 64'000'000,
            .threads = 4,
            .temporary_folder = ::testing::TempDir() + "stopped_" + std::to_string(::getpid())};
  }
  void TearDown() override { std::filesystem::remove_all(options().temporary_folder); }
  static constexpr int kTimes = 4;
  /// Of the first chunk, and one some chunks later.
  static std::size_t row_of(int time) { return time % 2 == 0 ? 1 : 20'000; }
};

TEST_P(StoppedReaders, LeaveTheConnectionUsable) {
  Database database(options());
  Connection connection = database.connect();
  for (int time = 0; time < kTimes; ++time) {
    EXPECT_THROW(stop_at(connection, GetParam(), row_of(time)), Stop);
    std::int64_t sum = 0;
    for_each_row(connection, "SELECT sum(i) FROM range(100000) AS r(i)",
                 [&](const Rows& rows, std::size_t r) { sum = rows.integer(0, r); });
    EXPECT_EQ(sum, 4'999'950'000);
  }
}

TEST_P(StoppedReaders, LetAllBeClosed) {
  for (int time = 0; time < kTimes; ++time) {
    EXPECT_THROW(
        {
          Database database(options());
          Connection connection = database.connect();
          stop_at(connection, GetParam(), row_of(time));
        },
        Stop);
  }
}

TEST_P(StoppedReaders, LetAWriterOfWhatTheyReadBeClosed) {
  for (int time = 0; time < kTimes; ++time) {
    EXPECT_THROW(
        {
          Database database(options());
          Connection connection = database.connect();
          connection.run("CREATE TABLE copied (i BIGINT)");
          Connection writer = connection.another();
          TableAppender appender(writer, "copied");
          std::size_t seen = 0;
          for_each_row(connection, GetParam(), [&](const Rows& rows, std::size_t r) {
            appender.integer(rows.integer(0, r));
            appender.end_row();
            if (seen++ == row_of(time)) throw Stop();
          });
        },
        Stop);
  }
}

TEST_P(StoppedReaders, MayCloseTheDatabaseFirst) {
  for (int time = 0; time < kTimes; ++time) {
    auto database = std::make_unique<Database>(options());
    Connection connection = database->connect();
    EXPECT_THROW(for_each_row(connection, GetParam(),
                              [&](const Rows&, std::size_t) {
                                database.reset();
                                throw Stop();
                              }),
                 Stop);
  }
}

TEST_P(StoppedReaders, DoNotStopThoseOfOtherConnections) {
  Database database(options());
  for (int time = 0; time < kTimes / 2; ++time) {
    std::thread other([&] {
      Connection connection = database.connect();
      std::size_t rows = 0;
      for_each_row(connection, "SELECT i FROM range(300000) AS r(i)",
                   [&](const Rows&, std::size_t) { ++rows; });
      EXPECT_EQ(rows, 300'000u);
    });
    Connection connection = database.connect();
    EXPECT_THROW(stop_at(connection, GetParam(), row_of(time)), Stop);
    other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Queries, StoppedReaders,
    ::testing::Values(
        "SELECT i FROM range(3000000) AS r(i)",
        "SELECT i FROM range(1500000) AS r(i) ORDER BY hash(i)",
        "SELECT i // 2 AS j, count(*), max(i) FROM range(500000) AS r(i) GROUP BY 1",
        "SELECT a.i FROM range(400000) AS a(i) JOIN range(400000) AS b(i) ON hash(a.i) % 1000003 ="
        " hash(b.i) % 1000003"));

TEST(Page, NamesAreTextWhateverTheyHold) {
  Page page;
  page.heading = "Job <script>alert(1)</script>";
  page.insights.push_back({Insight::Weight::kFault, "late_gpu", "\"<b>\" & co", "", 0, 0});
  Picture picture;
  picture.name = "p";
  picture.title = "T";
  picture.option["series"] = {{{"name", "</script><script>alert(2)</script>"}}};
  picture.table = {"c", {{"x"}}, {{"<img src=x>"}}};
  page.pictures.push_back(picture);
  const std::string text = page_text(page, {"", "var echarts;", "Licence <of> it"});
  EXPECT_THAT(text, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(text, Not(HasSubstr("<img src=x")));
  EXPECT_THAT(
      text, AllOf(HasSubstr("&quot;&lt;b&gt;&quot; &amp; co"), HasSubstr("Licence &lt;of&gt; it")));
}

TEST(Page, ValuesKeepTheirDigits) {
  Page page;
  Picture picture;
  picture.name = "p";
  picture.table = {"c", {{"x", Unit::kBandwidth}}, {{123456789012.3456}}};
  page.pictures.push_back(picture);
  EXPECT_THAT(page_text(page, {}), HasSubstr("data-value=\"123456789012.3456\">123.5 GB/s<"));
}

}  // namespace
}  // namespace ncclscope::cli::report
