// SPDX-License-Identifier: Apache-2.0
//
// Whole runs of the probe with workers that stand in for those that call NCCL: one process and
// several (here threads, each with a worker of its own), and everything that can go wrong.
#include "cli/probe/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "cli/probe/exit_status.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli::probe {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kEnough{60'000};
constexpr milliseconds kShort{1500};

class Session : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }

  static Plan plan() {
    Plan plan;
    plan.collectives = {model::Function::kAllReduce, model::Function::kAllGather};
    plan.min_bytes = 1024;
    plan.max_bytes = 4096;
    plan.check_bytes = 1024;
    return plan;
  }
  SessionOptions options(const std::string& gpus, std::uint32_t process = 0,
                         std::uint32_t processes = 1, milliseconds limit = kEnough) const {
    SessionOptions o;
    o.worker = NCCLSCOPE_STAND_IN_WORKER;
    o.gpus = gpus;
    o.limit = limit;
    o.place.process = process;
    o.place.processes = processes;
    o.place.one_node = true;
    o.place.key = folder_.string();  // no other test has it
    if (processes > 1) o.rendezvous = folder_;
    return o;
  }
  struct Follower {
    int status;
    std::string why;
  };
  static std::future<Follower> following(const SessionOptions& options) {
    return std::async(std::launch::async, [options] {
      Follower f{};
      f.status = follow(options, f.why);
      return f;
    });
  }
  /// Runs alone and returns why it failed.
  Outcome alone(const std::string& gpus, milliseconds limit = kEnough) const {
    const SessionOptions o = options(gpus, 0, 1, limit);
    Conductor conductor(plan(), 1);
    Leader leader(o, conductor);
    const Outcome outcome = leader.run();
    EXPECT_EQ(leader.finish(kCouldNotRun, outcome.why), "");
    return outcome;
  }

  const tests::TemporaryDirectory temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(Session, MeasuresOnAllGpusOfAProcess) {
  const SessionOptions o = options("4");
  Conductor c(plan(), 1);
  Leader leader(o, c);
  const Outcome outcome = leader.run();
  ASSERT_EQ(outcome.end, End::kMeasured) << outcome.why;
  EXPECT_EQ(leader.finish(kOk, ""), "");
  EXPECT_EQ(c.ranks(), 4U);
  EXPECT_FALSE(leader.shares_gpu());
  ASSERT_EQ(c.measured().size(), 4U);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_DOUBLE_EQ(c.measured()[r].seconds(), ((static_cast<double>(r) + 1) * 1000 + 1.5) * 1e-9);
    EXPECT_EQ(c.measured()[r].slowest_rank, 3U);
  }
}

TEST_F(Session, LetsTwoWorkersShareTheOnlyGpu) {
  const SessionOptions o = options("1");
  Conductor c(plan(), 1);
  Leader leader(o, c);
  const Outcome outcome = leader.run();
  ASSERT_EQ(outcome.end, End::kMeasured) << outcome.why;
  EXPECT_TRUE(leader.shares_gpu());
  EXPECT_EQ(c.ranks(), 2U);
  EXPECT_EQ(leader.finish(kOk, ""), "");
}

TEST_F(Session, MeasuresWithSeveralProcessesWhoAllEndAlike) {
  std::vector<std::future<Follower>> others;
  for (std::uint32_t p = 1; p < 4; ++p)
    others.push_back(following(options(std::to_string(p), p, 4)));
  const SessionOptions o = options("1", 0, 4);
  Conductor c(plan(), 4);
  Leader leader(o, c);
  const Outcome outcome = leader.run();
  ASSERT_EQ(outcome.end, End::kMeasured) << outcome.why;
  EXPECT_EQ(c.ranks(), 7U);
  EXPECT_EQ(c.workers()[3].first_rank, 4U);
  EXPECT_EQ(c.measured()[0].heard, 7U);
  EXPECT_FALSE(leader.shares_gpu());
  EXPECT_EQ(leader.finish(kBelow, "too slow"), "");
  for (auto& other : others) {
    const Follower f = other.get();
    EXPECT_EQ(f.status, kBelow);
    EXPECT_EQ(f.why, "");
  }
}

