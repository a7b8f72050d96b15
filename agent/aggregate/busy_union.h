// SPDX-License-Identifier: Apache-2.0
//
// For how long a GPU ran at least one kernel of NCCL: the length of the union of intervals on the
// GPU's clock, whichever communicator and stream they belong to. Intervals may come out of order:
// the newest kWindow disjoint stretches stay open, so that what lies between them can still be
// filled. What reaches behind the last closed stretch is cut there: it may have been counted
// already, so it counts as late and not as busy.
//   Thread: reactor.   Times: ns on the GPU's clock.   Memory: fixed.   Cost: O(1) for intervals
//   that come in order, O(kWindow) at most.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ncclscope::agent {

class BusyUnion {
 public:
  static constexpr std::size_t kWindow = 64;
  /// An interval that ends so long before the closed stretches tells that the clock was set.
  static constexpr std::uint64_t kClockSetNs = 3'600'000'000'000;

  /// Takes [start_ns, stop_ns). Nothing happens if it is empty.
  void add(std::uint64_t start_ns, std::uint64_t stop_ns) {
    if (start_ns >= stop_ns) return;
    if (start_ns < closed_until_ns_) {
      if (stop_ns < closed_until_ns_ && closed_until_ns_ - stop_ns > kClockSetNs) {
        close(count_);
        closed_until_ns_ = 0;
      } else {
        late_ns_ += std::min(stop_ns, closed_until_ns_) - start_ns;
        if (stop_ns <= closed_until_ns_) return;
        start_ns = closed_until_ns_;
      }
    }
    if (count_ > 0 && start_ns < open_[count_ - 1].start_ns) {
      merge(start_ns, stop_ns);
    } else if (count_ > 0 && start_ns <= open_[count_ - 1].stop_ns) {
      extend(open_[count_ - 1], stop_ns);
    } else {
      if (count_ == kWindow) close(kWindow / 2);
      open_[count_++] = {start_ns, stop_ns};
      busy_ns_ += stop_ns - start_ns;
    }
  }

  /// Length of the union. Never falls.
  [[nodiscard]] std::uint64_t busy_ns() const { return busy_ns_; }
  /// Length of the union before `time_ns`. Exact where that is not before the closed stretches.
  [[nodiscard]] std::uint64_t busy_before_ns(std::uint64_t time_ns) const {
    std::uint64_t after = 0;
    for (std::size_t i = count_; i > 0 && open_[i - 1].stop_ns > time_ns; --i) {
      after += open_[i - 1].stop_ns - std::max(open_[i - 1].start_ns, time_ns);
    }
    return busy_ns_ - after;
  }
  /// Length of what came too late to tell whether it had been counted; not in busy_ns().
  [[nodiscard]] std::uint64_t late_ns() const { return late_ns_; }

 private:
  struct Stretch {
    std::uint64_t start_ns = 0;
    std::uint64_t stop_ns = 0;
  };

  void extend(Stretch& stretch, std::uint64_t stop_ns) {
    if (stop_ns <= stretch.stop_ns) return;
    busy_ns_ += stop_ns - stretch.stop_ns;
    stretch.stop_ns = stop_ns;
  }
  /// Forgets the `count` earliest stretches; they are in busy_ns_ already.
  void close(std::size_t count) {
    if (count == 0) return;
    closed_until_ns_ = open_[count - 1].stop_ns;
    std::copy(open_.begin() + static_cast<std::ptrdiff_t>(count),
              open_.begin() + static_cast<std::ptrdiff_t>(count_), open_.begin());
    count_ -= count;
  }
  /// Takes an interval that begins before the last stretch.
  void merge(std::uint64_t start_ns, std::uint64_t stop_ns) {
    std::size_t first = count_ - 1;  // of the stretches that it touches
    while (first > 0 && open_[first - 1].stop_ns >= start_ns) --first;
    std::size_t end = first;
    Stretch merged{start_ns, stop_ns};
    for (; end < count_ && open_[end].start_ns <= merged.stop_ns; ++end) {
      merged.start_ns = std::min(merged.start_ns, open_[end].start_ns);
      merged.stop_ns = std::max(merged.stop_ns, open_[end].stop_ns);
      busy_ns_ -= open_[end].stop_ns - open_[end].start_ns;
    }
    if (end == first && count_ == kWindow) {
      close(kWindow / 2);
      add(start_ns, stop_ns);
      return;
    }
    busy_ns_ += merged.stop_ns - merged.start_ns;
    const auto at = [&](std::size_t i) { return open_.begin() + static_cast<std::ptrdiff_t>(i); };
    if (end == first) {
      std::copy_backward(at(first), at(count_), at(count_ + 1));
      ++count_;
    } else {
      std::copy(at(end), at(count_), at(first + 1));
      count_ -= end - first - 1;
    }
    open_[first] = merged;
  }

  std::array<Stretch, kWindow> open_{};  // disjoint, ascending
  std::size_t count_ = 0;
  std::uint64_t closed_until_ns_ = 0;
  std::uint64_t busy_ns_ = 0;
  std::uint64_t late_ns_ = 0;
};

}  // namespace ncclscope::agent
