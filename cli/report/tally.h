// SPDX-License-Identifier: Apache-2.0
//
// What the statistics need of the operations, gathered while they are on their way to Parquet, so
// that nothing is read again: the finest groups and, in each, the distinct values of the measures
// and how often each occurs (Inspector's times are whole microseconds: a few hundred values stand
// for thousands of operations). Memory is bounded: a part whose values would need more than its
// share begins anew, and what it had goes to spools, which keep on disk what does not fit; a group
// then occurs several times. Each reading thread fills a Part of its own; the rest is for one
// thread, while nobody reads. Texts belong to the StringPool of the rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cli/report/operations.h"
#include "cli/report/schema.h"
#include "cli/report/scratch.h"
#include "cli/report/value_table.h"

namespace ncclscope::cli::report {

/// Texts among the keys of the finest groups, beside job, rank and bytes: the groups of every table
/// are made of whole ones of these.
inline constexpr std::array kFinestTexts{ColumnId::kCommunicator, ColumnId::kCommunicationClass,
                                         ColumnId::kCollective, ColumnId::kAlgorithm,
                                         ColumnId::kProtocol};
/// Texts that are the same for the whole group: any value that is not NULL.
inline constexpr std::array kDescribingTexts{ColumnId::kCommunicatorName, ColumnId::kDimension,
                                             ColumnId::kNode, ColumnId::kGpu};
/// Of which statistics are made.
inline constexpr std::array kMeasuredColumns{ColumnId::kSeconds, ColumnId::kAlgbw,
                                             ColumnId::kBusbw};
static_assert(kMeasuredColumns.size() == std::tuple_size_v<Measures>);

/// `occurrences` operations of a group with the same measures.
struct MeasuredValues {
  std::uint32_t group = 0;
  std::uint32_t occurrences = 0;
  Measures measures{};
};

/// What is known of a group of operations beside its texts. `known` has the columns among rank,
/// bytes, ranks, nodes and time_ns that are not NULL.
struct GroupFacts {
  ColumnSet known = 0;
  std::int32_t rank = 0, ranks = 0, nodes = 0;
  std::int64_t bytes = 0;  // of each operation
  std::int64_t operations = 0;
  std::array<std::int64_t, kMeasuredColumns.size()> measured{};  // operations with that measure
  std::int64_t first_ns = 0, last_ns = 0;

  /// Whether an integer column is not NULL.
  [[nodiscard]] bool has(ColumnId column) const { return (known & column_set(column)) != 0; }
};

/// A finest group.
struct TalliedGroup : GroupFacts {
  TextId job{};
  std::array<TextId, kFinestTexts.size()> texts{};
  std::array<TextId, kDescribingTexts.size()> describing_texts{};
};

/// All that was gathered: `group` of the values are places in `groups`, ascending. Groups that
/// several threads met, or one at several times, occur as often.
struct Tallied {
  Spool<TalliedGroup> groups;
  Spool<MeasuredValues> values;
};

class Tally {
 public:
  class Part;

  /// @param scratch       a folder for what does not fit; exists when that is
  /// @param memory_bytes  that all of it may take
  Tally(std::string scratch, std::uint64_t memory_bytes);
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  /// Rows that come from now on are of this job, and `threads` at most read them.
  void begin_job(TextId job, unsigned threads);
  /// For one more thread, until the next begin_job(). Any thread.
  [[nodiscard]] Part& new_part();
  /// The rows from `first` on. The thread that has the part.
  void add(Part& part, const OperationBatch& batch, std::size_t first);
  /// No more rows come to a part, which is gone then. The thread that has it.
  void finish(Part& part);
  /// As new.
  void clear();
  /// Once all parts are finished.
  [[nodiscard]] const Tallied& tallied() const { return tallied_; }

 private:
  void move_to_spools(Part& part);

  const std::uint64_t parts_bytes_;
  unsigned threads_ = 1;
  TextId job_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Part>> parts_;
  Tallied tallied_;
};

}  // namespace ncclscope::cli::report
