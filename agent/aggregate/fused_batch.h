// SPDX-License-Identifier: Apache-2.0
//
// Tells apart the operations of one plan (kernel launch) that ran together from those that ran one
// after another. Items of a batch share their GPU stamps, so each shows the duration of the whole
// batch. An item's own time is the batch's duration times its share of the batch's bus bytes:
// shares add up to the batch, so that sum(bus bytes) / sum(time) is the bandwidth that the batch
// reached.
//   Thread: reactor.   Memory: one inline item; more only while a plan has more than one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "proto/model/operation.h"

namespace ncclscope::agent {

/// A GPU-timed operation on its way into the sums.
struct TimedItem {
  std::uint64_t start_ns = 0;     // GPU clock
  std::uint64_t duration_ns = 0;  // as reported
  double bus_bytes = 0;           // 0: bandwidth not defined
  model::Function function{};
  std::uint8_t size_class = 0;
  model::Algorithm algorithm{};
  model::Protocol protocol{};
  bool warmup = false;
};

/// What becomes of an item.
struct AttributedItem {
  TimedItem item;
  double duration_ns = 0;  // attributed
  bool fused = false;      // shared its time with others
  bool rank_sums = false;  // may enter the per-rank sums: alone, or among Sends and Receives only
};

class PlanBatch {
 public:
  static constexpr std::size_t kMaxItems = 4096;  // a plan with more is cut

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] std::uint16_t plan() const { return plan_; }
  [[nodiscard]] std::uint64_t since_ns() const { return since_ns_; }

  /// The caller has flushed if another plan was pending.
  void add(std::uint16_t plan, const TimedItem& item, std::uint64_t now_ns) {
    if (count_ == 0) {
      plan_ = plan;
      since_ns_ = now_ns;
      first_ = item;
    } else {
      if (count_ == 1) more_.assign(1, first_);
      more_.push_back(item);
    }
    ++count_;
  }

  /// Calls sink(const AttributedItem&) for each item and empties the batch.
  template <typename Sink>
  void flush(Sink&& sink) {
    const std::size_t count = count_;
    count_ = 0;
    if (count == 0) return;
    if (count == 1) {
      sink(AttributedItem{first_, static_cast<double>(first_.duration_ns), false, true});
      return;
    }
    std::sort(more_.begin(), more_.end(),
              [](const TimedItem& a, const TimedItem& b) { return a.start_ns < b.start_ns; });
    for (std::size_t begin = 0; begin < count;) {
      std::uint64_t stop = more_[begin].start_ns + more_[begin].duration_ns;
      double bus = more_[begin].bus_bytes;
      bool p2p = model::is_point_to_point(more_[begin].function);
      std::size_t end = begin + 1;
      for (; end < count && more_[end].start_ns < stop; ++end) {
        stop = std::max(stop, more_[end].start_ns + more_[end].duration_ns);
        bus += more_[end].bus_bytes;
        p2p = p2p && model::is_point_to_point(more_[end].function);
      }
      const auto whole = static_cast<double>(stop - more_[begin].start_ns);
      const bool fused = end - begin > 1;
      for (std::size_t i = begin; i < end; ++i) {
        const double share =
            bus > 0 ? more_[i].bus_bytes / bus : 1.0 / static_cast<double>(end - begin);
        sink(AttributedItem{more_[i], whole * share, fused, !fused || p2p});
      }
      begin = end;
    }
    more_.clear();
    if (more_.capacity() > kKeptItems) more_.shrink_to_fit();
  }

 private:
  static constexpr std::size_t kKeptItems = 128;
  TimedItem first_;
  std::vector<TimedItem> more_;  // all of them, once there are two
  std::size_t count_ = 0;
  std::uint64_t since_ns_ = 0;
  std::uint16_t plan_ = 0;
};

}  // namespace ncclscope::agent
