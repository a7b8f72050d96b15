// SPDX-License-Identifier: Apache-2.0
//
// Lines to and from one worker: over a pair of pipes, or over a TCP connection.
//   Thread: one.   Owns its descriptors.   Reading never waits; writing does not block either: what
//   does not fit into the kernel's buffer (64 KiB and more; we write some hundred bytes) is an end.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ncclscope::cli::probe {

/// Closes it at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_ = -1;
};

class Channel {
 public:
  /// Both for reading and writing: a socket.
  explicit Channel(Descriptor both);
  Channel(Descriptor reading, Descriptor writing);

  /// To wait for with poll(): -1 once the other end is closed.
  [[nodiscard]] int fd() const { return open_ ? reading_.get() : -1; }
  [[nodiscard]] bool open() const { return open_; }
  /// Whole lines that have come, without their ends. A line that is too long ends the channel.
  [[nodiscard]] std::vector<std::string> read_lines();
  /// Comes first at the next reading.
  void put_back(std::vector<std::string> lines) { put_back_ = std::move(lines); }
  void write_line(std::string_view line);

 private:
  Descriptor reading_, writing_;
  std::vector<std::string> put_back_;
  std::string partial_;
  bool open_ = true;
};

struct Program {
  std::vector<std::string> arguments;    // [0] is a path
  std::vector<std::string> environment;  // NAME=VALUE, beside ours
};

/// A child process: commands on its standard input, its lines on descriptor 3, and all that it and
/// NCCL print on our standard error. Killed at the end.
class Child {
 public:
  /// Throws std::runtime_error if it cannot be started.
  explicit Child(const Program& program);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  [[nodiscard]] Channel& channel() { return channel_; }
  /// How it ended: "ended with status 1"; empty while it runs.
  [[nodiscard]] std::string ended();
  [[nodiscard]] int pid() const { return pid_; }
  /// SIGKILL, and waits for two seconds. False if it is there still: stuck in the driver.
  bool kill();

 private:
  int pid_ = -1;  // before the channel, which is made when the child is started
  Channel channel_;
  std::string ended_;
};

}  // namespace ncclscope::cli::probe
