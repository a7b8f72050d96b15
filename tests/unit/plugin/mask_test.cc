// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "plugin/process.h"

namespace ncclscope::plugin {
namespace {

TEST(DefaultMask, LeavesKernelReportsOffWhereTheyCanFailAJob) {
  EXPECT_EQ(default_mask(3, 22602).mask & nccl::kKernelCh, 0u);
  EXPECT_EQ(default_mask(4, 22707).mask & nccl::kKernelCh, 0u);
  EXPECT_EQ(default_mask(4, 0).mask & nccl::kKernelCh, 0u);
}

TEST(DefaultMask, AsksForGpuTimesFrom228On) {
  EXPECT_EQ(default_mask(5, 22809).mask,
            nccl::kColl | nccl::kP2p | nccl::kKernelCh | nccl::kCollApi | nccl::kP2pApi);
  EXPECT_EQ(default_mask(5, 22809).kernel_slice, 1u);
  EXPECT_NE(default_mask(6, 23007).mask & nccl::kCeColl, 0u);
}

TEST(DefaultMask, SlicesKernelReportsWhereTheyCostMost) {
  EXPECT_GT(default_mask(7, 23102).kernel_slice, 1u);
  EXPECT_EQ(default_mask(7, 23103).kernel_slice, 1u);
  EXPECT_EQ(default_mask(7, 23200).kernel_slice, 1u);
}

TEST(DefaultMask, AsksOldInterfacesOnlyForWhatTheyHave) {
  EXPECT_EQ(default_mask(1, 22304).mask, nccl::kColl | nccl::kP2p);
  EXPECT_EQ(default_mask(2, 22501).mask, nccl::kColl | nccl::kP2p);
}

constexpr std::uint32_t kV5Mask = 0x646;  // Coll, P2p, KernelCh, CollApi, P2pApi

TEST(Ladder, HasOnlyStepsThatChangeSomething) {
  const auto steps = [](std::uint32_t mask, std::uint32_t slice) {
    const Ladder ladder = ladder_for(mask, slice);
    return std::vector<Lowering>(ladder.steps.begin(), ladder.steps.begin() + ladder.highest + 1);
  };
  using L = Lowering;
  EXPECT_EQ(steps(kV5Mask, 1), (std::vector{L::kNothing, L::kNetwork, L::kKernelSlices,
                                            L::kFewerSlices, L::kCountersOnly}));
  EXPECT_EQ(steps(kV5Mask, 64), (std::vector{L::kNothing, L::kNetwork, L::kCountersOnly}));
  EXPECT_EQ(steps(0x6, 1), (std::vector{L::kNothing, L::kNetwork}));
}

TEST(Recording, FullAndLowAreWhatTheyPromise) {
  using wire::DetailLevel;
  const Recording full =
      choose_recording({DetailLevel::kFull, false}, Lowering::kNothing, kV5Mask, 64);
  EXPECT_TRUE(full.network_always);
  EXPECT_TRUE(full.channel_detail);
  EXPECT_EQ(full.kernel_slice, 1u);
  const Recording low = choose_recording({DetailLevel::kLow, true}, Lowering::kNothing, kV5Mask, 1);
  EXPECT_TRUE(low.network_off);
  EXPECT_FALSE(low.network_always);
  EXPECT_EQ(low.kernel_slice, 16u) << "counters and sampled times";
  EXPECT_FALSE(low.calls_only);
}

TEST(Recording, TheGovernorHasTheLastWord) {
  using wire::DetailLevel;
  const DetailWish full{DetailLevel::kFull, true};
  const Recording network = choose_recording(full, Lowering::kNetwork, kV5Mask, 1);
  EXPECT_EQ(network.detail, DetailLevel::kNormal);
  EXPECT_FALSE(network.network_always);
  EXPECT_FALSE(network.channel_detail);
  EXPECT_EQ(network.kernel_slice, 1u);
  const Recording slices = choose_recording(full, Lowering::kKernelSlices, kV5Mask, 1);
  EXPECT_EQ(slices.detail, DetailLevel::kLow);
  EXPECT_EQ(slices.kernel_slice, 16u);
  EXPECT_EQ(choose_recording(full, Lowering::kFewerSlices, kV5Mask, 1).kernel_slice, 64u);
  const Recording counters = choose_recording(full, Lowering::kCountersOnly, kV5Mask, 1);
  EXPECT_EQ(counters.kernel_slice, 0u);
  EXPECT_TRUE(counters.calls_only);
  EXPECT_FALSE(choose_recording(full, Lowering::kCountersOnly, 0x46, 1).calls_only)
      << "no API events: the tasks are what is counted";
}

TEST(Mask, FollowsWhatIsRecorded) {
  static Process p;
  int nccl = 0;
  p.nccl_mask.store(&nccl);
  p.base_mask.store(kV5Mask);
  apply_recording(p, Recording{});
  EXPECT_EQ(static_cast<unsigned>(nccl), kV5Mask);
  Recording r;
  r.network_always = true;
  apply_recording(p, r);
  EXPECT_EQ(static_cast<unsigned>(nccl), kV5Mask | nccl::kProxyStep);
  r = {};
  r.kernel_slice = 16;
  apply_recording(p, r);
  EXPECT_EQ(static_cast<unsigned>(nccl), kV5Mask & ~unsigned{nccl::kKernelCh});
  p.kernel_blocks.store(1);
  apply_mask(p);
  EXPECT_EQ(static_cast<unsigned>(nccl), kV5Mask) << "a communicator is in a sampled block";
  r = choose_recording({}, Lowering::kCountersOnly, kV5Mask, 1);
  apply_recording(p, r);
  EXPECT_EQ(static_cast<unsigned>(nccl), nccl::kCollApi | nccl::kP2pApi | nccl::kP2p);
  EXPECT_EQ(p.mask.load(), static_cast<unsigned>(nccl));
}

TEST(Mask, OfTheUserLosesEventsToTheGovernorToo) {
  static Process p;
  p.base_mask.store(0xFFFF);
  apply_recording(p, choose_recording({}, Lowering::kNetwork, 0xFFFF, 1));
  EXPECT_EQ(p.mask.load() & (nccl::kProxyOp | nccl::kProxyStep | nccl::kNetPlugin), 0u);
  apply_recording(p, choose_recording({}, Lowering::kCountersOnly, 0xFFFF, 1));
  EXPECT_EQ(p.mask.load() & (nccl::kColl | nccl::kKernelCh | nccl::kKernelPhase | nccl::kCeColl),
            0u);
  EXPECT_NE(p.mask.load() & nccl::kCollApi, 0u);
}

TEST(Blocks, SampleTheSameOperationsOnEveryRank) {
  EXPECT_TRUE(in_block(0, 64));
  EXPECT_TRUE(in_block(kBlockOperations - 1, 64));
  EXPECT_FALSE(in_block(kBlockOperations, 64));
  unsigned regular = 0;  // at the same place of their 64 as the first
  for (std::uint64_t group = 0; group < 64; ++group)
    regular += in_block(group * 64 * kBlockOperations, 64) ? 1u : 0u;
  EXPECT_LE(regular, 8u) << "a step of 1024 operations would always show the same ones";
  EXPECT_FALSE(in_block(0, 0));
  std::uint64_t sampled = 0;
  for (std::uint64_t i = 0; i < 64 * kBlockOperations * 10; ++i)
    sampled += in_block(i, 64) ? 1u : 0u;
  EXPECT_EQ(sampled, kBlockOperations * 10);
  sampled = 0;
  for (std::uint64_t i = 0; i < 64 * kBlockOperations * 10; ++i)
    sampled += in_probe_block(i, 64) ? 1u : 0u;
  EXPECT_EQ(sampled, kBlockOperations * 10);
  EXPECT_FALSE(in_probe_block(0, 64));
  EXPECT_FALSE(in_probe_block(0, 0));
}

}  // namespace
}  // namespace ncclscope::plugin
