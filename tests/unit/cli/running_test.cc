// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/running.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/topology/machines.h"
#include "topology/paths.h"

namespace ncclscope::cli {
namespace {

using ::testing::HasSubstr;
using topology::Finding;
using topology::Findings;
using topology::Level;

/// One job with one communicator of `nranks` on `nnodes`, GPUs 0 to 7 here.
v1::GetSnapshotResponse snapshot(std::uint32_t nranks, std::uint32_t nnodes) {
  v1::GetSnapshotResponse s;
  s.set_agent_version("0.1.0");
  v1::JobSnapshot* job = s.add_jobs();
  job->mutable_job()->set_job_id("4711");
  job->mutable_job()->set_identity_source("cgroup");
  v1::Communicator* c = job->add_communicators();
  c->set_comm("00000000000000aa");
  c->set_nranks(nranks);
  c->set_nnodes(nnodes);
  for (std::uint32_t g = 0; g < 8; ++g) {
    v1::Rank* rank = c->add_ranks();
    rank->set_gpu(g);
    rank->set_gpu_known(true);
  }
  return s;
}

void add_sums(v1::GetSnapshotResponse& s, const std::string& size, const std::string& algorithm,
              const std::string& protocol, std::uint64_t operations, double bus_bytes,
              double seconds) {
  v1::OperationSums* sums = s.mutable_jobs(0)->add_sums();
  sums->set_comm("00000000000000aa");
  sums->set_collective("AllReduce");
  sums->set_size(size);
  sums->set_algorithm(algorithm);
  sums->set_protocol(protocol);
  sums->set_operations(operations);
  sums->set_timed_operations(operations);
  sums->set_bus_bytes(bus_bytes);
  sums->set_busy_seconds(seconds);
}

class Running : public ::testing::Test {
 protected:
  Findings check(const v1::GetSnapshotResponse& after, std::uint64_t moved_bytes) {
    Moment before, now;
    before.snapshot = snapshot(16, 2);
    before.ports["mlx5_0/1"] = 1000;
    now.snapshot = after;
    now.ports["mlx5_0/1"] = 1000 + moved_bytes;
    return check_run(before, now, machine_, topology::Paths(machine_), held_);
  }
  static const Finding* find(const Findings& findings, std::string_view check) {
    for (const Finding& f : findings)
      if (f.check == check) return &f;
    return nullptr;
  }
  /// AllReduces of 25 MB, for which one local rank waits and the other does not.
  void hold_reductions(double bus_bytes_per_second, int count) {
    v1::Operation operation;
    operation.set_comm("00000000000000aa");
    operation.set_collective("AllReduce");
    operation.set_peer(-1);
    operation.set_bytes(25'000'000);
    for (int i = 0; i < count; ++i) {
      operation.set_index(static_cast<std::uint64_t>(i));
      for (const double part : {0.1, 1.0}) {
        operation.set_busbw(part * bus_bytes_per_second);
        operation.set_duration_ns(static_cast<std::uint64_t>(1e6 / part));
        held_["4711"].add(operation);
      }
    }
  }
  const topology::Machine machine_ = topology::machine_of("rail8");
  HeldByJob held_;
};

TEST_F(Running, JobWhoseBytesDoNotReachThePortsUsesSockets) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 1e11, 1);
  Findings findings = check(s, 100);
  ASSERT_NE(find(findings, "network"), nullptr);
  EXPECT_EQ(find(findings, "network")->level, Level::kProblem);
  EXPECT_EQ(find(findings, "network")->subject, "job 4711");
  findings = check(s, 100'000'000'000);
  EXPECT_EQ(find(findings, "network")->level, Level::kOk);
}

/// A process that has so many RDMA devices open.
void add_process(v1::JobSnapshot& job, std::uint64_t rdma_devices) {
  v1::ProcessEnvironment* e =
      job.environments_size() > 0 ? job.mutable_environments(0) : job.add_environments();
  v1::Process* p = e->add_processes();
  p->set_state("connected");
  p->set_rdma_devices(rdma_devices);
}

TEST_F(Running, JobWithoutAnOpenDeviceUsesSocketsWhateverThePortsDo) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 1e11, 1);
  add_process(*s.mutable_jobs(0), 0);
  EXPECT_EQ(find(check(s, 100'000'000'000), "network")->level, Level::kProblem);
  add_process(*s.mutable_jobs(0), 8);
  EXPECT_EQ(find(check(s, 100'000'000'000), "network")->level, Level::kOk);
}

TEST_F(Running, LittleTrafficOfOthersDoesNotMakeAJobUseThePorts) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 1e12, 1);
  EXPECT_EQ(find(check(s, 100'000'000), "network")->level, Level::kProblem)
      << "a ten-thousandth of the job's bytes is a file system's traffic";
}

TEST_F(Running, OfSeveralJobsThatThePortsDoNotCarryNoneIsAccusedWithoutNeed) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  *s.add_jobs() = s.jobs(0);
  s.mutable_jobs(1)->mutable_job()->set_job_id("4712");
  for (int job = 0; job < 2; ++job) {
    add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, job == 0 ? 1e12 : 1e10, 1);
    if (job == 0) s.mutable_jobs()->SwapElements(0, 1);
  }
  Findings findings = check(s, 500'000'000);
  std::vector<std::pair<std::string, Level>> said;
  for (const Finding& f : findings)
    if (f.check == "network") said.emplace_back(f.subject, f.level);
  ASSERT_EQ(said.size(), 2u);
  for (const auto& [job, level] : said) EXPECT_NE(level, Level::kOk) << job;
}

TEST_F(Running, JobOfOneNodeIsNotLookedForOnTheNetwork) {
  v1::GetSnapshotResponse s = snapshot(8, 1);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 3e11, 1);
  const Findings findings = check(s, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
}

TEST_F(Running, JobFarBelowWhatThePathsAllowIsNamed) {
  v1::GetSnapshotResponse s = snapshot(8, 1);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 2e10, 1);
  hold_reductions(2e10, 19);
  EXPECT_EQ(find(check(s, 0), "bandwidth"), nullptr) << "too few to tell";
  hold_reductions(2e10, 100);  // 20 of 370 GB/s
  const Findings findings = check(s, 0);
  ASSERT_NE(find(findings, "bandwidth"), nullptr);
  EXPECT_THAT(find(findings, "bandwidth")->reason,
              HasSubstr("20 GB/s on the bus, the paths allow 371"));
  held_.clear();
  hold_reductions(2e11, 100);
  EXPECT_EQ(find(check(s, 0), "bandwidth"), nullptr) << "waiting for a late rank is no transfer";
}

