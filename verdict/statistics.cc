// SPDX-License-Identifier: Apache-2.0
#include "verdict/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace ncclscope::verdict {

double quantile(double q, std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = q * static_cast<double>(values.size() - 1);
  const auto lower = static_cast<std::size_t>(place);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(lower);
  std::nth_element(values.begin(), at, values.end());
  const double below = *at;
  if (lower + 1 == values.size()) return below;
  const double above = *std::min_element(at + 1, values.end());
  const double share = place - static_cast<double>(lower);
  return below * (1 - share) + above * share;
}

double median(std::vector<double> values) {
  return quantile(0.5, std::move(values));
}

}  // namespace ncclscope::verdict
