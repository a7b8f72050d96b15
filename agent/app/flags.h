// SPDX-License-Identifier: Apache-2.0
//
// The command line. The flag library is used in flags.cc only.
#pragma once

#include <optional>

#include "agent/app/config.h"

namespace ncclscope::agent {

enum class Action : std::uint8_t { kRun, kCheckConfig, kPrintConfig };

struct CommandLine {
  Action action = Action::kRun;
  ConfigSources sources;
};

/// Parses; on --help, --version and errors prints, sets `exit_code` and returns nothing.
[[nodiscard]] std::optional<CommandLine> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace ncclscope::agent
