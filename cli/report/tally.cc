// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tally.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace ncclscope::cli::report {
namespace {

constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  return std::rotl(hash ^ word, 29) * kOdd;
}

struct Key {
  std::array<TextId, kFinestTexts.size()> texts{};
  std::uint32_t known = 0;  // a bit for each of the integers that is not NULL
  std::array<std::int64_t, kFinestIntegers.size()> integers{};
  bool operator==(const Key&) const = default;
};
static_assert(std::has_unique_object_representations_v<Key>);

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::array<std::uint64_t, sizeof(Key) / sizeof(std::uint64_t)> words;
    static_assert(sizeof words == sizeof key);
    std::memcpy(&words, &key, sizeof key);
    std::uint64_t hash = 0;
    for (const std::uint64_t word : words) hash = mixed(hash, word);
    return hash ^ hash >> 32U;
  }
};

Key key_of(const OperationBatch& rows, std::size_t row) {
  Key key;
  for (std::size_t i = 0; i < kFinestTexts.size(); ++i)
    key.texts[i] = rows.text_at(kFinestTexts[i], row);
  for (std::size_t i = 0; i < kFinestIntegers.size(); ++i) {
    if (rows.is_null(kFinestIntegers[i], row)) continue;
    key.integers[i] = rows.integer_at(kFinestIntegers[i], row);
    key.known |= 1U << i;
  }
  return key;
}

/// The measures of a row as bits, so that NaN, which means NULL, is a value like others.
using Bits = std::array<std::uint64_t, kMeasuredColumns.size()>;

Bits bits_of(const OperationBatch& rows, std::size_t row) {
  Bits bits;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const ColumnId column = kMeasuredColumns[i];
    bits[i] = std::bit_cast<std::uint64_t>(rows.is_null(column, row)
                                               ? std::numeric_limits<double>::quiet_NaN()
                                               : rows.number_at(column, row));
  }
  return bits;
}

/// Distinct measures, and how often they occur. Open addressing; its size is a power of two.
class ValueTable {
 public:
  /// False if it must grow first.
  bool add(const Bits& bits) {
    if ((used_ + 1) * 3 > slots_.size() * 2) return false;
    Slot& slot = slot_of(bits);
    used_ += slot.occurrences == 0 ? 1 : 0;
    ++slot.occurrences;
    return true;
  }

  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

  void grow() {
    std::vector<Slot> old(std::max<std::size_t>(kFirstSlots, slots_.size() * 2));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.occurrences != 0) slot_of(slot.bits) = slot;
    }
  }

  void append_to(std::vector<MeasuredValues>& out, std::int64_t group) const {
    for (const Slot& slot : slots_) {
      if (slot.occurrences == 0) continue;
      MeasuredValues& values = out.emplace_back();
      values.group = group;
      values.occurrences = slot.occurrences;
      for (std::size_t i = 0; i < slot.bits.size(); ++i)
        values.measures[i] = std::bit_cast<double>(slot.bits[i]);
    }
  }

 private:
  static constexpr std::size_t kFirstSlots = 16;
  struct Slot {
    Bits bits{};
    std::int64_t occurrences = 0;  // 0: nothing is here
  };

  Slot& slot_of(const Bits& bits) {
    std::uint64_t hash = 0;
    for (const std::uint64_t word : bits) hash = mixed(hash, word);
    const std::size_t last = slots_.size() - 1;
    std::size_t at = (hash ^ hash >> 32U) & last;
    while (slots_[at].occurrences != 0 && slots_[at].bits != bits) at = (at + 1) & last;
    if (slots_[at].occurrences == 0) slots_[at].bits = bits;
    return slots_[at];
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

/// Counts of a row into its group.
void add_row(TalliedGroup& group, const OperationBatch& rows, std::size_t row) {
  ++group.operations;
  if (!rows.is_null(ColumnId::kSeconds, row)) ++group.timed;
  if (!rows.is_null(ColumnId::kTimeNs, row)) {
    const std::int64_t time_ns = rows.integer_at(ColumnId::kTimeNs, row);
    const bool first = (group.known & column_set(ColumnId::kTimeNs)) == 0;
    if (first || time_ns < group.first_ns) group.first_ns = time_ns;
    if (first || time_ns > group.last_ns) group.last_ns = time_ns;
    group.known |= column_set(ColumnId::kTimeNs);
  }
}

/// What describes the group where nothing did before.
void describe(TalliedGroup& group, const OperationBatch& rows, std::size_t row) {
  for (std::size_t i = 0; i < kDescribingTexts.size(); ++i) {
    if (group.describing_texts[i] == TextId::kNone)
      group.describing_texts[i] = rows.text_at(kDescribingTexts[i], row);
  }
  for (std::size_t i = 0; i < kDescribingIntegers.size(); ++i) {
    const ColumnId column = kDescribingIntegers[i];
    if ((group.known & column_set(column)) != 0 || rows.is_null(column, row)) continue;
    group.describing_integers[i] = rows.integer_at(column, row);
    group.known |= column_set(column);
  }
}

TalliedGroup group_with(const Key& key, TextId job) {
  TalliedGroup group;
  group.job = job;
  group.texts = key.texts;
  group.integers = key.integers;
  for (std::size_t i = 0; i < kFinestIntegers.size(); ++i) {
    if ((key.known >> i & 1U) != 0) group.known |= column_set(kFinestIntegers[i]);
  }
  return group;
}

}  // namespace

