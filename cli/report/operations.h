// SPDX-License-Identifier: Apache-2.0
//
// The way of operations from input files to Parquet. Each thread reads one file at a time into a
// batch of columns, and DuckDB writes every full batch as one file. Within a batch texts are
// numbers (ENUM to DuckDB, strings in Parquet): what occurs is known before the batch is written,
// so no text is copied or hashed per row. Memory: a batch per thread, DuckDB's copy of it, and the
// texts that occur (StringPool). Readers are given by OperationSource; its methods say which may be
// called by several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/memory.h"
#include "cli/report/schema.h"

namespace ncclscope::cli::report {

class Tally;

/// A text of a StringPool; none is the empty one, which columns have as NULL.
enum class TextId : std::uint32_t { kNone = 0 };

/// Texts that live as long as the pool, each kept once. Any thread.
class StringPool {
 public:
  StringPool() : texts_(1) {}
  /// A text ends at its first NUL, if it has one, as DuckDB's names of ENUM values do.
  [[nodiscard]] TextId intern(std::string_view text);
  /// Ends with a NUL.
  [[nodiscard]] const std::string& text(TextId id) const;
  /// More than any number that was given so far.
  [[nodiscard]] std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, TextId> known_;
};

/// Rows that are written and then stay until clear(), column by column. What a row does not set is
/// NULL. One thread at a time.
class OperationBatch {
 public:
  /// What is written to others than `columns` is lost, and remembered.
  OperationBatch(std::size_t capacity, ColumnSet columns);

  /// Writing: readers stop when it is full.
  [[nodiscard]] bool full() const { return rows_ == limit_; }
  void text(ColumnId column, TextId value) {
    if (value != TextId::kNone) put(column, value);
  }
  void integer(ColumnId column, std::int64_t value) {
    if (kColumns[index(column)].type == ColumnType::kInt32)
      put(column, static_cast<std::int32_t>(value));
    else
      put(column, value);
  }
  void number(ColumnId column, double value) { put(column, value); }
  /// The row is complete.
  void end_row();

  /// Lets at most `rows` more rows in; false if there is no room.
  bool open(std::size_t rows);
  void clear();

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] ColumnSet columns() const { return columns_; }
  /// Columns that were ever written and that the batch does not have.
  [[nodiscard]] ColumnSet lost() const { return written_ & ~columns_; }
  /// The columns that are not NULL in a row.
  [[nodiscard]] ColumnSet known(std::size_t row) const { return known_[row]; }
  /// The values of a column, of its type (kText: TextId); 0 for NULL. Null if the batch does not
  /// have the column.
  [[nodiscard]] const std::byte* data(ColumnId column) const { return data_[index(column)]; }
  /// To put other values of the same size in their place, until clear().
  [[nodiscard]] std::byte* data(ColumnId column) { return data_[index(column)]; }
  /// A bit per row, 0 for NULL; empty if no value of the column is NULL.
  [[nodiscard]] const std::vector<std::uint64_t>& valid(ColumnId column) const {
    return valid_[index(column)];
  }

 private:
  static std::size_t index(ColumnId column) { return static_cast<std::size_t>(column); }
  template <typename T>
  void put(ColumnId column, const T& value) {
    reinterpret_cast<T*>(write_[index(column)])[rows_] = value;
    set_ |= column_set(column);
  }

  LargeMemory storage_;  // the columns, and one for what is written to those that are not there
  std::array<std::byte*, kColumnCount> data_{};
  std::array<std::byte*, kColumnCount> write_{};  // data_, or the one more
  std::array<std::vector<std::uint64_t>, kColumnCount> valid_;
  std::vector<ColumnSet> known_;
  ColumnSet columns_;
  ColumnSet set_ = 0;      // of the current row: those with a value
  ColumnSet written_ = 0;  // of all rows
  std::size_t rows_ = 0, limit_ = 0, capacity_;
};

/// The operations of one input file. One thread at a time.
class OperationStream {
 public:
  OperationStream() = default;
  virtual ~OperationStream() = default;
  OperationStream(const OperationStream&) = delete;
  OperationStream& operator=(const OperationStream&) = delete;

  /// Writes rows until the batch is full or the input ends; false once there is nothing more.
  /// Throws if reading must stop.
  virtual bool fill(OperationBatch& batch) = 0;
};

class OperationSource {
 public:
  OperationSource() = default;
  virtual ~OperationSource() = default;
  OperationSource(const OperationSource&) = delete;
  OperationSource& operator=(const OperationSource&) = delete;

  /// The next input, or null. Any thread.
  [[nodiscard]] virtual std::unique_ptr<OperationStream> next() = 0;
};

struct WriteOptions {
  std::string folder;           // exists
  std::string prefix = "data";  // of the files' names: <prefix>_<number>.parquet
  unsigned threads = 1;
  std::uint64_t memory_bytes = 0;  // that the batches of all threads may take
  ColumnSet columns = kAllColumns;
  Tally* tally = nullptr;  // sees the rows too
};

/// Writes `source`'s operations as Parquet. Returns the columns that rows had besides the wanted
/// ones. Throws what readers and DuckDB throw.
ColumnSet write_parquet(Database& database, OperationSource& source, StringPool& pool,
                        const WriteOptions& options);

}  // namespace ncclscope::cli::report
