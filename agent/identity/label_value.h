// SPDX-License-Identifier: Apache-2.0
//
// Makes text from processes safe to show: label values, log lines, JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ncclscope::agent {

inline constexpr std::size_t kMaxLabelBytes = 128;

/// `raw` as valid UTF-8 at most `max_bytes` long (cut between characters). Each control
/// character, each character that cannot be seen or changes the direction of others (two names that
/// look alike would not be equal), and each byte that is not UTF-8 becomes '?'.
[[nodiscard]] std::string label_value(std::string_view raw, std::size_t max_bytes = kMaxLabelBytes);

}  // namespace ncclscope::agent
