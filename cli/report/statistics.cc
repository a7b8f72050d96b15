// SPDX-License-Identifier: Apache-2.0
#include "cli/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "cli/report/sorting.h"

namespace ncclscope::cli::report {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMeasureCount = kMeasures.size();
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

/// Of numbers that are not negative.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return a > kMostBytes - b ? kMostBytes : a + b;
}

/// All statistics of one group from its distinct values in ascending order.
class Accumulator {
 public:
  explicit Accumulator(std::int64_t count) : count_(count) {
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      const double position = kQuantiles[i] * static_cast<double>(count - 1);
      lower_[i] = static_cast<std::int64_t>(std::floor(position));
      fraction_[i] = position - std::floor(position);
      lower_value_[i] = upper_value_[i] = kNone;
    }
  }

  void add(double value, std::int64_t occurrences) {
    if (seen_ == 0) min_ = value;
    max_ = value;
    const std::int64_t end = seen_ + occurrences;
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      if (lower_[i] >= seen_ && lower_[i] < end) lower_value_[i] = upper_value_[i] = value;
      if (lower_[i] + 1 >= seen_ && lower_[i] + 1 < end) upper_value_[i] = value;
    }
    // Welford's way, for `occurrences` equal values at once: no difference of large sums.
    const double weight = static_cast<double>(occurrences);
    const double before = value - mean_;
    seen_ = end;
    mean_ += before * weight / static_cast<double>(seen_);
    squares_ += weight * before * (value - mean_);
  }

  [[nodiscard]] MeasureStatistics statistics() const {
    if (seen_ == 0) return {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
    const double deviation =
        count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : kNone;
    return {mean_, quantile(0), quantile(1), quantile(2), quantile(3), min_, max_, deviation};
  }

 private:
  static constexpr std::array<double, 4> kQuantiles{0.5, 0.05, 0.95, 0.99};

  [[nodiscard]] double quantile(std::size_t i) const {
    return lower_value_[i] + (upper_value_[i] - lower_value_[i]) * fraction_[i];
  }

  std::int64_t count_, seen_ = 0;
  double mean_ = 0, squares_ = 0, min_ = kNone, max_ = kNone;
  std::array<std::int64_t, kQuantiles.size()> lower_{};
  std::array<double, kQuantiles.size()> fraction_{}, lower_value_{}, upper_value_{};
};

StatisticsGroup group_of(const TalliedGroup& tallied, const OrderedTexts& texts) {
  StatisticsGroup group{tallied, {}, {}, {}};
  const auto rank = [&](TextId text) { return texts.rank(text); };
  group.job = rank(tallied.job);
  std::transform(tallied.texts.begin(), tallied.texts.end(), group.texts.begin(), rank);
  std::transform(tallied.describing_texts.begin(), tallied.describing_texts.end(),
                 group.describing_texts.begin(), rank);
  return group;
}

bool is_text(ColumnId column) {
  return kColumns[static_cast<std::size_t>(column)].type == ColumnType::kText;
}

/// What is not NULL stays, of several the same one whatever their order; counts become sums.
void merge(StatisticsGroup& into, const StatisticsGroup& from) {
  const auto take_texts = [](auto& texts, const auto& others) {
    for (std::size_t i = 0; i < texts.size(); ++i) texts[i] = std::min(texts[i], others[i]);
  };
  take_texts(into.texts, from.texts);
  take_texts(into.describing_texts, from.describing_texts);
  const auto take = [&](ColumnId column, auto& value, const auto& other) {
    if (from.has(column)) value = into.has(column) ? std::max(value, other) : other;
  };
  take(ColumnId::kRank, into.rank, from.rank);
  take(ColumnId::kRanks, into.ranks, from.ranks);
  take(ColumnId::kNodes, into.nodes, from.nodes);
  take(ColumnId::kBytes, into.bytes, from.bytes);
  if (from.has(ColumnId::kTimeNs)) {
    const bool first = !into.has(ColumnId::kTimeNs);
    into.first_ns = first ? from.first_ns : std::min(into.first_ns, from.first_ns);
    into.last_ns = first ? from.last_ns : std::max(into.last_ns, from.last_ns);
  }
  into.known |= from.known;
  into.operations += from.operations;
  for (std::size_t i = 0; i < kMeasureCount; ++i) into.measured[i] += from.measured[i];
}

