// SPDX-License-Identifier: Apache-2.0
//
// Statistics over the view `operations`, as tables inside DuckDB which the outputs read: statistics
// (per communicator, collective, size, algorithm and protocol), statistics_by_rank,
// statistics_by_class, communicators.
//
// How: the operations are brought down to their groups and, in each, to the distinct values of the
// measures and how often each occurs, by a Tally while they are read, or, where that would have
// taken too much memory, by DuckDB from the Parquet files. What is left is sorted, group by group
// and value by value, and one pass gives every statistic, quantiles included: they are exact,
// linear between neighbours as numpy and pandas do it. Memory: up to `values_in_memory` distinct
// values are sorted here; more by DuckDB, on disk where they must be.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/tally.h"

namespace ncclscope::cli::report {

/// Columns of `operations` of which statistics are made.
inline constexpr std::array<const char*, 3> kMeasures{"seconds", "algbw", "busbw"};

/// What is made of each: <measure>_<name>. stddev is that of a sample (n - 1).
inline constexpr std::array<const char*, 8> kStatistics{"mean", "median", "p5",  "p95",
                                                        "p99",  "min",    "max", "stddev"};

/// One of the tables.
struct Grouping {
  const char* table;
  std::vector<const char*> keys;  // columns of `operations`, NULL being a value like others
  std::vector<const char*>
      describe;  // further columns, the same for the whole group (any value that is not NULL)
};
[[nodiscard]] const std::vector<Grouping>& groupings();

struct StatisticsOptions {
  std::uint64_t values_in_memory = 0;
  unsigned threads = 1;
  const StringPool* pool = nullptr;  // of what was tallied
};

/// Makes all tables: of what was tallied while the operations were read, else of the view
/// `operations`. What takes long runs on `connection`, the rest on connections of its own too.
void compute_statistics(Database& database, Connection& connection,
                        const StatisticsOptions& options,
                        std::optional<Tally::Result> tallied = std::nullopt);

}  // namespace ncclscope::cli::report
