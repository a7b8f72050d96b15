// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/conductor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ncclscope::cli::probe {
namespace {

using ::testing::HasSubstr;

const std::string kId(kIdBytes, '\x5a');

Plan small_plan() {
  Plan plan;
  plan.collectives = {model::Function::kAllReduce};
  plan.min_bytes = plan.max_bytes = 1024;
  return plan;
}

/// Comes with so many GPUs, and is ready.
void come(Conductor& c, std::size_t worker, int gpus, const std::string& host, int nccl = 22'809) {
  c.arrived(worker, "process " + std::to_string(worker), host);
  c.take(worker, "version " + std::to_string(nccl) + " 12080 12080");
  for (int g = 0; g < gpus; ++g)
    c.take(worker, "gpu 0000:0" + std::to_string(g) + ":00.0 NVIDIA H100 80GB");
  c.take(worker, "ready");
  c.begin();
}

TEST(Conductor, HandsTheIdRoundAndGivesOutRanksInOrder) {
  Conductor c(small_plan(), 2);
  come(c, 1, 3, "n2");
  EXPECT_TRUE(c.outgoing().empty());
  come(c, 0, 2, "n1");
  auto out = c.outgoing();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].to, 0U);
  EXPECT_EQ(out[0].line, "identify");
  c.take(0, "id " + to_hex(kId));
  out = c.outgoing();
  ASSERT_EQ(out.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto start = parse_start(out[i].line);
    ASSERT_TRUE(start);
    EXPECT_EQ(out[i].to, i);
    EXPECT_EQ(start->first_rank, i == 0 ? 0U : 2U);
    EXPECT_EQ(start->ranks, 5U);
    EXPECT_EQ(start->id, kId);
    EXPECT_EQ(plan_text(start->plan), plan_text(small_plan()));
  }
  EXPECT_EQ(c.nodes(), 2U);
  EXPECT_EQ(c.workers()[0].gpus[1].name, "NVIDIA H100 80GB");
}

/// Two ranks in two processes that have begun.
Conductor begun() {
  Conductor c(small_plan(), 2);
  come(c, 0, 1, "n1");
  come(c, 1, 1, "n2");
  c.take(0, "id " + to_hex(kId));
  (void)c.outgoing();
  return c;
}

TEST(Conductor, TakesTheMeanOfRanksAndNamesTheSlowest) {
  Conductor c = begun();
  c.take(0, "result 0 0 1000 0");
  c.take(1, "result 0 1 3000 2");
  c.take(0, "done");
  EXPECT_FALSE(c.all_done());
  c.take(1, "done");
  EXPECT_TRUE(c.all_done());
  EXPECT_EQ(c.failure(), "");
  const Measured& m = c.measured()[0];
  EXPECT_DOUBLE_EQ(m.seconds(), 2e-6);
  EXPECT_DOUBLE_EQ(m.seconds_most, 3e-6);
  EXPECT_EQ(m.slowest_rank, 1U);
  EXPECT_EQ(m.wrong, 2U);
  EXPECT_EQ(m.heard, 2U);
}

TEST(Conductor, NamesWhoIsWaitedForAndInWhat) {
  Conductor c(small_plan(), 3);
  EXPECT_EQ(c.waiting_for(),
            "process 0 did not come; process 1 did not come; process 2 did not come");
  c.arrived(0, "process 0", "n1");
  EXPECT_THAT(c.waiting_for(), HasSubstr("process 0 on n1 has not begun"));
  c.take(0, "stage asking NVML");
  EXPECT_THAT(c.waiting_for(), HasSubstr("process 0 on n1: asking NVML"));
  Conductor d = begun();
  d.take(0, "stage AllReduce of 1024 bytes");
  d.take(1, "stage joining");
  EXPECT_EQ(d.waiting_for(), "rank 0 on n1: AllReduce of 1024 bytes; rank 1 on n2: joining");
  d.take(0, "done");
  EXPECT_EQ(d.waiting_for(), "rank 1 on n2: joining");
}

TEST(Conductor, NamesNotMoreThanEightOfMany) {
  Conductor c(small_plan(), 20);
  EXPECT_THAT(c.waiting_for(), HasSubstr("and 12 more"));
}

TEST(Conductor, FailsWithTheFirstReasonAndItsPlace) {
  Conductor c = begun();
  c.take(1, "failed ncclAllReduce: unhandled\x1b[2J error");
  c.take(0, "failed something that follows");
  EXPECT_EQ(c.failure(), "rank 1 on n2: ncclAllReduce: unhandled?[2J error");
}