/// The keys of a table, in order, such that they sort as numbers; NULL last.
constexpr std::size_t kKeys = 7;
using Key = std::array<std::uint64_t, kKeys>;

Key key_of(const StatisticsGroup& group, const Grouping& grouping) {
  Key key{};
  std::size_t at = 0;
  key[at++] = static_cast<std::uint64_t>(group.job);
  for (const ColumnId column : grouping.keys) {
    if (is_text(column))
      key[at++] = static_cast<std::uint64_t>(group.text(column));
    else
      key[at++] = group.has(column)
                      ? static_cast<std::uint64_t>(group.integer(column)) + (std::uint64_t{1} << 63)
                      : std::numeric_limits<std::uint64_t>::max();
  }
  return key;
}

/// A finest group on its way to a group of a table.
struct Keyed {
  Key key{};
  StatisticsGroup group;
  std::uint32_t finest = 0;
};
struct ByKey {
  bool operator()(const Keyed& a, const Keyed& b) const { return a.key < b.key; }
};

/// Which group of a table a finest group belongs to.
struct Place {
  std::uint32_t finest, group;
};
struct ByFinest {
  bool operator()(const Place& a, const Place& b) const { return a.finest < b.finest; }
};

/// Values that may be NaN: last.
bool before(double a, double b) {
  return a < b || (std::isnan(b) && !std::isnan(a));
}

struct SumOccurrences {
  template <typename T>
  bool operator()(T& into, const T& equal) const {
    const std::uint64_t sum = std::uint64_t{into.occurrences} + equal.occurrences;
    if (sum > std::numeric_limits<std::uint32_t>::max()) return false;
    into.occurrences = static_cast<std::uint32_t>(sum);
    return true;
  }
};

/// By the group of a table and the values.
struct ByMeasures {
  bool operator()(const MeasuredValues& a, const MeasuredValues& b) const {
    return a.group != b.group ? a.group < b.group : in_group(a, b);
  }
  static bool in_group(const MeasuredValues& a, const MeasuredValues& b) {
    for (std::size_t i = 0; i < kMeasureCount; ++i) {
      if (before(a.measures[i], b.measures[i])) return true;
      if (before(b.measures[i], a.measures[i])) return false;
    }
    return false;
  }
  static void sort(std::vector<MeasuredValues>& values) {
    radix_sort(values, [](const MeasuredValues& value) { return value.group; });
    std::vector<MeasuredValues> other(values.size());
    std::size_t first = 0, end = 0;
    for (; first < values.size(); first = end) {
      while (end < values.size() && values[end].group == values[first].group) ++end;
      (void)merge_sort(values, other, first, end, in_group);
    }
  }
};

/// The values of a table. One thread.
class ValuesByGroup {
 public:
  virtual ~ValuesByGroup() = default;
  /// Groups are asked for in ascending order, each until there is nothing more of it.
  /// @return some values of the group, valid until the next call
  virtual std::span<const MeasuredValues> next(std::uint32_t group) = 0;
};

/// Of all values in memory, which come from the finest groups, in each of which they rise.
class ValuesInMemory : public ValuesByGroup {
 public:
  /// @param values  must outlive this
  explicit ValuesInMemory(const std::vector<MeasuredValues>& values) : values_(values) {}

