// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/index_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ncclscope::agent {
namespace {

TEST(IndexWindow, MissesNothingWhenAllCome) {
  IndexWindow window;
  for (std::uint32_t i = 0; i < 10'000; ++i) window.add(i);
  window.settle(10'000);
  EXPECT_EQ(window.missing(), 0u);
}

TEST(IndexWindow, CountsAnIndexThatItHasLeftBehind) {
  IndexWindow window;
  window.add(0);
  for (std::uint32_t i = 2; i <= IndexWindow::kSpan; ++i) window.add(i);
  EXPECT_EQ(window.missing(), 0u);
  window.add(IndexWindow::kSpan + 1);  // now 1 is too far back to be in flight
  EXPECT_EQ(window.missing(), 1u);
  window.settle(IndexWindow::kSpan + 2);
  EXPECT_EQ(window.missing(), 1u);
}

TEST(IndexWindow, CountsAtOnceWhatIsKnownToBeOver) {
  IndexWindow window;
  window.add(0);
  window.add(3);
  window.settle(4);
  EXPECT_EQ(window.missing(), 2u);
  window.settle(6);
  EXPECT_EQ(window.missing(), 4u);
  window.settle(6);
  EXPECT_EQ(window.missing(), 4u);
}

TEST(IndexWindow, CountsAGapLongerThanItself) {
  IndexWindow window;
  window.add(10);
  window.add(1'000'000);
  window.settle(1'000'001);
  EXPECT_EQ(window.missing(), 1'000'001u - 2);
}

TEST(IndexWindow, CountsAllWhenNothingCame) {
  IndexWindow window;
  window.settle(5'000);
  EXPECT_EQ(window.missing(), 5'000u);
}

TEST(IndexWindow, BeginsWhereAnotherAgentStopped) {
  IndexWindow window;
  window.begin_at_next();
  window.settle(77);  // before the first record nothing is known of its range
  window.add(1'000);
  window.add(999);  // in flight at the change: the other agent may have had its neighbours
  window.add(1'002);
  window.settle(1'003);
  EXPECT_EQ(window.missing(), 1u);
}

TEST(IndexWindow, GoesOnPastThirtyTwoBits) {
  IndexWindow window;
  window.begin_at_next();
  for (std::uint64_t i = 0xFFFF'FF00; i < 0x1'0000'0200; ++i)
    if (i != 0x1'0000'0001) window.add(static_cast<std::uint32_t>(i));
  window.settle(0x1'0000'0200);
  EXPECT_EQ(window.missing(), 1u);
}

// Any order within what may be in flight, any losses: what is missing is what did not come.
TEST(IndexWindow, AgreesWithCountingInAnyOrder) {
  std::mt19937 engine(7);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t total = random() % 20'000;
    std::vector<std::uint32_t> indexes;
    std::uint64_t lost = 0;
    for (std::uint32_t i = 0; i < total; ++i) {
      if (random() % 50 == 0) {
        const std::uint32_t run = std::min<std::uint32_t>(total - i, 1 + random() % 3'000);
        lost += run;
        i += run - 1;
      } else {
        indexes.push_back(i);
      }
    }
    for (std::size_t i = 0; i + 1 < indexes.size(); ++i) {
      const std::size_t j = std::min(indexes.size() - 1, i + random() % 400);
      if (indexes[j] - indexes[i] < 500 && indexes[i] < indexes[j])
        std::swap(indexes[i], indexes[j]);
    }
    IndexWindow window;
    std::uint32_t highest = 0;
    std::uint64_t late = 0;
    for (const std::uint32_t i : indexes) {
      if (highest >= IndexWindow::kSpan && i + IndexWindow::kSpan <= highest) ++late;
      window.add(i);
      highest = std::max(highest, i);
    }
    window.settle(total);
    EXPECT_EQ(window.missing(), lost + late) << "round " << round;
  }
}

TEST(IndexWindow, SurvivesIndexesThatMeanNothing) {
  std::mt19937 engine(8);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  IndexWindow window;
  for (int i = 0; i < 100'000; ++i) {
    if (random() % 2 == 0) {
      window.add(random());
    } else {
      window.settle((std::uint64_t{random()} << 32) | random());
    }
  }
  SUCCEED();
}

}  // namespace
}  // namespace ncclscope::agent
