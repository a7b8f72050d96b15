// SPDX-License-Identifier: Apache-2.0
//
// Keeps the plugin's own time under its budget: lowers what is recorded in steps, restores it when
// there is room. Steps: 0 nothing lowered, 1 network phases off, 2 kernel channels in one block of
// operations in sixteen.
//   Thread: the sender's. Times: CLOCK_MONOTONIC, ns.
#pragma once

#include <cstdint>

#include "plugin/process.h"

namespace ncclscope::plugin {

class Governor {
 public:
  /// Once per interval.
  void tick(Process& p, std::uint64_t now_ns) noexcept;

 private:
  static constexpr std::uint64_t kWindowNs = 1'000'000'000;
  static constexpr std::uint32_t kCalmWindows = 10;
  static constexpr std::uint8_t kHighestStep = 2;

  void apply(Process& p) noexcept;

  std::uint64_t window_start_ns_ = 0;
  std::uint64_t own_ns_at_start_ = 0;
  std::uint32_t calm_windows_ = 0;
  std::uint8_t step_ = 0;
};

}  // namespace ncclscope::plugin
