// SPDX-License-Identifier: Apache-2.0
//
// ncclscope-agent. Exit codes: 0 = stopped as asked, 1 = could not start, 2 = bad settings.
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "agent/app/agent.h"
#include "agent/app/flags.h"
#include "agent/app/privileges.h"
#include "agent/base/log.h"
#include "agent/base/service_manager.h"

namespace {

using namespace ncclscope::agent;  // NOLINT(google-build-using-namespace): this is its program

int fail(const Status& status, int code) {
  std::fprintf(stderr, "ncclscope-agent: %s\n", status.message().c_str());
  return code;
}

Status give_up_root(const Config& config) {
  if (::geteuid() != 0) return {};
  if (config.user.empty()) {
    log_warning(
        "running as root, which the agent does not need: set `user` to an account of its own");
    return {};
  }
  const std::array sockets = {config.socket, config.api_socket};
  return become_user(config.user, sockets);
}

}  // namespace

int main(int argc, char** argv) {
  // One arena per thread would cost megabytes for threads that allocate little.
  mallopt(M_ARENA_MAX, 2);
  // What is large comes and goes (pages): it is given back, and leaves no holes.
  mallopt(M_MMAP_THRESHOLD, 256 * 1024);
  int exit_code = 0;
  const std::optional<CommandLine> command = parse_command_line(argc, argv, exit_code);
  if (!command) return exit_code;
  const Result<Config> config = load_config(command->sources);
  if (!config.ok()) return fail(config.status(), 2);
  switch (command->action) {
    case Action::kCheckConfig:
      std::puts("the settings are good");
      return 0;
    case Action::kPrintConfig:
      std::fputs(to_toml(config.value()).c_str(), stdout);
      return 0;
    case Action::kRun:
      break;
  }
  set_log_level(parse_log_level(config.value().log_level).value());
  if (Status s = give_up_root(config.value()); !s.ok()) return fail(s, 1);
  const SystemClock clock;
  Result<std::unique_ptr<Agent>> agent =
      Agent::create(config.value(), clock, take_passed_descriptors());
  if (!agent.ok()) return fail(agent.status(), 1);
  // Before the servers start their threads: those must inherit the blocked signals.
  if (Status s = agent.value()->handle_signals([&] { return load_config(command->sources); });
      !s.ok()) {
    return fail(s, 1);
  }
  if (Status s = agent.value()->start_servers(); !s.ok()) return fail(s, 1);
  agent.value()->run();
  log_info("stopped");
  return 0;
}
