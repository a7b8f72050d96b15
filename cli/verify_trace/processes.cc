// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

extern char** environ;

namespace ncclscope::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::generic_category().message(error));
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
             const std::filesystem::path& stderr_file) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) fail("pipe", errno);
  if (pipe2(out.data(), O_CLOEXEC) != 0) {
    const int error = errno;
    close(in[0]);
    close(in[1]);
    fail("pipe", error);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, stderr_file.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  stdin_ = in[1];
  stdout_ = out[0];
  if (error != 0) {
    close(stdin_);
    close(stdout_);
    pid_ = -1;
    fail(arguments[0] + " cannot be started", error);
  }
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      stdin_(std::exchange(other.stdin_, -1)),
      stdout_(std::exchange(other.stdout_, -1)),
      status_(other.status_),
      reaped_(other.reaped_) {}

Child::~Child() {
  if (pid_ > 0) stop(std::chrono::milliseconds(2000));
  close_stdin();
  if (stdout_ >= 0) close(stdout_);
}

bool Child::wait_for_line(const std::string& line, std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{stdout_, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(left)) <= 0) continue;
    char buffer[512];
    const ssize_t n = read(stdout_, buffer, sizeof buffer);
    if (n <= 0) return false;
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.find(line + "\n") != std::string::npos) return true;
  }
}

void Child::close_stdin() {
  if (stdin_ >= 0) close(std::exchange(stdin_, -1));
}

int Child::wait(std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  while (running()) {
    if (Clock::now() >= end) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status_;
}

bool Child::running() {
  if (pid_ <= 0 || reaped_) return false;
  int status = 0;
  const pid_t r = waitpid(pid_, &status, WNOHANG);
  if (r == 0) return true;
  reaped_ = true;
  if (r == pid_) status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return false;
}

void Child::stop(std::chrono::milliseconds patience) {
  if (!running()) return;
  kill(pid_, SIGTERM);
  if (wait(patience) == -1 && running()) {
    kill(pid_, SIGKILL);
    (void)wait(std::chrono::milliseconds(5000));
  }
}

std::vector<std::string> environment_with(const std::vector<std::string>& without_prefixes,
                                          const std::vector<std::string>& added) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    const bool unwanted =
        std::any_of(without_prefixes.begin(), without_prefixes.end(),
                    [&entry](const std::string& prefix) { return entry.starts_with(prefix); });
    if (!unwanted) out.push_back(entry);
  }
  out.insert(out.end(), added.begin(), added.end());
  return out;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "ncclscope-traces-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) fail("mkdtemp " + pattern, errno);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ncclscope::cli
