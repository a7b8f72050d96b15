// SPDX-License-Identifier: Apache-2.0
//
// Shows that the comparison can fail: changes one value of every compared field of a stored answer
// in turn, and leaves out one line of the recording. Each must be noticed, the changed field by
// name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/verify_trace/compare.h"
#include "cli/verify_trace/limits.h"

namespace ncclscope::cli {

struct SelftestResult {
  std::vector<std::string> noticed;  // fields
  std::vector<std::string> missed;   // fields whose change the comparison did not name
};

/// @param clean  the comparison of the unchanged answer; must hold no differences
[[nodiscard]] SelftestResult change_every_field(const ReplayedFolder& replayed,
                                                const nlohmann::json& expected,
                                                const Comparison& clean, const Limits& limits);

/// Changes one value so that it is certainly another one.
void change_value(nlohmann::json& answer, const ComparedValue& value);

}  // namespace ncclscope::cli
