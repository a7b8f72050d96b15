// SPDX-License-Identifier: Apache-2.0
//
// What stands out in a run: the verdicts of the alerts, by the same formulas (verdict/), over
// windows of the whole run, with since when and until when; and what the records themselves lack.
#pragma once

#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/picture.h"
#include "cli/report/pictures.h"

namespace ncclscope::cli::report {

/// @param view  the name of the view `operations`
/// Faults first; if nothing stands out, one that says so.
[[nodiscard]] std::vector<Insight> find_insights(Connection& connection, const std::string& view,
                                                 const RunHead& head);

}  // namespace ncclscope::cli::report
