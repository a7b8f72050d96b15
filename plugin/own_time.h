// SPDX-License-Identifier: Apache-2.0
//
// How long the plugin itself takes, estimated: in the time from the start of an operation to the
// start of the next one, every second callback is measured, whatever it is; whether it is the first
// or the second of two is a coin's toss. On average one operation in 128 of a rank is taken, at
// irregular distances, since jobs repeat themselves; a measured call counts 256 times. What reading
// the clock costs is taken off, and a call in which the thread was interrupted counts as 1 us.
//   Thread: any. Cost: one load and a branch; when measured, two reads of the clock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/clock.h"
#include "plugin/process.h"

namespace ncclscope::plugin {

inline constexpr std::uint64_t kSampleOperations = 128;
inline constexpr std::uint64_t kSampleCalls = 2;  // of such an operation

void begin_or_end_measuring(Process& p, Lane& lane, std::size_t type, std::uint64_t count,
                            bool begin) noexcept;

/// Begins or ends the measuring: an operation starts, with the `count`-th event of its type (a
/// bit's number) on its lane.
inline void sample_own_time(Process& p, Lane& lane, std::size_t type,
                            std::uint64_t count) noexcept {
  const bool wanted = count >= lane.next_measured[type].load(kRelaxed);
  if (!wanted && !p.measuring.load(kRelaxed)) return;
  begin_or_end_measuring(p, lane, type, count, wanted);
}

/// What two reads of the clock in a row show. Once, in init.
[[nodiscard]] std::uint64_t measure_clock_cost() noexcept;

/// Adds a measured call to the lane that `token` (a context or handle) names.
void add_own_time(const void* token, std::uint64_t start_ns) noexcept;

/// Calls `f` while measuring is on, and measures every second call: out of the way of the calls
/// that are never measured.
template <typename F>
[[gnu::noinline, gnu::cold]] auto call_measured(const void* token, const F& f) noexcept {
  // Reading the clock twice takes as long as a call: a launch, two calls, is charged for it once.
  if (process().measured_calls.fetch_add(1, kRelaxed) % kSampleCalls == 0) return f();
  const std::uint64_t start_ns = monotonic_ns();
  const auto result = f();
  add_own_time(token, start_ns);
  return result;
}

/// Calls `f`, measured where it is its turn. `token`: the context or handle of the call.
template <typename F>
[[gnu::always_inline]] inline auto call_sampled(const void* token, const F& f) noexcept {
  if (__builtin_expect(process().measuring.load(kRelaxed), 0)) return call_measured(token, f);
  return f();
}

}  // namespace ncclscope::plugin
