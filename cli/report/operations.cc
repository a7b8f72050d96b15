// SPDX-License-Identifier: Apache-2.0
#include "cli/report/operations.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "cli/report/tally.h"

namespace ncclscope::cli::report {
namespace {

constexpr std::size_t kMostRows = 122'880;  // of a file
// A row group as large as the file would take a seventh more memory, and as long.
constexpr std::size_t kRowGroupRows = kMostRows / 2;
constexpr std::size_t kAlignment = 64;      // of columns, in bytes
constexpr std::size_t kWindowRows = 2'048;  // that are tallied while they are still in the cache

std::size_t bytes_of(ColumnType type) {
  switch (type) {
    case ColumnType::kText:
      return sizeof(TextId);
    case ColumnType::kInt32:
      return sizeof(std::int32_t);
    case ColumnType::kInt64:
      return sizeof(std::int64_t);
    case ColumnType::kDouble:
      break;
  }
  return sizeof(double);
}

int duckdb_type(ColumnType type) {
  switch (type) {
    case ColumnType::kText:
      return duckdb_api::kVarchar;
    case ColumnType::kInt32:
      return duckdb_api::kInteger;
    case ColumnType::kInt64:
      return duckdb_api::kBigint;
    case ColumnType::kDouble:
      break;
  }
  return duckdb_api::kDouble;
}

bool has(ColumnSet columns, std::size_t column) {
  return (columns >> column & 1) != 0;
}

std::size_t row_bytes(ColumnSet columns) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < kColumnCount; ++i)
    bytes += has(columns, i) ? bytes_of(kColumns[i].type) : 0;
  return bytes;
}

/// A batch as DuckDB's table function gives it. One thread.
class BatchTable {
 public:
  BatchTable(OperationBatch& batch, const StringPool& pool) : batch_(batch), pool_(pool) {}

  /// The batch has new rows, whose texts become numbers.
  void encode() {
    next_row_ = 0;
    code_of_.resize(std::max(code_of_.size(), pool_.size()), kNoCode);
    for (std::size_t i = 0; i < kColumnCount; ++i) {
      if (has(batch_.columns(), i) && kColumns[i].type == ColumnType::kText)
        encode(reinterpret_cast<TextId*>(batch_.data(static_cast<ColumnId>(i))), texts_[i]);
    }
  }

  void bind(duckdb_api::BindInfo info) const {
    const auto& library = duckdb_library();
    for (std::size_t i = 0; i < kColumnCount; ++i) {
      if (!has(batch_.columns(), i)) continue;
      duckdb_api::LogicalType type =
          texts_[i].empty() ? library.create_logical_type(duckdb_type(kColumns[i].type))
                            : enum_type(texts_[i]);
      library.bind_add_result_column(info, kColumns[i].name, type);
      library.destroy_logical_type(&type);
    }
  }

  void produce(duckdb_api::DataChunk output) {
    const auto& library = duckdb_library();
    const std::size_t count = std::min(library.vector_size(), batch_.rows() - next_row_);
    std::size_t position = 0;
    for (std::size_t i = 0; i < kColumnCount; ++i) {
      if (!has(batch_.columns(), i)) continue;
      duckdb_api::Vector vector = library.data_chunk_get_vector(output, position++);
      copy_values(i, count, library.vector_get_data(vector));
      copy_validity(static_cast<ColumnId>(i), count, vector);
    }
    library.data_chunk_set_size(output, count);
    next_row_ += count;
  }

 private:
  static constexpr std::uint32_t kNoCode = std::numeric_limits<std::uint32_t>::max();

  /// Of a column: which texts there are, in the order of their numbers, which take the places of
  /// the texts; 0 for NULL too.
  void encode(TextId* column, std::vector<TextId>& texts) {
    texts.clear();
    TextId last = TextId::kNone;
    std::uint32_t last_code = 0;
    for (std::size_t row = 0; row < batch_.rows(); ++row) {
      const TextId id = column[row];
      if (id != last) {
        last = id;
        last_code = id == TextId::kNone ? 0 : code_of(id, texts);
      }
      column[row] = TextId{last_code};
    }
    for (const TextId id : texts) code_of_[static_cast<std::size_t>(id)] = kNoCode;
  }

  std::uint32_t code_of(TextId id, std::vector<TextId>& texts) {
    std::uint32_t& code = code_of_[static_cast<std::size_t>(id)];
    if (code == kNoCode) {
      code = static_cast<std::uint32_t>(texts.size());
      texts.push_back(id);
    }
    return code;
  }

