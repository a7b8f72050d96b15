// SPDX-License-Identifier: Apache-2.0
#include "cli/report/tally.h"

#include <cstring>
#include <limits>
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
  bool operator==(const Key&) const = default;
};
static_assert(std::has_unique_object_representations_v<Key>);

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::array<std::uint64_t, sizeof(Key) / sizeof(std::uint64_t)> words;
    static_assert(sizeof words == sizeof key);
    std::memcpy(&words, &key, sizeof key);
    return hash_of(words);
  }
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
  if ((known & column_set(ColumnId::kSeconds)) != 0) ++group.timed;
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
  explicit Part(TextId job) : job_(job) {}

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

  TalliedGroup& group(std::size_t number) { return groups_[number]; }
  ValueTable& values(std::size_t number) { return values_[number]; }
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }

  void clear() { *this = Part(job_); }

 private:
  TextId job_;
  std::unordered_map<Key, std::size_t, KeyHash> known_;
  std::vector<TalliedGroup> groups_;
  std::vector<ValueTable> values_;
  std::vector<Key> keys_;
  std::vector<std::size_t> next_;  // the group that came after this one
  std::size_t last_ = std::numeric_limits<std::size_t>::max();
};

Tally::Tally(std::uint64_t memory_bytes) : memory_bytes_(memory_bytes) {}

Tally::~Tally() = default;

Tally::Part& Tally::new_part() {
  const std::lock_guard lock(mutex_);
  return *parts_.emplace_back(std::make_unique<Part>(job_));
}

void Tally::add(Part& part, const OperationBatch& batch, std::size_t first) {
  const Columns columns(batch);
  for (std::size_t row = first; row < batch.rows() && complete(); ++row) {
    const std::size_t number = part.group_of(columns, row);
    TalliedGroup& group = part.group(number);
    add_row(group, columns, row);
    describe(group, columns, row);
    ValueTable& values = part.values(number);
    const std::size_t before = values.bytes();
    values.add(measures_of(columns, row), 1);
    if (values.bytes() == before) continue;
    const std::size_t more = values.bytes() - before + (before == 0 ? kGroupBytes : 0);
    if ((used_bytes_ += more) > memory_bytes_) given_up_ = true;
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
      const auto group = static_cast<std::int64_t>(result.groups.size());
      part->values(i).for_each([&](const Measures& measures, std::int64_t occurrences) {
        result.values.push_back({group, occurrences, measures});
      });
      result.groups.push_back(part->group(i));
      part->values(i) = ValueTable();
    }
  }
  clear();
  return result;
}

}  // namespace ncclscope::cli::report
