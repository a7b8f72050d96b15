// SPDX-License-Identifier: Apache-2.0
//
// The part of DuckDB's C interface that the report uses, declared by us so that neither its header
// nor its library is needed to build. The interface is stable: functions are only added.
#pragma once

#include <cstdint>
#include <string_view>

namespace ncclscope::cli::report::duckdb_api {

using State = int;  // 0 is success
inline constexpr State kSuccess = 0;
using Index = std::uint64_t;

/// duckdb_type; those that occur here.
enum Type : int {
  kBoolean = 1,
  kInteger = 4,
  kBigint = 5,
  kUbigint = 9,
  kDouble = 11,
  kHugeint = 16,
  kVarchar = 17,
};

struct Opaque {
  void* internal;
};
using Database = Opaque*;
using Connection = Opaque*;
using Config = Opaque*;
using DataChunk = Opaque*;
using Vector = Opaque*;
using PreparedStatement = Opaque*;
using LogicalType = Opaque*;
using TableFunction = Opaque*;
using Appender = Opaque*;
using BindInfo = Opaque*;
using InitInfo = Opaque*;
using FunctionInfo = Opaque*;

struct Result {
  Index deprecated_column_count;
  Index deprecated_row_count;
  Index deprecated_rows_changed;
  void* deprecated_columns;
  char* deprecated_error_message;
  void* internal_data;
};

/// A VARCHAR in a vector: up to 12 bytes are kept inside, else a prefix and a pointer.
union String {
  struct {
    std::uint32_t length;
    char prefix[4];
    const char* data;
  } pointer;
  struct {
    std::uint32_t length;
    char data[12];
  } inlined;
};
inline constexpr std::uint32_t kInlinedStringBytes = 12;
static_assert(sizeof(String) == 16);

[[nodiscard]] inline std::string_view view_of(const String& string) {
  const std::uint32_t length = string.inlined.length;
  return {length <= kInlinedStringBytes ? string.inlined.data : string.pointer.data, length};
}

using DeleteCallback = void (*)(void* data);
using BindCallback = void (*)(BindInfo info);
using InitCallback = void (*)(InitInfo info);
using FunctionCallback = void (*)(FunctionInfo info, DataChunk output);

}  // namespace ncclscope::cli::report::duckdb_api

/// X(result, name, parameters): duckdb_<name>.
#define NCCLSCOPE_DUCKDB_FUNCTIONS(X)                                            \
  X(const char*, library_version, ())                                            \
  X(State, create_config, (Config*))                                             \
  X(State, set_config, (Config, const char*, const char*))                       \
  X(void, destroy_config, (Config*))                                             \
  X(State, open_ext, (const char*, Database*, Config, char**))                   \
  X(void, close, (Database*))                                                    \
  X(void, free, (void*))                                                         \
  X(State, connect, (Database, Connection*))                                     \
  X(void, disconnect, (Connection*))                                             \
  X(void, interrupt, (Connection))                                               \
  X(State, query, (Connection, const char*, Result*))                            \
  X(State, prepare, (Connection, const char*, PreparedStatement*))               \
  X(const char*, prepare_error, (PreparedStatement))                             \
  X(void, destroy_prepare, (PreparedStatement*))                                 \
  X(State, execute_prepared_streaming, (PreparedStatement, Result*))             \
  X(void, destroy_result, (Result*))                                             \
  X(const char*, result_error, (Result*))                                        \
  X(Index, column_count, (Result*))                                              \
  X(const char*, column_name, (Result*, Index))                                  \
  X(int, column_type, (Result*, Index))                                          \
  X(DataChunk, fetch_chunk, (Result))                                            \
  X(void, destroy_data_chunk, (DataChunk*))                                      \
  X(Index, data_chunk_get_size, (DataChunk))                                     \
  X(void, data_chunk_set_size, (DataChunk, Index))                               \
  X(Vector, data_chunk_get_vector, (DataChunk, Index))                           \
  X(void*, vector_get_data, (Vector))                                            \
  X(std::uint64_t*, vector_get_validity, (Vector))                               \
  X(void, vector_ensure_validity_writable, (Vector))                             \
  X(Index, vector_size, ())                                                      \
  X(State, appender_create, (Connection, const char*, const char*, Appender*))   \
  X(State, append_int64, (Appender, std::int64_t))                               \
  X(State, append_double, (Appender, double))                                    \
  X(State, append_varchar_length, (Appender, const char*, Index))                \
  X(State, append_null, (Appender))                                              \
  X(State, appender_end_row, (Appender))                                         \
  X(const char*, appender_error, (Appender))                                     \
  X(State, appender_close, (Appender))                                           \
  X(State, appender_destroy, (Appender*))                                        \
  X(LogicalType, create_logical_type, (int))                                     \
  X(LogicalType, create_enum_type, (const char**, Index))                        \
  X(void, destroy_logical_type, (LogicalType*))                                  \
  X(TableFunction, create_table_function, ())                                    \
  X(void, destroy_table_function, (TableFunction*))                              \
  X(void, table_function_set_name, (TableFunction, const char*))                 \
  X(void, table_function_set_extra_info, (TableFunction, void*, DeleteCallback)) \
  X(void, table_function_set_bind, (TableFunction, BindCallback))                \
  X(void, table_function_set_init, (TableFunction, InitCallback))                \
  X(void, table_function_set_function, (TableFunction, FunctionCallback))        \
  X(State, register_table_function, (Connection, TableFunction))                 \
  X(void*, bind_get_extra_info, (BindInfo))                                      \
  X(void, bind_add_result_column, (BindInfo, const char*, LogicalType))          \
  X(void, init_set_max_threads, (InitInfo, Index))                               \
  X(void*, function_get_extra_info, (FunctionInfo))                              \
  X(void, function_set_error, (FunctionInfo, const char*))

namespace ncclscope::cli::report::duckdb_api {

/// The functions of an opened library.
struct Functions {
// A parameter list and a declared name take no parentheses of their own.
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define NCCLSCOPE_DUCKDB_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  NCCLSCOPE_DUCKDB_FUNCTIONS(NCCLSCOPE_DUCKDB_MEMBER)
#undef NCCLSCOPE_DUCKDB_MEMBER
};

}  // namespace ncclscope::cli::report::duckdb_api
