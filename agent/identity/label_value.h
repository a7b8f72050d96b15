// SPDX-License-Identifier: Apache-2.0
//
// Makes text from processes safe to show: label values, log lines, JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ncclscope::agent {

inline constexpr std::size_t kMaxLabelBytes = 128;

/// `raw` as valid UTF-8 without control characters, at most kMaxLabelBytes long (cut between
/// characters). Each control character and each byte that is not UTF-8 becomes '?'.
[[nodiscard]] std::string label_value(std::string_view raw);

}  // namespace ncclscope::agent
