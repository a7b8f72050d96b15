// SPDX-License-Identifier: Apache-2.0
//
// Finds the operations of a communicator that no record tells of. The plugin numbers a rank's
// operations without a gap; their records come in about that order (up to kSpan may be in flight at
// once), so an index that the window has left behind is missing for good.
//   Cost: O(1) per record, whatever the indexes.   Numbers of a hostile sender wrap; they only
//   reach its own counter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ncclscope::agent {

class IndexWindow {
 public:
  /// The plugin has at most this many operations in flight.
  static constexpr std::uint64_t kSpan = 1024;

  /// Counting begins with the first index that comes, not with 0: another agent had the earlier
  /// ones.
  void begin_at_next() { begins_at_next_ = true; }

  /// A record came. `low` are the low 32 bits of its index.
  void add(std::uint32_t low) {
    if (begins_at_next_) {
      begins_at_next_ = false;
      base_ = settled_ = low;
    }
    const std::uint64_t index = nearest(low);
    if (index < base_ || index > base_ + kFarthest) return;  // before the window
    if (index >= base_ + kSpan) advance(index + 1 - kSpan);
    if (seen_ == nullptr) seen_ = std::make_unique<Bits>();
    const std::uint64_t at = index % kSpan;
    (*seen_)[at / 64] |= std::uint64_t{1} << (at % 64);
  }

  /// All operations below `end` are over, and their records have come if there are any.
  void settle(std::uint64_t end) {
    if (begins_at_next_) return;
    end = nearest(static_cast<std::uint32_t>(end));
    if (end <= settled_ || end > base_ + kFarthest) return;
    if (end > base_ + kSpan) advance(end - kSpan);
    for (; settled_ < end; ++settled_) {
      if (!was_seen(settled_)) ++missing_;
    }
  }

  [[nodiscard]] std::uint64_t missing() const { return missing_; }

 private:
  static constexpr std::uint64_t kFarthest = std::uint64_t{1} << 32;

  /// The index with these low bits that is nearest to the window.
  [[nodiscard]] std::uint64_t nearest(std::uint32_t low) const {
    const std::uint64_t middle = base_ + kSpan / 2;
    const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(middle));
    return middle + static_cast<std::uint64_t>(std::int64_t{distance});
  }
  [[nodiscard]] bool was_seen(std::uint64_t index) const {
    const std::uint64_t at = index % kSpan;
    return seen_ != nullptr && ((*seen_)[at / 64] >> (at % 64) & 1u) != 0;
  }
  /// Moves the window so that it begins at `base`.
  void advance(std::uint64_t base);

  /// Bit index % kSpan, for base_ … base_ + kSpan - 1. None before the first record: most
  /// communicators have collectives only, or Sends and Receives only.
  using Bits = std::array<std::uint64_t, kSpan / 64>;
  std::unique_ptr<Bits> seen_;
  std::uint64_t base_ = 0;
  std::uint64_t settled_ = 0;  // all below are counted; base_ <= settled_
  std::uint64_t missing_ = 0;
  bool begins_at_next_ = false;
};

inline void IndexWindow::advance(std::uint64_t base) {
  const std::uint64_t steps = base - base_;
  if (steps >= kSpan) {
    // All of the old window is left behind, and what lies between it and the new one never came.
    for (; settled_ < base_ + kSpan; ++settled_) {
      if (!was_seen(settled_)) ++missing_;
    }
    missing_ += base - settled_;
    settled_ = base;
    seen_.reset();
    base_ = base;
    return;
  }
  for (; base_ < base; ++base_) {
    if (base_ >= settled_) {
      if (!was_seen(base_)) ++missing_;
      settled_ = base_ + 1;
    }
    if (seen_ == nullptr) continue;
    const std::uint64_t at = base_ % kSpan;
    (*seen_)[at / 64] &= ~(std::uint64_t{1} << (at % 64));
  }
}

}  // namespace ncclscope::agent
