// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/output.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/doctor/installation.h"

namespace ncclscope::cli::probe {
namespace {

using nlohmann::ordered_json;

/// Of at most 255 characters.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  std::array<char, 256> text{};
  va_list values;
  va_start(values, format);
  (void)std::vsnprintf(text.data(), text.size(), format, values);
  va_end(values);
  return text.data();
}

std::string cuda_release(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

bool complete(const ProbeReport& report, const Measured& m) {
  return report.conductor.ranks() > 0 && m.heard == report.conductor.ranks();
}

std::string heading(const ProbeReport& report) {
  const Conductor& c = report.conductor;
  std::string text = "# ncclscope probe: " + std::to_string(c.ranks()) + " ranks on " +
                     std::to_string(c.nodes()) + (c.nodes() == 1 ? " node" : " nodes");
  if (const Worker& first = c.workers().front(); first.nccl > 0)
    text += ", NCCL " + nccl_release(first.nccl) + ", CUDA runtime " + cuda_release(first.runtime) +
            ", driver for CUDA " + cuda_release(first.driver);
  text += "\n";
  for (const Worker& worker : c.workers()) {
    std::uint32_t rank = worker.first_rank;
    for (const GpuOfWorker& gpu : worker.gpus)
      text += formatted("#   rank %4u  ", rank++) + worker.host + "  " + gpu.pci + "  " + gpu.name +
              "\n";
  }
  if (report.shared_gpu)
    text +=
        "# There is one GPU: two ranks share it and pass for two nodes joined by loopback. This "
        "tries driver and NCCL, no path.\n";
  return text;
}

std::string table_head(model::Function collective) {
  return "#\n# " + std::string(collective_name(collective)) + "\n" +
         formatted("#%12s %12s %7s %7s %11s %9s %9s %9s\n", "size", "count", "type", "redop",
                   "time", "algbw", "busbw", "wrong") +
         formatted("#%12s %12s %7s %7s %11s %9s %9s\n", "(B)", "(elements)", "", "", "(us)",
                   "(GB/s)", "(GB/s)");
}

bool reduces(model::Function collective) {
  return collective == model::Function::kAllReduce || collective == model::Function::kReduceScatter;
}

std::string table_line(const Measured& m, std::uint32_t ranks) {
  const double seconds = m.seconds();
  const std::string wrong = m.checked_ranks > 0 ? std::to_string(m.wrong) : "N/A";
  return formatted(
      " %12llu %12llu %7s %7s %11.2f %9.2f %9.2f %9s\n",
      static_cast<unsigned long long>(m.row.bytes), static_cast<unsigned long long>(m.row.count),
      "float", reduces(m.row.collective) ? "sum" : "none", seconds * 1e6,
      algorithm_gigabytes(m.row, seconds), bus_gigabytes(m.row, ranks, seconds), wrong.c_str());
}

std::string reference_text(const std::string& known, const std::string& unknown, double bus,
                           const topology::Limit& limit) {
  if (limit.gigabytes <= 0) return unknown + " is unknown (" + limit.what + ")";
  return known + formatted(" %.1f GB/s (", limit.gigabytes) + limit.what +
         formatted("), reached %.0f %%", 100 * bus / limit.gigabytes);
}

std::string comparison_text(const Comparison& c) {
  const std::string baseline = "the fleet's baseline";
  return "# " + std::string(collective_name(c.row.collective)) + " of " +
         std::to_string(c.row.bytes) + formatted(" bytes: %.2f GB/s on the bus; ", c.bus) +
         reference_text("the paths allow", "what the paths allow", c.bus, c.allowed) + "; " +
         reference_text(baseline + " is", baseline, c.bus, c.baseline) + "\n";
}

ordered_json limit_json(const topology::Limit& limit) {
  ordered_json json;
  json["gigabytes_per_second"] =
      limit.gigabytes > 0 ? ordered_json(limit.gigabytes) : ordered_json(nullptr);
  json["what"] = limit.what;
  return json;
}

ordered_json row_json(const Measured& m, std::uint32_t ranks) {
  const double seconds = m.seconds();
  ordered_json json;
  json["collective"] = collective_name(m.row.collective);
  json["bytes"] = m.row.bytes;
  json["count"] = m.row.count;
  json["type"] = "float";
  json["time_us"] = seconds * 1e6;
  json["slowest_us"] = m.seconds_most * 1e6;
  json["slowest_rank"] = m.slowest_rank;
  json["algbw_gigabytes_per_second"] = algorithm_gigabytes(m.row, seconds);
  json["busbw_gigabytes_per_second"] = bus_gigabytes(m.row, ranks, seconds);
  json["wrong"] = m.checked_ranks > 0 ? ordered_json(m.wrong) : ordered_json(nullptr);
  return json;
}

const char* outcome_name(Status status) {
  switch (status) {
    case kOk:
      return "ok";
    case kBelow:
      return "below";
    case kNoEnd:
      return "timeout";
    default:
      return "could_not_run";
  }
}

}  // namespace

std::string report_text(const ProbeReport& report) {
  const Conductor& c = report.conductor;
  std::string text;
  if (c.ranks() > 0) text += heading(report);
  auto last = model::Function::kUnknown;
  for (const Measured& m : c.measured()) {
    if (!complete(report, m)) continue;
    if (m.row.collective != last) text += table_head(m.row.collective);
    last = m.row.collective;
    text += table_line(m, c.ranks());
  }
  if (!report.judgement.comparisons.empty()) text += "#\n";
  for (const Comparison& comparison : report.judgement.comparisons)
    text += comparison_text(comparison);
  if (!report.baseline_problem.empty()) text += "# " + report.baseline_problem + "\n";
  if (report.judgement.status == kOk) text += "# ok\n";
  return text;
}

ordered_json report_json(const ProbeReport& report) {
  const Conductor& c = report.conductor;
  ordered_json json;
  json["outcome"] = outcome_name(report.judgement.status);
  json["exit_status"] = static_cast<int>(report.judgement.status);
  json["reasons"] = report.judgement.reasons;
  json["ranks"] = c.ranks();
  json["nodes"] = c.nodes();
  json["shared_gpu"] = report.shared_gpu;
  json["nvlink_known"] = report.nvlink_known;
  const Worker& first = c.workers().front();
  json["nccl"] = first.nccl > 0 ? ordered_json(nccl_release(first.nccl)) : ordered_json(nullptr);
  json["gpus"] = ordered_json::array();
  for (const Worker& worker : c.workers()) {
    std::uint32_t rank = worker.first_rank;
    for (const GpuOfWorker& gpu : worker.gpus)
      json["gpus"].push_back(
          {{"rank", rank++}, {"host", worker.host}, {"pci", gpu.pci}, {"name", gpu.name}});
  }
  json["rows"] = ordered_json::array();
  for (const Measured& m : c.measured())
    if (complete(report, m)) json["rows"].push_back(row_json(m, c.ranks()));
  json["comparisons"] = ordered_json::array();
  for (const Comparison& comparison : report.judgement.comparisons) {
    ordered_json one;
    one["collective"] = collective_name(comparison.row.collective);
    one["bytes"] = comparison.row.bytes;
    one["busbw_gigabytes_per_second"] = comparison.bus;
    one["allowed"] = limit_json(comparison.allowed);
    one["baseline"] = limit_json(comparison.baseline);
    json["comparisons"].push_back(one);
  }
  if (!report.baseline_problem.empty()) json["baseline_problem"] = report.baseline_problem;
  return json;
}

}  // namespace ncclscope::cli::probe
