// SPDX-License-Identifier: Apache-2.0
//
// Does communication explain the throughput: step time and the share of communication in it
// (steps.h) beside a column of somebody else's, from a CSV file or a Prometheus. Errors are thrown
// as std::runtime_error and name file and line, or the Prometheus.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/effect.h"
#include "cli/report/picture.h"
#include "cli/report/steps.h"

namespace ncclscope::cli::report {

struct ThroughputOptions {
  std::string csv;         // file with a header; empty = none
  std::string column;      // empty = the first that is neither time nor step
  std::string prometheus;  // URL; empty = none
  std::string query;       // PromQL that gives one series
  std::string ca;          // PEM authorities; empty = the system's
  std::chrono::milliseconds limit{20'000};

  [[nodiscard]] bool any() const { return !csv.empty() || !prometheus.empty(); }
};

/// A column over time, or over the number of the step where the file has no time.
struct Throughput {
  std::string name, source;
  bool by_step = false;
  std::vector<std::pair<double, double>> samples;  // (ns since 1970, or step from 0 on; value)
};

/// Pure. Times are seconds since 1970 or "2026-06-19T06:56:24[.5][Z]" (UTC).
[[nodiscard]] Throughput parse_throughput_csv(const std::string& file, const std::string& text,
                                              const std::string& column);
/// Before a long run is read: the file is right, or the Prometheus answers and takes the query.
void check_throughput(const ThroughputOptions& options);
[[nodiscard]] Throughput read_throughput(const ThroughputOptions& options, std::int64_t first_ns,
                                         std::int64_t last_ns);

/// One part of the run.
struct StepSample {
  std::int64_t time_ns = 0;  // of its middle
  std::int64_t first_step = 0;
  std::size_t steps = 0;
  double step_seconds = 0;  // mean
  double share = 0;         // of communication in the steps; NaN = not known
  double throughput = 0;    // mean of the samples in it; NaN = none
};

struct Explanation {
  RunSteps steps;
  Throughput throughput;
  std::vector<StepSample> samples;  // no more than a hundred
  Correlation share_throughput, step_throughput, share_step;
};

[[nodiscard]] Explanation explain(RunSteps steps, Throughput throughput);

/// What correlates, in words; empty if nothing can be said.
[[nodiscard]] std::vector<Insight> insights_of(const Explanation& explanation);
/// Step time and share over the run; share x throughput. None where no step was found.
[[nodiscard]] std::vector<Picture> pictures_of(const Explanation& explanation);
[[nodiscard]] nlohmann::ordered_json explanation_json(const Explanation& explanation);

}  // namespace ncclscope::cli::report
