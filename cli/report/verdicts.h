// SPDX-License-Identifier: Apache-2.0
//
// What stands out in a run: the verdicts of the alerts, by the same formulas (verdict/), over
// windows of the whole run, with since when and until when; and what the records themselves lack.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/picture.h"
#include "cli/report/pictures.h"

namespace ncclscope::cli::report {

/// What is judged at most, of the communicators with most time; what is left out is told.
struct JudgeLimits {
  std::size_t communicators = 10'000;
  std::size_t members = 100'000;  // ranks of all of them; a single communicator may have more
};

/// @param view  the name of the view `operations`
/// Faults first; if nothing stands out, one that says so.
[[nodiscard]] std::vector<Insight> find_insights(Connection& connection, const std::string& view,
                                                 const RunHead& head,
                                                 const JudgeLimits& limits = {});

}  // namespace ncclscope::cli::report