TEST_F(Running, OldSumsAreNotCountedAgain) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 2e10, 1);
  Moment before, after;
  before.snapshot = after.snapshot = s;
  EXPECT_TRUE(check_run(before, after, machine_, topology::Paths(machine_), held_).empty());
}

TEST_F(Running, ChoicesAndSizesThatCostAreNamed) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=4GiB", "RING", "LL", 100, 1e12, 3);
  EXPECT_THAT(find(check(s, 1u << 31), "algorithm")->reason, HasSubstr("by LL"));
  s = snapshot(128, 16);
  add_sums(s, "<=64KiB", "RING", "LL", 1000, 1e9, 1);
  const Findings findings = check(s, 1u << 31);
  EXPECT_THAT(find(findings, "algorithm")->reason, HasSubstr("latency grows with the ranks"));
  EXPECT_THAT(find(findings, "small-messages")->evidence, HasSubstr("1000 of 1000"));
}

TEST_F(Running, FewSmallReductionsBesideOtherOperationsAreNotNamed) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=4KiB", "TREE", "LL", 900, 1e7, 0.1);
  EXPECT_NE(find(check(s, 0), "small-messages"), nullptr);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 5000, 1e7, 0.1);
  s.mutable_jobs(0)->mutable_sums(1)->set_collective("AllGather");  // shards of parameters
  EXPECT_EQ(find(check(s, 0), "small-messages"), nullptr);
  s = snapshot(16, 2);
  add_sums(s, "<=4KiB", "TREE", "LL", 600, 1e7, 0.1);
  EXPECT_EQ(find(check(s, 0), "small-messages"), nullptr) << "75 of each of 8 ranks";
}

