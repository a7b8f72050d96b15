// SPDX-License-Identifier: Apache-2.0
//
// Finds out from the kernel who has connected: user, process, and the SLURM job or pod it runs in.
//   Thread: reactor, at accept, before a byte of the connection is read.
//   Cost:   a few system calls and one file of at most kMaxFileBytes.
//   A pid can come to mean another process. With a pidfd (Linux 6.5) the process is seen to live
//   before and after its files were read, so they were its own. Without, it must have started
//   before the listening socket was last seen without waiting connections: then the pid meant this
//   process when the connection was made, and the same start time before and after shows that it
//   still does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/result.h"
#include "agent/identity/job_directory.h"
#include "agent/identity/pod_listing.h"
#include "agent/ingest/session_state.h"

namespace ncclscope::agent {

class PeerProver {
 public:
  static constexpr std::size_t kMaxFileBytes = 64 * 1024;

  struct Options {
    std::string proc_root = "/proc";
    std::string pods_log_root = "/var/log/pods";
    bool use_pidfd = true;  // false: as on a kernel that has none
  };
  /// `jobs` and `clock` must outlive it.
  PeerProver(Options options, const JobDirectory& jobs, const Clock& clock);

  /// Of the process that connected `socket`.
  /// @param queue_empty_ns  CLOCK_BOOTTIME: when no connection was waiting; it was made later
  [[nodiscard]] Result<PeerIdentity> identify(int socket, std::uint64_t queue_empty_ns);

  struct Peer {
    std::int64_t pid = 0;  // 0: not visible from here
    std::int64_t uid = -1;
    std::function<bool()> alive;  // asks the pidfd; empty: there is none
  };
  /// The same with what the socket says of its peer.
  [[nodiscard]] PeerIdentity prove(const Peer& peer, std::uint64_t queue_empty_ns);

 private:
  [[nodiscard]] std::string_view read_file(const std::string& path);
  [[nodiscard]] std::optional<std::uint64_t> start_ticks(const std::string& process);
  [[nodiscard]] PeerProof read_proof(const Peer& peer, std::uint64_t queue_empty_ns);
  void name_principal(PeerIdentity& peer) const;

  Options options_;
  const JobDirectory& jobs_;
  PodListing pods_;
  std::vector<char> buffer_;
  bool overflow_uid_is_a_user_ = true;
};

}  // namespace ncclscope::agent
