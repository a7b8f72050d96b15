// SPDX-License-Identifier: Apache-2.0
//
// The tables of compute_statistics() as CSV, JSON and text. The same numbers in each; only text
// rounds and leaves out. A file that cannot be written is thrown as std::runtime_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/report/inputs.h"
#include "cli/report/reading.h"
#include "cli/report/statistics.h"

namespace ncclscope::cli::report {

/// OUTPUT/<table>.csv for each table, all rows, full precision, a header; empty = NULL.
void write_csv(const Statistics& statistics, const std::string& output);

/// Of a table in report.json: those with most time, in the order of the table.
inline constexpr std::uint64_t kMostJsonRows = 100'000;

/// OUTPUT/report.json: {"report": 1, "version", "duckdb", "inputs", "left_out_rows" (how many, of
/// tables with more than `most_rows`), "communicators", "statistics", ...}; rows are objects with
/// the names of the CSV's columns. Written row by row, complete or not at all.
void write_json(const Statistics& statistics, const std::string& output, const Inputs& inputs,
                const ReadAccount& account, std::uint64_t most_rows = kMostJsonRows);

/// What a terminal shows: communicators and statistics, those with most communication time first,
/// `rows` of each.
[[nodiscard]] std::string summary_text(const Statistics& statistics, const Inputs& inputs,
                                       const ReadAccount& account, std::size_t rows);

}  // namespace ncclscope::cli::report
