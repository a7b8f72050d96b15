// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/node_inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace ncclscope::agent {
namespace {

std::vector<NodeFindings> inspect(const std::string& machine) {
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/" + machine;
  return inspect_node(root + "/sys", root + "/proc");
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
  EXPECT_TRUE(inspect_node("/nonexistent/sys", "/nonexistent/proc").empty());
}

TEST(NodeInspector, LooksOnAThreadOfItsOwnAndEndsAtOnce) {
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/rail8";
  std::promise<std::vector<NodeFindings>> first;
  std::atomic<bool> told{false};
  NodeInspector inspector(root + "/sys", root + "/proc", std::chrono::hours(24),
                          [&](std::vector<NodeFindings> findings) {
                            if (!told.exchange(true)) first.set_value(std::move(findings));
                          });
  const std::vector<NodeFindings> findings = first.get_future().get();
  ASSERT_NE(find(findings, "gpu-nic"), nullptr);
  EXPECT_EQ(find(findings, "gpu-nic")->by_level[0], 8u);
}

}  // namespace
}  // namespace ncclscope::agent
