// SPDX-License-Identifier: Apache-2.0
//
// What a communicator goes over, as NCCL Inspector's exporter classes it. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace ncclscope::cli::report {

/// "single-rank", "nvlink-only", "hca-only", "mixed"; empty if ranks (> 0) or nodes (> 0) are not
/// known and decide.
[[nodiscard]] constexpr std::string_view communication_class(std::int64_t ranks,
                                                             std::int64_t nodes) {
  if (ranks == 1) return "single-rank";
  if (nodes == 1) return "nvlink-only";
  if (ranks <= 0 || nodes <= 0) return {};
  return ranks == nodes ? "hca-only" : "mixed";
}

}  // namespace ncclscope::cli::report
