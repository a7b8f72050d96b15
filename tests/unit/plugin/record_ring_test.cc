// SPDX-License-Identifier: Apache-2.0
#include "plugin/record_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace ncclscope::plugin {
namespace {

struct Record {
  std::uint64_t writer, number, rest[5];
};
Record record_of(std::uint64_t writer, std::uint64_t number) {
  return {writer, number, {number * 3, number * 5, number * 7, number * 11, number * 13}};
}
bool whole(const RecordWords& w) {
  for (std::size_t i = 0; i < 5; ++i) {
    constexpr std::uint64_t kFactor[] = {3, 5, 7, 11, 13};
    if (w.word[2 + i] != w.word[1] * kFactor[i]) return false;
  }
  return true;
}

TEST(RecordRing, NumbersRecordsFromOneWithoutHoles) {
  auto ring = std::make_unique<RecordRing<8>>();
  for (std::uint64_t i = 1; i <= 20; ++i) EXPECT_EQ(ring->push(record_of(0, i)), i);
  EXPECT_EQ(ring->next_index(), 21u);
}

TEST(RecordRing, GivesBackWhatWasWritten) {
  auto ring = std::make_unique<RecordRing<8>>();
  for (std::uint64_t i = 1; i <= 8; ++i) ring->push(record_of(0, i));
  for (std::uint64_t i = 1; i <= 8; ++i) {
    RecordWords w;
    ASSERT_EQ(ring->read(i, w), RecordRing<8>::Read::kOk);
    EXPECT_EQ(w.word[1], i);
    EXPECT_TRUE(whole(w));
  }
}

TEST(RecordRing, SaysNotYetForWhatIsNotWritten) {
  auto ring = std::make_unique<RecordRing<8>>();
  RecordWords w;
  EXPECT_EQ(ring->read(1, w), RecordRing<8>::Read::kNotYet);
  ring->push(record_of(0, 1));
  EXPECT_EQ(ring->read(2, w), RecordRing<8>::Read::kNotYet);
}

TEST(RecordRing, OverwritesTheOldestWhenFull) {
  auto ring = std::make_unique<RecordRing<8>>();
  for (std::uint64_t i = 1; i <= 11; ++i) ring->push(record_of(0, i));
  RecordWords w;
  EXPECT_EQ(ring->oldest_index(), 4u);
  EXPECT_EQ(ring->read(3, w), RecordRing<8>::Read::kOverwritten);
  EXPECT_EQ(ring->read(4, w), RecordRing<8>::Read::kOk);
}

TEST(RecordRing, CanBeReadAgainForResending) {
  auto ring = std::make_unique<RecordRing<8>>();
  for (std::uint64_t i = 1; i <= 5; ++i) ring->push(record_of(0, i));
  RecordWords w;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(ring->read(i, w), RecordRing<8>::Read::kOk);
  }
}

TEST(RecordRing, AccountsForEveryRecordOfManyWritersAndOneReader) {
  constexpr unsigned kWriters = 8;
  constexpr std::uint64_t kEach = 50'000;
  using Ring = RecordRing<1024>;
  auto ring = std::make_unique<Ring>();
  std::atomic<unsigned> running{kWriters};
  std::atomic<std::uint64_t> refused{0};
  std::vector<std::thread> writers;
  for (unsigned w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (std::uint64_t i = 1; i <= kEach; ++i) {
        if (ring->push(record_of(w, i)) == 0) refused.fetch_add(1);
      }
      running.fetch_sub(1);
    });
  }
  std::uint64_t cursor = 1, read = 0, overwritten = 0;
  std::vector<std::uint64_t> last(kWriters, 0);
  for (;;) {
    const bool done = running.load() == 0;
    RecordWords w;
    const auto result = ring->read(cursor, w);
    if (result == Ring::Read::kOk) {
      ASSERT_TRUE(whole(w)) << "torn record " << cursor;
      ASSERT_LT(w.word[0], kWriters);
      ASSERT_GT(w.word[1], last[w.word[0]]) << "a writer's records came out of order";
      last[w.word[0]] = w.word[1];
      ++cursor;
      ++read;
    } else if (result == Ring::Read::kOverwritten) {
      const std::uint64_t oldest = std::max(ring->oldest_index(), cursor + 1);
      overwritten += oldest - cursor;
      cursor = oldest;
    } else if (done && cursor == ring->next_index()) {
      break;
    }
  }
  for (auto& t : writers) t.join();
  EXPECT_EQ(read + overwritten + refused.load(), kWriters * kEach);
  EXPECT_EQ(ring->next_index() - 1, read + overwritten);
}

}  // namespace
}  // namespace ncclscope::plugin
