// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/recorded_clock.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace ncclscope::cli {
namespace {

struct Range {
  std::uintptr_t begin, end;
};
constexpr std::size_t kMaxRanges = 512;
Range g_real_callers[kMaxRanges];
std::atomic<std::size_t> g_range_count{0};
std::int64_t g_monotonic_ns = 0;
std::int64_t g_realtime_ns = 0;
std::atomic<std::int64_t> g_now{0};

/// Recorded time jumps between two lines. A thread that is not part of the recording (the plugin's
/// sender) must not see a jump between two reads that belong together, such as CLOCK_REALTIME -
/// CLOCK_MONOTONIC: reads in one burst give one time, and a read of the other clock than the last
/// one always belongs to it, however long the thread was preempted. The threads of the recording
/// see each line's own time.
constexpr std::int64_t kBurstGapNs = 2'000'000;
constexpr std::int64_t kLongestBurstNs = 1'000'000'000;
thread_local bool t_takes_part = false;
thread_local std::int64_t t_kept_now = 0;
thread_local std::int64_t t_burst_began_ns = 0;
thread_local std::int64_t t_last_read_ns = 0;
thread_local bool t_last_monotonic = false;

using ClockGettime = int (*)(clockid_t, timespec*);
ClockGettime g_real_clock_gettime = nullptr;

std::int64_t now_for_this_thread(bool monotonic) {
  const std::int64_t now = g_now.load(std::memory_order_acquire);
  if (t_takes_part) return now;
  timespec real{};
  g_real_clock_gettime(CLOCK_MONOTONIC, &real);
  const std::int64_t real_ns = real.tv_sec * 1'000'000'000 + real.tv_nsec;
  const bool pair = monotonic != t_last_monotonic;
  if ((!pair && real_ns - t_last_read_ns > kBurstGapNs) ||
      real_ns - t_burst_began_ns > kLongestBurstNs) {
    t_burst_began_ns = real_ns;
    t_kept_now = now;
  }
  t_last_read_ns = real_ns;
  t_last_monotonic = monotonic;
  return t_kept_now;
}

bool is_real_caller(std::uintptr_t address) {
  const std::size_t n = g_range_count.load(std::memory_order_acquire);
  if (n == 0) return true;
  return std::any_of(g_real_callers, g_real_callers + n,
                     [address](const Range& r) { return address >= r.begin && address < r.end; });
}

int add_ranges(dl_phdr_info* info, std::size_t, void* count) {
  auto& n = *static_cast<std::size_t*>(count);
  for (int i = 0; i < info->dlpi_phnum && n < kMaxRanges; ++i) {
    const auto& p = info->dlpi_phdr[i];
    if (p.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + p.p_vaddr;
    g_real_callers[n++] = {begin, begin + p.p_memsz};
  }
  return 0;
}

}  // namespace

void freeze_real_callers() {
  // The C library's own, which needs no system call: a thread is not preempted in the middle of a
  // pair of reads.
  g_real_clock_gettime = reinterpret_cast<ClockGettime>(dlsym(RTLD_NEXT, "clock_gettime"));
  std::size_t n = 0;
  dl_iterate_phdr(&add_ranges, &n);
  g_range_count.store(n, std::memory_order_release);
}

void set_recorded_origin(std::int64_t monotonic_ns, std::int64_t realtime_ns) {
  g_monotonic_ns = monotonic_ns;
  g_realtime_ns = realtime_ns;
}

void set_recorded_time(std::int64_t t_ns) {
  if (t_ns > g_now.load(std::memory_order_relaxed)) g_now.store(t_ns, std::memory_order_release);
}

void follow_recorded_time() {
  t_takes_part = true;
}

std::int64_t recorded_time() {
  return g_now.load(std::memory_order_acquire);
}

/// The function the plugin's call resolves to.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t id,
                                                                    timespec* out) noexcept {
  const bool monotonic = id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_RAW ||
                         id == CLOCK_MONOTONIC_COARSE || id == CLOCK_BOOTTIME;
  const bool realtime = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  const auto caller = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  if ((!monotonic && !realtime) || is_real_caller(caller)) {
    return static_cast<int>(syscall(SYS_clock_gettime, id, out));
  }
  const std::int64_t ns =
      (monotonic ? g_monotonic_ns : g_realtime_ns) + now_for_this_thread(monotonic);
  out->tv_sec = ns / 1'000'000'000;
  out->tv_nsec = ns % 1'000'000'000;
  return 0;
}

}  // namespace ncclscope::cli
