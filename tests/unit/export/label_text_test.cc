// SPDX-License-Identifier: Apache-2.0
#include "agent/export/label_text.h"

#include <gtest/gtest.h>

namespace ncclscope::agent {
namespace {

std::string escaped(std::string_view value) {
  std::string out;
  append_escaped(out, value);
  return out;
}

TEST(LabelText, LeavesPlainTextAlone) {
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("<=256MiB"), "<=256MiB");
  EXPECT_EQ(escaped("a longer value, with spaces {and} braces"),
            "a longer value, with spaces {and} braces");
}

TEST(LabelText, EscapesBackslashQuoteAndNewline) {
  EXPECT_EQ(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
}

TEST(LabelText, KeepsValidUtf8) {
  EXPECT_EQ(escaped("J\xC3\xBClich \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x9A\x80"),
            "J\xC3\xBClich \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x9A\x80");
}

TEST(LabelText, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(escaped("a\xFFz"), "a\xEF\xBF\xBDz");                              // no such byte
  EXPECT_EQ(escaped("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // overlong
  EXPECT_EQ(escaped("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // surrogate
  EXPECT_EQ(escaped("\xE6\x97"), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // cut
  EXPECT_EQ(escaped("\xF4\x90\x80\x80").find("\xF4"), std::string::npos);      // above U+10FFFF
}

TEST(LabelText, ReplacesControlCharacters) {
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(escaped("a\x1B[31m\x7F"), "a\xEF\xBF\xBD[31m\xEF\xBF\xBD");
}

// Every byte at every place of an eight-byte word and behind it: the fast path must see what the
// slow path would change.
TEST(LabelText, FastPathMissesNoSpecialByte) {
  for (std::size_t length = 1; length <= 19; ++length) {
    for (std::size_t at = 0; at < length; ++at) {
      for (int byte = 0; byte < 256; ++byte) {
        std::string value(length, 'x');
        value[at] = static_cast<char>(byte);
        const bool plain = byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
        if (is_plain(value) && !plain)
          FAIL() << "byte " << byte << " at " << at << " of " << length;
        if (plain && escaped(value) != value) FAIL() << "byte " << byte << " was changed";
      }
    }
  }
}

}  // namespace
}  // namespace ncclscope::agent
