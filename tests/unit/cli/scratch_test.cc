// SPDX-License-Identifier: Apache-2.0
//
// Records that are more than the memory holds: kept in order, and sorted, with any memory; and the
// ways of sorting that they use.
#include "cli/report/scratch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "cli/report/sorting.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli::report {
namespace {

struct Counted {
  std::uint32_t key = 0, count = 0;
  bool operator==(const Counted&) const = default;
};
struct ByKey {
  bool operator()(const Counted& a, const Counted& b) const { return a.key < b.key; }
};
struct Sum {
  bool operator()(Counted& into, const Counted& equal) const {
    into.count += equal.count;
    return true;
  }
};

std::vector<Counted> random_records(std::size_t count, std::uint32_t keys) {
  std::mt19937 random(7);
  std::vector<Counted> records(count);
  for (Counted& record : records) record = {static_cast<std::uint32_t>(random() % keys), 1};
  return records;
}

template <typename Sorted>
std::vector<Counted> all_of(const Sorted& sorted) {
  std::vector<Counted> out;
  typename Sorted::Reader reader(sorted);
  for (const Counted* next = reader.peek(); next != nullptr; reader.pop(), next = reader.peek())
    out.push_back(*next);
  return out;
}

/// In records: none, too few for a merge at once, a few runs, more than there are.
constexpr std::uint64_t kMemories[] = {0, 3, 1000, 100'000};

class ScratchTest : public testing::Test {
 protected:
  const tests::TemporaryDirectory temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(ScratchTest, SpoolGivesRecordsAsTheyCame) {
  const std::vector<Counted> records = random_records(5000, 1000);
  for (const std::uint64_t memory : kMemories) {
    Spool<Counted> spool(folder_, memory * sizeof(Counted));
    for (const Counted& record : records) spool.add(record);
    EXPECT_EQ(spool.size(), records.size());
    for (int round = 0; round < 2; ++round) {
      std::vector<Counted> got;
      spool.for_each([&](const Counted& record) { got.push_back(record); });
      EXPECT_EQ(got, records) << memory;
    }
    ASSERT_EQ(spool.all_in_memory() != nullptr, memory == 100'000) << memory;
    if (memory == 100'000) {
      EXPECT_EQ(*spool.all_in_memory(), records);
    }
    spool.clear();
    EXPECT_EQ(spool.size(), 0U);
    spool.add({1, 2});
    EXPECT_EQ(*Spool<Counted>::Reader(spool).next(), (Counted{1, 2}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(ScratchTest, ExternalSortSortsWithAnyMemory) {
  const std::vector<Counted> records = random_records(5000, 1'000'000);
  std::vector<Counted> wanted = records;
  std::sort(wanted.begin(), wanted.end(), ByKey());
  for (const std::uint64_t memory : kMemories) {
    ExternalSort<Counted, ByKey> sorted(folder_, memory * sizeof(Counted));
    for (const Counted& record : records) sorted.add(record);
    sorted.finish();
    EXPECT_EQ(all_of(sorted), wanted) << memory;
    EXPECT_EQ(all_of(sorted), wanted) << "once more";
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(ScratchTest, ExternalSortLosesNothingWhenItCombines) {
  const std::vector<Counted> records = random_records(20'000, 500);
  std::map<std::uint32_t, std::uint32_t> wanted;
  for (const Counted& record : records) ++wanted[record.key];
  for (const std::uint64_t memory : kMemories) {
    ExternalSort<Counted, ByKey, Sum> sorted(folder_, memory * sizeof(Counted));
    for (const Counted& record : records) sorted.add(record);
    sorted.finish();
    const std::vector<Counted> got = all_of(sorted);
    EXPECT_TRUE(std::is_sorted(got.begin(), got.end(), ByKey()));
    if (memory == 1000) {
      EXPECT_LE(got.size(), 1000U);  // of 20,000
    }
    std::map<std::uint32_t, std::uint32_t> counts;
    for (const Counted& record : got) counts[record.key] += record.count;
    EXPECT_EQ(counts, wanted) << memory;
  }
}

TEST_F(ScratchTest, ExternalSortIsAsNewOnceCleared) {
  for (const std::uint64_t memory : kMemories) {
    ExternalSort<Counted, ByKey> sorted(folder_, memory * sizeof(Counted));
    for (const std::size_t count : {5000U, 0U, 2000U, 3U}) {
      sorted.clear();
      std::vector<Counted> wanted = random_records(count, 1'000'000);
      for (const Counted& record : wanted) sorted.add(record);
      sorted.finish();
      std::sort(wanted.begin(), wanted.end(), ByKey());
      EXPECT_EQ(all_of(sorted), wanted) << memory << ' ' << count;
    }
  }
}

TEST_F(ScratchTest, ExternalSortOfNothingIsNothing) {
  ExternalSort<Counted, ByKey> sorted(folder_, 100);
  sorted.finish();
  EXPECT_TRUE(all_of(sorted).empty());
}

TEST_F(ScratchTest, SaysWhichFolderDoesNotTakeIt) {
  Spool<Counted> spool(folder_ / "missing", 0);
  spool.add({});
  try {
    spool.add({});
    FAIL() << "a folder that is not there took it";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(folder_ / "missing"));
  }
}

TEST(RadixSort, KeepsTheOrderOfEqualOnes) {
  std::vector<Counted> records = random_records(3000, 70'000);
  for (std::size_t i = 0; i < records.size(); ++i) records[i].count = static_cast<std::uint32_t>(i);
  for (std::size_t i = 0; i < 1000; ++i) records[i].key %= 100;
  std::vector<Counted> wanted = records;
  std::stable_sort(wanted.begin(), wanted.end(), ByKey());
  radix_sort(records, [](const Counted& record) { return record.key; });
  EXPECT_EQ(records, wanted);
  records.clear();
  radix_sort(records, [](const Counted& record) { return record.key; });
  EXPECT_TRUE(records.empty());
}

TEST(MergeSort, SortsAPartOfAnyOrder) {
  std::mt19937 random(3);
  for (std::size_t count = 0; count < 70; ++count) {
    for (const int kind : {0, 1, 2, 3}) {
      std::vector<int> records(count + 20);
      std::iota(records.begin(), records.end(), 0);
      if (kind == 1) std::reverse(records.begin(), records.end());
      if (kind == 2) std::shuffle(records.begin(), records.end(), random);
      if (kind == 3) {
        for (int& record : records) record = static_cast<int>(random() % 4);
      }
      std::vector<int> wanted = records, other(records.size());
      std::sort(wanted.begin() + 10, wanted.end() - 10);
      EXPECT_EQ(merge_sort(records, other, 10, records.size() - 10, std::less<>()),
                records.size() - 10);
      EXPECT_EQ(records, wanted) << count << ' ' << kind;
    }
  }
}

TEST(MergeSort, KeepsTheOrderOfEqualOnes) {
  std::vector<Counted> records = random_records(3000, 100), other(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) records[i].count = static_cast<std::uint32_t>(i);
  std::vector<Counted> wanted = records;
  std::stable_sort(wanted.begin(), wanted.end(), ByKey());
  EXPECT_EQ(merge_sort(records, other, 0, records.size(), ByKey()), records.size());
  EXPECT_EQ(records, wanted);
}

TEST(MergeSort, PutsEqualOnesOfItsPiecesTogether) {
  std::vector<Counted> records;
  for (std::uint32_t piece = 0; piece < 13; ++piece) {
    for (std::uint32_t key = 0; key < 50 + piece; ++key) records.push_back({key, 1});
  }
  std::vector<Counted> other(records.size());
  const std::size_t end = merge_sort(records, other, 0, records.size(), ByKey(), Sum());
  records.resize(end);
  ASSERT_EQ(records.size(), 62U);
  for (std::uint32_t key = 0; key < 62; ++key)
    EXPECT_EQ(records[key], (Counted{key, key < 50 ? 13 : 62 - key})) << key;
}

TEST(MergeSort, LosesNothingOfEqualOnesInAnyOrder) {
  for (std::size_t count = 0; count < 200; ++count) {
    std::vector<Counted> records = random_records(count, 20), other(records.size());
    std::map<std::uint32_t, std::uint32_t> wanted, got;
    for (const Counted& record : records) wanted[record.key] += record.count;
    const std::size_t end = merge_sort(records, other, 0, records.size(), ByKey(), Sum());
    records.resize(end);
    EXPECT_TRUE(std::is_sorted(records.begin(), records.end(), ByKey())) << count;
    for (const Counted& record : records) got[record.key] += record.count;
    EXPECT_EQ(got, wanted) << count;
  }
}

}  // namespace
}  // namespace ncclscope::cli::report
