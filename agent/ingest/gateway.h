// SPDX-License-Identifier: Apache-2.0
//
// Doors through which other threads (gRPC) reach the reactor: a claimed session fed with frames as
// bytes, and detail control. Implementations run the work on the reactor and wait for it; after the
// reactor has stopped every call returns at once with the "closed" answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::agent {

/// One stream of frames from a source whose process is not proved. Not thread-safe: one user thread
/// at a time, except take(), which another thread may call to forward what the agent sends on its
/// own.
class IngestChannel {
 public:
  struct Response {
    std::vector<std::string> frames;  // Welcome, Ack, SetDetail, Refuse: send them in order
    bool closed = false;              // the session has ended: send `frames`, then end the stream
    // Above 0: whoever pays for it has sent too much. The frame was not looked at; offer it again
    // after that time.
    std::chrono::milliseconds retry_after{0};
  };
  virtual ~IngestChannel() = default;  // closes the session
  /// Feeds one frame (at most wire::kMaxFrameBytes are kept) and returns what is to be sent back.
  virtual Response submit(std::string_view frame) = 0;
  /// Waits for frames that the agent sends on its own (SetDetail, late Ack).
  virtual Response take(std::chrono::milliseconds timeout) = 0;
};

class IngestGateway {
 public:
  virtual ~IngestGateway() = default;
  /// Opens a session. `origin` names the peer in logs and says who pays for it ("uid:1000",
  /// "token:replay"): one origin cannot go on with the session of another. uid -1 = unknown. Null
  /// when the agent is shutting down or takes no more connections.
  virtual std::unique_ptr<IngestChannel> open(std::string_view origin, std::int64_t uid = -1) = 0;
};

struct DetailRequest {
  std::string job_id;      // empty: every job
  std::int64_t uid = -1;   // only sessions of this user; -1: of anybody
  std::uint8_t level = 0;  // wire::DetailLevel
  bool network_phases = false;
  std::uint32_t duration_ms = 0;  // 0 = until told otherwise
};

class DetailControl {
 public:
  virtual ~DetailControl() = default;
  /// Tells the connected sessions that match. Returns how many processes were told.
  virtual std::uint32_t set_detail(const DetailRequest& request) = 0;
};

}  // namespace ncclscope::agent
