// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/other_sources.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cli/diagnose/flight_recorder.h"
#include "cli/diagnose/nodes.h"
#include "cli/json_file.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

constexpr std::uintmax_t kMostRasBytes = std::uintmax_t{256} << 20;

Report flight_report(const OtherSources& sources, std::size_t rows) {
  return {*sources.flight, sources.flight_findings, {}, rows};
}

void look_at_ras(const OtherSourceOptions& options, OtherSources& out) {
  std::vector<RasStatus> samples;
  for (const std::string& file : options.ras)
    samples.push_back(parse_ras_status(file, read_text_file(file, kMostRasBytes)));
  if (!options.ncclras.empty()) {
    const std::vector<std::string> command =
        ncclras_command(options.ncclras_program, options.ncclras);
    for (int sample = 0; sample < 2; ++sample) {
      if (sample > 0) std::this_thread::sleep_for(options.between_samples);
      samples.push_back(
          parse_ras_status(options.ncclras_program, output_of(command, options.limit)));
    }
  }
  if (samples.empty()) return;
  out.two_ras_samples = samples.size() > 1;
  const RasStatus* earlier = out.two_ras_samples ? &samples[samples.size() - 2] : nullptr;
  out.ras_findings = judge_ras(samples.back(), earlier);
  out.ras = std::move(samples.back());
}

}  // namespace

Outcome OtherSources::outcome() const {
  Outcome worst = Outcome::kHealthy;
  if (flight) worst = outcome_of(flight_report(*this, 1));
  if (std::any_of(ras_findings.begin(), ras_findings.end(),
                  [](const RasFinding& f) { return f.fault; }))
    worst = Outcome::kFinding;
  if (ras && ras->timeouts > 0 && worst == Outcome::kHealthy) worst = Outcome::kPartial;
  return worst;
}

OtherSources look_at(const OtherSourceOptions& options, const std::string& job_id,
                     const verdict::JudgeOptions& settings) {
  OtherSources out;
  if (!options.flight_recorder.empty()) {
    out.flight = observe_flight_dumps(read_flight_dumps(options.flight_recorder), job_id);
    const verdict::Judge judge(out.flight->job, settings);
    out.flight_findings = judge.findings(out.flight->standing);
  }
  look_at_ras(options, out);
  return out;
}

std::string text_of(const OtherSources& sources, std::size_t rows) {
  std::string out;
  if (sources.flight) out += report_text(flight_report(sources, rows));
  if (sources.ras) {
    if (!out.empty()) out += "\n";
    out += ras_text(*sources.ras, sources.ras_findings, sources.two_ras_samples);
  }
  return out;
}

void add_json(const OtherSources& sources, nlohmann::ordered_json& out) {
  if (sources.flight) out["flight_recorder"] = report_json(flight_report(sources, 1));
  if (sources.ras) out["ras"] = ras_json(*sources.ras, sources.ras_findings);
}

std::vector<std::string> ncclras_command(const std::string& program, const std::string& address) {
  std::vector<std::string> command = {program, "-f", "json"};
  if (address == "local") return command;
  std::string host = address;
  std::string port;
  if (address.starts_with('[')) {
    const std::size_t end = address.find(']');
    host = end == std::string::npos ? "" : address.substr(1, end - 1);
    if (end != std::string::npos && address.substr(end).starts_with("]:"))
      port = address.substr(end + 2);
  } else if (const std::size_t colon = address.find(':'); colon != std::string::npos) {
    host = address.substr(0, colon);
    port = address.substr(colon + 1);
  }
  // Options are never made of what a user typed.
  if (host.empty() || host.starts_with('-') ||
      port.find_first_not_of("0123456789") != std::string::npos)
    throw std::runtime_error("--ncclras: '" + printable(address) +
                             "': wanted local, HOST or HOST:PORT");
  command.insert(command.end(), {"-h", host});
  if (!port.empty()) command.insert(command.end(), {"-p", port});
  return command;
}

}  // namespace ncclscope::cli
