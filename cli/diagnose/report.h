// SPDX-License-Identifier: Apache-2.0
//
// What `ncclscope diagnose` prints: the verdict first, then what it rests on. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/diagnose/observation.h"
#include "verdict/judge.h"

namespace ncclscope::cli {

struct Report {
  const Observation& now;
  const std::vector<verdict::Finding>& findings;
  /// Oldest first; as many as rates were looked at.
  std::vector<const verdict::WindowResult*> windows;
  std::size_t max_rows = 32;  // of each table
  double silent_seconds = verdict::thresholds::kSilentSeconds;
};

/// In one word.
enum class Outcome : std::uint8_t {
  kHealthy,
  kFinding,
  kPartial,  // nothing is wrong as far as can be seen; answers are missing, or no GPU can be judged
};
[[nodiscard]] Outcome outcome_of(const Report& report);
[[nodiscard]] const char* name(Outcome outcome);

[[nodiscard]] std::string report_text(const Report& report);
[[nodiscard]] nlohmann::ordered_json report_json(const Report& report);

}  // namespace ncclscope::cli
