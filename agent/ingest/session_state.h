// SPDX-License-Identifier: Apache-2.0
//
// What the agent remembers of one session (one load of the plugin in one process). It outlives
// connections: a plugin that reconnects goes on where it was.   Thread: reactor.   Times:
// CLOCK_MONOTONIC, ns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/ingest/peer_proof.h"
#include "agent/ingest/process_environment.h"
#include "proto/wire/frame.h"

namespace ncclscope::agent {

class Session;
class SinkProcess;  // what the record sink keeps per session; defined by the sink

/// Who is at the other end. Proved by the kernel for the Unix socket; known to nobody for a claimed
/// session.
struct PeerIdentity {
  std::int64_t pid = 0;   // in the agent's pid namespace; 0 = unknown
  std::int64_t uid = -1;  // -1 = unknown
  bool claimed = false;   // came through the API: nothing is proved
  std::string origin;     // for logs
  /// Who pays for what the connection does: "uid:1000" (in a SLURM job: its owner),
  /// "pod:<namespace>/<pod>", "pod:<uid>" where the pod's name is not known, "claimed:1000". Known
  /// before the first byte is read.
  std::string principal;
  PeerProof proof{};  // which job or pod the process is in
};

/// What Hello said: its fixed part and its strings (arbitrary bytes, at most wire::kMaxStringBytes
/// each).
struct HelloClaims {
  wire::Hello hello{};
  std::vector<std::pair<wire::StringKey, std::string>> strings;

  /// The string of that key, empty if it did not come.
  [[nodiscard]] std::string_view get(wire::StringKey key) const {
    for (const auto& [k, text] : strings) {
      if (k == key) return text;
    }
    return {};
  }
};

struct SessionState {
  std::uint64_t session_id = 0;
  PeerIdentity peer;
  HelloClaims claims;
  ProcessEnvironmentPtr environment;  // null: it was not told, or the principal has too much of it
  std::string job_id;                 // set by the sink: which job set_detail means
  SinkProcess* process = nullptr;     // owned by the sink, freed at session_expired

  // Books, this side. received + lost + before = highest index, whatever happens.
  std::uint64_t highest_index =
      0;  // all records up to here are counted, passed over, or another agent's
  std::uint64_t records_received = 0;     // distinct indexes counted here
  std::uint64_t operations_received = 0;  // of those, operation records
  std::uint64_t operations_unknown = 0;   // of those, without a communicator that we know
  std::uint64_t records_before = 0;       // acknowledged by another agent instance
  std::uint64_t records_lost = 0;         // indexes passed over
  std::uint64_t records_duplicate = 0;    // came again, not counted

  Session* connection = nullptr;  // null: not connected
  bool said_goodbye = false;
  std::uint64_t last_seen_ns = 0;  // last frame
  std::uint64_t closed_at_ns =
      0;  // when the last connection ended (valid while connection is null)
  /// Add to the sender's CLOCK_MONOTONIC to get ours. 0 on the socket: it is the same clock.
  std::int64_t clock_offset_ns = 0;
};

}  // namespace ncclscope::agent
