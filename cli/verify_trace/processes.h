// SPDX-License-Identifier: Apache-2.0
//
// Child processes of verify-trace: the private agent and the replayers. Started with posix_spawn
// (the parent has threads), stopped by pid, never outlive their object. Errors are thrown as
// std::runtime_error.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace ncclscope::cli {

/// One child with pipes at its stdin and stdout; stderr goes to a file.
class Child {
 public:
  /// @param environment  complete, "NAME=value"
  Child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
        const std::filesystem::path& stderr_file);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// True when the child wrote a line; false when it ended or the time is over.
  bool wait_for_line(const std::string& line, std::chrono::milliseconds timeout);
  void close_stdin();
  /// Waits for the end; returns the exit status, 128 + signal, or -1 when the time is over.
  int wait(std::chrono::milliseconds timeout);
  [[nodiscard]] bool running();
  /// SIGTERM, then SIGKILL.
  void stop(std::chrono::milliseconds patience);

 private:
  pid_t pid_ = -1;
  int stdin_ = -1, stdout_ = -1;
  int status_ = -1;
  bool reaped_ = false;
};

/// This process's environment without variables that begin with one of the prefixes, and with
/// `added`.
[[nodiscard]] std::vector<std::string> environment_with(
    const std::vector<std::string>& without_prefixes, const std::vector<std::string>& added);

/// A directory that is removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ncclscope::cli
