// SPDX-License-Identifier: Apache-2.0
//
// Where the agent reads time, so that tests can set it. Nanoseconds.
#pragma once

#include <atomic>
#include <cstdint>

namespace ncclscope::agent {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::uint64_t monotonic_ns()
      const = 0;                                               // CLOCK_MONOTONIC, as plugins use it
  [[nodiscard]] virtual std::int64_t realtime_ns() const = 0;  // since the Unix epoch
};

/// The kernel's clocks. Thread-safe.
class SystemClock final : public Clock {
 public:
  [[nodiscard]] std::uint64_t monotonic_ns() const override;
  [[nodiscard]] std::int64_t realtime_ns() const override;
};

/// Stands still until told otherwise. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(std::uint64_t monotonic_ns = 1'000'000'000'000,
                     std::int64_t realtime_offset_ns = 1'700'000'000'000'000'000)
      : now_(monotonic_ns), offset_(realtime_offset_ns) {}
  [[nodiscard]] std::uint64_t monotonic_ns() const override { return now_; }
  [[nodiscard]] std::int64_t realtime_ns() const override {
    return static_cast<std::int64_t>(now_.load()) + offset_;
  }
  void advance_ns(std::uint64_t ns) { now_ += ns; }
  /// The time of day is set: no time passes.
  void step_realtime_ns(std::int64_t ns) { offset_ += ns; }
  void advance_ms(std::uint64_t ms) { now_ += ms * 1'000'000; }

 private:
  std::atomic<std::uint64_t> now_;
  std::atomic<std::int64_t> offset_;
};

}  // namespace ncclscope::agent
