// SPDX-License-Identifier: Apache-2.0
#include "cli/report/duckdb.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/report/memory.h"

namespace ncclscope::cli::report {
namespace {

using duckdb_api::kSuccess;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  return value == nullptr ? "" : value;
}

std::filesystem::path program_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : program.parent_path();
}

/// Where the library may be, best first: what the user says, the install, the build, the download,
/// the loader's path.
std::vector<std::string> library_candidates() {
  if (const std::string named = from_environment("NCCLSCOPE_DUCKDB"); !named.empty())
    return {named};
  std::vector<std::string> candidates;
  if (const auto folder = program_folder(); !folder.empty()) {
    candidates.push_back(folder / "libduckdb.so");
    candidates.push_back(folder / "../lib/ncclscope/libduckdb.so");
    candidates.push_back(folder / "../lib64/ncclscope/libduckdb.so");
  }
  std::string cache = from_environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = from_environment("HOME") + "/.cache";
  candidates.push_back(cache + "/ncclscope/duckdb-" NCCLSCOPE_DUCKDB_VERSION "/libduckdb.so");
  candidates.emplace_back("libduckdb.so");
  return candidates;
}

/// The library finds its own functions first. The program's libraries, which are many, would be
/// searched for each of them otherwise, and that takes twice as long as everything else of opening
/// it. Sanitizers must be found first.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_LAZY | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

void* open_library() {
  std::string reasons;
  for (const std::string& candidate : library_candidates()) {
    const bool is_path = candidate.find('/') != std::string::npos;
    std::error_code error;
    if (is_path && !std::filesystem::exists(candidate, error)) {
      reasons += "\n  " + candidate + ": no such file";
      continue;
    }
    if (void* library = dlopen(candidate.c_str(), kOpenFlags)) return library;
    reasons +=
        "\n  " + std::string(dlerror());  // NOLINT(concurrency-mt-unsafe): of this thread in glibc
  }
  throw DuckdbError(
      "DuckDB is needed and was not found. Run scripts/fetch-duckdb.sh, or set NCCLSCOPE_DUCKDB to "
      "its libduckdb.so (1.4 or later). Looked at:" +
      reasons);
}

template <typename Function>
void bind_symbol(void* library, const char* name, Function*& function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw DuckdbError(std::string("this libduckdb.so has no ") + name +
                      "; version 1.4 or later is needed");
  }
  function = reinterpret_cast<Function*>(symbol);
}

duckdb_api::Functions load_functions() {
  void* library = open_library();  // stays open: its threads may outlive any of our objects
  duckdb_api::Functions functions;
#define NCCLSCOPE_DUCKDB_BIND(result, name, parameters) \
  bind_symbol(library, "duckdb_" #name, functions.name);
  NCCLSCOPE_DUCKDB_FUNCTIONS(NCCLSCOPE_DUCKDB_BIND)
#undef NCCLSCOPE_DUCKDB_BIND
  return functions;
}

[[noreturn]] void fail(const char* reason, const std::string& sql) {
  throw DuckdbError(std::string(reason == nullptr ? "DuckDB failed without a reason" : reason) +
                    (sql.empty() ? "" : "\nin: " + sql.substr(0, 400)));
}

Connection connect_to(duckdb_api::Database database) {
  duckdb_api::Connection connection = nullptr;
  if (duckdb_library().connect(database, &connection) != kSuccess)
    fail("no connection to DuckDB", "");
  return {database, connection};
}

}  // namespace

const duckdb_api::Functions& duckdb_library() {
  static const duckdb_api::Functions kFunctions = load_functions();
  return kFunctions;
}

std::string duckdb_version() {
  return duckdb_library().library_version();
}

Rows::Rows(duckdb_api::Connection connection, duckdb_api::PreparedStatement statement,
           const duckdb_api::Result& result)
    : connection_(connection), statement_(statement), result_(result) {}

