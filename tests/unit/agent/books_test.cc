// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/books.h"

#include <gtest/gtest.h>

namespace ncclscope::agent {
namespace {

/// 100 operations seen: 90 recorded, 4 without a slot, 1 disabled, 5 in flight. 95 records written,
/// 3 of them overwritten; the agent has seen indexes up to 92.
ProcessSnapshot balanced_process() {
  ProcessSnapshot p;
  p.connected = true;
  p.books_seen = true;
  p.books.seen = 100;
  p.books.recorded = 90;
  p.books.dropped[0] = 4;
  p.books.dropped[5] = 1;
  p.books.dropped[static_cast<std::size_t>(wire::DropReason::kOverwritten)] = 3;
  p.books.open = 5;
  p.books.records_written = 95;
  p.books.records_overwritten = 3;
  p.records_received = 70;
  p.records_before = 19;
  p.records_lost = 3;
  p.highest_index = 92;
  return p;
}

TEST(CheckBooks, BalanceWhileRecordsAreOnTheirWay) {
  const BooksCheck check = check_books(balanced_process());
  EXPECT_TRUE(check.plugin);
  EXPECT_TRUE(check.transit);
  EXPECT_EQ(check.pending, 3u);
}

TEST(CheckBooks, BalanceWhenTheSampleIsOlderThanTheRecords) {
  ProcessSnapshot p = balanced_process();
  p.records_received += 10;  // indexes 93 to 102
  p.highest_index = 102;
  const BooksCheck check = check_books(p);
  EXPECT_TRUE(check.balanced());
  EXPECT_EQ(check.pending, 0u);
}

TEST(CheckBooks, AnOperationThatVanishedInThePluginIsSeen) {
  ProcessSnapshot p = balanced_process();
  ++p.books.seen;
  EXPECT_FALSE(check_books(p).plugin);
  p = balanced_process();
  --p.books.dropped[0];
  EXPECT_FALSE(check_books(p).balanced());
}

TEST(CheckBooks, OverwrittenOperationsAreNotCountedTwice) {
  ProcessSnapshot p = balanced_process();
  p.books.dropped[static_cast<std::size_t>(wire::DropReason::kOverwritten)] = 0;
  EXPECT_TRUE(check_books(p).plugin);
}

TEST(CheckBooks, ARecordThatVanishedOnTheWayIsSeen) {
  ProcessSnapshot p = balanced_process();
  --p.records_received;
  EXPECT_FALSE(check_books(p).transit);
}

TEST(CheckBooks, LossThatThePluginDoesNotAdmitIsSeen) {
  ProcessSnapshot p = balanced_process();
  ++p.records_lost;
  --p.records_received;
  EXPECT_FALSE(check_books(p).transit);
}

TEST(CheckBooks, AreStrictOnceTheProcessHasSaidGoodbye) {
  ProcessSnapshot p = balanced_process();
  p.connected = false;
  p.said_goodbye = true;
  EXPECT_FALSE(check_books(p).transit) << "three records never came";
  p.records_received += 3;
  p.highest_index = 95;
  EXPECT_TRUE(check_books(p).transit);
  --p.records_lost;
  ++p.records_received;
  EXPECT_FALSE(check_books(p).transit) << "the plugin overwrote three, the agent missed two";
}

TEST(CheckBooks, AgentsSideHoldsWithoutAnyBooks) {
  ProcessSnapshot p;
  p.records_received = 5;
  p.highest_index = 5;
  EXPECT_TRUE(check_books(p).balanced());
  p.highest_index = 6;
  EXPECT_FALSE(check_books(p).balanced());
}

}  // namespace
}  // namespace ncclscope::agent
