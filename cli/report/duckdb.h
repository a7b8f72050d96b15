// SPDX-License-Identifier: Apache-2.0
//
// DuckDB behind a few RAII types. The library (70 MB) is opened when the first Database is made, so
// only `ncclscope report` pays for it; duckdb.cc says where it is searched. Everything throws
// DuckdbError: a missing library, SQL that fails, a full disk. A Connection and its results belong
// to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "cli/report/duckdb_api.h"

namespace ncclscope::cli::report {

class DuckdbError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The library's functions; opens it at the first call. Throws with how to get it when it is not
/// found.
[[nodiscard]] const duckdb_api::Functions& duckdb_library();
/// "v1.5.6".
[[nodiscard]] std::string duckdb_version();

/// What a query returns, chunk by chunk: only a chunk is in memory. The connection is busy until
/// this is gone.
class Rows {
 public:
  Rows(Rows&& other) noexcept;
  Rows& operator=(Rows&&) = delete;
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  ~Rows();

  /// Goes to the next chunk; false at the end.
  [[nodiscard]] bool next_chunk();
  /// Rows of the current chunk.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t columns() const;
  [[nodiscard]] std::string column_name(std::size_t column) const;
  /// duckdb_api::Type.
  [[nodiscard]] int type(std::size_t column) const;

  [[nodiscard]] bool is_null(std::size_t column, std::size_t row) const;
  /// Any numeric column; NaN for NULL.
  [[nodiscard]] double number(std::size_t column, std::size_t row) const;
  /// Any integer column (HUGEINT too, if the value fits); 0 for NULL.
  [[nodiscard]] std::int64_t integer(std::size_t column, std::size_t row) const;
  /// A text column; empty for NULL. Valid until the next chunk.
  [[nodiscard]] std::string_view text(std::size_t column, std::size_t row) const;

 private:
  friend class Connection;
  Rows(duckdb_api::Connection connection, duckdb_api::PreparedStatement statement,
       const duckdb_api::Result& result);
  void drop_chunk();
  void stop();
  template <typename T>
  [[nodiscard]] const T& at(std::size_t column, std::size_t row) const;

  duckdb_api::Connection connection_;  // which outlives this
  duckdb_api::PreparedStatement statement_;
  mutable duckdb_api::Result result_;
  duckdb_api::DataChunk chunk_ = nullptr;
  std::size_t size_ = 0;
  bool at_end_ = false;
};

class Connection {
 public:
  Connection(duckdb_api::Database database, duckdb_api::Connection connection)
      : database_(database), connection_(connection) {}
  Connection(Connection&& other) noexcept
      : database_(other.database_),
        connection_(std::exchange(other.connection_, nullptr)),
        gives_back_(other.gives_back_) {}
  Connection& operator=(Connection&&) = delete;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  /// From now on statements give freed memory back to the kernel: of threads that
  /// come and go with their buffers the allocator keeps 100 MB and more otherwise.
  void save_memory() { gives_back_ = true; }
  /// One or more statements whose rows nobody wants.
  void run(const std::string& sql);
  /// One statement.
  [[nodiscard]] Rows query(const std::string& sql);
  /// One more to the same database: for writing while Rows of this one are being read. It does not
  /// see this one's temporary tables.
  [[nodiscard]] Connection another() const;
  [[nodiscard]] duckdb_api::Connection handle() const { return connection_; }

 private:
  duckdb_api::Database database_;
  duckdb_api::Connection connection_;
  bool gives_back_ = false;
};

/// Appends rows to a table, much faster than INSERT. A value for each of its columns, in order;
/// then end_row().
class TableAppender {
 public:
  TableAppender(Connection& connection, const std::string& table);
  ~TableAppender();
  TableAppender(const TableAppender&) = delete;
  TableAppender& operator=(const TableAppender&) = delete;

  void integer(std::int64_t value);
  /// NaN becomes NULL.
  void number(double value);
  void text(std::string_view value);
  void null();
  void end_row();
  /// Makes all rows visible; without it the last ones may be lost.
  void close();

 private:
  void check(duckdb_api::State state);

  duckdb_api::Appender appender_ = nullptr;
};

struct DatabaseOptions {
  std::uint64_t memory_bytes = std::uint64_t{256} << 20;
  unsigned threads = 2;
  std::string temporary_folder;  // where what does not fit into memory goes; empty: nothing may
};

/// A database in memory; its large data is in Parquet files. It opens in the background, with a
/// thread of its own.
class Database {
 public:
  explicit Database(DatabaseOptions options);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  /// Any thread. Waits until the database is open; throws why it could not be opened.
  [[nodiscard]] Connection connect();

 private:
  std::shared_future<duckdb_api::Database> database_;
};

}  // namespace ncclscope::cli::report
