// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tally.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace ncclscope::cli::report {
namespace {

/// What a tally looks at, column by column; columns that the batch does not have are all NULL.
class Columns {
 public:
  explicit Columns(const OperationBatch& batch) : batch_(batch) {
    set(kFinestTexts, finest_texts_);
    set(kDescribingTexts, describing_texts_);
    set(kMeasuredColumns, measured_);
    rank_ = values<std::int32_t>(ColumnId::kRank);
    ranks_ = values<std::int32_t>(ColumnId::kRanks);
    nodes_ = values<std::int32_t>(ColumnId::kNodes);
    bytes_ = values<std::int64_t>(ColumnId::kBytes);
    time_ns_ = values<std::int64_t>(ColumnId::kTimeNs);
  }

  [[nodiscard]] ColumnSet known(std::size_t row) const { return batch_.known(row); }
  [[nodiscard]] TextId finest_text(std::size_t i, std::size_t row) const {
    return at(finest_texts_[i], row);
  }
  [[nodiscard]] TextId describing_text(std::size_t i, std::size_t row) const {
    return at(describing_texts_[i], row);
  }
  [[nodiscard]] double measure(std::size_t i, std::size_t row) const {
    return at(measured_[i], row);
  }
  [[nodiscard]] std::int32_t rank(std::size_t row) const { return at(rank_, row); }
  [[nodiscard]] std::int32_t ranks(std::size_t row) const { return at(ranks_, row); }
  [[nodiscard]] std::int32_t nodes(std::size_t row) const { return at(nodes_, row); }
  [[nodiscard]] std::int64_t bytes(std::size_t row) const { return at(bytes_, row); }
  [[nodiscard]] std::int64_t time_ns(std::size_t row) const { return at(time_ns_, row); }

 private:
  template <typename T>
  [[nodiscard]] const T* values(ColumnId column) const {
    return reinterpret_cast<const T*>(batch_.data(column));
  }
  template <typename T, std::size_t kCount>
  void set(const std::array<ColumnId, kCount>& columns, std::array<const T*, kCount>& out) {
    for (std::size_t i = 0; i < kCount; ++i) out[i] = values<T>(columns[i]);
  }
  template <typename T>
  static T at(const T* values, std::size_t row) {
    return values == nullptr ? T{} : values[row];
  }

  const OperationBatch& batch_;
  std::array<const TextId*, kFinestTexts.size()> finest_texts_{};
  std::array<const TextId*, kDescribingTexts.size()> describing_texts_{};
  std::array<const double*, kMeasuredColumns.size()> measured_{};
  const std::int32_t *rank_, *ranks_, *nodes_;
  const std::int64_t *bytes_, *time_ns_;
};

struct Key {
  std::array<TextId, kFinestTexts.size()> texts{};
  std::int32_t rank = 0;
  std::int64_t bytes = 0;
  ColumnSet known = 0;  // rank and bytes, where they are not NULL

  using Words = std::array<std::uint64_t, 5>;
  [[nodiscard]] Words words() const {
    static_assert(std::has_unique_object_representations_v<Key> && sizeof(Words) == sizeof(Key));
    Words words;
    std::memcpy(&words, this, sizeof words);
    return words;
  }
  bool operator==(const Key& other) const { return same_words(words(), other.words()); }
};

struct KeyHash {
  std::size_t operator()(const Key& key) const { return hash_of(key.words()); }
};

Key key_of(const Columns& columns, std::size_t row) {
  Key key;
  for (std::size_t i = 0; i < kFinestTexts.size(); ++i) key.texts[i] = columns.finest_text(i, row);
  key.rank = columns.rank(row);
  key.bytes = columns.bytes(row);
  key.known = columns.known(row) & column_set(ColumnId::kRank, ColumnId::kBytes);
  return key;
}

Measures measures_of(const Columns& columns, std::size_t row) {
  Measures measures;
  const ColumnSet known = columns.known(row);
  for (std::size_t i = 0; i < measures.size(); ++i) {
    measures[i] = (known & column_set(kMeasuredColumns[i])) == 0
                      ? std::numeric_limits<double>::quiet_NaN()
                      : columns.measure(i, row);
  }
  return measures;
}

/// Counts of a row into its group.
void add_row(TalliedGroup& group, const Columns& columns, std::size_t row) {
  const ColumnSet known = columns.known(row);
  ++group.operations;
  if ((known & column_set(ColumnId::kTimeNs)) == 0) return;
  const std::int64_t time_ns = columns.time_ns(row);
  const bool first = (group.known & column_set(ColumnId::kTimeNs)) == 0;
  if (first || time_ns < group.first_ns) group.first_ns = time_ns;
  if (first || time_ns > group.last_ns) group.last_ns = time_ns;
  group.known |= column_set(ColumnId::kTimeNs);
}

constexpr ColumnSet kDescribing =
    column_set(ColumnId::kRanks, ColumnId::kNodes, ColumnId::kCommunicatorName,
               ColumnId::kDimension, ColumnId::kNode, ColumnId::kGpu);

/// What describes the group where nothing did before.
void describe(TalliedGroup& group, const Columns& columns, std::size_t row) {
  const ColumnSet missing = kDescribing & columns.known(row) & ~group.known;
  if (missing == 0) return;
  for (std::size_t i = 0; i < kDescribingTexts.size(); ++i) {
    if ((missing & column_set(kDescribingTexts[i])) != 0)
      group.describing_texts[i] = columns.describing_text(i, row);
  }
  if ((missing & column_set(ColumnId::kRanks)) != 0) group.ranks = columns.ranks(row);
  if ((missing & column_set(ColumnId::kNodes)) != 0) group.nodes = columns.nodes(row);
  group.known |= missing;
}

/// What a group takes beside its values, roughly: in the vectors of its part, which have room for
/// twice as many while they grow, and in the hash table.
constexpr std::size_t kGroupBytes =
    2 * (sizeof(TalliedGroup) + sizeof(ValueTable) + 2 * sizeof(Key)) + 64;

TalliedGroup group_with(const Key& key, TextId job) {
  TalliedGroup group;
  group.job = job;
  group.texts = key.texts;
  group.rank = key.rank;
  group.bytes = key.bytes;
  group.known = key.known;
  return group;
}

}  // namespace