Rows::Rows(Rows&& other) noexcept
    : connection_(other.connection_),
      statement_(std::exchange(other.statement_, nullptr)),
      result_(std::exchange(other.result_, {})),
      chunk_(std::exchange(other.chunk_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      at_end_(other.at_end_) {}

Rows::~Rows() {
  drop_chunk();
  if (statement_ == nullptr) return;
  stop();
  duckdb_library().destroy_result(&result_);
  duckdb_library().destroy_prepare(&statement_);
}

/// DuckDB's threads may be at work for rows that nobody wants any more. A connection that is closed
/// under them crashes, so they are told to stop and waited for.
void Rows::stop() {
  if (at_end_) return;
  duckdb_library().interrupt(connection_);
  do {
    drop_chunk();
    chunk_ = duckdb_library().fetch_chunk(result_);
  } while (chunk_ != nullptr && duckdb_library().data_chunk_get_size(chunk_) > 0);
  drop_chunk();
}

void Rows::drop_chunk() {
  if (chunk_ != nullptr) duckdb_library().destroy_data_chunk(&chunk_);
  chunk_ = nullptr;
  size_ = 0;
}

bool Rows::next_chunk() {
  drop_chunk();
  chunk_ = duckdb_library().fetch_chunk(result_);
  if (chunk_ == nullptr) {
    at_end_ = true;
    // The end and an error on the way look the same but for the message.
    const char* error = duckdb_library().result_error(&result_);
    if (error != nullptr && *error != '\0') fail(error, "");
    return false;
  }
  size_ = duckdb_library().data_chunk_get_size(chunk_);
  if (size_ == 0) {
    at_end_ = true;
    drop_chunk();
    return false;
  }
  return true;
}

std::size_t Rows::columns() const {
  return duckdb_library().column_count(&result_);
}

std::string Rows::column_name(std::size_t column) const {
  return duckdb_library().column_name(&result_, column);
}

int Rows::type(std::size_t column) const {
  return duckdb_library().column_type(&result_, column);
}

template <typename T>
const T& Rows::at(std::size_t column, std::size_t row) const {
  const auto& library = duckdb_library();
  return static_cast<const T*>(
      library.vector_get_data(library.data_chunk_get_vector(chunk_, column)))[row];
}

bool Rows::is_null(std::size_t column, std::size_t row) const {
  const auto& library = duckdb_library();
  const std::uint64_t* valid =
      library.vector_get_validity(library.data_chunk_get_vector(chunk_, column));
  return valid != nullptr && (valid[row / 64] >> (row % 64) & 1) == 0;
}

double Rows::number(std::size_t column, std::size_t row) const {
  if (is_null(column, row)) return std::numeric_limits<double>::quiet_NaN();
  if (type(column) == duckdb_api::kDouble) return at<double>(column, row);
  return static_cast<double>(integer(column, row));
}

std::int64_t Rows::integer(std::size_t column, std::size_t row) const {
  struct HugeInt {
    std::uint64_t lower;
    std::int64_t upper;
  };
  if (is_null(column, row)) return 0;
  switch (type(column)) {
    case duckdb_api::kBoolean:
      return at<bool>(column, row) ? 1 : 0;
    case duckdb_api::kInteger:
      return at<std::int32_t>(column, row);
    case duckdb_api::kBigint:
      return at<std::int64_t>(column, row);
    case duckdb_api::kUbigint:
      return static_cast<std::int64_t>(at<std::uint64_t>(column, row));
    case duckdb_api::kHugeint:
      return static_cast<std::int64_t>(at<HugeInt>(column, row).lower);
    default:
      throw DuckdbError("column " + column_name(column) +
                        " is not an integer (cast it in the query)");
  }
}

std::string_view Rows::text(std::size_t column, std::size_t row) const {
  if (is_null(column, row)) return {};
  if (type(column) != duckdb_api::kVarchar)
    throw DuckdbError("column " + column_name(column) + " is not text (cast it in the query)");
  return view_of(at<duckdb_api::String>(column, row));
}

TableAppender::TableAppender(Connection& connection, const std::string& table) {
  if (duckdb_library().appender_create(connection.handle(), nullptr, table.c_str(), &appender_) ==
      kSuccess)
    return;
  const char* error = duckdb_library().appender_error(appender_);
  const std::string reason = error == nullptr ? "" : error;
  duckdb_library().appender_destroy(&appender_);
  fail(reason.c_str(), "append to " + table);
}

TableAppender::~TableAppender() {
  duckdb_library().appender_destroy(&appender_);
}

void TableAppender::check(duckdb_api::State state) {
  if (state != kSuccess) fail(duckdb_library().appender_error(appender_), "");
}

void TableAppender::integer(std::int64_t value) {
  check(duckdb_library().append_int64(appender_, value));
}

void TableAppender::number(double value) {
  check(std::isnan(value) ? duckdb_library().append_null(appender_)
                          : duckdb_library().append_double(appender_, value));
}

void TableAppender::text(std::string_view value) {
  check(duckdb_library().append_varchar_length(appender_, value.data(), value.size()));
}

void TableAppender::null() {
  check(duckdb_library().append_null(appender_));
}

void TableAppender::end_row() {
  check(duckdb_library().appender_end_row(appender_));
}

void TableAppender::close() {
  check(duckdb_library().appender_close(appender_));
}

Connection::~Connection() {
  if (connection_ != nullptr) duckdb_library().disconnect(&connection_);
}

void Connection::run(const std::string& sql) {
  if (gives_back_) give_back_freed_memory();
  const auto& library = duckdb_library();
  duckdb_api::Result result{};
  const bool failed = library.query(connection_, sql.c_str(), &result) != kSuccess;
  const char* message = failed ? library.result_error(&result) : nullptr;
  const std::string reason = message == nullptr ? "" : message;
  library.destroy_result(&result);
  if (failed) fail(reason.c_str(), sql);
  if (gives_back_) give_back_freed_memory();  // tables may have been dropped
}

Rows Connection::query(const std::string& sql) {
  if (gives_back_) give_back_freed_memory();
  const auto& library = duckdb_library();
  duckdb_api::PreparedStatement statement = nullptr;
  if (library.prepare(connection_, sql.c_str(), &statement) != kSuccess) {
    const char* message = library.prepare_error(statement);
    const std::string reason = message == nullptr ? "" : message;
    library.destroy_prepare(&statement);
    fail(reason.c_str(), sql);
  }
  duckdb_api::Result result{};
  if (library.execute_prepared_streaming(statement, &result) != kSuccess) {
    const char* message = library.result_error(&result);
    const std::string reason = message == nullptr ? "" : message;
    library.destroy_result(&result);
    library.destroy_prepare(&statement);
    fail(reason.c_str(), sql);
  }
  return {connection_, statement, result};
}

Connection Connection::another() const {
  return connect_to(database_);
}

namespace {

duckdb_api::Database open(const DatabaseOptions& options) {
  const auto& library = duckdb_library();
  duckdb_api::Config config = nullptr;
  if (library.create_config(&config) != kSuccess) fail("no memory for DuckDB's settings", "");
  const std::vector<std::pair<const char*, std::string>> settings{
      {"memory_limit", std::to_string(options.memory_bytes / 1000) + "KB"},
      {"threads", std::to_string(options.threads)},
      {"temp_directory", options.temporary_folder},
      {"preserve_insertion_order", "false"},
      {"autoinstall_known_extensions", "false"},  // never reach for the network
      {"autoload_known_extensions", "false"},
  };
  for (const auto& [name, value] : settings) {
    if (library.set_config(config, name, value.c_str()) == kSuccess) continue;
    library.destroy_config(&config);
    fail(("DuckDB does not know the setting " + std::string(name)).c_str(), "");
  }
  char* error = nullptr;
  duckdb_api::Database database = nullptr;
  const bool failed = library.open_ext(nullptr, &database, config, &error) != kSuccess;
  library.destroy_config(&config);
  if (!failed) return database;
  const std::string reason = error == nullptr ? "" : error;
  library.free(error);
  fail(("DuckDB could not be started: " + reason).c_str(), "");
}

}  // namespace

Database::Database(DatabaseOptions options)
    : database_(std::async(std::launch::async,
                           [options = std::move(options)] { return open(options); })) {}

Database::~Database() {
  try {
    duckdb_api::Database database = database_.get();
    duckdb_library().close(&database);
  } catch (const DuckdbError&) {  // it was never open
  }
}

Connection Database::connect() {
  return connect_to(database_.get());
}

}  // namespace ncclscope::cli::report
