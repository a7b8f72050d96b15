// SPDX-License-Identifier: Apache-2.0
//
// Statistics of the operations: statistics (per communicator, collective, size, algorithm and
// protocol), statistics_by_rank, statistics_by_class, communicators.
//
// How: a Tally has brought the operations down to finest groups and, in each, to the distinct
// values of the measures and how often each occurs. For each table the finest groups are sorted by
// its keys and become its groups; then the values of each measure are sorted by group and value,
// and one pass gives every statistic, quantiles included: they are exact, linear between neighbours
// as numpy and pandas do it. Memory: what is sorted lies in memory up to `memory_bytes` and in
// files of the scratch folder beyond (scratch.h), so any number of groups and values will do.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/paths.h"
#include "cli/report/scratch.h"
#include "cli/report/tally.h"

namespace ncclscope::cli::report {

/// Columns of `operations` of which statistics are made.
inline constexpr std::array<const char*, 3> kMeasures{"seconds", "algbw", "busbw"};

/// What is made of each: <measure>_<name>. stddev is that of a sample (n - 1).
inline constexpr std::array<const char*, 8> kStatistics{"mean", "median", "p5",  "p95",
                                                        "p99",  "min",    "max", "stddev"};
/// Places in it.
enum class Statistic : std::uint8_t { kMean, kMedian, kP5, kP95, kP99, kMin, kMax, kStddev };

/// One of the tables.
struct Grouping {
  const char* table;
  std::vector<ColumnId> keys;  // beside job, which is the first; NULL is a value like others
  std::vector<ColumnId>
      describe;  // further columns, the same for the whole group (any value that is not NULL)
};
/// In the order of TableId.
[[nodiscard]] const std::vector<Grouping>& groupings();
enum class TableId : std::uint8_t { kByCommunicator, kByRank, kByClass };

/// A text as its place in the order of all texts; the last place of all is NULL, which thus sorts
/// behind every text.
enum class TextRank : std::uint32_t { kNull = 0xFFFFFFFF };

/// The texts of a StringPool in order. Pure but for memory; the pool must outlive it.
class OrderedTexts {
 public:
  explicit OrderedTexts(const StringPool& pool);

  [[nodiscard]] TextRank rank(TextId text) const { return ranks_[static_cast<std::size_t>(text)]; }
  /// Empty for NULL.
  [[nodiscard]] const std::string& text(TextRank rank) const;

 private:
  std::vector<const std::string*> texts_;  // by rank
  std::vector<TextRank> ranks_;            // by TextId
};

/// Operations with the same keys.
struct StatisticsGroup : GroupFacts {
  TextRank job{};
  std::array<TextRank, kFinestTexts.size()> texts{};
  std::array<TextRank, kDescribingTexts.size()> describing_texts{};

  /// Of a column among kFinestTexts and kDescribingTexts.
  [[nodiscard]] TextRank text(ColumnId column) const;
  /// Of a column among rank, ranks, nodes and bytes.
  [[nodiscard]] std::int64_t integer(ColumnId column) const;
};

/// In the order of kStatistics; NaN for what is not defined.
using MeasureStatistics = std::array<double, kStatistics.size()>;

/// A row of a table. What is not of its Grouping means nothing.
struct StatisticsRow {
  StatisticsGroup group;
  std::array<MeasureStatistics, kMeasures.size()> measures;

  /// NaN if no operation was timed.
  [[nodiscard]] double total_seconds() const;
  /// As many as fit into the number: sizes of damaged input may be anything.
  [[nodiscard]] std::int64_t total_bytes() const;
};

/// A row of the table communicators.
struct CommunicatorRow {
  TextRank job{}, communicator{}, name{}, dimension{}, communication_class{};
  std::int64_t ranks = 0, nodes = 0;  // 0: not known
  std::int64_t ranks_seen = 0, nodes_seen = 0;
  std::int64_t operations = 0;
  std::int64_t total_bytes = -1;  // -1: not known
  double total_seconds = 0;       // NaN: not known
  bool has_times = false;         // first_ns and last_ns are known
  std::int64_t first_ns = 0, last_ns = 0;
  PathsTaken paths;
  std::int64_t network_ranks = 0, network_bytes = 0;  // of ranks with network phases, if any
  Remark remark = Remark::kNone;
};

/// Rows are in the order of their keys, NULL last.
struct StatisticsTable {
  const Grouping* grouping = nullptr;
  Spool<StatisticsRow> rows;
};
struct Statistics {
  OrderedTexts texts;
  std::vector<StatisticsTable> tables;  // in the order of TableId
  Spool<CommunicatorRow> communicators;

  [[nodiscard]] const StatisticsTable& table(TableId id) const {
    return tables[static_cast<std::size_t>(id)];
  }
};

struct StatisticsOptions {
  std::string scratch;  // a folder
  std::uint64_t memory_bytes = 0;
  unsigned threads = 1;
};

/// @param pool  of the texts in `tallied`; must outlive the result
[[nodiscard]] Statistics compute_statistics(const Tallied& tallied, const StringPool& pool,
                                            const PathsSeen& paths,
                                            const StatisticsOptions& options);

}  // namespace ncclscope::cli::report
