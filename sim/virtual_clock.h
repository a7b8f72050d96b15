// SPDX-License-Identifier: Apache-2.0
// Replaces the clock of the profiler plugin when a simulation runs faster than time. An executable
// that links virtual_clock.cc exports its own clock_gettime (link with ENABLE_EXPORTS): shared
// objects loaded later resolve to it. Callers inside a registered address range (the plugin's
// mapping) read virtual time for the wall and monotonic clocks; all others read the kernel's clock.
// Thread-safe; never fails.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace ncclscope::sim {

/// `now`: nanoseconds on the monotonic scale, null switches back to real time.
/// `epoch_offset_ns`: what CLOCK_REALTIME is ahead of it.
void set_virtual_time_source(const std::atomic<std::int64_t>* now, std::int64_t epoch_offset_ns);

/// Callers with a return address inside [begin, end) get virtual time.
void set_virtual_clock_range(std::uintptr_t begin, std::uintptr_t end);

/// Finds the mapping of the shared object that holds `address` and registers it.
void use_virtual_clock_for(const void* address);

/// What the exported clock_gettime asks; false: not virtual, read the kernel's clock.
bool read_virtual_clock(std::uintptr_t caller, clockid_t id, timespec* out);

/// Calls answered with virtual time so far.
std::uint64_t virtual_clock_reads();

}  // namespace ncclscope::sim
