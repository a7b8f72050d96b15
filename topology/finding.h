// SPDX-License-Identifier: Apache-2.0
//
// What a check has found: one sentence on one thing, what it rests on, and what helps.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ncclscope::topology {

/// From best to worst. What could not be looked at is kUnknown, never kOk.
enum class Level : unsigned char { kOk, kUnknown, kWarning, kProblem };

[[nodiscard]] constexpr std::string_view level_name(Level level) noexcept {
  constexpr std::string_view kNames[] = {"ok", "unknown", "warning", "problem"};
  return kNames[static_cast<unsigned char>(level)];
}

struct Finding {
  std::string_view check;  // a constant such as "pcie-link"
  Level level = Level::kOk;
  std::string subject;   // what it is about: "GPU3", "mlx5_0", "node"
  std::string reason;    // one sentence
  std::string evidence;  // where to see it: file and value
  std::string fix;       // empty where nothing is to be done
};
using Findings = std::vector<Finding>;

inline void append(Findings& to, Findings more) {
  for (Finding& finding : more) to.push_back(std::move(finding));
}

}  // namespace ncclscope::topology
