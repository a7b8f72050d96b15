// SPDX-License-Identifier: Apache-2.0
// The exported clock_gettime of executables that run simulations faster than time
// (virtual_clock.h). Kept in a file of its own, so that only such executables carry it.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace ncclscope::sim {
bool read_virtual_clock(std::uintptr_t caller, clockid_t id, timespec* out);
}

namespace {

using ClockFunction = int (*)(clockid_t, struct timespec*);
std::atomic<ClockFunction> g_real{nullptr};

/// The C library's function, which needs no system call.
int real_clock(clockid_t id, struct timespec* out) {
  ClockFunction real = g_real.load(std::memory_order_relaxed);
  if (real == nullptr) {
    real = reinterpret_cast<ClockFunction>(::dlsym(RTLD_NEXT, "clock_gettime"));
    if (real == nullptr) return static_cast<int>(::syscall(SYS_clock_gettime, id, out));
    g_real.store(real, std::memory_order_relaxed);
  }
  return real(id, out);
}

}  // namespace

extern "C" __attribute__((visibility("default"), noinline)) int clock_gettime(
    clockid_t id, struct timespec* out) noexcept {
  const auto caller = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  if (ncclscope::sim::read_virtual_clock(caller, id, out)) return 0;
  return real_clock(id, out);
}
