// SPDX-License-Identifier: Apache-2.0
//
// What of the memory the analysis of a run (verdicts, steps, pictures, comparison) leaves to
// DuckDB. DuckDB counts the blocks of its sorts and hash tables, not what each of its threads needs
// to read Parquet and to put rows into them: up to 30 MB each. Queries that sort millions of rows
// need 20 MB and more a thread of what is counted, or they fail. So of what the process does not
// hold yet (texts, statistics) a part is counted, and threads are as many as it is enough for.
// Pure but for begin_analysis().
#pragma once

#include <cstdint>

#include "cli/report/duckdb.h"

namespace ncclscope::cli::report {

struct AnalysisShare {
  unsigned threads = 1;
  std::uint64_t memory_bytes = 0;  // that DuckDB counts
};

/// @param memory_bytes    of the whole process
/// @param resident_bytes  that it has already
/// @param threads         that are wanted
[[nodiscard]] AnalysisShare analysis_share(std::uint64_t memory_bytes, std::uint64_t resident_bytes,
                                           unsigned threads);

/// Gives DuckDB its share, and what queries leave behind to the kernel: `connection` is the one
/// that the analysis uses.
void begin_analysis(Connection& connection, const AnalysisShare& share);

}  // namespace ncclscope::cli::report
