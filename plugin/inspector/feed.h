// SPDX-License-Identifier: Apache-2.0
//
// The sender's part: reads the rings behind their writers, whether or not there is an agent, picks
// what Inspector would have written, and puts it into the queue. Never waits.
//   Thread: the sender's, or the exiting thread while it holds the sender's lock.
#pragma once

#include <cstdint>

#include "plugin/inspector/queue.h"
#include "plugin/process.h"
#include "plugin/tables.h"

namespace ncclscope::plugin::inspector {

class Feed {
 public:
  /// Copies what has come into the lane's ring since the last time.
  void read(Process& p, Lane& lane, Shared& shared) noexcept;
  /// True once the record of this index has been read, or is lost.
  [[nodiscard]] bool has_passed(const Lane& lane, std::uint64_t index) const noexcept {
    return index < cursor_[lane.number];
  }
  /// No more records of this communicator will come.
  void end(const Communicator& c, Shared& shared) noexcept;

 private:
  struct Sent {
    const Communicator* communicator = nullptr;
    std::uint32_t version = 0;
    bool ended = false;
  };
  static constexpr std::uint16_t kNone = 0xFFFF;

  /// The context that describes the communicator with this id as it is now; kNone: no room.
  std::uint16_t context_of(Process& p, std::uint16_t wire_id, Shared& shared) noexcept;
  std::uint16_t describe(const Communicator& c, Shared& shared) noexcept;
  void retire(std::uint16_t context, Shared& shared) noexcept;
  void retire_ended(Shared& shared) noexcept;
  void read_operation(Process& p, Lane& lane, Shared& shared, const RecordWords& words) noexcept;
  void put(Shared& shared, Item& item, std::uint16_t context) noexcept;

  std::uint64_t cursor_[kMaxLanes] = {};   // next index to read, 0 = 1
  std::uint16_t contexts_[1u << 16] = {};  // by wire id: number of the context + 1, 0 = none
  Sent sent_[kContexts] = {};              // by context
  std::uint32_t next_context_ = 0;
  std::uint32_t ended_ = 0;  // contexts whose end is still to be told
  std::int64_t realtime_offset_ns_ = 0;
};

}  // namespace ncclscope::plugin::inspector
