// SPDX-License-Identifier: Apache-2.0
//
// Tells apart the operations of one plan (kernel launch) that ran together from those that ran one
// after another. Items of a batch share their GPU stamps, so each shows the duration of the whole
// batch. An item's own time is the batch's duration times its share of the batch's bus bytes:
// shares add up to the batch, so that sum(bus bytes) / sum(time) is the bandwidth that the batch
// reached. In a rank's sums the Receives of a batch take all of its time: they are what a rank
// waits in, the Sends beside them only last as long.
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
  double rank_duration_ns = 0;  // there
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
      const auto alone = static_cast<double>(first_.duration_ns);
      sink(AttributedItem{first_, alone, false, true, alone});
      return;
    }
    std::sort(more_.begin(), more_.end(),
              [](const TimedItem& a, const TimedItem& b) { return a.start_ns < b.start_ns; });
    for (std::size_t begin = 0; begin < count;) {
      std::uint64_t stop = more_[begin].start_ns + more_[begin].duration_ns;
      Part all, received;
      bool p2p = true;
      std::size_t end = begin;
      for (; end < count && (end == begin || more_[end].start_ns < stop); ++end) {
        const TimedItem& item = more_[end];
        stop = std::max(stop, item.start_ns + item.duration_ns);
        all.add(item);
        if (item.function == model::Function::kRecv) received.add(item);
        p2p = p2p && model::is_point_to_point(item.function);
      }
      const auto whole = static_cast<double>(stop - more_[begin].start_ns);
      const bool fused = end - begin > 1;
      for (std::size_t i = begin; i < end; ++i) {
        const TimedItem& item = more_[i];
        const double time = whole * all.share_of(item);
        const bool receives = item.function == model::Function::kRecv;
        const double of_rank = received.count == 0 ? time
                               : receives          ? whole * received.share_of(item)
                                                   : 0;
        sink(AttributedItem{item, time, fused, !fused || p2p, of_rank});
      }
      begin = end;
    }
    more_.clear();
    if (more_.capacity() > kKeptItems) more_.shrink_to_fit();
  }

 private:
  static constexpr std::size_t kKeptItems = 128;
  /// Items whose bus bytes add up; without any they share alike.
  struct Part {
    double bus_bytes = 0;
    std::size_t count = 0;
    void add(const TimedItem& item) {
      bus_bytes += item.bus_bytes;
      ++count;
    }
    [[nodiscard]] double share_of(const TimedItem& item) const {
      return bus_bytes > 0 ? item.bus_bytes / bus_bytes : 1.0 / static_cast<double>(count);
    }
  };
  TimedItem first_;
  std::vector<TimedItem> more_;  // all of them, once there are two
  std::size_t count_ = 0;
  std::uint64_t since_ns_ = 0;
  std::uint16_t plan_ = 0;
};

}  // namespace ncclscope::agent
