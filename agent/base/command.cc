// SPDX-License-Identifier: Apache-2.0
//
// posix_spawn, a pipe, and a deadline.
#include "agent/base/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {
namespace {

using SteadyClock = std::chrono::steady_clock;

class SpawnAttributes {
 public:
  SpawnAttributes() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
  }
  ~SpawnAttributes() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  /// Output into `fd`, own process group, signals as a program expects them: the agent blocks some.
  void prepare(int fd) {
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, fd, STDOUT_FILENO);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGCHLD})
      sigaddset(&defaults, signal);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_,
        static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP));
  }
  int spawn(pid_t& pid, const std::vector<std::string>& arguments) {
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    // The interface is older than const.
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    return ::posix_spawn(&pid, argv[0], &actions_, &attributes_, argv.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// The child and its process group; the destructor leaves neither.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() { (void)reap(0); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Whether it has ended. It is not reaped, so its number stays taken.
  [[nodiscard]] bool ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid == pid_;
  }
  /// Kills what is left of the group and returns the wait status; -1 if somebody else took it.
  int reap(int unknown = -1) {
    if (pid_ <= 0) return unknown;
    // While the leader is not reaped, the group's number cannot be anybody else's.
    ::kill(-pid_, SIGKILL);
    int status = unknown;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

/// Waits for one of two descriptors (either may be -1) at most until `deadline`.
struct Waited {
  bool first = false, second = false;
};
Waited wait_for(int first, int second, SteadyClock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  std::array<pollfd, 2> fds{pollfd{first, POLLIN, 0}, pollfd{second, POLLIN, 0}};
  const auto limit = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  if (::poll(fds.data(), fds.size(), limit) <= 0) return {};
  return {fds[0].revents != 0, fds[1].revents != 0};
}

}  // namespace

Result<std::string> run_command(const std::vector<std::string>& arguments,
                                const CommandLimits& limits) {
  if (arguments.empty()) return Status::invalid("there is no command to run");
  const std::string& program = arguments.front();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Status::system("pipe");
  ScopedFd output(ends[0]);
  ScopedFd input(ends[1]);
  pid_t pid = -1;
  SpawnAttributes attributes;
  attributes.prepare(input.get());
  if (const int error = attributes.spawn(pid, arguments); error != 0)
    return Status::system(concat("cannot run ", program), error);
  Child child(pid);
  input.reset();

  const auto deadline = SteadyClock::now() + limits.timeout;
  const auto timed_out = [&] {
    return Status(ErrorCode::kSystem, concat(program, " did not end within ",
                                             limits.timeout.count(), " ms and was killed"));
  };
  const Status cancelled(ErrorCode::kSystem, concat(program, " was killed: the agent is stopping"));
  std::string text;
  std::vector<char> part(std::size_t{64} << 10);
  for (;;) {
    const Waited waited = wait_for(output.get(), limits.cancel_fd, deadline);
    if (waited.second) return cancelled;
    if (!waited.first) {
      if (SteadyClock::now() >= deadline) return timed_out();
      continue;
    }
    const ssize_t got = ::read(output.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(concat("reading what ", program, " prints"));
    if (got == 0) break;
    if (text.size() + static_cast<std::size_t>(got) > limits.max_output_bytes) {
      return Status(ErrorCode::kSystem, concat(program, " printed more than ",
                                               limits.max_output_bytes, " bytes and was killed"));
    }
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  // It has closed its output; its end is a matter of moments.
  constexpr std::chrono::milliseconds kLook{5};
  while (!child.ended()) {
    if (SteadyClock::now() >= deadline) return timed_out();
    if (wait_for(-1, limits.cancel_fd, std::min(deadline, SteadyClock::now() + kLook)).second)
      return cancelled;
  }
  const int status = child.reap();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  if (WIFEXITED(status)) {
    return Status(ErrorCode::kSystem, concat(program, " exited with ", WEXITSTATUS(status)));
  }
  return Status(ErrorCode::kSystem, concat(program, " was ended by signal ", WTERMSIG(status)));
}

}  // namespace ncclscope::agent
