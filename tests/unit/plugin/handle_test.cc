// SPDX-License-Identifier: Apache-2.0
#include "plugin/handle.h"

#include <gtest/gtest.h>

namespace ncclscope::plugin {
namespace {

TEST(Token, KeepsItsParts) {
  const Token t(Kind::kProxyStep, 15, 0xAB, 0xDEADBEEF, 0xFFFE);
  const Token back = Token::from_handle(t.handle());
  EXPECT_EQ(back.kind(), Kind::kProxyStep);
  EXPECT_EQ(back.lane(), 15u);
  EXPECT_EQ(back.salt(), 0xAB);
  EXPECT_EQ(back.generation(), 0xDEADBEEFu);
  EXPECT_EQ(back.index(), 0xFFFEu);
}

TEST(Token, IsNeverNull) {
  EXPECT_NE(Token(Kind::kContext, 0, 0, 0, 0).handle(), nullptr);
}

TEST(Token, TakesNoUserPointerForItsOwn) {
  int on_stack = 0;
  EXPECT_EQ(Token::from_handle(&on_stack).kind(), Kind::kNone);
  EXPECT_EQ(Token::from_handle(nullptr).kind(), Kind::kNone);
}

}  // namespace
}  // namespace ncclscope::plugin