  /// Before next(): values [first, end) are of `group`.
  void add_run(std::uint32_t group, std::size_t first, std::size_t end) {
    runs_.push_back({group, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end)});
  }
  /// After the last run.
  /// @return memory that will be taken
  std::uint64_t prepare() {
    radix_sort(runs_, [](const Run& run) { return run.group; });
    std::size_t most = 0, size = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      size = (i > 0 && runs_[i].group == runs_[i - 1].group ? size : 0) + runs_[i].size();
      most = std::max(most, size);
    }
    return 2 * (runs_.size() * sizeof(Run) + most * sizeof(MeasuredValues));
  }

  std::span<const MeasuredValues> next(std::uint32_t group) override {
    gathered_.clear();
    for (; next_ < runs_.size() && runs_[next_].group == group; ++next_) {
      gathered_.insert(gathered_.end(), values_.data() + runs_[next_].first,
                       values_.data() + runs_[next_].end);
    }
    if (other_.size() < gathered_.size()) other_.resize(gathered_.size());
    const std::size_t end =
        merge_sort(gathered_, other_, 0, gathered_.size(), ByMeasures::in_group, SumOccurrences());
    return {gathered_.data(), end};
  }

 private:
  struct Run {
    std::uint32_t group, first, end;
    [[nodiscard]] std::size_t size() const { return end - first; }
  };

  const std::vector<MeasuredValues>& values_;
  std::vector<Run> runs_;
  std::size_t next_ = 0;
  std::vector<MeasuredValues> gathered_, other_;
};

using SortedValues = ExternalSort<MeasuredValues, ByMeasures, SumOccurrences>;

/// Of values that are too many to gather, sorted and for the most part on disk.
class ValuesOnDisk : public ValuesByGroup {
 public:
  explicit ValuesOnDisk(std::unique_ptr<const SortedValues> sorted)
      : sorted_(std::move(sorted)), reader_(*sorted_) {}

  std::span<const MeasuredValues> next(std::uint32_t group) override {
    constexpr std::size_t kAtOnce = 1024;
    some_.clear();
    for (const MeasuredValues* value = reader_.peek();
         value != nullptr && value->group == group && some_.size() < kAtOnce;
         reader_.pop(), value = reader_.peek())
      some_.push_back(*value);
    return some_;
  }

 private:
  std::unique_ptr<const SortedValues> sorted_;
  SortedValues::Reader reader_;
  std::vector<MeasuredValues> some_;
};

/// `occurrences` operations of a group with the same value of one measure.
struct MeasuredValue {
  double value;
  std::uint32_t occurrences;
};
struct ByValue {
  bool operator()(const MeasuredValue& a, const MeasuredValue& b) const {
    return a.value < b.value;
  }
  /// Bandwidths fall while times rise.
  static void sort(std::vector<MeasuredValue>& values) {
    std::vector<MeasuredValue> other(values.size());
    values.resize(merge_sort(values, other, 0, values.size(), ByValue(), SumOccurrences()));
  }
};
using SortedMeasure = ExternalSort<MeasuredValue, ByValue, SumOccurrences>;

/// Makes one table. One thread; `memory_bytes` are divided among what it sorts and keeps.
class TableMaker {
 public:
  TableMaker(const Tallied& tallied, const OrderedTexts& texts, const Grouping& grouping,
             const StatisticsOptions& options)
      : tallied_(tallied),
        texts_(texts),
        grouping_(grouping),
        options_(options),
        groups_(options.scratch, options.memory_bytes / 8),
        places_(options.scratch, options.memory_bytes / 16) {}

  StatisticsTable make() {
    make_groups();
    std::unique_ptr<ValuesByGroup> values = values_in_memory();
    if (values == nullptr) values = values_on_disk();
    return make_rows(*values);
  }

