// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope`: one subcommand per task. This file only gathers them.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/archive_commands.h"
#include "cli/commands.h"
#ifdef NCCLSCOPE_CLI_HAS_VERIFY_TRACE
#include "cli/verify_trace/verify_trace.h"
#endif

#ifdef NCCLSCOPE_CLI_HAS_SIMULATE
namespace ncclscope::cli {
void register_simulate(CLI::App& app);
}
#endif

int main(int argc, char** argv) {
  using namespace ncclscope::cli;  // NOLINT(google-build-using-namespace): the program is its
                                   // commands
  CLI::App app{"Looks at NCCL communication through the ncclscope agents of one or more nodes.",
               "ncclscope"};
  app.set_version_flag("--version", "ncclscope " NCCLSCOPE_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit status: 0 success; 1 the answer is no (books that do not balance, differences found);\n"
      "2 wrong arguments, or the command could not be run; 3 an agent could not be reached.");
  register_top(app);
  register_tail(app);
  register_books(app);
  register_detail(app);
  register_diagnose(app);
  register_doctor(app);
  register_job(app);
  register_probe(app);
  register_record(app);
  register_replay(app);
  register_report(app);
  register_throughput(app);
#ifdef NCCLSCOPE_CLI_HAS_SIMULATE
  register_simulate(app);
#endif
#ifdef NCCLSCOPE_CLI_HAS_VERIFY_TRACE
  register_verify_trace(app);
#endif
  register_version(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status =
        app.exit(error);  // prints help or what is wrong; a RuntimeError carries a command's status
    const bool of_command = dynamic_cast<const CLI::RuntimeError*>(&error) != nullptr;
    return status == 0 || of_command ? status : kUsage;
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsage;
  }
  return kSuccess;
}
