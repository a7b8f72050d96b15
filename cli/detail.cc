// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope detail`: raises or lowers what the plugins of a job record, for a while.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

using Level = v1::SetDetailRequest;
constexpr double kLongestSeconds = 3600;

const std::map<std::string, Level::Level>& levels() {
  static const std::map<std::string, Level::Level> kLevels = {
      {"low", Level::LEVEL_LOW}, {"normal", Level::LEVEL_NORMAL}, {"full", Level::LEVEL_FULL}};
  return kLevels;
}

struct DetailOptions {
  AgentOptions agents;
  std::string job;
  std::string level = "full";
  std::string duration = "30s";
  bool network = false;
  bool json = false;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "ncclscope detail: %s\n", text.c_str());
  throw CLI::RuntimeError(kUsage);
}

v1::SetDetailRequest to_request(const DetailOptions& options) {
  const std::optional<double> seconds = parse_duration(options.duration);
  if (!seconds || *seconds < 0.001 || *seconds > kLongestSeconds)
    fail("--for \"" + options.duration +
         "\": wanted a number with s, m or h, up to one hour, such as 30s");
  if (options.network && options.level == "low")
    fail("--network does not go with --level low, which leaves network phases out");
  v1::SetDetailRequest request;
  request.set_job_id(options.job);
  request.set_level(levels().at(options.level));
  request.set_network_phases(options.network);
  request.set_duration_ms(static_cast<std::uint32_t>(*seconds * 1000));
  return request;
}

void print(const DetailOptions& options, const v1::SetDetailResponse& response) {
  if (options.json) {
    const nlohmann::ordered_json line = {{"node", response.node()},
                                         {"job_id", options.job},
                                         {"level", options.level},
                                         {"network_phases", options.network},
                                         {"processes", response.processes()}};
    std::printf(
        "%s\n",
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%s: %u %s of job %s told: detail %s%s for %s\n", printable(response.node()).c_str(),
              response.processes(), response.processes() == 1 ? "process" : "processes",
              printable(options.job).c_str(), options.level.c_str(),
              options.network ? " and all network phases" : "", options.duration.c_str());
}

int run(const DetailOptions& options) {
  const v1::SetDetailRequest request = to_request(options);
  bool failed = false;
  std::uint32_t told = 0;
  // A job has no processes on many a node: that is worth a line, and a failure only if it has none
  // on any.
  for (const Agent& agent : connect(options.agents)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Agent::kPatience);
    v1::SetDetailResponse response;
    const grpc::Status status = agent.stub().SetDetail(&context, request, &response);
    if (!agent.check(status)) {
      failed = failed || status.error_code() != grpc::StatusCode::NOT_FOUND;
      continue;
    }
    told += response.processes();
    print(options, response);
  }
  if (failed) return kUnreachable;
  return told > 0 ? kSuccess : kNegative;
}

}  // namespace

void register_detail(CLI::App& app) {
  auto options = std::make_shared<DetailOptions>();
  CLI::App* command =
      app.add_subcommand("detail", "Raise or lower what a job's plugins record, for a while");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "The job")->type_name("ID")->required();
  command
      ->add_option("--level", options->level,
                   "full: network phases and per-channel times of every operation; normal; low: "
                   "GPU times of one block of operations in 16, no network phases")
      ->capture_default_str()
      ->check(CLI::IsMember({"full", "normal", "low"}));
  command
      ->add_option("--for", options->duration,
                   "How long: 30s, 5m, at most 1h; then it is as before, agent or not")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_flag("--network", options->network,
                    "Network phases of every operation, with --level normal too");
  command->add_flag("--json", options->json, "One JSON object per agent");
  command->footer(
      "Users control their own jobs, administrators all. A plugin never goes over its overhead "
      "budget for it: what it\n"
      "really records is in ncclscope_plugin_detail_info and ncclscope_plugin_governor_level.\n"
      "Exit status: 0 at least one process was told; 1 none of the agents has such a job; 2 wrong "
      "arguments;\n"
      "3 an agent was not reached or failed.");
  command->callback([options] {
    if (const int status = run(*options); status != kSuccess) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli
