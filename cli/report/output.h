// SPDX-License-Identifier: Apache-2.0
//
// The tables of compute_statistics() as CSV, JSON and text. The same numbers in each; only text
// rounds and leaves out.
#pragma once

#include <cstddef>
#include <string>

#include "cli/report/duckdb.h"
#include "cli/report/inputs.h"
#include "cli/report/reading.h"

namespace ncclscope::cli::report {

/// OUTPUT/<table>.csv for each table, all rows, full precision, a header; empty = NULL.
void write_csv(Connection& connection, const std::string& output);

/// OUTPUT/report.json: {"report": 1, "version", "duckdb", "inputs", "communicators", "statistics",
/// ...}; rows are objects with the names of the CSV's columns. Written row by row, complete or not
/// at all.
void write_json(Connection& connection, const std::string& output, const Inputs& inputs,
                const ReadAccount& account);

/// What a terminal shows: communicators and statistics, those with most communication time first,
/// `rows` of each.
[[nodiscard]] std::string summary_text(Connection& connection, const Inputs& inputs,
                                       const ReadAccount& account, std::size_t rows);

}  // namespace ncclscope::cli::report
