// SPDX-License-Identifier: Apache-2.0
//
// What every service needs besides its data: who calls, whether the server is stopping, how many
// streams are open.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "agent/api/peers.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace ncclscope::agent {

/// Bounds how many streams of a kind are open. Thread: any.
class StreamLimit {
 public:
  explicit StreamLimit(std::size_t limit) : limit_(limit) {}

  class Permit {
   public:
    explicit Permit(StreamLimit* owner) : owner_(owner) {}
    Permit(Permit&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Permit& operator=(Permit&&) = delete;
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;
    ~Permit() {
      if (owner_ != nullptr) owner_->open_.fetch_sub(1, std::memory_order_relaxed);
    }
    [[nodiscard]] bool granted() const { return owner_ != nullptr; }

   private:
    StreamLimit* owner_;
  };

  [[nodiscard]] Permit acquire() {
    if (open_.fetch_add(1, std::memory_order_relaxed) < limit_) return Permit(this);
    open_.fetch_sub(1, std::memory_order_relaxed);
    return Permit(nullptr);
  }
  [[nodiscard]] std::size_t limit() const { return limit_; }

 private:
  std::size_t limit_;
  std::atomic<std::size_t> open_{0};
};

struct CallContext {
  Peers peers;
  std::atomic<bool> stopping{false};

  explicit CallContext(std::size_t max_connections) : peers(max_connections) {}
  /// The caller, or why the call is refused.
  [[nodiscard]] grpc::Status authenticate(const grpc::ServerContext& context, Caller& caller) const;
};

}  // namespace ncclscope::agent
