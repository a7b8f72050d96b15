// SPDX-License-Identifier: Apache-2.0
//
// The pictured part of a report: what report.html and svg/ will show, DIR/insights.json,
// DIR/steps.json, and what stands out as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/page.h"
#include "cli/report/pictures.h"
#include "cli/report/throughput.h"

namespace ncclscope::cli::report {

/// Facts of the head as the page shows them.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> facts_of(const RunHead& head);
/// "Report of job 4711".
[[nodiscard]] std::string heading_of(const RunHead& head);
/// "2026-06-19 06:56:24 to ... UTC".
[[nodiscard]] std::string time_text(const RunHead& head);

[[nodiscard]] nlohmann::ordered_json insights_json(const std::vector<Insight>& insights);
/// For a terminal.
[[nodiscard]] std::string insights_text(const std::vector<Insight>& insights);
/// Throws std::runtime_error naming the file.
void write_json_file(const std::string& path, const nlohmann::ordered_json& value);

struct Drawn {
  std::vector<Insight> insights;
  std::optional<Page> page;        // to be written, if it was wanted
  std::string throughput_missing;  // why what was asked for could not be had
};

/// Of the view `operations`; insights.json and steps.json are written.
/// @param drawings    false: only what stands out
/// @param throughput  what steps are held against, if anything
/// @param known       what stands out beside what is found here
[[nodiscard]] Drawn draw_report(Connection& connection, const std::string& folder, bool drawings,
                                const ThroughputOptions& throughput = {},
                                const std::vector<Insight>& known = {});

}  // namespace ncclscope::cli::report
