// SPDX-License-Identifier: Apache-2.0
//
// Keeps the Sends and Receives of one communicator and rank until their plan is complete, so that
// an all-to-all among them is counted as one. Those of a rank to itself run no kernel: NCCL's host
// is done with them when it has launched the plan, which may be many plans before the others have
// run. They wait apart, each for the plan it belongs to.
//   Thread: reactor.   Memory: what is pending; own transfers at most kMaxOwn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "agent/aggregate/fused_batch.h"

namespace ncclscope::agent {

/// A Send or Receive that has not been counted yet.
struct PendingTransfer {
  TimedItem item;           // duration_ns 0: it has no GPU time
  std::uint64_t bytes = 0;  // of the message
  std::int32_t peer = -1;
  std::uint8_t timing = 0;  // wire::TimingSource
  std::uint8_t reason = 0;  // wire::UntimedReason, where it has no GPU time
};

class PendingTransfers {
 public:
  static constexpr std::size_t kMaxOwn = 1024;

  [[nodiscard]] bool empty() const { return plan_items_.empty(); }
  [[nodiscard]] std::size_t size() const { return plan_items_.size() + own_.size(); }
  [[nodiscard]] std::size_t plan_size() const { return plan_items_.size(); }
  [[nodiscard]] std::uint16_t plan() const { return plan_; }
  [[nodiscard]] std::uint64_t since_ns() const { return since_ns_; }
  [[nodiscard]] bool own_is_full() const { return own_.size() >= kMaxOwn; }

  /// The caller has taken what was there of another plan.
  void add(std::uint16_t plan, const PendingTransfer& transfer, std::uint64_t now_ns) {
    if (plan_items_.empty()) {
      plan_ = plan;
      since_ns_ = now_ns;
    }
    plan_items_.push_back(transfer);
  }
  /// One of the rank to itself.
  void add_own(std::uint16_t plan, const PendingTransfer& transfer, std::uint64_t now_ns) {
    own_.push_back({transfer, now_ns, plan});
  }
  /// The plan at hand, with its own transfers.
  [[nodiscard]] std::vector<PendingTransfer> take() {
    std::vector<PendingTransfer> out = std::exchange(plan_items_, {});
    take_own([&](const Own& own) { return own.plan == plan_; }, out);
    return out;
  }
  /// Own transfers that came before `before_ns`: nothing else of their plan will come.
  [[nodiscard]] std::vector<PendingTransfer> take_own_before(std::uint64_t before_ns) {
    std::vector<PendingTransfer> out;
    if (own_.empty() || own_.front().since_ns >= before_ns) return out;
    take_own([&](const Own& own) { return own.since_ns < before_ns; }, out);
    return out;
  }

 private:
  struct Own {
    PendingTransfer transfer;
    std::uint64_t since_ns = 0;
    std::uint16_t plan = 0;
  };
  template <typename Wanted>
  void take_own(Wanted&& wanted, std::vector<PendingTransfer>& out) {
    // Plans run in order, so what is wanted is near the front.
    auto kept = own_.begin();
    for (auto it = own_.begin(); it != own_.end(); ++it) {
      if (wanted(*it)) {
        out.push_back(it->transfer);
      } else {
        *kept++ = *it;
      }
    }
    own_.erase(kept, own_.end());
  }

  std::vector<PendingTransfer> plan_items_;
  std::vector<Own> own_;  // in order of arrival
  std::uint64_t since_ns_ = 0;
  std::uint16_t plan_ = 0;
};

}  // namespace ncclscope::agent
