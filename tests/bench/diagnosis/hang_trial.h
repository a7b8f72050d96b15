// SPDX-License-Identifier: Apache-2.0
//
// One job that stops for good: what the verdict says of how far everybody is, a while after.
#pragma once

#include <string>

#include "tests/bench/diagnosis/scenario.h"

namespace ncclscope::bench {

struct HangOutcome {
  bool class_right = false;  // of all that is said
  bool ranks_right =
      false;         // exactly the culprit; of a stuck network: its communicator, and nobody
  std::string said;  // class and GPUs of each finding
};

[[nodiscard]] HangOutcome play_stop(const Scenario& scenario);

}  // namespace ncclscope::bench