TEST_F(Running, SettingsOfJobsAreThoseOfTheAgentOrJudgedHere) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  s.set_node("node0");
  v1::ProcessEnvironment* told = s.mutable_jobs(0)->add_environments();
  told->set_known(true);
  v1::Variable* variable = told->add_variables();
  variable->set_name("NCCL_IB_HCA");
  variable->set_value("mlx5_99");
  for (int rank = 0; rank < 4; ++rank) {
    v1::Process* p = told->add_processes();
    p->set_state("connected");
    p->set_global_rank(std::to_string(rank));
  }
  Findings findings = check_job_settings(s, &machine_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_EQ(findings[0].subject, "job 4711, ranks 0-3");
  EXPECT_THAT(findings[0].reason, HasSubstr("NCCL_IB_HCA: no RDMA device"));
  findings = check_job_settings(s, nullptr);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kUnknown) << "another node";
  told->set_judged(true);
  findings = check_job_settings(s, &machine_);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kOk) << "the agent has looked, and found nothing";
  v1::ProcessEnvironment* untold = s.mutable_jobs(0)->add_environments();
  untold->add_processes()->set_state("connected");
  EXPECT_EQ(check_job_settings(s, &machine_).at(0).level, Level::kUnknown);
}

TEST_F(Running, ShortOperationsOutsideOfGraphsAreNamed) {
  HeldOperations count;
  v1::Operation operation;
  operation.set_comm("aa");
  operation.set_peer(-1);
  for (int i = 0; i < 600; ++i) {
    operation.set_index(static_cast<std::uint64_t>(i));
    operation.set_duration_ns(8'000);
    count.add(operation);
    operation.set_duration_ns(900'000);  // another rank's, which waited
    count.add(operation);
  }
  ASSERT_EQ(check_launches("4711", count).size(), 1U);
  EXPECT_THAT(check_launches("4711", count)[0].evidence, HasSubstr("600 of 600"));
  operation.set_graph(true);
  count.add(operation);
  EXPECT_TRUE(check_launches("4711", count).empty());
}

TEST_F(Running, OperationsThatTakeLongOnEveryRankOrHaveNoTimeAreNotLaunchBound) {
  HeldOperations count;
  v1::Operation operation;
  operation.set_comm("aa");
  for (int i = 0; i < 600; ++i) {
    operation.set_index(static_cast<std::uint64_t>(i));
    operation.set_duration_ns(i % 2 == 0 ? 0 : 300'000);
    count.add(operation);
  }
  EXPECT_TRUE(check_launches("4711", count).empty());
}

TEST_F(Running, ReleasesThatDoNotFitAndClaimsAreNamed) {
  v1::GetSnapshotResponse s = snapshot(8, 1);
  v1::GetBooksResponse books;
  for (const std::uint32_t nccl : {22'809u, 22'707u}) {
    v1::ProcessBooks* p = books.add_processes();
    p->set_job_id("4711");
    p->set_state("connected");
    p->set_nccl_version(nccl);
    p->set_plugin_version("0.1.0");
  }
  Findings findings = check_versions(s, books, "0.1.0");
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_THAT(findings[1].reason, HasSubstr("2.27.7, 2.28.9"));
  s.mutable_jobs(0)->mutable_job()->set_identity_source("claimed");
  findings = check_versions(s, books, "0.2.0");
  EXPECT_EQ(findings[0].check, "agent-version");
  EXPECT_EQ(findings[0].level, Level::kWarning);
  EXPECT_THAT(find(findings, "identity")->fix, HasSubstr("hostPID"));
  books.mutable_processes(0)->set_plugin_version("0.0.9");
  EXPECT_NE(find(check_versions(s, books, "0.1.0"), "plugin-version"), nullptr);
}

}  // namespace
}  // namespace ncclscope::cli
