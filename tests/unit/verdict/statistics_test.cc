// SPDX-License-Identifier: Apache-2.0
#include "verdict/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ncclscope::verdict {
namespace {

TEST(Quantile, InterpolatesAsPrometheusDoes) {
  EXPECT_DOUBLE_EQ(quantile(0.5, {3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(quantile(0.5, {4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(quantile(0.9, {0, 10}), 9);
  EXPECT_DOUBLE_EQ(quantile(1, {5, 7}), 7);
  EXPECT_DOUBLE_EQ(quantile(0.5, {42}), 42);
  EXPECT_TRUE(std::isnan(quantile(0.5, {})));
}

}  // namespace
}  // namespace ncclscope::verdict
