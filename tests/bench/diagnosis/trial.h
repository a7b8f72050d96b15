// SPDX-License-Identifier: Apache-2.0
//
// One job played and judged: what the verdict says, and what two simpler ways to tell would have
// said of the same job.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/diagnosis/scenario.h"
#include "verdict/judge.h"

namespace ncclscope::bench {

/// Windows follow the alerts' shape: three running, each evaluated three times. 45 steps from the
/// first late one to a verdict at best.
inline constexpr int kWindowSteps = 15;
inline constexpr int kStrideSteps = 5;
/// In which the right verdict counts.
inline constexpr int kVerdictSteps = 60;

struct Outcome {
  std::vector<int> accused;  // global ranks, of the first verdict
  int steps = -1;            // from the beginning of the fault to it; -1 = there was none
  bool falsely = false;      // somebody innocent was accused, in any verdict
  /// The rank whose collectives take longest on average, and the one that is furthest behind in
  /// calls most often.
  int longest_mean = -1, furthest_behind = -1;
  std::uint64_t records = 0;

  /// All accused are late, and in time. Of a healthy job: nobody is accused.
  [[nodiscard]] bool is_right(const Scenario& scenario) const;
};

/// A GPU, a node, a group or a replica is accused of being late.
[[nodiscard]] bool is_late_kind(verdict::Kind kind);

[[nodiscard]] Outcome play(const Scenario& scenario);

}  // namespace ncclscope::bench
