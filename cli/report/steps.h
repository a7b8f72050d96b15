// SPDX-License-Identifier: Apache-2.0
//
// Training steps of a run and how much of them is communication, found in the sequence of one
// process's operations by the agent's own step finder (verdict/step_period.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"

namespace ncclscope::cli::report {

struct RunStep {
  std::int64_t start_ns = 0, stop_ns = 0;  // since 1970
  std::int64_t number = 0;                 // from the run's first, those left out included
  double communication_seconds = 0;        // in which at least one operation of the process ran
  bool communication_known = false;

  [[nodiscard]] double seconds() const { return static_cast<double>(stop_ns - start_ns) * 1e-9; }
  [[nodiscard]] double share() const { return communication_seconds / seconds(); }
};

struct RunSteps {
  std::string process;  // "pid 1234 on node0", that was looked at
  std::vector<RunStep> steps;
  std::string why_none;   // if there are none
  bool left_out = false;  // of more than may be kept, these are the first
};

/// Steps that are kept: of a run of weeks whose steps take a second, all.
inline constexpr std::size_t kMostSteps = 1'000'000;

/// Of the process with most operations. Only operations whose start is known are of use.
[[nodiscard]] RunSteps find_steps(Connection& connection, const std::string& view,
                                  std::size_t most = kMostSteps);

/// Medians of blocks of steps, for effect_of(); each step alone where there are few.
[[nodiscard]] std::vector<double> step_seconds(Connection& connection, const std::string& view);

}  // namespace ncclscope::cli::report