class Tally::Part {
 public:
  /// @param memory_bytes  that it should not go beyond
  Part(TextId job, std::uint64_t memory_bytes) : job_(job), memory_bytes_(memory_bytes) {}

  void add(const Columns& columns, std::size_t row) {
    const std::size_t number = group_of(columns, row);
    TalliedGroup& group = groups_[number];
    add_row(group, columns, row);
    describe(group, columns, row);
    ValueTable& values = values_[number];
    const std::size_t before = values.bytes();
    values.add(measures_of(columns, row), 1);
    if (values.bytes() == before) return;
    used_bytes_ += values.bytes() - before + (before == 0 ? kGroupBytes : 0);
  }

  [[nodiscard]] bool full() const { return used_bytes_ > memory_bytes_; }

  /// visit(group, values of the group)
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (std::size_t i = 0; i < groups_.size(); ++i) visit(groups_[i], values_[i]);
  }

  void clear() { *this = Part(job_, memory_bytes_); }

 private:
  std::size_t group_of(const Columns& columns, std::size_t row) {
    const Key key = key_of(columns, row);
    // Operations follow each other as in the last step, usually.
    if (last_ < next_.size() && keys_[next_[last_]] == key) return last_ = next_[last_];
    const auto [known, is_new] = known_.try_emplace(key, groups_.size());
    if (is_new) {
      groups_.push_back(group_with(key, job_));
      values_.emplace_back();
      keys_.push_back(key);
      next_.push_back(0);
    }
    if (last_ < next_.size()) next_[last_] = known->second;
    return last_ = known->second;
  }

  TextId job_;
  std::uint64_t memory_bytes_, used_bytes_ = 0;
  std::unordered_map<Key, std::size_t, KeyHash> known_;
  std::vector<TalliedGroup> groups_;
  std::vector<ValueTable> values_;
  std::vector<Key> keys_;
  std::vector<std::size_t> next_;  // the group that came after this one
  std::size_t last_ = std::numeric_limits<std::size_t>::max();
};

namespace {

/// The values of a group in the order of the first measure: `group` is left open. As many records
/// as it takes, since one counts to 4 billion only.
std::vector<MeasuredValues> sorted_values(const ValueTable& table) {
  std::vector<MeasuredValues> out;
  table.for_each([&](const Measures& measures, std::int64_t occurrences) {
    constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
    for (; occurrences > kMost; occurrences -= kMost)
      out.push_back({0, static_cast<std::uint32_t>(kMost), measures});
    out.push_back({0, static_cast<std::uint32_t>(occurrences), measures});
  });
  const auto unknown = std::partition(out.begin(), out.end(), [](const MeasuredValues& values) {
    return !std::isnan(values.measures[0]);
  });
  std::sort(out.begin(), unknown, [](const MeasuredValues& a, const MeasuredValues& b) {
    return a.measures[0] < b.measures[0];
  });
  return out;
}

}  // namespace

Tally::Tally(std::string scratch, std::uint64_t memory_bytes)
    : parts_bytes_(memory_bytes / 2),
      tallied_{{scratch, memory_bytes / 4}, {scratch, memory_bytes / 4}} {}

Tally::~Tally() = default;

void Tally::begin_job(TextId job, unsigned threads) {
  job_ = job;
  threads_ = std::max(threads, 1U);
}

Tally::Part& Tally::new_part() {
  const std::lock_guard lock(mutex_);
  return *parts_.emplace_back(std::make_unique<Part>(job_, parts_bytes_ / threads_));
}

void Tally::add(Part& part, const OperationBatch& batch, std::size_t first) {
  const Columns columns(batch);
  for (std::size_t row = first; row < batch.rows(); ++row) {
    part.add(columns, row);
    if (part.full()) move_to_spools(part);
  }
}

void Tally::finish(Part& part) {
  move_to_spools(part);
  const std::lock_guard lock(mutex_);
  std::erase_if(parts_, [&](const auto& owned) { return owned.get() == &part; });
}

void Tally::move_to_spools(Part& part) {
  part.for_each([&](TalliedGroup& group, ValueTable& table) {
    std::vector<MeasuredValues> all = sorted_values(table);
    table = ValueTable();
    for (const MeasuredValues& values : all) {
      for (std::size_t i = 0; i < values.measures.size(); ++i)
        group.measured[i] += std::isnan(values.measures[i]) ? 0 : values.occurrences;
    }
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = tallied_.groups.size();
    if (number > std::numeric_limits<std::uint32_t>::max())
      throw std::runtime_error("more than 4 billion groups of operations: report fewer at once");
    for (MeasuredValues& values : all) {
      values.group = static_cast<std::uint32_t>(number);
      tallied_.values.add(values);
    }
    tallied_.groups.add(group);
  });
  part.clear();
}

void Tally::clear() {
  parts_.clear();
  tallied_.groups.clear();
  tallied_.values.clear();
}

}  // namespace ncclscope::cli::report
