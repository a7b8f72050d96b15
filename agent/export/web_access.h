// SPDX-License-Identifier: Apache-2.0
//
// Decides whether an HTTP request may pass, by a WebConfig that can be exchanged while it serves.
//   THE CLIENT IS HOSTILE: bcrypt is slow on purpose, so passwords that were right are remembered
//   (as a hash, at most kRemembered) and checks of others are bounded in number per second. Tokens
//   cost nothing: prefer them.
//   Thread: set() and refuse() on any.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "agent/access/web_config.h"
#include "agent/base/clock.h"
#include "agent/export/http.h"

namespace ncclscope::agent {

class WebAccess {
 public:
  /// `clock` must outlive it. Until set() everybody may pass.
  explicit WebAccess(const Clock& clock) : clock_(clock) {}

  void set(WebConfig config);
  /// The answer to a request that may not pass; nothing if it may. /healthz and /readyz are open to
  /// all: they say nothing of jobs, and probes of init systems hold no secrets.
  [[nodiscard]] std::optional<HttpResponse> refuse(const HttpRequest& request);

  /// bcrypt checks so far.
  [[nodiscard]] std::uint64_t passwords_checked() const;

  static constexpr std::size_t kRemembered = 64;
  static constexpr double kChecksPerSecond = 2;
  static constexpr double kCheckBurst = 8;

 private:
  enum class Verdict : std::uint8_t { kRight, kWrong, kLater };
  [[nodiscard]] Verdict judge(const WebConfig& config, const Authorization& authorization);
  [[nodiscard]] Verdict judge_password(const WebConfig& config, const UserPassword& given);
  [[nodiscard]] bool take_check();

  const Clock& clock_;
  mutable std::mutex config_mutex_;
  std::shared_ptr<const WebConfig> config_ = std::make_shared<const WebConfig>();

  mutable std::mutex passwords_mutex_;  // of what follows; held during a check
  std::deque<std::string> right_;       // SHA-256 of user, hash and password
  std::uint64_t checked_ = 0;
  double checks_left_ = kCheckBurst;
  std::uint64_t refilled_ns_ = 0;
};

}  // namespace ncclscope::agent
