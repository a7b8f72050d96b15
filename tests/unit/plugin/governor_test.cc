// SPDX-License-Identifier: Apache-2.0
//
// The governor on an injected clock: what a load costs at each step is a model, time only advances
// when the test says so.
#include "plugin/governor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "tests/unit/plugin/governor_rig.h"

namespace ncclscope::plugin {
namespace {

TEST(Governor, GivesNothingUpWithinTheBudget) {
  GovernorRig rig;
  rig.load_at_budget_share(0.9);
  rig.run(600);
  EXPECT_EQ(rig.governor.step(), 0);
  EXPECT_EQ(rig.governor.changes(), 0u);
  EXPECT_NEAR(rig.governor.recent_ratio(), 0.9 * GovernorRig::kBudget, 0.1 * GovernorRig::kBudget);
}

TEST(Governor, IsBackUnderTheBudgetWithinTwoSecondsOfATenfoldBurst) {
  double worst = 0;
  for (int percent = 20; percent <= 100; percent += 5) {
    GovernorRig rig;
    rig.load_at_budget_share(percent / 100.0);
    rig.run(60);
    ASSERT_EQ(rig.governor.step(), 0) << percent;
    worst = std::max(worst, rig.seconds_to_recover(10.0));
  }
  EXPECT_LE(worst, 2.0);
  std::printf("worst time over budget after a tenfold burst: %.1f s\n", worst);
  ::testing::Test::RecordProperty("worst_seconds", std::to_string(worst));
}

TEST(Governor, RestoresStepByStepWhenItIsCalm) {
  GovernorRig rig;
  rig.load_at_budget_share(0.5);
  rig.run(5);
  rig.multiply(10);
  rig.run(5);
  const int lowered = rig.governor.step();
  ASSERT_GE(lowered, 3);
  rig.multiply(0.01);
  int before = lowered;
  for (int second = 0; second < 60; ++second) {
    rig.run(1);
    EXPECT_GE(rig.governor.step(), before - 1) << "one step at a time";
    before = rig.governor.step();
  }
  EXPECT_EQ(rig.governor.step(), 0);
  EXPECT_EQ(rig.governor.changes(), 2u * static_cast<unsigned>(lowered));
}

TEST(Governor, SaysWhyAndSinceWhen) {
  GovernorRig rig;
  rig.load_at_budget_share(0.5);
  rig.run(5);
  EXPECT_EQ(rig.governor.changed_at_ns(), 0u);
  rig.multiply(10);
  const std::uint64_t burst = rig.now_ns;
  rig.run(10);
  EXPECT_GT(rig.governor.changed_at_ns(), burst);
  EXPECT_LE(rig.governor.changed_at_ns(), burst + 2'000'000'000u);
  EXPECT_GT(rig.governor.trigger_ratio(), GovernorRig::kBudget);
}

// An hour of one load that needs a step in between: each failed attempt waits longer.
TEST(Governor, DoesNotFlapUnderAConstantLoad) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    GovernorRig rig(seed);
    std::uniform_real_distribution<double> share(0.05, 20.0);
    rig.load_at_budget_share(share(rig.random));
    rig.noise = 0.3;
    rig.run(3600);
    EXPECT_LE(rig.governor.changes(), 4u + 2u * 4u * 6u) << "seed " << seed;
  }
}

TEST(Governor, ChangesBoundedlyOftenUnderRandomLoads) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    GovernorRig rig(seed);
    std::uniform_real_distribution<double> share(0.0, 12.0);
    std::uniform_real_distribution<double> seconds(1.0, 60.0);
    rig.noise = 0.5;
    unsigned loads = 0;
    double total = 0;
    while (total < 1800) {
      rig.load_at_budget_share(share(rig.random));
      const double t = seconds(rig.random);
      rig.run(t);
      total += t;
      ++loads;
    }
    // Downwards at most all steps for each load; upwards never more than down, and at most one in
    // each calm time.
    const auto most =
        std::min<std::uint64_t>(8u * loads, 4u + 2u * static_cast<std::uint64_t>(total / 10.0));
    EXPECT_LE(rig.governor.changes(), most) << "seed " << seed;
    EXPECT_LE(rig.governor.step(), 4);
  }
}

TEST(Governor, StaysAtTheLastStepWhenThatIsNotEnough) {
  GovernorRig rig;
  rig.load_at_budget_share(500);
  rig.run(60);
  EXPECT_EQ(rig.governor.step(), 4);
  EXPECT_EQ(rig.governor.changes(), 4u);
}

TEST(Governor, UsesOnlyTheStepsThereAre) {
  Governor::Options options;
  options.highest = 1;
  Governor governor(options);
  for (std::uint64_t tick = 1; tick < 600; ++tick)
    governor.observe(tick * 100'000'000, tick * 50'000'000);
  EXPECT_EQ(governor.step(), 1);
}

TEST(Governor, TakesAClockThatGoesBackForANewBeginning) {
  Governor governor;
  governor.observe(1'000'000'000, 5);
  EXPECT_FALSE(governor.observe(500'000'000, 6));
  EXPECT_FALSE(governor.observe(600'000'000, 3)) << "own time that went back";
  EXPECT_EQ(governor.step(), 0);
}

// A process that was stopped for a while has had its wall time, too.
TEST(Governor, AStopOfTheProcessIsNoExcess) {
  GovernorRig rig;
  rig.load_at_budget_share(0.5);
  rig.run(5);
  rig.now_ns += 30'000'000'000;
  rig.run(5);
  EXPECT_EQ(rig.governor.changes(), 0u);
}

}  // namespace
}  // namespace ncclscope::plugin
