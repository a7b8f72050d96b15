// SPDX-License-Identifier: Apache-2.0
//
// The step finder on small sequences with a known answer.
#include "verdict/step_period.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace ncclscope::agent {
namespace {

using model::DataType;
using model::Function;
using verdict::Step;
using verdict::step_signature;
using verdict::StepOperation;
using verdict::StepPeriod;

StepOperation operation(Function function, std::uint64_t bytes, std::uint64_t call_ns,
                        std::uint16_t communicator = 0) {
  StepOperation o;
  o.function = function;
  o.bytes = bytes;
  o.call_ns = call_ns;
  o.communicator = communicator;
  o.signature = step_signature(communicator, function, DataType::kInt8, bytes);
  return o;
}

TEST(StepPeriod, TimesStepsByTheGpuWhereItCan) {
  StepPeriod finder;
  for (std::uint64_t step = 0; step < 40; ++step) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      StepOperation o =
          operation(Function::kAllReduce, 1'000'000 * (i + 1), 1 + step * 1'000'000 + i);
      o.gpu_start_ns = 5'000'000'000 + step * 2'000'000 + i;
      finder.add(o);
    }
  }
  finder.finish();
  EXPECT_EQ(finder.period(), 3u);
  ASSERT_FALSE(finder.steps().empty());
  for (const Step& step : finder.steps()) {
    EXPECT_TRUE(step.on_gpu);
    EXPECT_EQ(step.stop_ns - step.start_ns, 2'000'000u);
  }
}

TEST(StepPeriod, KeepsStepsBackUntilTheLevelIsBeyondDoubt) {
  StepPeriod finder;
  constexpr std::uint64_t kSecond = 1'000'000'000;
  std::uint64_t told_at = 0;
  for (std::uint64_t step = 1; step < 300 && told_at == 0; ++step) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      finder.add(operation(Function::kAllReduce, 1'000'000 * (i + 1), step * kSecond + i * 1000));
    }
    if (!finder.steps().empty()) told_at = step;
  }
  EXPECT_GE(told_at, StepPeriod::kProbationSteps);
  EXPECT_GE(finder.steps().size(), StepPeriod::kProbationSteps);  // none was lost
}

TEST(StepPeriod, LeavesOutPausesButBelievesInALastingChange) {
  StepPeriod finder;
  std::uint64_t now = 1;
  const auto steps = [&](int count, std::uint64_t length_ns) {
    for (int step = 0; step < count; ++step) {
      finder.add(operation(Function::kAllReduce, 1'000'000, now));
      finder.add(operation(Function::kAllReduce, 2'000'000, now + 1));
      now += length_ns;
    }
  };
  steps(50, 1'000'000);
  now += 60'000'000;  // a checkpoint
  steps(50, 1'000'000);
  finder.finish();
  EXPECT_EQ(finder.pauses(), 1u);
  const std::uint64_t before = finder.step_count();
  steps(50, 20'000'000);
  finder.finish();
  EXPECT_GE(finder.step_count(), before + 40);
}

TEST(StepPeriod, PutsOperationsInOrderOfCall) {
  StepPeriod finder;
  // Every second operation completes late, behind several of the next step.
  std::vector<StepOperation> order;
  for (std::uint64_t step = 0; step < 100; ++step) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      order.push_back(
          operation(Function::kAllReduce, 1'000'000 * (i + 1), 1 + step * 4000 + i * 1000));
    }
  }
  for (std::size_t i = 0; i + 6 < order.size(); i += 12) std::swap(order[i], order[i + 6]);
  for (const StepOperation& o : order) finder.add(o);
  finder.finish();
  EXPECT_EQ(finder.period(), 4u);
  EXPECT_GE(finder.step_count(), 60u);
}

TEST(StepPeriod, GoesOnThoughCommunicatorsComeAndGo) {
  StepPeriod finder;
  std::uint64_t now = 1;
  // Each communicator lives for 200 steps and is followed by another.
  for (std::uint16_t id = 0; id < 400; ++id) {
    for (std::uint64_t step = 0; step < 200; ++step, now += 1'000'000) {
      for (std::uint64_t i = 0; i < 8; ++i) {
        finder.add(operation(Function::kAllReduce, 1'000'000 * (i + 1), now + i, id));
      }
    }
    finder.clear_steps();
  }
  const std::uint64_t before = finder.step_count();
  for (std::uint64_t step = 0; step < 20'000; ++step, now += 1'000'000) {
    for (std::uint64_t i = 0; i < 8; ++i) {
      finder.add(operation(Function::kAllReduce, 1'000'000 * (i + 1), now + i, 999));
    }
    finder.clear_steps();
  }
  EXPECT_EQ(finder.period(), 8u);
  EXPECT_GT(finder.step_count(), before + 10'000);
}

TEST(StepPeriod, GoesOnWhereIndexesOf32BitsBeginAnew) {
  for (const std::uint64_t before : {0xFFFF'FF00ull, 0x5'0000'0000ull - 2}) {
    StepPeriod finder(before);
    for (std::uint64_t step = 0; step < 10'000; ++step) {
      for (std::uint64_t i = 0; i < 3; ++i) {
        finder.add(
            operation(Function::kAllReduce, 1'000'000 * (i + 1), 1 + step * 1'000'000 + i * 1000));
      }
    }
    finder.finish();
    EXPECT_EQ(finder.period(), 3u);
    EXPECT_GE(finder.step_count(), 7500u);
    EXPECT_LE(finder.step_count(), 10'000u);
    for (const Step& step : finder.steps()) EXPECT_EQ(step.stop_ns - step.start_ns, 1'000'000u);
  }
}

TEST(StepPeriod, FindsNoStepsInNoise) {
  StepPeriod finder;
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    finder.add(operation(random() % 2 == 0 ? Function::kAllReduce : Function::kAllGather,
                         1 + random() % 1'000'000, 1 + i * 1000,
                         static_cast<std::uint16_t>(random() % 7)));
  }
  finder.finish();
  EXPECT_EQ(finder.step_count(), 0u);
}

}  // namespace
}  // namespace ncclscope::agent
