// SPDX-License-Identifier: Apache-2.0
//
// What the statistics need of the operations, gathered while they are on their way to Parquet, so
// that nothing is read again: the finest groups and, in each, the distinct values of the measures
// and how often each occurs (Inspector's times are whole microseconds: a few hundred values stand
// for thousands of operations). Memory is bounded: a tally whose values would need more gives up,
// and statistics.cc gets the same from the Parquet files. Each reading thread fills a Part of its
// own; the rest is for one thread, while nobody reads. Texts belong to the StringPool of the rows.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cli/report/operations.h"
#include "cli/report/schema.h"
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
  std::int64_t group = 0;
  std::int64_t occurrences = 0;
  Measures measures{};
};

/// A finest group. `known` has the columns among rank, bytes, ranks, nodes and time_ns that are not
/// NULL.
struct TalliedGroup {
  TextId job{};
  std::array<TextId, kFinestTexts.size()> texts{};
  std::array<TextId, kDescribingTexts.size()> describing_texts{};
  ColumnSet known = 0;
  std::int32_t rank = 0, ranks = 0, nodes = 0;
  std::int64_t bytes = 0;  // of each operation
  std::int64_t operations = 0, timed = 0;
  std::int64_t first_ns = 0, last_ns = 0;
};

class Tally {
 public:
  class Part;

  /// @param memory_bytes  most that the values may take while they are gathered
  explicit Tally(std::uint64_t memory_bytes);
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  /// Rows that come from now on are of this job.
  void begin_job(TextId job) { job_ = job; }
  /// For one more thread, until the next begin_job(). Any thread.
  [[nodiscard]] Part& new_part();
  /// The rows from `first` on. The thread that has the part.
  void add(Part& part, const OperationBatch& batch, std::size_t first);
  /// As new.
  void clear();
  /// False once it has given up.
  [[nodiscard]] bool complete() const { return !given_up_; }

  struct Result {
    std::vector<TalliedGroup> groups;
    std::vector<MeasuredValues> values;  // those of a group together
  };
  /// All that was gathered; the tally is as new then. Groups that several threads met occur as
  /// often.
  [[nodiscard]] Result take();

 private:
  const std::uint64_t memory_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};
  std::atomic<bool> given_up_{false};
  TextId job_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace ncclscope::cli::report