 private:
  void make_groups() {
    ExternalSort<Keyed, ByKey> sorted(options_.scratch, options_.memory_bytes / 2);
    std::uint32_t finest = 0;
    tallied_.groups.for_each([&](const TalliedGroup& tallied) {
      const StatisticsGroup group = group_of(tallied, texts_);
      sorted.add({key_of(group, grouping_), group, finest++});
    });
    sorted.finish();
    std::optional<Keyed> open;  // what came so far of a group
    std::uint32_t number = 0;
    ExternalSort<Keyed, ByKey>::Reader reader(sorted);
    for (const Keyed* next = reader.peek(); next != nullptr; reader.pop(), next = reader.peek()) {
      if (open && open->key == next->key) {
        merge(open->group, next->group);
      } else {
        if (open) groups_.add(open->group), ++number;
        open = *next;
      }
      places_.add({next->finest, number});
    }
    if (open) groups_.add(open->group);
    places_.finish();
  }

  /// What groups, places and rows leave of the memory.
  [[nodiscard]] std::uint64_t memory_of_values() const { return options_.memory_bytes * 11 / 16; }

  [[nodiscard]] std::uint64_t memory_of_sorting() const { return memory_of_values() * 2 / 5; }

  /// Null if there is no room.
  std::unique_ptr<ValuesByGroup> values_in_memory() {
    const std::vector<MeasuredValues>* values = tallied_.values.all_in_memory();
    if (values == nullptr) return nullptr;
    auto by_group = std::make_unique<ValuesInMemory>(*values);
    ExternalSort<Place, ByFinest>::Reader places(places_);
    for (std::size_t first = 0, end = 0; first < values->size(); first = end) {
      const std::uint32_t finest = (*values)[first].group;
      while (end < values->size() && (*values)[end].group == finest) ++end;
      while (places.peek()->finest < finest) places.pop();
      by_group->add_run(places.peek()->group, first, end);
    }
    return by_group->prepare() <= memory_of_sorting() ? std::move(by_group) : nullptr;
  }

  std::unique_ptr<ValuesByGroup> values_on_disk() {
    // Sorting takes as much again.
    auto sorted = std::make_unique<SortedValues>(options_.scratch, memory_of_sorting() / 2);
    ExternalSort<Place, ByFinest>::Reader places(places_);
    tallied_.values.for_each([&](const MeasuredValues& values) {
      while (places.peek()->finest < values.group) places.pop();
      sorted->add({places.peek()->group, values.occurrences, values.measures});
    });
    sorted->finish();
    return std::make_unique<ValuesOnDisk>(std::move(sorted));
  }

  StatisticsTable make_rows(ValuesByGroup& values) {
    StatisticsTable table{&grouping_, {options_.scratch, options_.memory_bytes / 8}};
    // Of one group; one more for the copy while one of them sorts.
    const std::uint64_t share = memory_of_values() * 3 / 5 / (kMeasureCount + 1);
    std::vector<SortedMeasure> measures;
    for (std::size_t i = 0; i < kMeasureCount; ++i) measures.emplace_back(options_.scratch, share);
    std::uint32_t number = 0;
    groups_.for_each([&](const StatisticsGroup& group) {
      take_group(values, number++, measures);
      StatisticsRow row{group, {}};
      for (std::size_t i = 0; i < kMeasureCount; ++i)
        row.measures[i] = statistics_of(measures[i], group.measured[i]);
      table.rows.add(row);
    });
    return table;
  }

  static void take_group(ValuesByGroup& values, std::uint32_t group,
                         std::vector<SortedMeasure>& measures) {
    for (SortedMeasure& measure : measures) measure.clear();
    for (auto some = values.next(group); !some.empty(); some = values.next(group)) {
      for (const MeasuredValues& value : some) {
        for (std::size_t i = 0; i < kMeasureCount; ++i) {
          if (!std::isnan(value.measures[i]))
            measures[i].add({value.measures[i], value.occurrences});
        }
      }
    }
    for (SortedMeasure& measure : measures) measure.finish();
  }

  /// Equal values are put together first, so that rounding does not depend on where runs end.
  static MeasureStatistics statistics_of(const SortedMeasure& measure, std::int64_t count) {
    Accumulator accumulator(count);
    SortedMeasure::Reader reader(measure);
    const MeasuredValue* next = reader.peek();
    while (next != nullptr) {
      const double value = next->value;
      std::int64_t occurrences = 0;
      for (; next != nullptr && next->value == value; reader.pop(), next = reader.peek())
        occurrences += next->occurrences;
      accumulator.add(value, occurrences);
    }
    return accumulator.statistics();
  }

