// SPDX-License-Identifier: Apache-2.0
//
// A strict UTF-8 walk: overlong forms, surrogates and values above U+10FFFF are refused byte by
// byte.
#include "agent/identity/label_value.h"

#include <cstdint>

namespace ncclscope::agent {
namespace {

/// Length of the valid character at the front of `s`, 0 if there is none. Sets `code`.
std::size_t decode_one(std::string_view s, std::uint32_t& code) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(0);
  std::size_t length = 0;
  std::uint32_t minimum = 0;
  if (first < 0x80) {
    code = first;
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    minimum = 0x80;
    code = first & 0x1Fu;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    minimum = 0x800;
    code = first & 0x0Fu;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    minimum = 0x10000;
    code = first & 0x07u;
  } else {
    return 0;
  }
  if (s.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  if (code < minimum || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return 0;
  return length;
}

struct Range {
  std::uint32_t first, last;
};
/// Characters that do not show as themselves. Sorted.
constexpr Range kUnseen[] = {
    {0x00, 0x1F},       {0x7F, 0x9F},      // controls
    {0xAD, 0xAD},                          // soft hyphen
    {0x34F, 0x34F},     {0x61C, 0x61C},    // grapheme joiner; Arabic letter mark
    {0x115F, 0x1160},   {0x17B4, 0x17B5},  // fillers, inherent vowels
    {0x180B, 0x180F},                      // Mongolian selectors and separator
    {0x200B, 0x200F},                      // zero width, direction marks
    {0x2028, 0x202E},                      // separators, embeddings and overrides
    {0x2060, 0x206F},                      // joiners, isolates, deprecated ones
    {0x3164, 0x3164},   {0xFE00, 0xFE0F},  // filler, variation selectors
    {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},  // byte order mark, filler
    {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},  // specials, no characters (U+FFFD is one that shows)
    {0xE0000, 0xE0FFF},                    // tags, more selectors
};

constexpr bool is_unseen(std::uint32_t code) {
  for (const Range& range : kUnseen) {
    if (code < range.first) break;
    if (code <= range.last) return true;
  }
  return (code & 0xFFFEu) == 0xFFFEu;
}

}  // namespace

std::string label_value(std::string_view raw, std::size_t max_bytes) {
  std::string out;
  while (!raw.empty()) {
    std::uint32_t code = 0;
    const std::size_t length = decode_one(raw, code);
    const std::string_view piece =
        length == 0 || is_unseen(code) ? std::string_view("?") : raw.substr(0, length);
    if (out.size() + piece.size() > max_bytes) break;
    out += piece;
    raw.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace ncclscope::agent
