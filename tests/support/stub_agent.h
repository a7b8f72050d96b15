// SPDX-License-Identifier: Apache-2.0
//
// An agent small enough to see through: takes a plugin's frames, keeps every record, answers as
// told.
//   Thread: its own; the accessors lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/frame.h"

namespace ncclscope::tests {

class StubAgent {
 public:
  struct Behaviour {
    bool welcome = true;
    bool acknowledge = true;
    bool keep_records = true;                  // false: count only
    bool garbage = false;                      // answers every hello with bytes that are no frame
    std::uint8_t major = wire::kMajorVersion;  // of its answers
    bool refuse = false;
    bool claim_too_much = false;  // Welcome and Ack name records that were never written
  };

  explicit StubAgent(std::string path, Behaviour behaviour);
  explicit StubAgent(std::string path) : StubAgent(std::move(path), Behaviour{}) {}
  ~StubAgent();
  StubAgent(const StubAgent&) = delete;
  StubAgent& operator=(const StubAgent&) = delete;

  /// Sends a record (header set) to all connected plugins.
  void send(const wire::SetDetail& detail);

  // What has come so far.
  std::vector<wire::Operation> operations() const;
  std::vector<wire::NetworkPhases> network() const;
  std::vector<wire::ChannelDetail> channels() const;
  std::vector<wire::CommunicatorFinalize> finalized() const;
  std::map<std::uint16_t, wire::CommunicatorInit> communicators() const;
  std::map<std::uint16_t, std::string> communicator_names() const;
  std::map<std::uint16_t, wire::Progress> progress() const;
  std::map<std::uint64_t, wire::Books> books() const;  // newest by session
  std::vector<wire::Hello> hellos() const;
  std::map<std::uint16_t, std::string> strings() const;    // of the newest hello, by key
  std::vector<std::string> variables() const;              // NCCL_*, behind the newest hello
  std::optional<std::uint16_t> environment_flags() const;  // of the last record of them, if any
  std::vector<wire::Neighbour> neighbours() const;

  std::uint64_t operation_count() const { return operation_count_.load(); }
  std::uint64_t duplicates() const { return duplicates_.load(); }
  std::uint64_t lost() const { return lost_.load(); }
  std::uint64_t frames() const { return frames_.load(); }
  std::uint64_t bytes() const { return bytes_.load(); }
  std::uint64_t malformed() const { return malformed_.load(); }
  std::uint64_t goodbyes() const { return goodbyes_.load(); }

  /// Waits (at most about `seconds`) until `condition` holds. Long, since the plugin's sender is at
  /// nice 10: on a busy machine it gets little.
  template <typename Condition>
  static bool wait_for(const Condition& condition, double seconds = 30.0) {
    for (int i = 0; i < static_cast<int>(seconds * 1000); ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }
  bool wait_for_operations(std::uint64_t n, double seconds = 30.0) const {
    return wait_for([&] { return operation_count() >= n; }, seconds);
  }

 private:
  struct Connection {
    int fd = -1;
    std::uint64_t session = 0;
  };
  void run();
  bool read(Connection& c);
  template <typename Record>
  void answer(int fd, const Record& record);

  std::string path_;
  Behaviour behaviour_;
  int listener_ = -1;
  std::uint64_t instance_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> operation_count_{0}, duplicates_{0}, lost_{0}, frames_{0}, bytes_{0},
      malformed_{0}, goodbyes_{0};
  mutable std::mutex mutex_;
  std::vector<Connection> connections_;
  std::map<std::uint64_t, std::uint64_t> highest_;  // by session
  std::vector<wire::Operation> operations_;
  std::vector<wire::NetworkPhases> network_;
  std::vector<wire::ChannelDetail> channels_;
  std::vector<wire::CommunicatorFinalize> finalized_;
  std::map<std::uint16_t, wire::CommunicatorInit> communicators_;
  std::map<std::uint16_t, std::string> communicator_names_;
  std::map<std::uint16_t, wire::Progress> progress_;
  std::map<std::uint64_t, wire::Books> books_;
  std::vector<wire::Hello> hellos_;
  std::map<std::uint16_t, std::string> strings_;
  std::vector<std::string> variables_;
  std::optional<std::uint16_t> environment_flags_;
  std::vector<wire::Neighbour> neighbours_;
  std::thread thread_;
};

}  // namespace ncclscope::tests