  duckdb_api::LogicalType enum_type(const std::vector<TextId>& texts) const {
    std::vector<const char*> names;
    for (const TextId id : texts) names.push_back(pool_.text(id).c_str());
    return duckdb_library().create_enum_type(names.data(), names.size());
  }

  template <typename T>
  static void copy_codes(const TextId* from, std::size_t count, void* into) {
    std::transform(from, from + count, static_cast<T*>(into),
                   [](TextId code) { return static_cast<T>(code); });
  }

  void copy_values(std::size_t i, std::size_t count, void* into) const {
    const std::byte* column = std::as_const(batch_).data(static_cast<ColumnId>(i));
    if (kColumns[i].type != ColumnType::kText) {
      const std::size_t size = bytes_of(kColumns[i].type);
      std::memcpy(into, column + next_row_ * size, count * size);
      return;
    }
    // The numbers of an ENUM are as wide as they must be.
    const TextId* from = reinterpret_cast<const TextId*>(column) + next_row_;
    const std::size_t different = texts_[i].size();
    if (different == 0) return;
    if (different <= std::numeric_limits<std::uint8_t>::max())
      copy_codes<std::uint8_t>(from, count, into);
    else if (different <= std::numeric_limits<std::uint16_t>::max())
      copy_codes<std::uint16_t>(from, count, into);
    else
      copy_codes<std::uint32_t>(from, count, into);
  }

  void copy_validity(ColumnId column, std::size_t count, duckdb_api::Vector vector) const {
    const std::vector<std::uint64_t>& valid = batch_.valid(column);
    if (valid.empty()) return;
    duckdb_library().vector_ensure_validity_writable(vector);
    std::memcpy(duckdb_library().vector_get_validity(vector), valid.data() + next_row_ / 64,
                (count + 63) / 64 * sizeof(std::uint64_t));
  }

  OperationBatch& batch_;
  const StringPool& pool_;
  std::array<std::vector<TextId>, kColumnCount> texts_;
  std::vector<std::uint32_t> code_of_;  // by TextId; kNoCode between columns
  std::size_t next_row_ = 0;
};

void bind(duckdb_api::BindInfo info) {
  static_cast<const BatchTable*>(duckdb_library().bind_get_extra_info(info))->bind(info);
}

void init(duckdb_api::InitInfo info) {
  duckdb_library().init_set_max_threads(info, 1);
}

void produce(duckdb_api::FunctionInfo info, duckdb_api::DataChunk output) {
  static_cast<BatchTable*>(duckdb_library().function_get_extra_info(info))->produce(output);
}

/// Names are the database's, not the connection's.
std::string new_function_name() {
  static std::atomic<unsigned> count{0};
  return "read_batch_" + std::to_string(count++);
}

/// Makes `name`() the rows of `table`, which must outlive the connection's use of the name.
void register_table(Connection& connection, const std::string& name, BatchTable& table) {
  const auto& library = duckdb_library();
  duckdb_api::TableFunction function = library.create_table_function();
  library.table_function_set_name(function, name.c_str());
  library.table_function_set_extra_info(function, &table, nullptr);
  library.table_function_set_bind(function, bind);
  library.table_function_set_init(function, init);
  library.table_function_set_function(function, produce);
  const bool failed =
      library.register_table_function(connection.handle(), function) != duckdb_api::kSuccess;
  library.destroy_table_function(&function);
  if (failed) throw DuckdbError("the table function " + name + " could not be registered");
}

/// Rows of a batch: few enough for the memory, and as many as fill whole windows.
std::size_t batch_rows(const WriteOptions& options) {
  const std::uint64_t rows =
      options.memory_bytes / std::max(options.threads, 1U) / row_bytes(options.columns);
  return std::clamp<std::uint64_t>(rows / kWindowRows * kWindowRows, kWindowRows, kMostRows);
}

/// What the reading threads share.
class ParallelWriter {
 public:
  ParallelWriter(Database& database, OperationSource& source, StringPool& pool,
                 const WriteOptions& options)
      : database_(database), source_(source), pool_(pool), options_(options) {}

  ColumnSet run() {
    std::vector<std::thread> others;
    for (unsigned i = 1; i < options_.threads; ++i) others.emplace_back([this] { read(); });
    read();
    for (std::thread& other : others) other.join();
    if (failure_) std::rethrow_exception(failure_);
    return lost_;
  }

