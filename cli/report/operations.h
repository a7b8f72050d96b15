// SPDX-License-Identifier: Apache-2.0
//
// The way of operations from input files into DuckDB: a table function whose rows are made by our
// readers, straight in DuckDB's vectors and on its threads, one file per thread at a time. Memory:
// a chunk of 2,048 rows per thread, and the texts that occur (StringPool). Readers are given by
// OperationSource; its methods say which may be called by several threads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cli/report/duckdb.h"
#include "cli/report/schema.h"

namespace ncclscope::cli::report {

/// Texts that live as long as the pool, each kept once. Any thread.
class StringPool {
 public:
  [[nodiscard]] duckdb_api::String intern(std::string_view text);

 private:
  std::mutex mutex_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, const char*> known_;
};

/// Writes rows into one chunk of DuckDB's. What a row does not set is NULL.
class RowWriter {
 public:
  /// `chunk` has the columns of `columns`, in their order; what is written to others is lost, and
  /// remembered.
  RowWriter(duckdb_api::DataChunk chunk, std::size_t capacity, ColumnSet columns);

  [[nodiscard]] bool full() const { return rows_ == capacity_; }
  [[nodiscard]] std::size_t rows() const { return rows_; }
  /// Columns that were written and that the chunk does not have.
  [[nodiscard]] ColumnSet lost() const { return written_ & ~columns_; }

  void text(ColumnId column, const duckdb_api::String& value) { put(column, value); }
  void integer(ColumnId column, std::int64_t value) {
    if (kColumns[index(column)].type == ColumnType::kInt32)
      put(column, static_cast<std::int32_t>(value));
    else
      put(column, value);
  }
  void number(ColumnId column, double value) { put(column, value); }
  /// The row is complete.
  void end_row();

 private:
  static std::size_t index(ColumnId column) { return static_cast<std::size_t>(column); }
  template <typename T>
  void put(ColumnId column, const T& value) {
    static_cast<T*>(data_[index(column)])[rows_] = value;
    set_ |= column_set(column);
  }

  std::array<duckdb_api::Vector, kColumnCount> vectors_{};
  std::array<void*, kColumnCount> data_{};
  std::array<std::uint64_t*, kColumnCount> valid_{};
  std::unique_ptr<std::byte[]> nowhere_;  // what is written to columns that the chunk does not have
  ColumnSet columns_;
  ColumnSet set_ = 0;      // of the current row: those with a value
  ColumnSet written_ = 0;  // of all rows
  std::size_t rows_ = 0;
  std::size_t capacity_;
};

/// The operations of one input file. One thread at a time.
class OperationStream {
 public:
  OperationStream() = default;
  virtual ~OperationStream() = default;
  OperationStream(const OperationStream&) = delete;
  OperationStream& operator=(const OperationStream&) = delete;

  /// Writes rows until the writer is full or the input ends; false once there is nothing more.
  /// Throws if reading must stop.
  virtual bool fill(RowWriter& writer) = 0;
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

/// Makes `name`() a table of `source`'s operations; each input is given once, whatever reads the
/// table. The table has `columns` only; `lost` gets those that rows had besides. `source` and
/// `lost` must outlive the connection's use of the name.
void register_operations(Connection& connection, const std::string& name, OperationSource& source,
                         unsigned threads, ColumnSet columns, std::atomic<ColumnSet>& lost);

}  // namespace ncclscope::cli::report
