// SPDX-License-Identifier: Apache-2.0
//
// What goes from the sender to the thread that writes Inspector's files: finished operations, times
// of their channels, and who their communicators are. Bounded: when the files hang it fills up, and
// what does not fit is lost and counted.
//   Threads: one that puts (the sender, or the exiting thread in its place), one that takes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/inspector/text.h"
#include "plugin/record_ring.h"
#include "plugin/tables.h"

namespace ncclscope::plugin::inspector {

/// 16 seconds of a thousand operations per second.
inline constexpr std::size_t kQueueItems = 16'384;
/// Descriptions of communicators: those alive, and those whose lines are still to be written.
inline constexpr std::size_t kContexts = 2 * kMaxCommunicators;

/// A record whose field `communicator` is the number of a context. The context's last one is a
/// record of type 0.
struct Item {
  RecordWords record;
  std::uint64_t completed_ns = 0;  // of an operation, since the epoch
};
static_assert(sizeof(Item) == 64);

struct Context {
  std::atomic<bool> used{false};  // set by the sender, cleared by the writer
  // Written by the sender before the first item that names it.
  CommunicatorText text;
  std::int32_t device = -1;
  char pci_bus_id[24] = {};
  char gpu_uuid[48] = {};
  // Lines lost, each counted by whoever lost it.
  std::atomic<std::uint64_t> collectives_refused{0}, p2p_refused{0};
  // The writer's.
  std::uint64_t collectives = 0, p2p = 0;  // written since the last statistics
  std::uint64_t collectives_lost = 0, p2p_lost = 0;
  std::uint64_t collectives_told = 0, p2p_told = 0;  // as lost
};

class Queue {
 public:
  /// False: full.
  bool push(const Item& item) noexcept {
    const std::uint64_t tail = tail_.load(kRelaxed);
    if (tail - head_.load(kAcquire) == kQueueItems) return false;
    items_[tail % kQueueItems] = item;
    tail_.store(tail + 1, kRelease);
    return true;
  }
  /// The oldest item; null if there is none. Valid until pop().
  [[nodiscard]] const Item* front() const noexcept {
    const std::uint64_t head = head_.load(kRelaxed);
    return head == tail_.load(kAcquire) ? nullptr : &items_[head % kQueueItems];
  }
  void pop() noexcept { head_.store(head_.load(kRelaxed) + 1, kRelease); }
  [[nodiscard]] std::size_t size() const noexcept {
    // In this order the difference is never negative.
    const std::uint64_t head = head_.load(kAcquire);
    return static_cast<std::size_t>(tail_.load(kAcquire) - head);
  }

 private:
  alignas(64) std::atomic<std::uint64_t> head_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  Item items_[kQueueItems];
};

/// Lines written and lost, all communicators together.
struct Counts {
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> queue_full{0};   // the writer was behind: its files hang
  std::atomic<std::uint64_t> overwritten{0};  // records lost in the ring before they were read
  std::atomic<std::uint64_t> failed{0};       // the file system refused them
};

/// Between the two threads.
struct Shared {
  Queue queue;
  Context contexts[kContexts];
  Counts counts;
  std::atomic<bool> flush{false};     // a communicator has ended
  std::atomic<bool> stop{false};      // the process is exiting
  std::atomic<bool> finished{false};  // the writer's answer
  std::atomic<bool> in_files{false};  // it has asked the file system for something
};

}  // namespace ncclscope::plugin::inspector
