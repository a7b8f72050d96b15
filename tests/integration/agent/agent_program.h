// SPDX-License-Identifier: Apache-2.0
//
// The agent as a program of its own, and what it says. Needs NCCLSCOPE_AGENT_PROGRAM.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/agent/running_agent.h"
#include "tests/support/spawn.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The agent as a child process. Standard output and error go to a file.
class Program {
 public:
  Program(const tests::TemporaryDirectory& directory, const std::vector<std::string>& arguments)
      : log_(directory / "log") {
    const int fd = ::open(log_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    std::vector<std::string> all{NCCLSCOPE_AGENT_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    pid_ = tests::spawn(all, {.fd = fd, .with_error = true});
    ::close(fd);
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Exit code, or 1000 + signal; -1 if it does not end within 20 s.
  int wait() {
    int status = 0;
    if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) != 0; })) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  [[nodiscard]] std::string log() const { return read_file(log_); }
  [[nodiscard]] std::string proc(const std::string& file) const {
    return read_file("/proc/" + std::to_string(pid_) + "/" + file);
  }

 private:
  pid_t pid_ = -1;
  std::string log_;
};

}  // namespace ncclscope::agent::testing
