// SPDX-License-Identifier: Apache-2.0
//
// How the processes of one run find each other. Process 0 listens; the others connect and say which
// run they belong to (a key) and which process they are. Where it listens is known beforehand, or
// written to a file in a folder that all share, together with a secret.
//   Leftovers of other runs: a listener of another run refuses the key, and the next port is tried;
//   a file whose listener is gone or another one is read again until the right one is there.
//   Trust: without the file, or NCCLSCOPE_PROBE_KEY in the environment of all processes, whoever
//   reaches the port and knows the job's number can take a place in the run, as with NCCL's own
//   bootstrap. It can make the run fail or be slow, and learns NCCL's unique id.
//   Thread: one. Everything is bounded: lines, connections that have not said who they are, time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "cli/probe/channel.h"
#include "cli/probe/place.h"

namespace ncclscope::cli::probe {

/// A process that has come.
struct Arrival {
  std::uint32_t process = 0;
  std::string host;
  Channel channel;
};

/// Where process 0 is to be found.
struct Meeting {
  std::string digest;  // of the run's key
  std::string secret;  // of this very listener; empty if addresses are known beforehand
  std::vector<std::string> hosts;
  std::vector<std::uint16_t> ports;
};

class Listener {
 public:
  /// Throws std::runtime_error if no port can be had, or the folder cannot be written.
  /// @param folder  empty: the others know `place`'s host and ports
  Listener(const Place& place, const std::string& folder);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  /// Takes its file away.
  ~Listener();

  /// To be waited for with poll(): the listening socket and those that have not yet said who they
  /// are.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// Takes what has come, without waiting.
  [[nodiscard]] std::vector<Arrival> arrivals();
  [[nodiscard]] const Meeting& meeting() const { return meeting_; }

 private:
  struct Guest {
    Channel channel;
    std::chrono::steady_clock::time_point until;
  };
  void accept_guests();
  /// What a guest's first line makes of it; an answer that begins with "refused" sends it away.
  [[nodiscard]] std::string answer(const std::string& line, std::uint32_t& process,
                                   std::string& host) const;

  std::uint32_t processes_;
  Meeting meeting_;
  Descriptor socket_;
  std::filesystem::path file_;
  std::list<Guest> guests_;
  std::vector<bool> here_;
};

/// Connects to process 0, trying again until `until`. Throws std::runtime_error with what was tried
/// when time is over or process 0 refuses.
[[nodiscard]] Channel join(const Place& place, const std::string& folder, const std::string& host,
                           std::chrono::steady_clock::time_point until);

/// This machine's name.
[[nodiscard]] std::string own_host();

}  // namespace ncclscope::cli::probe
