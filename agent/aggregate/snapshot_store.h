// SPDX-License-Identifier: Apache-2.0
//
// Hands the newest snapshot from the reactor (the only writer) to any number of reader threads.
//   Thread: publish() on the reactor; get() anywhere. A reader keeps what it took as long as it
//   likes. Cost:   get() is a lock of a few nanoseconds and one reference count; it never waits for
//   a build.
#pragma once

#include <mutex>
#include <utility>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

class SnapshotStore {
 public:
  /// The newest snapshot; never null (an empty one before the first publish).
  [[nodiscard]] SnapshotPtr get() const {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }

  /// Replaces the newest snapshot. The old one is released outside the lock.
  void publish(SnapshotPtr next) {
    if (!next) return;
    const std::lock_guard lock(mutex_);
    snapshot_.swap(next);  // `next` was constructed before `lock`, so it is destroyed after unlock
  }

 private:
  mutable std::mutex mutex_;
  SnapshotPtr snapshot_ = std::make_shared<const Snapshot>();
};

}  // namespace ncclscope::agent
