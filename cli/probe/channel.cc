// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cli/probe/protocol.h"

extern char** environ;

namespace ncclscope::cli::probe {
namespace {

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  (void)::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

struct Pipe {
  Descriptor reading, writing;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Ours, with what is added in the place of what had that name.
std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view one = *at;
    const std::string_view name = one.substr(0, one.find('=') + 1);
    bool replaced = false;
    for (const std::string& a : added) replaced = replaced || a.starts_with(name);
    if (!replaced) all.emplace_back(one);
  }
  return all;
}

/// Started with its ends of the pipes.
int start(const Program& program, int commands, int lines) {
  std::vector<std::string> arguments = program.arguments;
  std::vector<std::string> environment = environment_with(program.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // The source may be 3 itself: then it would stay close-on-exec, so it goes by way of 0.
  posix_spawn_file_actions_adddup2(&actions, lines, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const int high = 10;
  posix_spawn_file_actions_adddup2(&actions, commands, high);
  posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, 3);
  posix_spawn_file_actions_adddup2(&actions, high, STDIN_FILENO);
  posix_spawn_file_actions_addclose(&actions, high);
  // Children do not inherit what commands ignore.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, arguments[0].c_str(), &actions, &attributes,
                                  pointers(arguments).data(), pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw std::runtime_error(arguments[0] + " cannot be started: " +
                             std::strerror(error));  // NOLINT(concurrency-mt-unsafe)
  return pid;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Channel::Channel(Descriptor both) : reading_(std::move(both)) {
  set_nonblocking(reading_.get());
}

Channel::Channel(Descriptor reading, Descriptor writing)
    : reading_(std::move(reading)), writing_(std::move(writing)) {
  set_nonblocking(reading_.get());
  set_nonblocking(writing_.get());
}

std::vector<std::string> Channel::read_lines() {
  std::array<char, 16'384> buffer{};
  // One reading at a time, so that nobody keeps the others from their turn.
  const ssize_t got = open_ ? ::read(reading_.get(), buffer.data(), buffer.size()) : 0;
  if (got > 0)
    partial_.append(buffer.data(), static_cast<std::size_t>(got));
  else if (got == 0 || (errno != EAGAIN && errno != EINTR))
    open_ = false;
  std::vector<std::string> lines = std::exchange(put_back_, {});
  std::size_t begin = 0;
  for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(partial_.substr(begin, end - begin));
  partial_.erase(0, begin);
  if (partial_.size() > kLongestLine) open_ = false;
  return lines;
}

void Channel::write_line(std::string_view line) {
  if (!open_) return;
  const std::string text = std::string(line) + "\n";
  const bool socket = writing_.get() < 0;
  for (std::size_t sent = 0; sent < text.size();) {
    const char* from = text.data() + sent;
    const std::size_t left = text.size() - sent;
    const ssize_t got = socket ? ::send(reading_.get(), from, left, MSG_NOSIGNAL)
                               : ::write(writing_.get(), from, left);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      open_ = false;
      return;
    }
    sent += static_cast<std::size_t>(got);
  }
}

namespace {

/// The parent's ends are in the channel, the child's are closed here.
Channel channel_of(const Program& program, int& pid) {
  Pipe commands = make_pipe();
  Pipe lines = make_pipe();
  pid = start(program, commands.reading.get(), lines.writing.get());
  return {std::move(lines.reading), std::move(commands.writing)};
}

}  // namespace

Child::Child(const Program& program) : channel_(channel_of(program, pid_)) {}

Child::~Child() {
  (void)kill();
}

std::string Child::ended() {
  int status = 0;
  if (pid_ <= 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  pid_ = -1;
  ended_ = WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                               : "ended with status " + std::to_string(WEXITSTATUS(status));
  return ended_;
}

bool Child::kill() {
  if (pid_ <= 0) return true;
  ::kill(pid_, SIGKILL);
  constexpr int kTries = 200;
  for (int i = 0; i < kTries && ended().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return pid_ <= 0;
}

}  // namespace ncclscope::cli::probe
