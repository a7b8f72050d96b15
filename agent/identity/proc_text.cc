// SPDX-License-Identifier: Apache-2.0
//
// Fields by their place in a line.
#include "agent/identity/proc_text.h"

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace ncclscope::agent {
namespace {

/// Takes the next word off the front of `text`, which is blank-separated.
std::string_view next_word(std::string_view& text) {
  constexpr std::string_view kBlank = " \t\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kBlank));
  text.remove_prefix(word.size());
  return word;
}

std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<ProcessStart> parse_proc_stat(std::string_view text) {
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  text.remove_prefix(name_end + 1);
  const std::string_view state = next_word(text);  // field 3
  constexpr int kStartField = 22;
  for (int field = 4; field < kStartField; ++field) next_word(text);
  const std::optional<std::uint64_t> start = number(next_word(text));
  if (state.size() != 1 || !start) return std::nullopt;
  return ProcessStart{state.front(), *start};
}

bool maps_uid(std::string_view uid_map, std::uint32_t uid) {
  while (!uid_map.empty()) {
    std::string_view line = uid_map.substr(0, uid_map.find('\n'));
    uid_map.remove_prefix(std::min(line.size() + 1, uid_map.size()));
    const auto inside = number(next_word(line));
    next_word(line);
    const auto length = number(next_word(line));
    if (inside && length && uid >= *inside && uid - *inside < *length) return true;
  }
  return false;
}

}  // namespace ncclscope::agent
