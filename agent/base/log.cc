// SPDX-License-Identifier: Apache-2.0
//
// The log library lives here and nowhere else.
#include "agent/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace ncclscope::agent {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("ncclscope-agent",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view text) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) return static_cast<LogLevel>(i);
  }
  return Status::invalid(
      concat("log level '", text, "' is unknown: use debug, info, warning, error or off"));
}

std::string_view name(LogLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}
bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}
void log(LogLevel level, std::string_view message) {
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

bool LogLimiter::admit(std::uint64_t now_ns) {
  std::uint64_t start = window_start_.load();
  if (start == 0 || now_ns - start >= period_ns_) {
    if (window_start_.compare_exchange_strong(start, now_ns)) in_window_ = 0;
  }
  if (in_window_.fetch_add(1) < burst_) return true;
  ++suppressed_;
  return false;
}

void LogLimiter::log(std::uint64_t now_ns, LogLevel level, std::string_view message) {
  if (!admit(now_ns)) return;
  const std::uint64_t left_out = suppressed_.exchange(0);
  if (left_out == 0) {
    agent::log(level, message);
  } else {
    agent::log(level, concat(message, " (and ", left_out, " like it not logged)"));
  }
}

}  // namespace ncclscope::agent
