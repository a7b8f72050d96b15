// SPDX-License-Identifier: Apache-2.0
//
// What the agent remembers of SLURM jobs: merging, runs, expiry, bounds.
#include "agent/identity/job_table.h"

#include <gtest/gtest.h>

#include <string>

namespace ncclscope::agent {
namespace {

JobFacts facts(std::string user, std::int64_t uid = 1000) {
  JobFacts f;
  f.user = std::move(user);
  f.uid = uid;
  return f;
}

struct Table {
  explicit Table(std::size_t max_jobs = 100) : jobs(clock, {max_jobs, 60'000'000'000}) {}
  FakeClock clock;
  JobTable jobs;
};

TEST(JobTable, TellsWhatThePrologReported) {
  Table t;
  EXPECT_EQ(t.jobs.find("7"), std::nullopt);
  JobFacts told = facts("ada");
  told.partition = "gpu";
  told.array_job_id = "5";
  told.array_task = "2";
  told.restarts = 1;
  EXPECT_EQ(t.jobs.start("7", told), 1u);
  told.started_ns = t.clock.monotonic_ns();
  EXPECT_EQ(t.jobs.find("7"), told);
  EXPECT_EQ(t.jobs.find("70"), std::nullopt);
}

TEST(JobTable, AnotherReportOfTheSameRunAddsWhatWasNotKnown) {
  Table t;
  t.jobs.start("7", facts("ada"));
  const std::uint64_t started = t.clock.monotonic_ns();
  t.clock.advance_ms(5);
  JobFacts more;
  more.account = "physics";
  EXPECT_EQ(t.jobs.start("7", more), 0u);
  const auto known = t.jobs.find("7");
  ASSERT_TRUE(known);
  EXPECT_EQ(known->user, "ada");
  EXPECT_EQ(known->account, "physics");
  EXPECT_EQ(known->started_ns, started);
}

TEST(JobTable, StartAfterEndIsTheNextRun) {
  Table t;
  EXPECT_EQ(t.jobs.start("7", facts("ada")), 0u);
  EXPECT_TRUE(t.jobs.end("7"));
  // The clock stands still: even so the new run begins after the end of the old one.
  EXPECT_EQ(t.jobs.start("7", facts("ada")), 1u);
  const auto known = t.jobs.find("7");
  ASSERT_TRUE(known);
  EXPECT_EQ(known->restarts, 1u);
  EXPECT_GT(known->started_ns, known->ended_ns);
  EXPECT_TRUE(t.jobs.end("7"));
  JobFacts told = facts("ada");
  told.restarts = 4;  // the runs between were elsewhere
  EXPECT_EQ(t.jobs.start("7", told), 4u);
}

TEST(JobTable, MoreRestartsAreANewRunEvenIfTheEndWasNotReported) {
  Table t;
  t.jobs.start("7", facts("ada"));
  const std::uint64_t started = t.jobs.find("7")->started_ns;
  t.clock.advance_ms(1);
  JobFacts told = facts("ada");
  told.restarts = 1;
  EXPECT_EQ(t.jobs.start("7", told), 1u);
  EXPECT_GT(t.jobs.find("7")->started_ns, started);
}

TEST(JobTable, AfterTheEndNobodySaysWhichRunItIs) {
  Table t;
  JobFacts told = facts("ada");
  told.restarts = 0;
  t.jobs.start("7", told);
  t.jobs.end("7");
  ASSERT_TRUE(t.jobs.find("7"));
  EXPECT_EQ(t.jobs.find("7")->restarts, std::nullopt);
  EXPECT_EQ(t.jobs.find("7")->user, "ada");
}

TEST(JobTable, AnotherOwnerIsAnotherJob) {
  Table t;
  JobFacts told = facts("ada");
  told.account = "physics";
  t.jobs.start("7", told);
  t.jobs.end("7");
  EXPECT_EQ(t.jobs.start("7", facts("bob", 1001)), 0u);
  EXPECT_EQ(t.jobs.find("7")->account, "");
  EXPECT_EQ(t.jobs.find("7")->user, "bob");
}

TEST(JobTable, PrologComesBeforeQueue) {
  Table t;
  JobFacts queued = facts("from-queue");
  queued.job_name = "train";
  queued.partition = "wrong";
  t.jobs.set_queue({{"7", queued}});
  EXPECT_EQ(t.jobs.find("7")->user, "from-queue");
  JobFacts told = facts("ada");
  told.partition = "gpu";
  t.jobs.start("7", told);
  const auto known = t.jobs.find("7");
  EXPECT_EQ(known->user, "ada");
  EXPECT_EQ(known->partition, "gpu");
  EXPECT_EQ(known->job_name, "train");
}

TEST(JobTable, ForgetsAfterTheGraceTimeOnly) {
  Table t;
  t.jobs.start("7", facts("ada"));
  t.clock.advance_ms(3'600'000);
  t.jobs.tick();
  EXPECT_TRUE(t.jobs.find("7")) << "it still runs";
  t.jobs.end("7");
  t.clock.advance_ms(59'999);
  t.jobs.tick();
  EXPECT_TRUE(t.jobs.find("7"));
  t.clock.advance_ms(1);
  t.jobs.tick();
  EXPECT_FALSE(t.jobs.find("7"));
  EXPECT_FALSE(t.jobs.end("7"));
}

TEST(JobTable, JobThatLeavesTheQueueHasEnded) {
  Table t;
  t.jobs.set_queue({{"7", facts("ada")}, {"8", facts("bob")}});
  t.jobs.start("9", facts("cyd"));
  t.jobs.set_queue({{"8", facts("bob")}});
  t.clock.advance_ms(60'000);
  t.jobs.tick();
  EXPECT_FALSE(t.jobs.find("7"));
  EXPECT_TRUE(t.jobs.find("8"));
  EXPECT_TRUE(t.jobs.find("9")) << "the queue has never listed it: its epilog will tell";
}

TEST(JobTable, RequeuedJobInTheQueueRunsAgain) {
  Table t;
  JobFacts queued = facts("ada");
  queued.restarts = 0;
  t.jobs.set_queue({{"7", queued}});
  t.jobs.end("7");
  t.jobs.set_queue({{"7", queued}});
  EXPECT_EQ(t.jobs.find("7")->restarts, std::nullopt) << "still listed, but its epilog has run";
  queued.restarts = 1;
  t.jobs.set_queue({{"7", queued}});
  EXPECT_EQ(t.jobs.find("7")->restarts, 1u);
  EXPECT_GT(t.jobs.find("7")->started_ns, t.jobs.find("7")->ended_ns);
}

TEST(JobTable, JobThatComesBackIntoTheQueueRunsAgain) {
  Table t;
  t.jobs.set_queue({{"7", facts("ada")}});
  t.jobs.set_queue({});
  t.jobs.set_queue({{"7", facts("ada")}});
  t.clock.advance_ms(3'600'000);
  t.jobs.tick();
  const auto known = t.jobs.find("7");
  ASSERT_TRUE(known);
  EXPECT_GT(known->started_ns, known->ended_ns);
}

TEST(JobTable, IsBoundedAndForgetsEndedJobsFirst) {
  Table t(3);
  set_log_level(LogLevel::kOff);
  for (const char* id : {"1", "2", "3"}) {
    t.jobs.start(id, facts("ada"));
    t.clock.advance_ms(1);
  }
  t.jobs.end("3");
  t.jobs.start("4", facts("ada"));
  EXPECT_FALSE(t.jobs.find("3"));
  t.jobs.start("5", facts("ada"));
  EXPECT_FALSE(t.jobs.find("1"));
  EXPECT_TRUE(t.jobs.find("2"));
  EXPECT_EQ(t.jobs.size(), 3u);
  std::vector<QueuedJob> many;
  for (int i = 100; i < 200; ++i) many.push_back({std::to_string(i), facts("bob")});
  t.jobs.set_queue(many);
  EXPECT_EQ(t.jobs.size(), 3u);
  set_log_level(LogLevel::kInfo);
}

TEST(JobTable, GenerationTellsOfChanges) {
  Table t;
  auto changes = [&, last = t.jobs.generation()]() mutable {
    return std::exchange(last, t.jobs.generation()) != t.jobs.generation();
  };
  t.jobs.set_queue({{"7", facts("ada")}});
  EXPECT_TRUE(changes());
  t.jobs.set_queue({{"7", facts("ada")}});
  EXPECT_FALSE(changes());
  t.jobs.tick();
  EXPECT_FALSE(changes());
  t.jobs.start("7", facts("ada"));
  EXPECT_TRUE(changes());
  t.jobs.end("7");
  t.jobs.set_queue({});
  t.clock.advance_ms(60'000);
  t.jobs.tick();
  EXPECT_FALSE(t.jobs.find("7"));
  EXPECT_FALSE(changes()) << "forgetting teaches nothing";
}

TEST(JobTable, TellsThatSomebodyAskedForAJobThatIsNotInTheQueue) {
  Table t;
  t.jobs.set_queue({{"7", facts("ada")}});
  t.jobs.start("8", facts("bob"));
  (void)t.jobs.find("7");
  EXPECT_FALSE(t.jobs.take_missed());
  (void)t.jobs.find("8");
  EXPECT_TRUE(t.jobs.take_missed());
  EXPECT_FALSE(t.jobs.take_missed());
  (void)t.jobs.find("9");
  EXPECT_TRUE(t.jobs.take_missed());
}

}  // namespace
}  // namespace ncclscope::agent
