// SPDX-License-Identifier: Apache-2.0
//
// Starts a program from a test that has threads. posix_spawn, because code of ours between fork and
// exec could allocate, which under AddressSanitizer waits for ever for a thread that the child does
// not have.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <vector>

namespace ncclscope::tests {

/// Where a child's standard output goes; standard error follows if `with_error` is set.
struct ChildOutput {
  int fd = -1;  ///< an open descriptor, closed in the parent by its owner; -1: as the parent's
  bool with_error = false;
};

/// arguments[0] is the program's path. The environment is the parent's. Returns the pid, which the
/// caller waits for; throws std::system_error if the program cannot be started.
inline pid_t spawn(const std::vector<std::string>& arguments, ChildOutput output = {}) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (output.fd >= 0) {
    ::posix_spawn_file_actions_adddup2(&actions, output.fd, STDOUT_FILENO);
    if (output.with_error) ::posix_spawn_file_actions_adddup2(&actions, output.fd, STDERR_FILENO);
  }
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), arguments[0]);
  return pid;
}

}  // namespace ncclscope::tests
