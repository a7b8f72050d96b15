// SPDX-License-Identifier: Apache-2.0
//
// Whether what was measured is good enough: results right, and of each collective the largest size
// as fast as the thresholds want.
//   Thread: pure.   Units: GB/s (10^9 bytes) on the bus.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/probe/conductor.h"
#include "cli/probe/exit_status.h"
#include "topology/limits.h"

namespace ncclscope::cli::probe {

struct Thresholds {
  /// GB/s; without a collective for all that have none of their own.
  std::vector<std::pair<std::optional<model::Function>, double>> min_bus;
  double min_fraction = 0;           // of what the paths allow; 0 = none
  double min_baseline_fraction = 0;  // of the fleet's baseline; 0 = none

  [[nodiscard]] double min_bus_of(model::Function collective) const;
};
/// "300" or "AllReduce=300"; empty if it is anything else.
[[nodiscard]] std::optional<std::pair<std::optional<model::Function>, double>> parse_min_bus(
    const std::string& text);

/// The largest size of one collective.
struct Comparison {
  Row row;
  double bus = 0;
  topology::Limit allowed, baseline;
};

struct Judgement {
  Status status = kOk;
  std::vector<Comparison> comparisons;
  std::vector<std::string> reasons;  // one line each; empty if all is well
};

struct References {
  std::function<topology::Limit(model::Function)> allowed;
  std::function<topology::Limit(model::Function, std::uint64_t bytes)> baseline;
};

/// @param measured  complete: of all `ranks`
/// A wanted fraction of what is known of no collective cannot be judged: kCouldNotRun.
[[nodiscard]] Judgement judge(const std::vector<Measured>& measured, std::uint32_t ranks,
                              const Thresholds& thresholds, const References& references);

}  // namespace ncclscope::cli::probe