  const Tallied& tallied_;
  const OrderedTexts& texts_;
  const Grouping& grouping_;
  const StatisticsOptions& options_;
  Spool<StatisticsGroup> groups_;
  ExternalSort<Place, ByFinest> places_;
};

/// The communicators, from rows of their ranks, which come by job and communicator.
class CommunicatorMaker {
 public:
  CommunicatorMaker(const OrderedTexts& texts, const PathsSeen& paths, Spool<CommunicatorRow>& out)
      : texts_(texts), paths_(paths), out_(out) {}

  void add(const StatisticsRow& row) {
    const StatisticsGroup& group = row.group;
    if (open_ &&
        (open_->job != group.job || open_->communicator != group.text(ColumnId::kCommunicator)))
      end();
    if (!open_) begin(group);
    describe(group);
    if (group.has(ColumnId::kRank)) ranks_.insert(group.rank);
    if (const TextRank node = group.text(ColumnId::kNode); node != TextRank::kNull)
      nodes_.insert(node);
    if (const TextRank algorithm = group.text(ColumnId::kAlgorithm); algorithm != TextRank::kNull)
      open_->paths.add_algorithm(texts_.text(algorithm));
    count(row);
  }

  void end() {
    if (!open_) return;
    open_->ranks_seen = static_cast<std::int64_t>(ranks_.size());
    open_->nodes_seen = static_cast<std::int64_t>(nodes_.size());
    const SeenOfCommunicator seen =
        paths_.of({texts_.text(open_->job), texts_.text(open_->communicator)});
    open_->network_ranks = static_cast<std::int64_t>(seen.network_ranks.size());
    open_->network_bytes = static_cast<std::int64_t>(seen.network_bytes);
    open_->paths.network = open_->paths.network || open_->network_ranks > 0;
    open_->remark = remark_of(open_->ranks, open_->nodes, seen);
    out_.add(*open_);
    open_.reset();
    ranks_.clear();
    nodes_.clear();
  }

 private:
  void begin(const StatisticsGroup& group) {
    open_.emplace();
    open_->job = group.job;
    open_->communicator = group.text(ColumnId::kCommunicator);
    open_->name = open_->dimension = open_->communication_class = TextRank::kNull;
    open_->total_seconds = kNone;
  }

  void describe(const StatisticsGroup& group) {
    open_->name = std::min(open_->name, group.text(ColumnId::kCommunicatorName));
    open_->dimension = std::min(open_->dimension, group.text(ColumnId::kDimension));
    open_->communication_class =
        std::min(open_->communication_class, group.text(ColumnId::kCommunicationClass));
    if (group.has(ColumnId::kRanks))
      open_->ranks = std::max(open_->ranks, group.integer(ColumnId::kRanks));
    if (group.has(ColumnId::kNodes))
      open_->nodes = std::max(open_->nodes, group.integer(ColumnId::kNodes));
    if (!group.has(ColumnId::kTimeNs)) return;
    const bool first = !std::exchange(open_->has_times, true);
    open_->first_ns = first ? group.first_ns : std::min(open_->first_ns, group.first_ns);
    open_->last_ns = first ? group.last_ns : std::max(open_->last_ns, group.last_ns);
  }

  void count(const StatisticsRow& row) {
    open_->operations += row.group.operations;
    if (row.group.has(ColumnId::kBytes))
      open_->total_bytes = sum(std::max<std::int64_t>(open_->total_bytes, 0), row.total_bytes());
    if (const double seconds = row.total_seconds(); !std::isnan(seconds))
      open_->total_seconds =
          std::isnan(open_->total_seconds) ? seconds : open_->total_seconds + seconds;
  }

