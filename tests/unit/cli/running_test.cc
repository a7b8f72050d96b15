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
    return check_run(before, now, machine_, topology::Paths(machine_));
  }
  static const Finding* find(const Findings& findings, std::string_view check) {
    for (const Finding& f : findings)
      if (f.check == check) return &f;
    return nullptr;
  }
  const topology::Machine machine_ = topology::machine_of("rail8");
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

TEST_F(Running, JobOfOneNodeIsNotLookedForOnTheNetwork) {
  v1::GetSnapshotResponse s = snapshot(8, 1);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 3e11, 1);
  const Findings findings = check(s, 0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
}

TEST_F(Running, JobFarBelowWhatThePathsAllowIsNamed) {
  v1::GetSnapshotResponse s = snapshot(8, 1);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 2e10, 1);  // 20 of 370 GB/s
  const Findings findings = check(s, 0);
  ASSERT_NE(find(findings, "bandwidth"), nullptr);
  EXPECT_THAT(find(findings, "bandwidth")->reason,
              HasSubstr("20 GB/s on the bus, the paths allow 371"));
}

TEST_F(Running, OldSumsAreNotCountedAgain) {
  v1::GetSnapshotResponse s = snapshot(16, 2);
  add_sums(s, "<=256MiB", "RING", "SIMPLE", 100, 2e10, 1);
  Moment before, after;
  before.snapshot = after.snapshot = s;
  EXPECT_TRUE(check_run(before, after, machine_, topology::Paths(machine_)).empty());
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

TEST_F(Running, ShortOperationsOutsideOfGraphsAreNamed) {
  LaunchCount count;
  v1::Operation operation;
  operation.set_duration_ns(8'000);
  for (int i = 0; i < 600; ++i) count.add(operation);
  EXPECT_EQ(check_launches("4711", count).size(), 1U);
  operation.set_graph(true);
  count.add(operation);
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
