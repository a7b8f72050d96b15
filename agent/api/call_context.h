// SPDX-License-Identifier: Apache-2.0
//
// What every service needs besides its data: who calls and whether they may, whether the server is
// stopping, how many streams are open.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "agent/api/authorizer.h"

namespace grpc {
class ServerContext;
class Status;
}  // namespace grpc

namespace ncclscope::agent {

/// Bounds how many streams of a kind are open, in all and per caller: one user cannot keep the
/// others out. Administrators are bounded by the total only. Thread: any.
class StreamLimit {
 public:
  StreamLimit(std::size_t limit, std::size_t limit_per_caller)
      : limit_(limit), limit_per_caller_(limit_per_caller) {}

  class Permit {
   public:
    Permit() = default;
    Permit(StreamLimit& owner, std::string principal)
        : owner_(&owner), principal_(std::move(principal)) {}
    Permit(Permit&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), principal_(std::move(other.principal_)) {}
    Permit& operator=(Permit&&) = delete;
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;
    ~Permit() {
      if (owner_ != nullptr) owner_->release(principal_);
    }
    [[nodiscard]] bool granted() const { return owner_ != nullptr; }

   private:
    StreamLimit* owner_ = nullptr;
    std::string principal_;
  };

  [[nodiscard]] Permit acquire(const Caller& caller) {
    std::string principal = caller.principal();
    const std::lock_guard lock(mutex_);
    if (open_ >= limit_) return {};
    const auto own = open_of_.try_emplace(principal, 0).first;
    if (own->second >= limit_per_caller_ && !caller.is_administrator()) return {};
    ++open_;
    ++own->second;
    return {*this, std::move(principal)};
  }
  /// "at most 16 tails at a time, 4 per caller".
  [[nodiscard]] std::string text(const char* what) const {
    return concat("at most ", limit_, " ", what, " at a time, ", limit_per_caller_, " per caller");
  }

 private:
  void release(const std::string& principal) {
    const std::lock_guard lock(mutex_);
    --open_;
    const auto own = open_of_.find(principal);
    if (--own->second == 0) open_of_.erase(own);
  }

  const std::size_t limit_, limit_per_caller_;
  std::mutex mutex_;  // of what follows
  std::size_t open_ = 0;
  std::map<std::string, std::size_t> open_of_;
};

class CallContext {
 public:
  virtual ~CallContext() = default;
  /// The caller, or why the call is refused: UNAUTHENTICATED (nobody knows who it is) or
  /// PERMISSION_DENIED (its role does not do such things).
  [[nodiscard]] grpc::Status authenticate(const grpc::ServerContext& context, Permission permission,
                                          Caller& caller) const;

  std::atomic<bool> stopping{false};

 protected:
  /// Who calls; empty and `why` (for the caller to read) if that is not known.
  [[nodiscard]] virtual std::optional<Caller> identify(const grpc::ServerContext& context,
                                                       std::string& why) const = 0;
};

}  // namespace ncclscope::agent
