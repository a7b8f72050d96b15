// SPDX-License-Identifier: Apache-2.0
//
// Rows of a query one by one, and exact quantiles of groups. DuckDB sorts, on disk where it must
// be; here only the wanted places are picked from the sorted stream.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"

namespace ncclscope::cli::report {

template <typename Visit>
void for_each_row(Connection& connection, const std::string& sql, Visit&& visit) {
  Rows rows = connection.query(sql);
  while (rows.next_chunk()) {
    for (std::size_t r = 0; r < rows.size(); ++r) visit(rows, r);
  }
}

struct GroupQuantiles {
  std::uint64_t count = 0;
  std::vector<double> values;  // as the wanted ones
};

/// Linear between neighbours, as numpy takes them.
/// @param sql     rows of a group's number (BIGINT) and a value (DOUBLE, not NULL)
/// @param wanted  ascending, from 0 to 1
[[nodiscard]] std::map<std::int64_t, GroupQuantiles> quantiles_of(
    Connection& connection, const std::string& sql, const std::vector<double>& wanted);

}  // namespace ncclscope::cli::report
