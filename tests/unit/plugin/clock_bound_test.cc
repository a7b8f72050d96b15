// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plugin/tables.h"

namespace ncclscope::plugin {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(ClockBound, TightensToTheFastestReport) {
  ClockBound clock;
  EXPECT_FALSE(clock.known());
  clock.observe(1000 * kSecond + 900, 50 * kSecond);
  clock.observe(1001 * kSecond + 100, 51 * kSecond);
  clock.observe(1002 * kSecond + 700, 52 * kSecond);
  EXPECT_TRUE(clock.known());
  EXPECT_EQ(clock.latest_host_ns(60 * kSecond), 1010 * kSecond + 100);
}

TEST(ClockBound, NeverPlacesAStampBeforeItsTrueTime) {
  ClockBound clock;
  for (std::uint64_t i = 0; i < 100; ++i) {
    // Noticed 5 to 104 ns after the stamp; the true offset is 7 s.
    clock.observe((100 + i) * kSecond + 7 * kSecond + 5 + i, (100 + i) * kSecond);
    EXPECT_GE(clock.latest_host_ns(500 * kSecond), 507 * kSecond);
  }
}

TEST(ClockBound, FollowsAClockThatDriftsEitherWay) {
  for (const std::int64_t ppm : {-20, 20}) {
    ClockBound clock;
    std::uint64_t gpu = 0;
    constexpr std::uint64_t kTenth = kSecond / 10;
    for (std::uint64_t i = 10; i < 1000; ++i) {
      gpu = static_cast<std::uint64_t>(static_cast<std::int64_t>(i * kTenth) +
                                       static_cast<std::int64_t>(i) * ppm * 100);
      clock.observe(i * kTenth + 3'000, gpu);
    }
    const std::uint64_t placed = clock.latest_host_ns(gpu);
    // Two windows of two seconds at 20 ppm.
    EXPECT_GT(placed, 999 * kTenth - 90'000) << ppm;
    EXPECT_LT(placed, 999 * kTenth + 90'000) << ppm;
  }
}

}  // namespace
}  // namespace ncclscope::plugin
