// SPDX-License-Identifier: Apache-2.0
//
// Quantiles as Prometheus computes them. Pure.
#pragma once

#include <vector>

namespace ncclscope::verdict {

/// Linear interpolation between ranks, as PromQL's quantile(). NaN without values.
[[nodiscard]] double quantile(double q, std::vector<double> values);
[[nodiscard]] double median(std::vector<double> values);

}  // namespace ncclscope::verdict
