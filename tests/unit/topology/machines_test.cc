// SPDX-License-Identifier: Apache-2.0
//
// Every machine of tests/data/topology against the matrices and findings written by hand.
#include "tests/unit/topology/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "topology/checks.h"
#include "topology/paths.h"

namespace ncclscope::topology {
namespace {

using ::testing::HasSubstr;

class Machines : public ::testing::TestWithParam<std::string> {};

TEST_P(Machines, ShowTheMatrixThatNvidiaSmiShows) {
  const Machine machine = machine_of(GetParam());
  std::string text = smi_matrix(machine, Paths(machine));
  text.resize(std::min(text.find("\nNIC Legend"), text.size()));
  EXPECT_EQ(plain(text), expected_of(GetParam())["nvidia-smi"]);
}

TEST_P(Machines, AreGradedAsNcclGradesThem) {
  const Machine machine = machine_of(GetParam());
  EXPECT_EQ(plain(nccl_matrix(machine, Paths(machine))), expected_of(GetParam())["nccl"]);
}

TEST_P(Machines, HaveExactlyTheFindingsThatWereWrittenByHand) {
  const Machine machine = machine_of(GetParam());
  std::string found;
  for (const Finding& f : check_topology(machine, Paths(machine))) {
    EXPECT_FALSE(f.reason.empty());
    if (f.level == Level::kOk) continue;
    EXPECT_FALSE(f.evidence.empty()) << f.check << " " << f.subject;
    found += std::string(level_name(f.level)) + " " + std::string(f.check) + " " + f.subject + "\n";
  }
  EXPECT_EQ(found, expected_of(GetParam())["findings"]);
}

INSTANTIATE_TEST_SUITE_P(All, Machines, ::testing::ValuesIn(machine_names()),
                         [](const auto& of) { return of.param; });

TEST(Paths, CarryTheBandwidthThatNcclAssumes) {
  const Machine rail = machine_of("rail8");
  const Paths paths(rail);
  EXPECT_DOUBLE_EQ(paths.gpu_nic(0, 0).gigabytes, 48);  // 400 Gbit/s are 50, the slot has 48
  EXPECT_DOUBLE_EQ(paths.gpu_gpu(0, 7).gigabytes, 18 * 20.6);
  EXPECT_DOUBLE_EQ(paths.gpu_nic(0, 7).gigabytes, 22);  // between Sapphire Rapids sockets
  EXPECT_DOUBLE_EQ(pcie_gigabytes(16, 16), 24);
  EXPECT_DOUBLE_EQ(pcie_gigabytes(0, 0), 12);  // what NCCL takes where nothing is known
  const Machine old = machine_of("onesided");
  EXPECT_DOUBLE_EQ(Paths(old).gpu_gpu(0, 2).gigabytes, 10);
  const Machine grace = machine_of("grace");
  EXPECT_DOUBLE_EQ(Paths(grace).gpu_nic(0, 0).gigabytes, 48);
}

TEST(Paths, GiveEachGpuOfARailOptimisedNodeItsOwnNic) {
  const Machine machine = machine_of("rail8");
  const Paths paths(machine);
  for (std::size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(paths.rail(g).nic, static_cast<int>(g));
    EXPECT_TRUE(paths.rail(g).gpudirect);
  }
}

TEST(Paths, ReverseTheBitsOfTheGpuWhereSeveralNicsAreAlike) {
  const Machine machine = machine_of("multiport");
  const Paths paths(machine);
  EXPECT_EQ(paths.rail(0).nic, 0);
  EXPECT_EQ(paths.rail(1).nic, 1);
  EXPECT_EQ(paths.rail(1).relay, 0);  // over NVLink to the GPU that has the NIC near it
}

TEST(Paths, PreferAFastNicFarAwayAsNcclDoes) {
  Machine machine = machine_of("onesided");
  machine.nics[0].ports[0].gigabits = 25;
  machine.nics[1].ports[0].gigabits = 100;
  EXPECT_EQ(Paths(machine).rail(0).nic, 1);
}

TEST(Paths, LetTwoGpusOfAnAmdNodeExchangeAcrossTheCpu) {
  Machine machine = machine_of("onesided");
  EXPECT_FALSE(Paths(machine).peer_to_peer(0, 1));
  machine.gpus.resize(2);
  machine.cpu.vendor = "AuthenticAMD";
  EXPECT_TRUE(Paths(machine).peer_to_peer(0, 1));
}

TEST(NvidiaSmi, IsNotBelievedWhenItListsOtherGpus) {
  Machine machine = read_machine(roots_of("onesided"));
  const SmiText text = add_nvidia_smi(machine,
                                      "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\n"
                                      "GPU1\tNV4\t X \t0-3\n");
  EXPECT_THAT(text.error, HasSubstr("lists 2 GPUs, sysfs has 4"));
  EXPECT_FALSE(machine.nvlinks_known);
  EXPECT_THAT(add_nvidia_smi(machine, "command not found").error, HasSubstr("no matrix"));
}

TEST(NvidiaSmi, ShowsWhereSysfsTellsOtherwise) {
  Machine machine = read_machine(roots_of("pcie4"));
  const SmiText text =
      add_nvidia_smi(machine,
                     "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\nGPU0\tX\tPIX\tNODE\tNODE\tPIX\tNODE\n"
                     "GPU1\tPIX\tX\tNODE\tNODE\tPIX\tNODE\nGPU2\tNODE\tNODE\tX\tPIX\tNODE\tPIX\n"
                     "GPU3\tNODE\tNODE\tPIX\tX\tNODE\tPXB\n");
  EXPECT_THAT(text.differences, ::testing::ElementsAre("GPU2-NIC1: nvidia-smi PIX, sysfs PXB"));
}

TEST(Checks, NameTheGpuThatHasLostNvlinks) {
  Machine machine = machine_of("rail8");
  machine.gpus[3].nvlinks_active = 16;
  const Findings findings = check_peers(machine, Paths(machine));
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].subject, "GPU3");
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_THAT(findings[0].reason, HasSubstr("16 active NVLinks where other GPUs have 18"));
}

}  // namespace
}  // namespace ncclscope::topology