  const OrderedTexts& texts_;
  const PathsSeen& paths_;
  Spool<CommunicatorRow>& out_;
  std::optional<CommunicatorRow> open_;
  std::set<std::int32_t> ranks_;
  std::set<TextRank> nodes_;
};

}  // namespace

const std::vector<Grouping>& groupings() {
  using enum ColumnId;
  static const std::vector<Grouping> kGroupings{
      {"statistics",
       {kCommunicator, kCollective, kBytes, kAlgorithm, kProtocol, kCommunicationClass},
       {kCommunicatorName, kDimension, kRanks, kNodes}},
      {"statistics_by_rank",
       {kCommunicator, kCollective, kBytes, kAlgorithm, kProtocol, kRank},
       {kCommunicatorName, kDimension, kRanks, kNodes, kCommunicationClass, kNode, kGpu}},
      {"statistics_by_class",
       {kCommunicationClass, kCollective, kBytes, kAlgorithm, kProtocol},
       {}},
  };
  return kGroupings;
}

OrderedTexts::OrderedTexts(const StringPool& pool) {
  std::vector<std::uint32_t> ids(pool.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase(ids, static_cast<std::uint32_t>(TextId::kNone));
  for (const std::uint32_t id : ids) texts_.push_back(&pool.text(TextId{id}));
  // texts_ is by id - 1 until it is sorted.
  std::sort(ids.begin(), ids.end(),
            [&](std::uint32_t a, std::uint32_t b) { return *texts_[a - 1] < *texts_[b - 1]; });
  ranks_.assign(ids.size() + 1, TextRank::kNull);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ranks_[ids[i]] = TextRank{static_cast<std::uint32_t>(i)};
    texts_[i] = &pool.text(TextId{ids[i]});
  }
}

const std::string& OrderedTexts::text(TextRank rank) const {
  static const std::string kEmpty;
  return rank == TextRank::kNull ? kEmpty : *texts_[static_cast<std::size_t>(rank)];
}

TextRank StatisticsGroup::text(ColumnId column) const {
  for (std::size_t i = 0; i < kFinestTexts.size(); ++i) {
    if (kFinestTexts[i] == column) return texts[i];
  }
  for (std::size_t i = 0; i < kDescribingTexts.size(); ++i) {
    if (kDescribingTexts[i] == column) return describing_texts[i];
  }
  return TextRank::kNull;
}

std::int64_t StatisticsGroup::integer(ColumnId column) const {
  switch (column) {
    case ColumnId::kRank:
      return rank;
    case ColumnId::kRanks:
      return ranks;
    case ColumnId::kNodes:
      return nodes;
    default:
      return bytes;
  }
}

double StatisticsRow::total_seconds() const {
  return measures[0][0] * static_cast<double>(group.measured[0]);  // the mean of the times
}

std::int64_t StatisticsRow::total_bytes() const {
  std::int64_t product = 0;
  return __builtin_mul_overflow(group.bytes, group.operations, &product) ? kMostBytes : product;
}

Statistics compute_statistics(const Tallied& tallied, const StringPool& pool,
                              const PathsSeen& paths, const StatisticsOptions& options) {
  Statistics out{OrderedTexts(pool), {}, {options.scratch, options.memory_bytes / 8}};
  const bool side_by_side = options.threads > 1;
  StatisticsOptions share = options;
  share.memory_bytes /= side_by_side ? groupings().size() : 1;
  std::vector<std::future<StatisticsTable>> tables;
  for (const Grouping& grouping : groupings()) {
    tables.push_back(std::async(side_by_side ? std::launch::async : std::launch::deferred, [&] {
      return TableMaker(tallied, out.texts, grouping, share).make();
    }));
  }
  for (auto& table : tables) out.tables.push_back(table.get());
  CommunicatorMaker communicators(out.texts, paths, out.communicators);
  out.table(TableId::kByRank).rows.for_each([&](const StatisticsRow& row) {
    communicators.add(row);
  });
  communicators.end();
  return out;
}

}  // namespace ncclscope::cli::report
