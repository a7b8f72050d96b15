// SPDX-License-Identifier: Apache-2.0
//
// What a replay sends: frames of sessions, in the order of their times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "archive/context.h"
#include "archive/operation.h"
#include "proto/wire/encode.h"
#include "proto/wire/frame.h"

namespace ncclscope::cli {

/// One process that is replayed: its own stream of indexes at the agent.
struct ReplayedSession {
  std::uint64_t id = 0;       // new for every replay: an agent counts an index once
  std::string name;           // for people
  std::uint64_t before = 0;   // indexes up to here are not replayed
  std::uint64_t last = 0;     // index of the last record that was sent
  std::uint64_t records = 0;  // sent
  std::uint64_t operations = 0;
  bool has_books = false;  // the source had the plugin's books
  std::int64_t realtime_offset_ns = 0;
  std::uint64_t last_time_ns = 0;  // of the process's clock, sent last
  std::vector<std::byte> hello;    // record
  /// Communicators in the frames that were made, by id.
  std::map<std::uint16_t, archive::Communicator> communicators;
  /// Records of those in the frames that were sent, and live: said again on a new stream.
  std::map<std::uint16_t, std::vector<std::byte>> told;
};

struct ReplayedFrame {
  ReplayedSession* session = nullptr;
  std::int64_t due_ns = 0;  // since the epoch: when it was sent, about
  std::vector<std::byte> packet;
  std::uint64_t operations = 0;
};

/// The Hello of a process.
/// @param job_id  as the replay calls the job
void make_hello(const archive::Job& job, const archive::Process& process, std::string_view job_id,
                ReplayedSession& session);

/// Makes a session's records into frames. Records come in the order of their indexes.
class FrameMaker {
 public:
  FrameMaker(ReplayedSession& session, std::vector<ReplayedFrame>& out);
  /// The frame at hand is finished.
  ~FrameMaker() { finish(); }
  FrameMaker(const FrameMaker&) = delete;
  FrameMaker& operator=(const FrameMaker&) = delete;

  /// @param record    of 56 bytes, its header set
  /// @param time_ns   of the process's clock, when it was over
  void add(const archive::Communicator& communicator, std::uint64_t index,
           std::span<const std::byte> record, std::uint64_t time_ns);
  /// Progress and Books.
  void add_state(const archive::Communicator* communicator, std::span<const std::byte> record,
                 std::uint64_t time_ns);
  void finish();

 private:
  void announce(const archive::Communicator& communicator);
  void begin(std::uint64_t first_index, std::uint64_t time_ns);

  ReplayedSession& session_;
  std::vector<ReplayedFrame>& out_;
  std::vector<std::byte> buffer_;
  wire::FrameWriter writer_;
  std::uint64_t first_index_ = 0, next_index_ = 0;
  std::uint64_t begun_ns_ = 0, time_ns_ = 0;
  std::uint64_t operations_ = 0;
};

/// A random number that is not 0.
[[nodiscard]] std::uint64_t random_id();

}  // namespace ncclscope::cli
