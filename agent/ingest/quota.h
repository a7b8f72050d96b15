// SPDX-License-Identifier: Apache-2.0
//
// What one principal (PeerIdentity::principal: a user, or a pod) may take of the agent, and who
// asked for more.
//   Thread: reactor.   Times: CLOCK_MONOTONIC, ns; bytes per second.   Memory: bounded, whatever
//   the number of principals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace ncclscope::agent {

/// What there can be too much of. The label `quota` of ncclscope_agent_quota_exceeded_total.
enum class Quota : std::uint8_t {
  kConnections,    // refused
  kSessions,       // refused
  kJobs,           // its session is refused
  kCommunicators,  // folded into "other"
  kBytes,          // not read for a while
  kMemory,         // session refused, or communicator folded: the agent as a whole is at its limit
  kEnvironments,   // a process's variables are not kept
};
inline constexpr std::size_t kQuotaCount = 7;
using QuotaCounts = std::array<std::uint64_t, kQuotaCount>;

[[nodiscard]] constexpr std::string_view name(Quota quota) noexcept {
  constexpr std::string_view kNames[kQuotaCount] = {
      "connections", "sessions", "jobs", "communicators", "bytes", "memory", "environments"};
  return kNames[static_cast<std::size_t>(quota)];
}

/// Whether one of `principals` that holds `own` places of a full table may have another all the
/// same: an equal share is everybody's, whatever others hold. So a table has at most twice its
/// limit.
[[nodiscard]] constexpr bool within_share(std::size_t own, std::size_t limit,
                                          std::size_t principals) noexcept {
  return own < limit / (principals == 0 ? 1 : principals);
}

/// Counts what was refused, and names each principal in the log at most once a minute and quota.
class QuotaCounter {
 public:
  static constexpr std::uint64_t kLogPeriodNs = 60'000'000'000;
  static constexpr std::size_t kMaxLogged = 64;  // principals and quotas within one period

  /// @param consequence what was done about it, for the log: "its connection is closed"
  void exceeded(Quota quota, std::string_view principal, std::uint64_t now_ns,
                std::string_view consequence);
  [[nodiscard]] const QuotaCounts& counts() const { return counts_; }
  [[nodiscard]] std::uint64_t count(Quota quota) const {
    return counts_[static_cast<std::size_t>(quota)];
  }
  [[nodiscard]] std::uint64_t logged() const { return logged_; }

 private:
  struct Line {
    std::uint64_t at_ns = 0;
    std::uint64_t left_out = 0;
  };
  QuotaCounts counts_{};
  std::uint64_t logged_ = 0;
  std::map<std::pair<Quota, std::string>, Line> lines_;
};

/// A token bucket of bytes that holds one second's worth. What is taken may exceed what is there:
/// the debt is paid back before anything more is allowed.
class ByteBucket {
 public:
  /// 0 bytes per second: no limit.
  explicit ByteBucket(std::uint64_t bytes_per_second = 0)
      : rate_(static_cast<double>(bytes_per_second)), tokens_(rate_) {}

  [[nodiscard]] bool allows(std::uint64_t now_ns) {
    refill(now_ns);
    return rate_ == 0 || tokens_ > 0;
  }
  void take(std::size_t bytes) { tokens_ -= static_cast<double>(bytes); }
  /// How long until something is allowed, if nothing is taken.
  [[nodiscard]] double wait_seconds() const {
    return rate_ == 0 || tokens_ > 0 ? 0.0 : -tokens_ / rate_;
  }
  /// Nothing has been taken for long enough that forgetting the bucket changes nothing.
  [[nodiscard]] bool full(std::uint64_t now_ns) {
    refill(now_ns);
    return tokens_ >= rate_;
  }

 private:
  void refill(std::uint64_t now_ns) {
    if (rate_ == 0) {
      tokens_ = 0;
      return;
    }
    if (now_ns <= last_ns_) return;  // a clock that steps back gives nothing and takes nothing
    tokens_ += rate_ * static_cast<double>(now_ns - last_ns_) * 1e-9;
    if (tokens_ > rate_) tokens_ = rate_;
    last_ns_ = now_ns;
  }

  double rate_;
  double tokens_;
  std::uint64_t last_ns_ = 0;
};

}  // namespace ncclscope::agent
