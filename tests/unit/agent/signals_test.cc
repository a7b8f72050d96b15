// SPDX-License-Identifier: Apache-2.0
//
// The union of a GPU's busy intervals against brute force, and what is an all-to-all and what not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "agent/aggregate/all_to_all.h"
#include "agent/aggregate/busy_union.h"

namespace ncclscope::agent {
namespace {

using Intervals = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

std::uint64_t brute_force_union(Intervals intervals, std::uint64_t before = ~std::uint64_t{0}) {
  std::sort(intervals.begin(), intervals.end());
  std::uint64_t busy = 0;
  std::uint64_t until = 0;
  for (auto [start, stop] : intervals) {
    stop = std::min(stop, before);
    start = std::max(start, until);
    if (stop <= start) continue;
    busy += stop - start;
    until = stop;
  }
  return busy;
}

TEST(BusyUnion, EqualsBruteForceWhereIntervalsComeSlightlyOutOfOrder) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    Intervals intervals;
    std::uint64_t now = 1'000'000;
    const std::uint64_t longest = 1 + random() % 3000;
    for (int i = 0; i < 2000; ++i) {
      now += random() % 1500;
      intervals.emplace_back(now, now + random() % longest);  // several streams at a time
    }
    for (std::size_t i = 0; i + 16 <= intervals.size(); i += 16) {
      const auto from = intervals.begin() + static_cast<std::ptrdiff_t>(i);
      std::shuffle(from, from + 16, random);
    }
    BusyUnion busy;
    Intervals so_far;
    for (const auto& [start, stop] : intervals) {
      busy.add(start, stop);
      so_far.emplace_back(start, stop);
      if (so_far.size() % 500 == 0) {
        ASSERT_EQ(busy.busy_ns(), brute_force_union(so_far)) << "seed " << seed;
        ASSERT_EQ(busy.busy_before_ns(now), brute_force_union(so_far, now));
      }
    }
    ASSERT_EQ(busy.late_ns(), 0u) << "seed " << seed;
  }
}

TEST(BusyUnion, NeverCountsMoreThanThereIsWhateverTheOrder) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    BusyUnion busy;
    Intervals intervals;
    std::uint64_t before = 0;
    for (int i = 0; i < 1500; ++i) {
      const std::uint64_t start = random() % 3'000'000;
      intervals.emplace_back(start, start + random() % 2000);
      busy.add(intervals.back().first, intervals.back().second);
      ASSERT_GE(busy.busy_ns(), before);
      before = busy.busy_ns();
    }
    const std::uint64_t truth = brute_force_union(intervals);
    ASSERT_LE(busy.busy_ns(), truth) << "seed " << seed;
    ASSERT_GE(busy.busy_ns() + busy.late_ns(), truth) << "what is missing is in late_ns";
  }
}

TEST(BusyUnion, GoesOnAfterTheClockWasSetBack) {
  BusyUnion busy;
  for (std::uint64_t i = 0; i < 200; ++i)
    busy.add((1ull << 60) + i * 100, (1ull << 60) + i * 100 + 50);
  busy.add(1'000'000, 1'000'500);
  EXPECT_EQ(busy.busy_ns(), 200 * 50u + 500u);
  EXPECT_EQ(busy.late_ns(), 0u);
}

TEST(BusyUnion, IgnoresEmptyIntervals) {
  BusyUnion busy;
  busy.add(5, 5);
  busy.add(6, 5);
  EXPECT_EQ(busy.busy_ns(), 0u);
}

/// A group of Sends and Receives with every rank, `bytes(peer)` each way.
template <typename Bytes>
std::vector<Transfer> exchange(std::int32_t nranks, Bytes&& bytes) {
  std::vector<Transfer> out;
  for (std::int32_t peer = 0; peer < nranks; ++peer) {
    out.push_back({peer, true, bytes(peer, true)});
    out.push_back({peer, false, bytes(peer, false)});
  }
  return out;
}

TEST(AllToAll, HasTheSizesOfNcclTests) {
  AllToAllRecogniser recogniser;
  const auto found =
      recogniser.recognise(exchange(8, [](int, bool) { return std::uint64_t{1000}; }), 3, 8);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 8000u);
  EXPECT_EQ(found->bus_bytes, 7000u);  // S * (n-1)/n
  EXPECT_TRUE(found->even);
}

