// SPDX-License-Identifier: Apache-2.0
#include "cli/report/operations.h"

#include <cstring>
#include <exception>
#include <utility>

namespace ncclscope::cli::report {
namespace {

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

struct FunctionState {
  OperationSource* source;
  unsigned threads;
  ColumnSet columns;
  std::atomic<ColumnSet>* lost;
};

struct ThreadState {
  std::unique_ptr<OperationStream> stream;
};

template <typename T>
void destroy(void* object) {
  delete static_cast<T*>(
      object);  // NOLINT(cppcoreguidelines-owning-memory): DuckDB owned it for us
}

bool has(ColumnSet columns, std::size_t column) {
  return (columns >> column & 1) != 0;
}

void bind(duckdb_api::BindInfo info) {
  const auto& library = duckdb_library();
  const auto* state = static_cast<const FunctionState*>(library.bind_get_extra_info(info));
  for (std::size_t i = 0; i < kColumnCount; ++i) {
    if (!has(state->columns, i)) continue;
    duckdb_api::LogicalType type = library.create_logical_type(duckdb_type(kColumns[i].type));
    library.bind_add_result_column(info, kColumns[i].name, type);
    library.destroy_logical_type(&type);
  }
}

void init(duckdb_api::InitInfo info) {
  const auto* state = static_cast<const FunctionState*>(duckdb_library().init_get_extra_info(info));
  duckdb_library().init_set_max_threads(info, state->threads);
}

void init_thread(duckdb_api::InitInfo info) {
  duckdb_library().init_set_init_data(info, std::make_unique<ThreadState>().release(),
                                      destroy<ThreadState>);
}

/// Fills `output`; exceptions end the query with their message.
void produce(duckdb_api::FunctionInfo info, duckdb_api::DataChunk output) {
  const auto& library = duckdb_library();
  const auto* function = static_cast<const FunctionState*>(library.function_get_extra_info(info));
  auto* thread = static_cast<ThreadState*>(library.function_get_local_init_data(info));
  try {
    RowWriter writer(output, library.vector_size(), function->columns);
    while (!writer.full()) {
      if (thread->stream == nullptr) thread->stream = function->source->next();
      if (thread->stream == nullptr) break;
      if (!thread->stream->fill(writer)) thread->stream.reset();
    }
    if (writer.lost() != 0) function->lost->fetch_or(writer.lost());
    library.data_chunk_set_size(output, writer.rows());
  } catch (const std::exception& error) {
    library.function_set_error(info, error.what());
  }
}

}  // namespace

duckdb_api::String StringPool::intern(std::string_view text) {
  duckdb_api::String string{};
  if (text.size() <= duckdb_api::kInlinedStringBytes) {
    string.inlined.length = static_cast<std::uint32_t>(text.size());
    std::memcpy(string.inlined.data, text.data(), text.size());
    return string;
  }
  const std::lock_guard lock(mutex_);
  auto known = known_.find(text);
  if (known == known_.end()) {
    const std::string& kept = texts_.emplace_back(text);
    known = known_.emplace(kept, kept.data()).first;
  }
  string.pointer.length = static_cast<std::uint32_t>(text.size());
  std::memcpy(string.pointer.prefix, text.data(), sizeof string.pointer.prefix);
  string.pointer.data = known->second;
  return string;
}

RowWriter::RowWriter(duckdb_api::DataChunk chunk, std::size_t capacity, ColumnSet columns)
    : nowhere_(std::make_unique<std::byte[]>(capacity * sizeof(duckdb_api::String))),
      columns_(columns),
      capacity_(capacity) {
  const auto& library = duckdb_library();
  std::size_t position = 0;
  for (std::size_t i = 0; i < kColumnCount; ++i) {
    data_[i] = nowhere_.get();
    if (!has(columns, i)) continue;
    vectors_[i] = library.data_chunk_get_vector(chunk, position++);
    data_[i] = library.vector_get_data(vectors_[i]);
  }
}

void RowWriter::end_row() {
  for (ColumnSet missing = columns_ & ~set_; missing != 0; missing &= missing - 1) {
    const auto i = static_cast<std::size_t>(__builtin_ctzll(missing));
    if (valid_[i] == nullptr) {
      duckdb_library().vector_ensure_validity_writable(vectors_[i]);
      valid_[i] = duckdb_library().vector_get_validity(vectors_[i]);
    }
    valid_[i][rows_ / 64] &= ~(std::uint64_t{1} << (rows_ % 64));
  }
  written_ |= set_;
  set_ = 0;
  ++rows_;
}

void register_operations(Connection& connection, const std::string& name, OperationSource& source,
                         unsigned threads, ColumnSet columns, std::atomic<ColumnSet>& lost) {
  const auto& library = duckdb_library();
  duckdb_api::TableFunction function = library.create_table_function();
  library.table_function_set_name(function, name.c_str());
  library.table_function_set_extra_info(
      function,
      std::make_unique<FunctionState>(FunctionState{&source, threads, columns, &lost}).release(),
      destroy<FunctionState>);
  library.table_function_set_bind(function, bind);
  library.table_function_set_init(function, init);
  library.table_function_set_local_init(function, init_thread);
  library.table_function_set_function(function, produce);
  const bool failed =
      library.register_table_function(connection.handle(), function) != duckdb_api::kSuccess;
  library.destroy_table_function(&function);
  if (failed) throw DuckdbError("the table function " + name + " could not be registered");
}

}  // namespace ncclscope::cli::report
