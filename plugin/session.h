// SPDX-License-Identifier: Apache-2.0
//
// One lane's conversation with an agent: connection, hello, what has been sent, what has been
// acknowledged.
//   Thread: the sender's, or the exiting thread while it holds the sender's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/detail_control.h"
#include "plugin/process.h"
#include "plugin/recorder.h"
#include "plugin/tables.h"
#include "proto/wire/encode.h"

namespace ncclscope::plugin {

class Session {
 public:
  /// One interval's work. `last`: the process is exiting.
  void tick(Process& p, Lane& lane, DetailControl& detail, bool last) noexcept;

  /// In a fork's child: what was compared for all sessions is the parent's.
  static void forget_comparisons() noexcept;

  /// Closes the socket (fork child: closes its copy).
  void disconnect() noexcept;

 private:
  enum class State : std::uint8_t { kDisconnected, kGreeted, kWelcomed };

  bool connect_to_agent(Process& p) noexcept;
  void wait_for(short event, int milliseconds) const noexcept;
  bool send_hello(Process& p, Lane& lane) noexcept;
  void receive(Process& p, Lane& lane, DetailControl& detail) noexcept;
  void handle(Process& p, Lane& lane, DetailControl& detail,
              std::span<const std::byte> record) noexcept;
  void drain(Process& p, Lane& lane) noexcept;
  bool send_states(Process& p, Lane& lane, const DetailControl& detail, bool last) noexcept;
  void recycle_communicators(Process& p, Lane& lane) noexcept;
  bool add_communicator(wire::FrameWriter& w, Communicator& c) noexcept;
  bool flush(wire::FrameWriter& w, std::uint64_t first_index) noexcept;
  void fill_books(Process& p, Lane& lane, const DetailControl& detail, wire::Books& books) noexcept;
  bool announce(wire::FrameWriter& w, Process& p, Lane& lane, std::uint16_t wire_id) noexcept;

  State state_ = State::kDisconnected;
  int fd_ = -1;
  std::uint32_t wait_ticks_ = 0;  // before the next attempt to connect
  std::uint32_t backoff_ticks_ = 1;
  std::uint32_t greeted_ticks_ = 0;  // since the hello
  std::uint64_t connection_ = 0;     // number of the connection, for what was announced on it
  std::uint64_t connects_ = 0;
  std::uint64_t frames_sent_ = 0;
  std::uint64_t agent_instance_ = 0;
  std::uint64_t acknowledged_ = 0;  // highest index that some agent holds
  std::uint64_t cursor_ = 1;        // next index to send on this connection
  std::uint64_t overwritten_ = 0;
  std::uint64_t first_sent_ = 1;       // lowest index never sent before
  std::uint64_t operations_sent_ = 0;  // distinct operation records sent
  std::uint32_t ticks_since_books_ = 0;
  std::uint64_t books_fingerprint_ = 0;
  bool pressed_ = false;
};

}  // namespace ncclscope::plugin
