// SPDX-License-Identifier: Apache-2.0
//
// Writes what Prometheus would have scraped from a played job, and what verdict/ says of it, so
// that the recording rules can be held against verdict/ (rules_agree.py).
#pragma once

#include <string>

#include "tests/bench/diagnosis/scenario.h"

namespace ncclscope::bench {

inline constexpr int kScrapeSeconds = 15;
inline constexpr int kSeriesWindowSeconds = 300;
/// The first window is that of the start; the verdict is about the three after it.
inline constexpr int kSeriesWindows = 4;

/// In `directory`: seed<seed>.series, expositions of all nodes every 15 s, each after a line
/// "# scrape <number> <node>"; seed<seed>.verdict, lines "<node> <gpu>" of the accused. The
/// scenario's steps are made 10 s long, and pauses and restarts are left out. False: not written.
[[nodiscard]] bool write_series(Scenario scenario, const std::string& directory);

}  // namespace ncclscope::bench
