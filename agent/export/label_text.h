// SPDX-License-Identifier: Apache-2.0
//
// Last line of defence for label values. They were sanitised where they came in; but one invalid
// byte would make Prometheus refuse a whole scrape, so nothing else than valid UTF-8 leaves here.
//   Thread: any, no state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ncclscope::agent {

/// Appends `value` as it stands between the quotes of a label: backslash, quote and newline
/// escaped, control characters and bytes that are not valid UTF-8 replaced by U+FFFD. Same rules in
/// text 0.0.4 and OpenMetrics.
void append_escaped(std::string& out, std::string_view value);

/// The same replacements, nothing escaped.
[[nodiscard]] std::string valid_utf8(std::string_view value);

/// True when append_escaped() would append `value` as it is: printable ASCII without quote and
/// backslash.
[[nodiscard]] bool is_plain(std::string_view value) noexcept;

/// Length in bytes of the valid UTF-8 sequence at the start of `text` (not empty), 0 if there is
/// none.
[[nodiscard]] std::size_t utf8_sequence(std::string_view text) noexcept;

}  // namespace ncclscope::agent
