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
  static constexpr std::size_t kMaxPlans = 8;  // at a time: records of plans can come mixed

  [[nodiscard]] bool empty() const { return plans_.empty(); }
  [[nodiscard]] std::size_t size() const { return plan_size() + own_.size(); }
  [[nodiscard]] std::size_t plan_size() const {
    std::size_t sum = 0;
    for (const Plan& plan : plans_) sum += plan.transfers.size();
    return sum;
  }
  /// Of the plan that came first; there is one.
  [[nodiscard]] std::uint16_t oldest_plan() const { return plans_.front().number; }
  [[nodiscard]] std::uint64_t since_ns() const { return plans_.front().since_ns; }
  [[nodiscard]] bool holds(std::uint16_t plan) const { return find(plan) != plans_.end(); }
  [[nodiscard]] bool has_room_for(std::uint16_t plan) const {
    return plans_.size() < kMaxPlans || holds(plan);
  }
  [[nodiscard]] bool own_is_full() const { return own_.size() >= kMaxOwn; }

  /// The caller has made room.
  void add(std::uint16_t plan, const PendingTransfer& transfer, std::uint64_t now_ns) {
    auto at = plans_.begin() + (find(plan) - plans_.cbegin());
    if (at == plans_.end()) at = plans_.insert(at, Plan{{}, now_ns, plan});
    at->transfers.push_back(transfer);
  }
  /// One of the rank to itself.
  void add_own(std::uint16_t plan, const PendingTransfer& transfer, std::uint64_t now_ns) {
    own_.push_back({transfer, now_ns, plan});
  }
  /// A plan, with its own transfers. Empty if it is not here.
  [[nodiscard]] std::vector<PendingTransfer> take(std::uint16_t plan) {
    const auto at = plans_.begin() + (find(plan) - plans_.cbegin());
    if (at == plans_.end()) return {};
    std::vector<PendingTransfer> out = std::move(at->transfers);
    plans_.erase(at);
    take_own([&](const Own& own) { return own.plan == plan; }, out);
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
  struct Plan {
    std::vector<PendingTransfer> transfers;
    std::uint64_t since_ns = 0;
    std::uint16_t number = 0;
  };
  struct Own {
    PendingTransfer transfer;
    std::uint64_t since_ns = 0;
    std::uint16_t plan = 0;
  };
  [[nodiscard]] std::vector<Plan>::const_iterator find(std::uint16_t plan) const {
    return std::find_if(plans_.begin(), plans_.end(),
                        [&](const Plan& p) { return p.number == plan; });
  }
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

  std::vector<Plan> plans_;  // in order of arrival
  std::vector<Own> own_;     // likewise
};

}  // namespace ncclscope::agent
