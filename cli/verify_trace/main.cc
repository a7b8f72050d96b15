// SPDX-License-Identifier: Apache-2.0
//
// ncclscope-verify-trace: the subcommand as a program of its own, for test runs without the rest of
// the command line.
#include "cli/verify_trace/verify_trace.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Replays recordings of NCCL through the plugin and an agent, and compares with "
      "expected.json"};
  ncclscope::cli::VerifyTraceOptions options;
  ncclscope::cli::add_verify_trace_options(app, options);
  CLI11_PARSE(app, argc, argv);
  return ncclscope::cli::verify_trace(options);
}
