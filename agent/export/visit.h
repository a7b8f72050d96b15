// SPDX-License-Identifier: Apache-2.0
//
// Turns a snapshot into samples, once for all output formats.
//   Thread: any; the snapshot is immutable.   Cost: no allocation per sample.
//   Within one visit no two samples have the same name and labels.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "agent/aggregate/snapshot.h"
#include "agent/export/catalogue.h"

namespace ncclscope::agent {

/// What the exporter knows about the agent's own process.
struct SelfStats {
  std::int64_t now_ns = 0;           // since the Unix epoch
  double start_time_seconds = 0;     // since the Unix epoch
  std::uint64_t scrapes = 0;         // expositions before this one
  double scrape_cpu_seconds = 0;     // of those
  double cpu_seconds = 0;            // of the process
  std::uint64_t resident_bytes = 0;  // of the process
};

/// Takes the samples of one visit, family by family in catalogue order; families without samples
/// are not announced. Label values are in the order of the definition's labels, raw: sinks escape
/// them. Views live until the call returns.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual void begin_family(const MetricDefinition& metric) = 0;
  virtual void sample(std::span<const std::string_view> label_values, std::uint64_t value) = 0;
  virtual void sample(std::span<const std::string_view> label_values, double value) = 0;
  /// counts are per bucket, not cumulative; the last one is above all bounds.
  virtual void histogram(std::span<const std::string_view> label_values,
                         std::span<const std::uint64_t> counts, double sum) = 0;
};

/// Series (as Prometheus counts them: 15 per histogram) of jobs and of the agent that a visit
/// delivered.
struct VisitCounts {
  std::uint64_t job_series = 0;
  std::uint64_t agent_series = 0;
};

VisitCounts visit_metrics(const Snapshot& snapshot, const SelfStats& self, MetricSink& sink);

}  // namespace ncclscope::agent
