// SPDX-License-Identifier: Apache-2.0
//
// How many findings of each level a check of `ncclscope doctor` has on this node. Plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ncclscope::agent {

inline constexpr std::array<std::string_view, 4> kFindingLevels{"ok", "unknown", "warning",
                                                                "problem"};

struct NodeFindings {
  std::string_view check;                                       // a constant
  std::array<std::uint64_t, kFindingLevels.size()> by_level{};  // as kFindingLevels
};

}  // namespace ncclscope::agent
