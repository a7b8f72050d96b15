// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope throughput`: a job tells its node's agent how much work it does per second.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

using Unit = v1::ReportThroughputRequest;
constexpr double kLongestSeconds = 3600;

const std::map<std::string, Unit::Unit>& units() {
  static const std::map<std::string, Unit::Unit> kUnits = {{"tokens", Unit::UNIT_TOKENS},
                                                           {"samples", Unit::UNIT_SAMPLES},
                                                           {"steps", Unit::UNIT_STEPS},
                                                           {"flops", Unit::UNIT_FLOPS}};
  return kUnits;
}

struct ThroughputOptions {
  AgentOptions agents;
  std::string job, unit = "tokens", duration = "5m";
  double per_second = 0;
};

int run(const ThroughputOptions& options) {
  const std::optional<double> seconds = parse_duration(options.duration);
  if (!seconds || *seconds < 0.001 || *seconds > kLongestSeconds) {
    std::fprintf(stderr,
                 "ncclscope throughput: --for \"%s\": wanted a number with s, m or h, up to one "
                 "hour, such as 5m\n",
                 options.duration.c_str());
    return kUsage;
  }
  v1::ReportThroughputRequest request;
  request.set_job_id(options.job);
  request.set_unit(units().at(options.unit));
  request.set_per_second(options.per_second);
  request.set_valid_ms(static_cast<std::uint32_t>(*seconds * 1000));
  int status = kSuccess;
  for (const Agent& agent : connect(options.agents)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Agent::kPatience);
    v1::ReportThroughputResponse response;
    const grpc::Status answer = agent.stub().ReportThroughput(&context, request, &response);
    if (agent.check(answer)) continue;
    const bool refused = answer.error_code() == grpc::StatusCode::NOT_FOUND;
    status = std::max<int>(status, refused ? kNegative : kUnreachable);
  }
  return status;
}

}  // namespace

void register_throughput(CLI::App& app) {
  auto options = std::make_shared<ThroughputOptions>();
  CLI::App* command = app.add_subcommand(
      "throughput", "Tell the node's agent how much work a job does: ncclscope_job_throughput");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "The job")->type_name("ID")->required();
  command->add_option("--unit", options->unit, "Of what: tokens, samples, steps or flops")
      ->capture_default_str()
      ->check(CLI::IsMember({"tokens", "samples", "steps", "flops"}));
  command
      ->add_option("--for", options->duration,
                   "Shown for so long unless it is told again, at most 1h")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_option("per_second", options->per_second, "So many per second")
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->footer(
      "Users tell for their own jobs, administrators for all. What several agents show of a job is "
      "added up.\n"
      "Exit status: 0 told; 1 an agent has no such job; 2 wrong arguments; 3 an agent was not "
      "reached or failed.");
  command->callback([options] {
    if (const int status = run(*options); status != kSuccess) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli
