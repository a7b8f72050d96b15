// SPDX-License-Identifier: Apache-2.0
//
// Statistics over the view `operations`, as tables inside DuckDB which the outputs read: statistics
// (per communicator, collective, size, algorithm and protocol), statistics_by_rank,
// statistics_by_class, communicators. Quantiles are exact (linear between neighbours, as numpy and
// pandas do it). Memory: quantiles of up to `rows_in_memory` operations are taken in memory; beyond
// that the values are sorted by DuckDB, on disk where they must be, and picked from the sorted
// stream.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"

namespace ncclscope::cli::report {

/// Columns of `operations` of which statistics are made.
inline constexpr std::array<const char*, 3> kMeasures{"seconds", "algbw", "busbw"};

/// What is made of each: <measure>_<name>.
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

/// Makes all tables. The view `operations` must exist; `operations` is the number of its rows.
void compute_statistics(Connection& connection, Connection& second, std::uint64_t operations,
                        std::uint64_t rows_in_memory);

}  // namespace ncclscope::cli::report
