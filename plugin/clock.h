// SPDX-License-Identifier: Apache-2.0
//
// The one place where the plugin reads time. clock_gettime is resolved through the dynamic linker,
// so a test host that exports a function of that name replaces it and replays run in recorded time.
#pragma once

#include <time.h>

#include <cstdint>

namespace ncclscope::plugin {

inline std::uint64_t read_clock_ns(clockid_t id) noexcept {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

/// CLOCK_MONOTONIC in ns: the host clock of every record. About 25 ns through the vDSO, no system
/// call.
inline std::uint64_t monotonic_ns() noexcept {
  return read_clock_ns(CLOCK_MONOTONIC);
}

/// CLOCK_REALTIME - CLOCK_MONOTONIC in ns.
inline std::int64_t realtime_offset_ns() noexcept {
  return static_cast<std::int64_t>(read_clock_ns(CLOCK_REALTIME)) -
         static_cast<std::int64_t>(monotonic_ns());
}

}  // namespace ncclscope::plugin
