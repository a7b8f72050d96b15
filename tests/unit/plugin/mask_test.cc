// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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

TEST(Blocks, SampleTheSameOperationsOnEveryRank) {
  EXPECT_TRUE(in_block(0, 64));
  EXPECT_TRUE(in_block(kBlockOperations - 1, 64));
  EXPECT_FALSE(in_block(kBlockOperations, 64));
  EXPECT_TRUE(in_block(64 * kBlockOperations, 64));
  EXPECT_FALSE(in_block(0, 0));
  std::uint64_t sampled = 0;
  for (std::uint64_t i = 0; i < 64 * kBlockOperations * 10; ++i)
    sampled += in_block(i, 64) ? 1u : 0u;
  EXPECT_EQ(sampled, kBlockOperations * 10);
}

}  // namespace
}  // namespace ncclscope::plugin
