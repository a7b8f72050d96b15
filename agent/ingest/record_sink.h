// SPDX-License-Identifier: Apache-2.0
//
// Where decoded records go. Implemented by the aggregator; tests implement it to see what a session
// lets through.
//   Thread: reactor.   Values are as they came: enums may be out of range, strings may be any
//   bytes. Each indexed record of a session is delivered at most once.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "agent/ingest/session_state.h"
#include "proto/wire/frame.h"

namespace ncclscope::agent {

struct CommunicatorStrings {
  std::string_view name, pci_bus_id, gpu_uuid;  // point into the frame
};

class RecordSink {
 public:
  virtual ~RecordSink() = default;

  /// A session's Hello came (again, if state.process is set). False: a limit is reached, refuse it.
  virtual bool session_opened(SessionState& session) = 0;
  virtual void session_closed(SessionState& session) = 0;
  /// The state is about to be destroyed.
  virtual void session_expired(SessionState& session) = 0;

  virtual void communicator_init(SessionState& session, const wire::CommunicatorInit& init,
                                 const CommunicatorStrings& strings) = 0;
  virtual void books(SessionState& session, const wire::Books& books) = 0;
  // The following return false when the record names a communicator that was not announced.
  virtual bool progress(SessionState& session, const wire::Progress& progress) = 0;
  virtual bool neighbours(SessionState& session, const wire::Neighbours& head,
                          std::span<const std::byte> peers) = 0;
  virtual bool operation(SessionState& session, const wire::Operation& operation,
                         std::uint64_t index) = 0;
  virtual bool network(SessionState& session, const wire::NetworkPhases& phases,
                       std::uint64_t index) = 0;
  virtual bool channel(SessionState& session, const wire::ChannelDetail& detail,
                       std::uint64_t index) = 0;
  virtual bool finalize(SessionState& session, const wire::CommunicatorFinalize& finalize,
                        std::uint64_t index) = 0;

  virtual void frame_begin(SessionState& session, std::uint64_t send_time_ns) = 0;
  virtual void frame_end(SessionState& session) = 0;
};

}  // namespace ncclscope::agent
