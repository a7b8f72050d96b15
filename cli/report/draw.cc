// SPDX-License-Identifier: Apache-2.0
#include "cli/report/draw.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/report/verdicts.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

constexpr std::size_t kMostNamed = 12;

std::string list_of(const std::vector<std::string>& items) {
  std::string out;
  for (std::size_t i = 0; i < items.size() && i < kMostNamed; ++i)
    out += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kMostNamed)
    out += " and " + std::to_string(items.size() - kMostNamed) + " more";
  return out;
}

std::string percent(double share) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.4g %%", share * 100);
  return text;
}

/// The tables are written by now: what a Prometheus does not give costs the throughput alone.
Throughput throughput_of(const ThroughputOptions& options, const RunHead& head, Drawn& out) {
  try {
    return read_throughput(options, head.first_ns, head.last_ns);
  } catch (const std::runtime_error& error) {
    out.throughput_missing = error.what();
    out.insights.push_back({Insight::Weight::kNotice, "no_throughput",
                            std::string("There is no throughput: ") + error.what() + ".", "", 0,
                            0});
  }
  return {};
}

}  // namespace

std::string time_text(const RunHead& head) {
  if (head.last_ns <= 0) return "at an unknown time";
  return utc_text(head.first_ns) + " to " + utc_text(head.last_ns) + " UTC (" +
         format_duration(static_cast<double>(head.last_ns - head.first_ns) * 1e-9) + ")";
}

std::string heading_of(const RunHead& head) {
  if (head.jobs.size() == 1 && head.jobs[0] != "unknown") return "Report of job " + head.jobs[0];
  return head.jobs.size() > 1 ? "Report of " + std::to_string(head.jobs.size()) + " jobs"
                              : "Report of a run";
}

std::vector<std::pair<std::string, std::string>> facts_of(const RunHead& head) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) facts.emplace_back(name, value);
  };
  add(head.jobs.size() == 1 ? "Job" : "Jobs", list_of(head.jobs));
  add("Cluster", list_of(head.clusters));
  add("Time", time_text(head));
  add(head.nodes.size() == 1 ? "Node" : "Nodes",
      std::to_string(head.nodes.size()) + (head.nodes.empty() ? "" : ": " + list_of(head.nodes)));
  add("Processes", std::to_string(head.processes));
  add("Communicators", std::to_string(head.communicators));
  add("Operations", std::to_string(head.operations));
  if (head.operations > 0)
    add("Timed", percent(static_cast<double>(head.timed) / static_cast<double>(head.operations)));
  add("Moved, each rank's", format_bytes(static_cast<std::uint64_t>(head.bytes)));
  add("Time in operations, all ranks", format_duration(head.seconds));
  add("NCCL", list_of(head.nccl_versions));
  add("Plugin", list_of(head.plugin_versions));
  add("Read from", list_of(head.sources) + ", " + std::to_string(head.files) +
                       (head.files == 1 ? " file" : " files"));
  return facts;
}

nlohmann::ordered_json insights_json(const std::vector<Insight>& insights) {
  auto out = nlohmann::ordered_json::array();
  for (const Insight& insight : insights) {
    const char* weight = insight.weight == Insight::Weight::kFault    ? "fault"
                         : insight.weight == Insight::Weight::kNotice ? "notice"
                                                                      : "information";
    out.push_back({{"kind", insight.kind},
                   {"weight", weight},
                   {"text", insight.text},
                   {"detail", insight.detail},
                   {"since_ns", insight.since_ns},
                   {"until_ns", insight.until_ns}});
  }
  return out;
}

std::string insights_text(const std::vector<Insight>& insights) {
  std::string out = "What stands out:\n";
  for (const Insight& insight : insights) {
    const char* mark = insight.weight == Insight::Weight::kFault    ? "  ! "
                       : insight.weight == Insight::Weight::kNotice ? "  * "
                                                                    : "    ";
    out += mark + insight.text + "\n";
    if (!insight.detail.empty()) out += "      " + insight.detail + "\n";
  }
  return out;
}

void write_json_file(const std::string& path, const nlohmann::ordered_json& value) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << value.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  out.close();
  if (!out)
    throw std::runtime_error(
        path + ": cannot be written: " + std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
}

Drawn draw_report(Connection& connection, const std::string& folder, bool drawings,
                  const ThroughputOptions& throughput, const std::vector<Insight>& known) {
  const std::string view = "operations";
  const RunHead head = run_head(connection, view);
  Drawn out;
  out.insights = find_insights(connection, view, head);
  out.insights.insert(out.insights.end(), known.begin(), known.end());
  const Explanation explanation =
      explain(find_steps(connection, view), throughput_of(throughput, head, out));
  for (Insight& insight : insights_of(explanation)) out.insights.push_back(std::move(insight));
  write_json_file(folder + "/steps.json", explanation_json(explanation));
  write_json_file(folder + "/insights.json", insights_json(out.insights));
  if (!drawings) return out;
  Page& page = out.page.emplace();
  page.heading = heading_of(head);
  page.subheading = time_text(head);
  page.version = NCCLSCOPE_VERSION;
  page.facts = facts_of(head);
  page.insights = out.insights;
  page.pictures = make_pictures(connection, view);
  for (Picture& picture : pictures_of(explanation)) page.pictures.push_back(std::move(picture));
  return out;
}

}  // namespace ncclscope::cli::report
