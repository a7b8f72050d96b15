// SPDX-License-Identifier: Apache-2.0
//
// Runs a program as users do, through the shell.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

namespace ncclscope::tests {

struct Outcome {
  int status = -1;  // of exit; -1: the command was ended by a signal, or could not be started
  std::string out;  // standard output
};

inline Outcome run_command(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  for (std::size_t got; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    outcome.out.append(part.data(), got);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace ncclscope::tests
