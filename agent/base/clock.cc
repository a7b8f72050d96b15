// SPDX-License-Identifier: Apache-2.0
//
// The kernel's clocks.
#include "agent/base/clock.h"

#include <ctime>

namespace ncclscope::agent {
namespace {
std::int64_t read(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
}  // namespace

std::uint64_t SystemClock::monotonic_ns() const {
  return static_cast<std::uint64_t>(read(CLOCK_MONOTONIC));
}
std::int64_t SystemClock::realtime_ns() const {
  return read(CLOCK_REALTIME);
}

}  // namespace ncclscope::agent
