// SPDX-License-Identifier: Apache-2.0
//
// How many findings of each level a check of `ncclscope doctor` has on this node. Plain data.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace ncclscope::agent {

inline constexpr std::array<std::string_view, 4> kFindingLevels{"ok", "unknown", "warning",
                                                                "problem"};

struct NodeFindings {
  std::string_view check;                                       // a constant
  std::array<std::uint64_t, kFindingLevels.size()> by_level{};  // as kFindingLevels

  [[nodiscard]] bool any() const {
    return std::any_of(by_level.begin(), by_level.end(), [](std::uint64_t n) { return n > 0; });
  }
};

}  // namespace ncclscope::agent
