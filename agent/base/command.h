// SPDX-License-Identifier: Apache-2.0
//
// Runs a program and takes what it prints, within limits: a program that hangs, floods or leaves
// children behind costs its time limit and no more.
//   Thread: blocks the calling one; give it a thread of its own.   Descriptors of the agent are not
//   inherited (they are close-on-exec); standard input and error are /dev/null.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "agent/base/result.h"

namespace ncclscope::agent {

struct CommandLimits {
  std::chrono::milliseconds timeout{10'000};
  std::size_t max_output_bytes = std::size_t{8} << 20;
  /// Readable: give up at once. -1: nothing to listen to.
  int cancel_fd = -1;
};

/// Standard output of `arguments` (the first is the program's path), if it exits with 0 within the
/// limits. Else what went wrong. The program gets a process group of its own, of which nothing is
/// left when this returns.
[[nodiscard]] Result<std::string> run_command(const std::vector<std::string>& arguments,
                                              const CommandLimits& limits);

}  // namespace ncclscope::agent
