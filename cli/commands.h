// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `ncclscope`. Each lives in a file of its own and adds itself.
// A command that fails prints why to standard error and ends by throwing CLI::RuntimeError(exit
// status).
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ncclscope::cli {

/// Exit statuses, the same for all commands.
enum ExitStatus : int {
  kSuccess = 0,
  kNegative = 1,     // the answer is no: books that do not balance, differences, ...
  kUsage = 2,        // wrong arguments, or the command could not be run
  kUnreachable = 3,  // an agent could not be reached, or failed on the way
};

void register_books(CLI::App& app);
void register_detail(CLI::App& app);
void register_diagnose(CLI::App& app);
void register_doctor(CLI::App& app);
void register_job(CLI::App& app);
void register_probe(CLI::App& app);
void register_report(CLI::App& app);
void register_tail(CLI::App& app);
void register_throughput(CLI::App& app);
void register_top(CLI::App& app);
void register_version(CLI::App& app);

}  // namespace ncclscope::cli
