// SPDX-License-Identifier: Apache-2.0
//
// Relates one GPU's clock to the host's CLOCK_MONOTONIC, from operations alone. Let D = host - GPU.
// Then
//   lower:  a kernel cannot start before the API call that asked for it:      D >= api - gpu_start
//   upper:  a frame cannot be sent before the operations in it have stopped:  D <= send - gpu_stop
// The lower bound is tight when some operation met an idle GPU (after each synchronisation of a
// step), the upper one when some operation stopped just before its frame left. Clocks drift, so
// both bounds are loosened by kDriftPpm of the time since they were seen. Nothing is estimated: a
// queue time is given only where both bounds lead to nearly the same answer, else the operation
// counts as "queue time unknown".
//   Thread: reactor.   Cost: some additions per operation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace ncclscope::agent {

class GpuClock {
 public:
  static constexpr std::int64_t kDriftPpm = 50;
  static constexpr std::int64_t kToleranceNs = 1'000'000;

  /// Takes one operation with GPU time. All but gpu_* are CLOCK_MONOTONIC.
  /// @param api_ns the API call; 0 where only a later time is known
  void observe(std::uint64_t api_ns, std::uint64_t gpu_start_ns, std::uint64_t gpu_stop_ns,
               std::uint64_t send_ns) {
    age(send_ns);
    std::int64_t lower = kNoLower;
    if (api_ns != 0) {
      lower = difference(api_ns, gpu_start_ns) - drift(difference(send_ns, api_ns));
    }
    const std::int64_t upper = difference(send_ns, gpu_stop_ns);
    lower_ = std::max(lower_, lower);
    upper_ = std::min(upper_, upper);
    if (lower_ > upper_) {
      // A clock was set, or drifts more than we allow for: what was seen before is worth nothing.
      ++contradictions_;
      lower_ = lower <= upper ? lower : kNoLower;
      upper_ = lower <= upper ? upper : kNoUpper;
    }
  }

  /// GPU start - enqueue in ns, not below 0. False when it is not known to 1 ms or a quarter of
  /// itself.
  [[nodiscard]] bool queue_ns(std::uint64_t enqueue_ns, std::uint64_t gpu_start_ns,
                              std::int64_t& queue) const {
    if (lower_ == kNoLower || upper_ == kNoUpper) return false;
    const std::int64_t at_zero = difference(gpu_start_ns, enqueue_ns);
    const std::int64_t low = std::max<std::int64_t>(0, at_zero + lower_);
    const std::int64_t high = std::max<std::int64_t>(0, at_zero + upper_);
    if (high - low > std::max(kToleranceNs, low / 4)) return false;
    queue = low + (high - low) / 2;
    return true;
  }
  [[nodiscard]] std::uint64_t contradictions() const { return contradictions_; }

 private:
  static constexpr std::int64_t kNoLower = std::numeric_limits<std::int64_t>::min() / 2;
  static constexpr std::int64_t kNoUpper = std::numeric_limits<std::int64_t>::max() / 2;

  /// a - b, bounded so that hostile times cannot overflow what is done with it. GPUs count from the
  /// Unix epoch, hosts from their boot: that difference, 1.8e18 now, must fit (until 2043).
  static std::int64_t difference(std::uint64_t a, std::uint64_t b) {
    constexpr std::int64_t kBound = std::numeric_limits<std::int64_t>::max() / 4;
    return std::clamp(static_cast<std::int64_t>(a - b), -kBound, kBound);
  }
  static std::int64_t drift(std::int64_t elapsed_ns) {
    return std::max<std::int64_t>(0, elapsed_ns) / (1'000'000 / kDriftPpm);
  }
  void age(std::uint64_t now_ns) {
    const std::int64_t elapsed = difference(now_ns, aged_at_ns_);
    if (elapsed < kToleranceNs) return;  // too short to matter; it adds up
    aged_at_ns_ = now_ns;
    if (lower_ != kNoLower) lower_ = std::max(lower_ - drift(elapsed), kNoLower + 1);
    if (upper_ != kNoUpper) upper_ = std::min(upper_ + drift(elapsed), kNoUpper - 1);
  }

  std::int64_t lower_ = kNoLower;
  std::int64_t upper_ = kNoUpper;
  std::uint64_t aged_at_ns_ = 0;
  std::uint64_t contradictions_ = 0;
};

}  // namespace ncclscope::agent
