// SPDX-License-Identifier: Apache-2.0
//
// Logging: one line per message on standard error. Only log.cc knows the library behind it.
//   Thread: any.   Rule: nothing that a peer can cause at will is logged except through a
//   LogLimiter, and text that a peer chose goes through printable().
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/base/result.h"

namespace ncclscope::agent {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

/// "debug", "info", "warning", "error", "off".
[[nodiscard]] Result<LogLevel> parse_log_level(std::string_view text);
[[nodiscard]] std::string_view name(LogLevel level);

void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) {
  log(LogLevel::kDebug, message);
}
inline void log_info(std::string_view message) {
  log(LogLevel::kInfo, message);
}
inline void log_warning(std::string_view message) {
  log(LogLevel::kWarning, message);
}
inline void log_error(std::string_view message) {
  log(LogLevel::kError, message);
}

/// Lets `burst` messages of one site through per `period`, and counts the others.
class LogLimiter {
 public:
  explicit LogLimiter(std::uint32_t burst = 5, std::uint64_t period_ns = 10'000'000'000)
      : burst_(burst), period_ns_(period_ns) {}
  /// Logs unless the site is over its limit; names how many were left out since the last line.
  void log(std::uint64_t now_ns, LogLevel level, std::string_view message);
  /// For tests: true if a message at `now_ns` goes through.
  [[nodiscard]] bool admit(std::uint64_t now_ns);
  [[nodiscard]] std::uint64_t suppressed() const { return suppressed_; }

 private:
  const std::uint32_t burst_;
  const std::uint64_t period_ns_;
  std::atomic<std::uint64_t> window_start_{0};
  std::atomic<std::uint32_t> in_window_{0};
  std::atomic<std::uint64_t> suppressed_{0};
};

}  // namespace ncclscope::agent