TEST_F(Session, SaysWhatAWorkerFailedOf) {
  EXPECT_THAT(alone("no-driver").why, HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(alone("dies").why, HasSubstr("its worker was ended by signal 6"));
  EXPECT_THAT(alone("garbage").why, HasSubstr("sent what nobody understands: ?[2Jgarbage"));
  EXPECT_THAT(alone("unloadable").why, HasSubstr("libnccl.so.2"));
  EXPECT_EQ(alone("dies").end, End::kFailed);
}

TEST_F(Session, SaysThatAWorkerIsNotThere) {
  SessionOptions o = options("all");
  o.worker = "/nonexistent/worker";
  Conductor c(plan(), 1);
  Leader leader(o, c);
  const Outcome outcome = leader.run();
  EXPECT_EQ(outcome.end, End::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("/nonexistent/worker cannot be started"));
}

TEST_F(Session, EndsAHangAfterItsTimeAndNamesIt) {
  for (const char* how : {"hangs", "stuck"}) {
    const Outcome outcome = alone(how, kShort);
    EXPECT_EQ(outcome.end, End::kTimeout) << how;
    EXPECT_THAT(outcome.why, HasSubstr("joining the communicator")) << how;
  }
  const Outcome silent = alone("silent", kShort);
  EXPECT_EQ(silent.end, End::kTimeout);
  EXPECT_THAT(silent.why, HasSubstr("this process on"));
  EXPECT_THAT(silent.why, HasSubstr("has not begun"));
}

TEST_F(Session, NamesTheProcessThatHangsAndTheOneThatDoesNotCome) {
  auto other = following(options("hangs", 1, 3, kShort));
  const SessionOptions o = options("1", 0, 3, kShort);
  Conductor c(plan(), 3);
  Leader leader(o, c);
  Outcome outcome = leader.run();
  EXPECT_EQ(outcome.end, End::kTimeout);
  EXPECT_THAT(outcome.why, HasSubstr("process 2 did not come"));
  (void)leader.finish(kNoEnd, outcome.why);
  EXPECT_EQ(other.get().status, kNoEnd);
}

TEST_F(Session, BreaksOffEverywhereWhenOneProcessFails) {
  auto fails = following(options("no-driver", 1, 3));
  auto fine = following(options("1", 2, 3, milliseconds(8000)));  // it may come too late
  const SessionOptions o = options("1", 0, 3);
  Conductor c(plan(), 3);
  Leader leader(o, c);
  const Outcome outcome = leader.run();
  EXPECT_EQ(outcome.end, End::kFailed);
  EXPECT_THAT(outcome.why, HasSubstr("process 1 on"));
  EXPECT_THAT(outcome.why, HasSubstr("no NVIDIA driver"));
  (void)leader.finish(kCouldNotRun, outcome.why);
  EXPECT_EQ(fails.get().status, kCouldNotRun);
}

TEST_F(Session, EndsWhereProcess0IsGone) {
  auto other = following(options("1", 1, 2));
  {
    const SessionOptions o = options("dies", 0, 2);
    Conductor c(plan(), 2);
    Leader leader(o, c);
    EXPECT_EQ(leader.run().end, End::kFailed);
  }  // no verdict
  const Follower f = other.get();
  EXPECT_EQ(f.status, kCouldNotRun);
  EXPECT_EQ(f.why, "the connection to process 0 was closed");
}

TEST_F(Session, IsInterrupted) {
  const std::atomic<bool> yes{true};
  SessionOptions o = options("silent");
  o.interrupted = &yes;
  Conductor c(plan(), 1);
  Leader leader(o, c);
  EXPECT_EQ(leader.run().why, "interrupted");
}

}  // namespace
}  // namespace ncclscope::cli::probe