class Tally::Part {
 public:
  explicit Part(TextId job) : job_(job) {}

  std::size_t group_of(const OperationBatch& rows, std::size_t row) {
    const Key key = key_of(rows, row);
    const auto [known, is_new] = known_.try_emplace(key, groups_.size());
    if (is_new) {
      groups_.push_back(group_with(key, job_));
      values_.emplace_back();
    }
    return known->second;
  }

  TalliedGroup& group(std::size_t number) { return groups_[number]; }
  ValueTable& values(std::size_t number) { return values_[number]; }
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }

  void clear() { *this = Part(job_); }

 private:
  TextId job_;
  std::unordered_map<Key, std::size_t, KeyHash> known_;
  std::vector<TalliedGroup> groups_;
  std::vector<ValueTable> values_;
};

Tally::Tally(std::uint64_t memory_bytes) : memory_bytes_(memory_bytes) {}

Tally::~Tally() = default;

Tally::Part& Tally::new_part() {
  const std::lock_guard lock(mutex_);
  return *parts_.emplace_back(std::make_unique<Part>(job_));
}

void Tally::add(Part& part, const OperationBatch& rows, std::size_t first) {
  for (std::size_t row = first; row < rows.rows() && complete(); ++row) {
    const std::size_t number = part.group_of(rows, row);
    TalliedGroup& group = part.group(number);
    add_row(group, rows, row);
    describe(group, rows, row);
    ValueTable& values = part.values(number);
    const Bits bits = bits_of(rows, row);
    if (values.add(bits)) continue;
    const std::size_t before = values.bytes();
    values.grow();
    if ((used_bytes_ += values.bytes() - before) > memory_bytes_) given_up_ = true;
    (void)values.add(bits);
  }
  if (!complete()) part.clear();
}

void Tally::clear() {
  parts_.clear();
  used_bytes_ = 0;
  given_up_ = false;
}

Tally::Result Tally::take() {
  Result result;
  std::size_t groups = 0, values = 0;
  for (const auto& part : parts_) {
    groups += part->groups();
    for (std::size_t i = 0; i < part->groups(); ++i) values += part->values(i).used();
  }
  result.groups.reserve(groups);
  result.values.reserve(values);
  for (const auto& part : parts_) {
    for (std::size_t i = 0; i < part->groups(); ++i) {
      part->values(i).append_to(result.values, static_cast<std::int64_t>(result.groups.size()));
      result.groups.push_back(part->group(i));
      part->values(i) = ValueTable();
    }
  }
  clear();
  return result;
}

}  // namespace ncclscope::cli::report
