// SPDX-License-Identifier: Apache-2.0
//
// NCCL's cost from blocks with and without GPU times, on made-up calls of which the cost is known.
#include "plugin/slice_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "plugin/process.h"

namespace ncclscope::plugin {
namespace {

struct Job {
  double cost = 0;      // share by which a block with GPU times is longer
  double noise = 0.05;  // of a block's time
  unsigned step = 37;   // operations of a training step; the first waits for the computation
  std::uint32_t one_in = 64;
  bool minority_on = false;

  SliceComparison run(std::uint32_t blocks, unsigned seed) const {
    SliceComparison comparison;
    std::mt19937 random(seed);
    std::normal_distribution<double> factor(1.0, noise);
    double now = 1e9;
    std::uint64_t operation = 0;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      const std::uint64_t first = std::uint64_t{b} * kBlockOperations;
      const bool on = minority_on ? in_block(first, one_in) : !in_probe_block(first, one_in);
      comparison.add(1, b, static_cast<std::uint64_t>(now), on);
      for (std::uint64_t i = 0; i < kBlockOperations; ++i, ++operation) {
        const double ns = operation % step == 0 ? 2e6 : 4e5;
        now += ns * std::max(0.2, factor(random)) * (on ? 1 + cost : 1);
      }
    }
    return comparison;
  }
};

TEST(SliceComparison, FindsTheCostWithinItsOwnError) {
  for (const double cost : {0.0, 0.01, 0.05, 0.13}) {
    for (const unsigned step : {7u, 16u, 32u, 37u, 64u, 100u, 1024u}) {
      Job job;
      job.cost = cost;
      job.step = step;
      const SliceComparison c = job.run(64 * 400, step);
      ASSERT_GE(c.count(), 300u) << step;
      EXPECT_NEAR(c.ratio(), cost, 4 * c.standard_error() + 0.001) << "step of " << step;
      EXPECT_LT(c.standard_error(), 0.04);
    }
  }
}

TEST(SliceComparison, FindsItFromTheFewBlocksWithGpuTimesToo) {
  Job job;
  job.cost = 0.1;
  job.one_in = 16;
  job.minority_on = true;
  const SliceComparison c = job.run(16 * 400, 3);
  EXPECT_NEAR(c.ratio(), 0.1, 4 * c.standard_error());
}

TEST(SliceComparison, ItsErrorTellsHowFarItIsOff) {
  unsigned inside = 0;
  constexpr unsigned kRuns = 200;
  for (unsigned seed = 0; seed < kRuns; ++seed) {
    Job job;
    job.cost = 0.04;
    const SliceComparison c = job.run(64 * 60, seed);
    if (std::abs(c.ratio() - 0.04) <= 2 * c.standard_error()) ++inside;
  }
  EXPECT_GE(inside, kRuns * 9 / 10);
}

TEST(SliceComparison, PausesTellNothing) {
  SliceComparison c;
  std::uint64_t now = 1'000;
  for (std::uint32_t b = 0; b < 30; ++b) {
    c.add(1, b, now, b % 10 != 5);
    now += b % 10 == 5 ? 60'000'000'000u : 1'000'000u;
  }
  EXPECT_EQ(c.count(), 0u);
  EXPECT_EQ(c.ratio(), 0.0);
}

TEST(SliceComparison, RecordsMayComeInAnotherOrderOrTwiceOrNotAtAll) {
  const auto time = [](std::uint32_t b) { return 1'000 + b * 1'000'000ull; };
  SliceComparison c;
  for (const std::uint32_t b : {1u, 2u, 0u, 3u, 3u, 2u}) c.add(1, b, time(b), b != 1);
  EXPECT_EQ(c.count(), 1u);
  SliceComparison gap;
  for (const std::uint32_t b : {0u, 1u, 3u, 4u}) gap.add(1, b, time(b), b != 1);
  EXPECT_EQ(gap.count(), 0u) << "the end of a block is not known";
  SliceComparison two;
  two.add(1, 0, time(0), true);
  two.add(1, 1, time(1), false);
  two.add(65, 2, time(2), true);
  two.add(1, 3, time(3), true);
  EXPECT_EQ(two.count(), 0u) << "blocks of another communicator";
}

TEST(SliceComparison, EqualBlocksCostNothing) {
  SliceComparison c;
  for (std::uint32_t b = 0; b < 100; ++b) c.add(1, b, 1'000 + b * 1'000'000ull, b % 5 != 0);
  EXPECT_GT(c.count(), 10u);
  EXPECT_NEAR(c.ratio(), 0, 1e-12);
  EXPECT_NEAR(c.standard_error(), 0, 1e-12);
}

}  // namespace
}  // namespace ncclscope::plugin
