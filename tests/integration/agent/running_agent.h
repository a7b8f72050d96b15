// SPDX-License-Identifier: Apache-2.0
//
// An agent in this process, on a socket in a directory of its own, and plugins that talk to it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "agent/app/agent.h"
#include "agent/base/clock.h"
#include "agent/base/scoped_fd.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/agent/plugin_frames.h"

namespace ncclscope::agent::testing {

/// Asks until it is true, for at most 20 s (never the normal case).
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A plugin's end of a real socket.
class Plugin {
 public:
  explicit Plugin(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ =
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }
  bool send(const Packet& packet) {
    return ::send(fd_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(packet.size());
  }
  /// The next packet; empty at the end of the stream or after 20 s.
  Packet receive() {
    pollfd p{fd_.get(), POLLIN, 0};
    if (::poll(&p, 1, 20'000) != 1) return {};
    Packet packet(4096);
    const ssize_t n = ::recv(fd_.get(), packet.data(), packet.size(), 0);
    packet.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return packet;
  }
  /// Skips to the next answer of that type. Empty if the stream ends first.
  template <typename Record>
  std::optional<Record> await(wire::RecordType type) {
    for (;;) {
      const Packet packet = receive();
      if (packet.empty()) return std::nullopt;
      if (reply_type(packet) == type) return reply<Record>(packet);
    }
  }
  bool await_end() {
    while (!receive().empty()) {
    }
    return true;
  }
  void close() { fd_.reset(); }
  [[nodiscard]] int fd() const { return fd_.get(); }

  /// Hello and Welcome.
  std::optional<wire::Welcome> greet(std::uint64_t session, std::string_view job = "7",
                                     std::uint64_t acknowledged = 0) {
    if (!send(PacketBuilder()
                  .hello(make_hello(session, acknowledged), {{wire::StringKey::kSlurmJobId, job}})
                  .finish()))
      return std::nullopt;
    return await<wire::Welcome>(wire::RecordType::kWelcome);
  }

 private:
  ScopedFd fd_;
  bool connected_ = false;
};

class RunningAgent {
 public:
  /// @param clock  must outlive it; none: the kernel's
  explicit RunningAgent(std::string socket, std::function<void(Config&)> change = {},
                        const Clock* clock = nullptr) {
    Config config;
    config.socket = std::move(socket);
    config.api_socket.clear();
    config.listen.clear();
    config.log_level = "error";
    if (change) change(config);
    Result<std::unique_ptr<Agent>> made = Agent::create(config, clock != nullptr ? *clock : clock_);
    if (!made.ok()) {
      error_ = made.status().message();
      return;
    }
    agent_ = std::move(made).value();
    if (Status s = agent_->start_servers(); !s.ok()) {
      error_ = s.message();
      agent_.reset();
      return;
    }
    thread_ = std::thread([this] { agent_->run(); });
  }
  ~RunningAgent() { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    agent_->stop();
    thread_.join();
  }
  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] Agent& operator*() { return *agent_; }
  Agent* operator->() { return agent_.get(); }
  /// A snapshot of now, or the last one when it has stopped.
  SnapshotPtr snapshot() {
    agent_->publish_now();
    return agent_->snapshots().get();
  }
  std::uint64_t records_of(std::uint64_t session) {
    const SnapshotPtr s = snapshot();
    for (const auto& job : s->jobs) {
      for (const auto& p : job.processes) {
        if (p.session_id == session) return p.records_received;
      }
    }
    return 0;
  }

 private:
  SystemClock clock_;
  std::string error_;
  std::unique_ptr<Agent> agent_;
  std::thread thread_;
};

inline std::uint64_t decode_errors(const Snapshot& s, std::string_view reason) {
  for (const auto& [name, count] : s.agent.decode_errors) {
    if (name == reason) return count;
  }
  return 0;
}

}  // namespace ncclscope::agent::testing
