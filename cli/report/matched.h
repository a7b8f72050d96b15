// SPDX-License-Identifier: Apache-2.0
//
// The operations that all ranks of a communicator tell of: only these can be compared between
// ranks. There may be millions. DuckDB sorts their rows, on disk where it must be, and here one
// operation after the other is looked at: memory does not depend on their number.
#pragma once

#include <string>

#include "cli/report/duckdb.h"

namespace ncclscope::cli::report {

/// Makes two tables of those among the rows of `view` that `where` lets through:
///   matched_kinds  kind (BIGINT) and what is the same for all operations of a kind: job, run (0 if
///                  it is not known), communicator, collective
///   matched        kind, sequence, time_ns (when the first rank told), least, most and mean
///                  seconds of the ranks, and last_rank: that with the least, the lowest of several
/// @param where  lets only rows through whose ranks, sequence and seconds are known
void match_ranks(Connection& connection, const std::string& view, const std::string& where);

}  // namespace ncclscope::cli::report
