// SPDX-License-Identifier: Apache-2.0
//
// Recorded time for a plugin: this executable exports a clock_gettime of its own. Code in objects
// that were mapped after freeze_real_callers() (the plugin) gets recorded time; everybody else the
// machine's. Any thread.
#pragma once

#include <cstdint>

namespace ncclscope::cli {

/// Objects mapped until now (the program, the C and C++ libraries) keep the real clock.
void freeze_real_callers();

/// Sets what CLOCK_REALTIME and CLOCK_MONOTONIC say at recorded time 0, in ns.
void set_recorded_origin(std::int64_t monotonic_ns, std::int64_t realtime_ns);

/// Sets recorded time, in ns since the origin. Never goes back.
void set_recorded_time(std::int64_t t_ns);
[[nodiscard]] std::int64_t recorded_time();

/// The calling thread makes recorded callbacks: it always sees the newest time.
void follow_recorded_time();

}  // namespace ncclscope::cli