 private:
  void read() {
    try {
      read_inputs();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
  }

  void read_inputs() {
    std::unique_ptr<OperationStream> stream = source_.next();
    if (stream == nullptr) return;
    OperationBatch batch(batch_rows(options_), options_.columns);
    Output output{BatchTable(batch, pool_), new_function_name(), std::nullopt};
    Tally::Part* part = options_.tally == nullptr ? nullptr : &options_.tally->new_part();
    while (stream != nullptr && !stop_) {
      const std::size_t first = batch.rows();
      if (!batch.open(kWindowRows)) {
        write(output, batch);
        continue;
      }
      if (!stream->fill(batch)) stream = source_.next();
      if (part != nullptr) options_.tally->add(*part, batch, first);
    }
    if (part != nullptr) options_.tally->finish(*part);
    write(output, batch);
    lost_ |= batch.lost();
  }

  /// Of one thread. The connection is made for the first batch: while that is read, the database
  /// may still be opening.
  struct Output {
    BatchTable table;
    std::string function;  // that reads the table
    std::optional<Connection> connection;
  };

  void write(Output& output, OperationBatch& batch) {
    if (batch.rows() == 0 || stop_) return;
    if (!output.connection) {
      output.connection.emplace(database_.connect());
      register_table(*output.connection, output.function, output.table);
    }
    output.table.encode();
    const std::string path =
        options_.folder + "/" + options_.prefix + "_" + std::to_string(files_++) + ".parquet";
    output.connection->run(
        "COPY (SELECT * FROM " + output.function + "()) TO " + sql_literal(path) +
        // Bloom filters would cost a hundredth of the time, and who reads reads all.
        " (FORMAT parquet, COMPRESSION snappy, WRITE_BLOOM_FILTER false, ROW_GROUP_SIZE " +
        std::to_string(kRowGroupRows) + ")");
    batch.clear();
  }

  Database& database_;
  OperationSource& source_;
  StringPool& pool_;
  const WriteOptions& options_;
  std::atomic<unsigned> files_{0};
  std::atomic<ColumnSet> lost_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

TextId StringPool::intern(std::string_view text) {
  text = text.substr(0, text.find('\0'));
  if (text.empty()) return TextId::kNone;
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(text);
  if (known != known_.end()) return known->second;
  const auto id = static_cast<TextId>(texts_.size());
  known_.emplace(texts_.emplace_back(text), id);
  return id;
}

const std::string& StringPool::text(TextId id) const {
  const std::lock_guard lock(mutex_);
  return texts_[static_cast<std::size_t>(id)];
}

std::size_t StringPool::size() const {
  const std::lock_guard lock(mutex_);
  return texts_.size();
}

OperationBatch::OperationBatch(std::size_t capacity, ColumnSet columns)
    : storage_(capacity * (row_bytes(columns) + sizeof(double)) + (kColumnCount + 1) * kAlignment),
      known_(capacity),
      columns_(columns),
      capacity_(capacity) {
  const auto aligned = [](std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::byte* next = storage_.data() + aligned(capacity * sizeof(double));
  for (std::size_t i = 0; i < kColumnCount; ++i) {
    write_[i] = storage_.data();
    if (!has(columns, i)) continue;
    write_[i] = data_[i] = next;
    next += aligned(capacity * bytes_of(kColumns[i].type));
  }
}

void OperationBatch::end_row() {
  for (ColumnSet missing = columns_ & ~set_; missing != 0; missing &= missing - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(missing));
    auto& valid = valid_[i];
    if (valid.empty()) valid.assign((capacity_ + 63) / 64, ~std::uint64_t{0});
    valid[rows_ / 64] &= ~(std::uint64_t{1} << (rows_ % 64));
    const std::size_t size = bytes_of(kColumns[i].type);
    std::memset(write_[i] + rows_ * size, 0, size);
  }
  known_[rows_] = set_ & columns_;
  written_ |= set_;
  set_ = 0;
  ++rows_;
}

bool OperationBatch::open(std::size_t rows) {
  limit_ = std::min(rows_ + rows, capacity_);
  return limit_ > rows_;
}

void OperationBatch::clear() {
  for (auto& valid : valid_) valid.clear();
  rows_ = limit_ = 0;
}

ColumnSet write_parquet(Database& database, OperationSource& source, StringPool& pool,
                        const WriteOptions& options) {
  return ParallelWriter(database, source, pool, options).run();
}

}  // namespace ncclscope::cli::report
