// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope verify-trace DIR...`: replays recordings of NCCL through the real plugin and a real
// agent and compares what comes out with expected.json. Exit status 0 = no difference, 1 =
// differences, 2 = could not be run.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace ncclscope::cli {

struct VerifyTraceOptions {
  std::vector<std::string> folders;
  std::string plugin, agent, replayer,
      limits;                 // empty = found beside this program or in its build tree
  std::string mask = "both";  // default, recorded, both
  std::string keep;           // folder for the stored answers, empty = none
  int jobs = 0;               // folders at a time, 0 = two per processor
  bool json = false;
  bool selftest = false;
  bool check_limits = false;  // an entry of the limits that nothing needed is a difference
};

/// Runs the command; returns the exit status. Prints to stdout, errors to stderr.
[[nodiscard]] int verify_trace(const VerifyTraceOptions& options);

/// Adds the options to `app`.
void add_verify_trace_options(CLI::App& app, VerifyTraceOptions& options);

/// Adds the subcommand; its callback ends in CLI::RuntimeError(status) when status is not 0.
void register_verify_trace(CLI::App& app);

}  // namespace ncclscope::cli
