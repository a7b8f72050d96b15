// SPDX-License-Identifier: Apache-2.0
//
// What is recorded, decided in one place: what the environment and an agent ask for, and what the
// governor allows. It has the last word.
//   Thread: the sender's. Times: CLOCK_MONOTONIC, ns.
#pragma once

#include <cstdint>

#include "plugin/governor.h"
#include "plugin/process.h"

namespace ncclscope::plugin {

class DetailControl {
 public:
  /// An agent asks. `duration_ms` 0: until told otherwise.
  void request(Process& p, DetailWish wish, std::uint32_t duration_ms,
               std::uint64_t now_ns) noexcept;
  /// Once per interval: the governor's turn, and the end of what an agent asked for (which needs no
  /// agent).
  void tick(Process& p, std::uint64_t now_ns) noexcept;

  /// The part of the books that tells about it.
  void describe(const Process& p, wire::Books& books) const noexcept;

 private:
  void set_up(const Process& p) noexcept;
  void apply(Process& p) noexcept;
  [[nodiscard]] std::uint64_t busiest_thread_ns(const Process& p) noexcept;

  bool set_up_ = false;
  Ladder ladder_;
  Governor governor_;
  DetailWish wish_;
  std::uint64_t until_ns_ = 0;  // 0 = until told otherwise
  Recording recording_;
  std::uint64_t lane_ns_[kMaxLanes] = {};  // own time when last looked at
  std::uint64_t busiest_ns_ = 0;
};

}  // namespace ncclscope::plugin