TEST(Conductor, FailsWhereAWorkerIsGoneBeforeItWasDone) {
  Conductor c = begun();
  c.ended(1, "its worker was ended by signal 9");
  EXPECT_EQ(c.failure(), "rank 1 on n2: its worker was ended by signal 9");
  Conductor d = begun();
  for (int r = 0; r < 2; ++r) {
    d.take(static_cast<std::size_t>(r), "result 0 " + std::to_string(r) + " 5 -");
    d.take(static_cast<std::size_t>(r), "done");
  }
  d.ended(0, "its worker ended with status 0");
  EXPECT_EQ(d.failure(), "");
}

TEST(Conductor, RefusesReleasesOfNcclThatDiffer) {
  Conductor c(small_plan(), 2);
  come(c, 0, 1, "n1", 22'809);
  come(c, 1, 1, "n2", 22'703);
  EXPECT_THAT(c.failure(), HasSubstr("process 1 on n2 has NCCL 22703"));
}

TEST(Conductor, RefusesResultsOfOthersAndOfRowsThatAreNone) {
  for (const char* line : {"result 0 1 5 -", "result 1 0 5 -", "result 0 0", "result 0 0 5",
                           "result x 0 5 -", "result 0 0 5 -1", "bogus", "id 00"}) {
    Conductor c = begun();
    c.take(0, line);
    EXPECT_NE(c.failure(), "") << line;
  }
}

TEST(Conductor, MissesResultsThatNeverCame) {
  Conductor c = begun();
  c.take(0, "result 0 0 5 -");
  c.take(0, "done");
  c.take(1, "done");
  EXPECT_THAT(c.failure(), HasSubstr("1 of 2 ranks"));
}

TEST(Conductor, DoesNotListenToWhoHasNotCome) {
  Conductor c(small_plan(), 1);
  c.take(0, "failed out of turn");
  EXPECT_EQ(c.failure(), "");
  EXPECT_FALSE(c.all_ready());
}

TEST(Conductor, FailsWithoutGpuAndWithFarTooMany) {
  Conductor c(small_plan(), 1);
  come(c, 0, 0, "n1");
  EXPECT_THAT(c.failure(), HasSubstr("has no GPU"));
  Conductor d(small_plan(), 1);
  come(d, 0, 65, "n1");
  EXPECT_THAT(d.failure(), HasSubstr("too many"));
}

TEST(Protocol, CarriesLinksOfGpusToTheMachineOfTheConductor) {
  topology::Machine worker;
  for (const char* address : {"0000:13:00.0", "0000:23:00.0"}) {
    topology::PciDevice device;
    device.address = address;
    worker.devices.push_back(device);
    topology::Gpu gpu;
    gpu.pci = static_cast<int>(worker.devices.size()) - 1;
    worker.gpus.push_back(gpu);
  }
  topology::Machine here = worker;
  EXPECT_TRUE(link_lines(worker).empty());  // not known
  worker.nvlinks_known = true;
  worker.gpus[0].capability = 90;
  worker.gpus[0].nvlinks = {0, 18};
  worker.gpus[0].nvlinks_active = 18;
  worker.gpus[1].nvlinks = {18, 0};
  for (const std::string& line : link_lines(worker)) EXPECT_TRUE(add_links(here, line)) << line;
  EXPECT_TRUE(here.nvlinks_known);
  EXPECT_EQ(here.gpus[0].nvlinks, worker.gpus[0].nvlinks);
  EXPECT_EQ(here.gpus[0].capability, 90);
  EXPECT_EQ(here.gpus[0].nvlinks_active, 18);
  for (const char* bad :
       {"links", "links 0000:13:00.0 90 18 0 0 0", "links 0000:99:00.0 90 18 0 0 0,18",
        "links 0000:13:00.0 x 18 0 0 0,18", "links 0000:13:00.0 90 18 0 0 0,x"})
    EXPECT_FALSE(add_links(here, bad)) << bad;
}

TEST(Protocol, ReadsHexAndStartsThatAreWholeOnly) {
  EXPECT_EQ(from_hex(to_hex(std::string("\x00\xff\x7f", 3))), std::string("\x00\xff\x7f", 3));
  EXPECT_FALSE(from_hex("0"));
  EXPECT_FALSE(from_hex("0g"));
  const std::string good = start_line({1, 2, kId, small_plan()});
  ASSERT_TRUE(parse_start(good));
  EXPECT_FALSE(parse_start(good.substr(0, good.rfind(':'))));
  EXPECT_FALSE(parse_start(start_line({2, 2, kId, small_plan()})));
  EXPECT_FALSE(parse_start(start_line({0, 2, "short", small_plan()})));
  EXPECT_FALSE(parse_start("stop"));
}

}  // namespace
}  // namespace ncclscope::cli::probe
