// SPDX-License-Identifier: Apache-2.0
//
// Bounds of D = CLOCK_MONOTONIC - GPU clock, from operations alone: a kernel cannot start before
// the call that asked for it, and its record cannot be sent before it has stopped.
//   Clocks drift: bounds are loosened by kDriftPpm of the time since they were seen. A
//   contradiction (a clock was set) makes what was seen before worth nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "archive/records.h"

namespace ncclscope::archive {

class HostClock {
 public:
  static constexpr std::int64_t kDriftPpm = 50;

  /// @param call_ns  CLOCK_MONOTONIC of the call; 0 where only a later time is known
  /// @param sent_ns  CLOCK_MONOTONIC at which the record left; 0 = unknown
  void observe(std::uint64_t call_ns, std::uint64_t gpu_start_ns, std::uint64_t gpu_stop_ns,
               std::uint64_t sent_ns) {
    age(sent_ns != 0 ? sent_ns : call_ns);
    const std::int64_t lower = call_ns != 0 ? difference(call_ns, gpu_start_ns) : kNoLower;
    const std::int64_t upper = sent_ns != 0 ? difference(sent_ns, gpu_stop_ns) : kNoUpper;
    lower_ = std::max(lower_, lower);
    upper_ = std::min(upper_, upper);
    if (lower_ > upper_) {
      lower_ = lower <= upper ? lower : kNoLower;
      upper_ = lower <= upper ? upper : kNoUpper;
    }
  }

  [[nodiscard]] ClockBounds bounds() const {
    ClockBounds out;
    if (lower_ != kNoLower) out.lower = lower_;
    if (upper_ != kNoUpper) out.upper = upper_;
    return out;
  }

 private:
  // GPUs count from the Unix epoch, hosts from their boot: 1.8e18 apart, and that must fit.
  static constexpr std::int64_t kBound = std::numeric_limits<std::int64_t>::max() / 4;
  static constexpr std::int64_t kNoLower = -2 * kBound;
  static constexpr std::int64_t kNoUpper = 2 * kBound;

  static std::int64_t difference(std::uint64_t a, std::uint64_t b) {
    return std::clamp(static_cast<std::int64_t>(a - b), -kBound, kBound);
  }
  void age(std::uint64_t now_ns) {
    constexpr std::int64_t kTooShortNs = 1'000'000;
    const std::int64_t elapsed = difference(now_ns, aged_at_ns_);
    if (elapsed < kTooShortNs) return;
    aged_at_ns_ = now_ns;
    const std::int64_t drift = elapsed / (1'000'000 / kDriftPpm);
    if (lower_ != kNoLower) lower_ = std::max(lower_ - drift, kNoLower + 1);
    if (upper_ != kNoUpper) upper_ = std::min(upper_ + drift, kNoUpper - 1);
  }

  std::int64_t lower_ = kNoLower;
  std::int64_t upper_ = kNoUpper;
  std::uint64_t aged_at_ns_ = 0;
};

}  // namespace ncclscope::archive
