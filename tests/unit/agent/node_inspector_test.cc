// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/node_inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "agent/aggregate/settings_judge.h"

namespace ncclscope::agent {
namespace {

std::vector<NodeFindings> inspect(const std::string& machine) {
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/" + machine;
  return inspect_node(root + "/sys", root + "/proc").findings;
}

const NodeFindings* find(const std::vector<NodeFindings>& findings, std::string_view check) {
  for (const NodeFindings& f : findings)
    if (f.check == check) return &f;
  return nullptr;
}

TEST(NodeInspector, CountsFindingsByCheckAndLevel) {
  const std::vector<NodeFindings> findings = inspect("onesided");
  const NodeFindings* nics = find(findings, "gpu-nic");
  ASSERT_NE(nics, nullptr);
  EXPECT_THAT(nics->by_level, ::testing::ElementsAre(0, 0, 0, 4));
  const NodeFindings* links = find(findings, "pcie-link");
  ASSERT_NE(links, nullptr);
  EXPECT_THAT(links->by_level, ::testing::ElementsAre(1, 0, 0, 0));
}

TEST(NodeInspector, HasNothingToSayOfANodeWithoutGpus) {
  const NodeLook look = inspect_node("/nonexistent/sys", "/nonexistent/proc");
  EXPECT_TRUE(look.findings.empty());
  EXPECT_NE(look.machine, nullptr) << "settings can be judged all the same";
}

TEST(NodeInspector, LooksOnAThreadOfItsOwnAndEndsAtOnce) {
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/rail8";
  std::promise<std::vector<NodeFindings>> first;
  std::atomic<bool> told{false};
  NodeInspector inspector(root + "/sys", root + "/proc", std::chrono::hours(24),
                          [&](NodeLook look) {
                            if (!told.exchange(true)) first.set_value(std::move(look.findings));
                          });
  const std::vector<NodeFindings> findings = first.get_future().get();
  ASSERT_NE(find(findings, "gpu-nic"), nullptr);
  EXPECT_EQ(find(findings, "gpu-nic")->by_level[0], 8u);
}

ProcessEnvironment environment(std::vector<std::pair<std::string, std::string>> variables) {
  return {std::move(variables), false};
}

TEST(SettingsJudge, KnowsNothingBeforeTheNodeWasLookedAt) {
  const SettingsJudge judge;
  EXPECT_FALSE(judge.judge(environment({{"NCCL_ALGO", "Ring"}})).has_value());
}

TEST(SettingsJudge, JudgesAgainstTheNodeAndInTextThatIsSafe) {
  SettingsJudge judge;
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/rail8";
  judge.set_machine(inspect_node(root + "/sys", root + "/proc").machine);
  EXPECT_TRUE(judge.judge(environment({{"NCCL_IB_HCA", "mlx5_0"}, {"NCCL_X", "1"}}))->empty());
  const auto findings = judge.judge(environment({{"NCCL_IB_HCA", "mlx5\x01\xFF_9"}}));
  ASSERT_EQ(findings->size(), 1u);
  EXPECT_EQ(findings->at(0).level, topology::Level::kProblem);
  EXPECT_EQ(findings->at(0).evidence, "NCCL_IB_HCA=mlx5??_9 (environment)");
  std::string many = "x0";
  for (int i = 1; i < 100; ++i) many += ",x" + std::to_string(i);
  EXPECT_LE(judge.judge(environment({{"NCCL_ALGO", many}}))->size(), 24u);
}

TEST(SettingsJudge, CountsEachEnvironmentOfAJobOnce) {
  SettingsJudge judge;
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/rail8";
  judge.set_machine(inspect_node(root + "/sys", root + "/proc").machine);
  Snapshot snapshot;
  snapshot.jobs.resize(2);
  const auto same =
      std::make_shared<const ProcessEnvironment>(environment({{"NCCL_P2P_DISABLE", "1"}}));
  for (JobSnapshot& job : snapshot.jobs) {
    job.processes.resize(3);
    for (ProcessSnapshot& process : job.processes) {
      process.connected = true;
      process.environment = same;
    }
  }
  snapshot.jobs[1].processes[0].environment = nullptr;
  EXPECT_THAT(judge.count(snapshot).by_level, ::testing::ElementsAre(0, 0, 0, 2));
  EXPECT_EQ(judge.count(snapshot).check, "job-env");
  EXPECT_FALSE(judge.count(Snapshot()).any());
}

}  // namespace
}  // namespace ncclscope::agent
