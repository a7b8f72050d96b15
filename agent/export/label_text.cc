// SPDX-License-Identifier: Apache-2.0
//
// Escaping and UTF-8 validation. The common case, plain ASCII, is found eight bytes at a time.
#include "agent/export/label_text.h"

#include <cstdint>
#include <cstring>

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101u;
constexpr std::uint64_t kHighs = 0x8080808080808080u;

/// Non-zero if a byte of `word` is 0x7F or above, below 0x20, '"' or '\\'.
constexpr std::uint64_t special_bytes(std::uint64_t word) noexcept {
  const auto zero_byte = [](std::uint64_t w) { return (w - kOnes) & ~w & kHighs; };
  return (word & kHighs) | zero_byte(word & (kOnes * 0xE0)) | zero_byte(word ^ (kOnes * '"')) |
         zero_byte(word ^ (kOnes * '\\')) | zero_byte(word ^ (kOnes * 0x7F));
}

/// Control characters: NUL ends the input for some parsers. A newline has an escape, a tab is
/// harmless.
constexpr bool is_control(char c) noexcept {
  return (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7F';
}

template <typename Plain, typename Replaced>
void scan(std::string_view value, Plain&& plain, Replaced&& replaced) {
  while (!value.empty()) {
    const std::size_t length = utf8_sequence(value);
    if (length == 0 || is_control(value[0])) {
      replaced();
      value.remove_prefix(1);
    } else {
      plain(value.substr(0, length));
      value.remove_prefix(length);
    }
  }
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::size_t utf8_sequence(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // overlong
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // overlong
    if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return length;
}

bool is_plain(std::string_view value) noexcept {
  const char* p = value.data();
  std::size_t left = value.size();
  std::uint64_t found = 0;
  for (; left >= 8; p += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    found |= special_bytes(word);
  }
  if (left > 0) {
    std::uint64_t word = kOnes * ' ';
    std::memcpy(&word, p, left);
    found |= special_bytes(word);
  }
  return found == 0;
}

void append_escaped(std::string& out, std::string_view value) {
  if (is_plain(value)) {
    out += value;
    return;
  }
  scan(
      value,
      [&](std::string_view sequence) {
        switch (sequence[0]) {
          case '\\':
            out += "\\\\";
            break;
          case '"':
            out += "\\\"";
            break;
          case '\n':
            out += "\\n";
            break;
          default:
            out += sequence;
        }
      },
      [&] { out += kReplacement; });
}

std::string valid_utf8(std::string_view value) {
  if (is_plain(value)) return std::string(value);
  std::string out;
  out.reserve(value.size());
  scan(
      value, [&](std::string_view sequence) { out += sequence; }, [&] { out += kReplacement; });
  return out;
}

}  // namespace ncclscope::agent
