// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope version`: of this program and of what it speaks; no agent is asked.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "proto/wire/frame.h"

namespace ncclscope::cli {

void register_version(CLI::App& app) {
  app.add_subcommand("version", "Print the version")->callback([] {
    std::printf("ncclscope %s (frame protocol %d, API ncclscope.v1)\n", NCCLSCOPE_VERSION,
                int{wire::kMajorVersion});
  });
}

}  // namespace ncclscope::cli