TEST(AllToAll, MayBeUneven) {
  AllToAllRecogniser recogniser;
  const auto transfers = exchange(4, [](int peer, bool send) {
    return static_cast<std::uint64_t>(send ? 100 * (peer + 1) : 10);
  });
  const auto found = recogniser.recognise(transfers, 1, 4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 1000u);     // sent: more than received
  EXPECT_EQ(found->bus_bytes, 800u);  // without what it kept
  EXPECT_FALSE(found->even);
}

TEST(AllToAll, MayLackTransfersOfNothing) {
  AllToAllRecogniser recogniser;
  auto transfers = exchange(8, [](int, bool) { return std::uint64_t{64}; });
  std::erase_if(transfers,
                [](const Transfer& t) { return t.peer == 6 || (t.peer == 7 && t.is_send); });
  EXPECT_TRUE(recogniser.recognise(transfers, 0, 8));
  std::erase_if(transfers, [](const Transfer& t) { return t.peer == 0; });
  EXPECT_FALSE(recogniser.recognise(transfers, 0, 8)) << "without its own part it may be anything";
}

TEST(AllToAll, MayLackWhatARankCopiesItself) {
  AllToAllRecogniser recogniser;
  const auto others = [](std::int32_t nranks) {
    auto transfers = exchange(nranks, [](int peer, bool send) {
      return static_cast<std::uint64_t>(send && peer == 2 ? 150 : 100);
    });
    std::erase_if(transfers, [](const Transfer& t) { return t.peer == 0; });
    return transfers;
  };
  const auto found = recogniser.recognise(others(4), 0, 4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 350u);
  EXPECT_EQ(found->bus_bytes, 350u);
  EXPECT_FALSE(found->even);
  EXPECT_FALSE(recogniser.recognise(others(3), 0, 3)) << "a ring of three is the same";
  EXPECT_FALSE(recogniser.recognise(others(4), 0, 5)) << "not with all others";
  auto halo = others(4);
  halo.back().peer = 1;
  EXPECT_FALSE(recogniser.recognise(halo, 0, 4)) << "twice with one of them";
}

TEST(AllToAll, IsNoPipelineNoRingNoGatherAndNoScatter) {
  AllToAllRecogniser recogniser;
  const auto is = [&](const std::vector<Transfer>& t, std::int32_t rank, std::uint32_t n) {
    return recogniser.recognise(t, rank, n).has_value();
  };
  EXPECT_FALSE(is({{1, true, 8}, {1, false, 8}}, 0, 2)) << "two pipeline stages";
  EXPECT_FALSE(is({{2, true, 8}, {2, false, 8}, {0, true, 8}, {0, false, 8}}, 1, 3)) << "a stage";
  EXPECT_FALSE(is({{1, true, 8}, {3, false, 8}}, 2, 4)) << "a ring";
  std::vector<Transfer> gather{{0, true, 8}};
  std::vector<Transfer> scatter{{0, false, 8}};
  for (std::int32_t peer = 0; peer < 4; ++peer) {
    gather.push_back({peer, false, 8});
    scatter.push_back({peer, true, 8});
  }
  EXPECT_FALSE(is(gather, 0, 4));
  EXPECT_FALSE(is(scatter, 0, 4));
  const auto whole = exchange(4, [](int, bool) { return std::uint64_t{8}; });
  EXPECT_FALSE(is(whole, -1, 4)) << "rank unknown";
  EXPECT_FALSE(is(whole, 0, 0)) << "ranks unknown";
  EXPECT_FALSE(is(whole, 0, 3)) << "a peer that is none";
  auto twice = whole;
  twice.push_back({2, true, 8});
  EXPECT_FALSE(is(twice, 0, 4)) << "two groups in one";
  auto no_own_receive = whole;
  std::erase_if(no_own_receive, [](const Transfer& t) { return t.peer == 0 && !t.is_send; });
  EXPECT_FALSE(is(no_own_receive, 0, 4));
}

}  // namespace
}  // namespace ncclscope::agent
