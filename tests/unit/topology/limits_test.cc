// SPDX-License-Identifier: Apache-2.0
#include "topology/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "topology/matrix.h"

namespace ncclscope::topology {
namespace {

using ::testing::HasSubstr;

Machine machine(const std::string& name, bool with_smi = false) {
  const std::string root = NCCLSCOPE_MACHINES "/" + name;
  Machine m = read_machine({FileTree(root + "/sys"), FileTree(root + "/proc")});
  if (with_smi) {
    std::ifstream file(NCCLSCOPE_MACHINE_DATA "/" + name + ".smi");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(add_nvidia_smi(m, text.str()).error, "");
  }
  return m;
}

std::vector<std::size_t> all(const Machine& m) {
  std::vector<std::size_t> gpus;
  for (std::size_t g = 0; g < m.gpus.size(); ++g) gpus.push_back(g);
  return gpus;
}

TEST(Limits, OfNvlinkAreAllLinksOfAGpu) {
  const Machine m = machine("rail8", true);
  const Paths paths(m);
  const Limit ring = ring_limit(m, paths, all(m), 1);
  EXPECT_DOUBLE_EQ(ring.gigabytes, paths.gpu_gpu(0, 1).gigabytes);
  EXPECT_THAT(ring.what, HasSubstr("NVL between GPU"));
  EXPECT_GT(all_to_all_limit(m, paths, all(m), 1).gigabytes, 0);
}

TEST(Limits, OfSeveralNodesAreTheNicsIfTheyAreSlower) {
  const Machine m = machine("rail8", true);
  const Paths paths(m);
  double nics = 0;
  for (std::size_t g = 0; g < m.gpus.size(); ++g) nics += paths.rail(g).path.gigabytes;
  const Limit one = ring_limit(m, paths, all(m), 1), two = ring_limit(m, paths, all(m), 2);
  EXPECT_DOUBLE_EQ(two.gigabytes, std::min(one.gigabytes, nics));
  // One GPU on each of two nodes: its NIC alone.
  const Limit single = ring_limit(m, paths, {0}, 2);
  EXPECT_DOUBLE_EQ(single.gigabytes, paths.rail(0).path.gigabytes);
  EXPECT_THAT(single.what, HasSubstr("NIC "));
  // AlltoAll of 16: 8 of a GPU's 15 parts leave the node.
  EXPECT_DOUBLE_EQ(all_to_all_limit(m, paths, all(m), 2).gigabytes,
                   std::min(one.gigabytes, nics / 8 * 15 / 8));
}

TEST(Limits, AreNotKnownForOneGpuOrNone) {
  const Machine m = machine("rail8", true);
  const Paths paths(m);
  EXPECT_EQ(ring_limit(m, paths, {0}, 1).gigabytes, 0);
  EXPECT_EQ(ring_limit(m, paths, {}, 1).gigabytes, 0);
  EXPECT_EQ(ring_limit(m, paths, {0, 0}, 1).gigabytes, 0);  // two ranks share it
  EXPECT_FALSE(ring_limit(m, paths, {0}, 1).what.empty());
}

TEST(Limits, OfPciePathsAreTheSlowestLinkOfTheRing) {
  const Machine m = machine("pcie4");
  const Paths paths(m);
  double least = 1e9;
  for (std::size_t g = 0; g + 1 < m.gpus.size(); ++g)
    least = std::min(least, paths.gpu_gpu(g, g + 1).gigabytes);
  EXPECT_DOUBLE_EQ(ring_limit(m, paths, all(m), 1).gigabytes, least);
}

TEST(Limits, OfAllToAllAreNotGuessedWherePairsGoThroughCpus) {
  const Machine m = machine("flatvm");
  const Paths paths(m);
  const Limit limit = all_to_all_limit(m, paths, all(m), 1);
  EXPECT_EQ(limit.gigabytes, 0);
  EXPECT_THAT(limit.what, HasSubstr("share links"));
}

TEST(Limits, OfSeveralNodesWithoutRdmaAreTheNetworkInterface) {
  Machine m = machine("nonic");
  EXPECT_DOUBLE_EQ(ring_limit(m, Paths(m), all(m), 2).gigabytes, 1.25);  // 10 Gbit/s
  m.nics.clear();
  const Limit limit = ring_limit(m, Paths(m), all(m), 2);
  EXPECT_EQ(limit.gigabytes, 0);
  EXPECT_EQ(limit.what, "no active NIC is known");
}

}  // namespace
}  // namespace ncclscope::topology
