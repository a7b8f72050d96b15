// SPDX-License-Identifier: Apache-2.0
//
// Flags are made from the table of settings.
#include "agent/app/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>

#include "agent/app/agent.h"

namespace ncclscope::agent {

std::optional<CommandLine> parse_command_line(int argc, char** argv, int& exit_code) {
  CommandLine out;
  CLI::App app(
      "Collects NCCL operations from the profiler plugins of this node and serves Prometheus "
      "metrics and an API.\n"
      "Each setting can come from a flag, from NCCLSCOPE_AGENT_<NAME>, or from the file; the first "
      "one wins.",
      "ncclscope-agent");
  app.set_version_flag("--version", std::string("ncclscope-agent ") + agent_version());
  app.add_option("--config", out.sources.file,
                 std::string("TOML file (default ") + kDefaultConfigFile + " where it exists)");
  bool check = false;
  bool print = false;
  app.add_flag("--check-config", check, "check the settings and leave: 0 = good, 2 = bad");
  app.add_flag("--print-config", print, "print the settings in force as a TOML file and leave");
  for (const ConfigKey& key : config_keys()) {
    std::string flag = std::string("--") + key.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    app.add_option_function<std::string>(
        flag,
        [&out, name = std::string(key.name)](const std::string& value) {
          out.sources.flags[name] = value;
        },
        key.help);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  if (check) out.action = Action::kCheckConfig;
  if (print) out.action = Action::kPrintConfig;
  return out;
}

}  // namespace ncclscope::agent
