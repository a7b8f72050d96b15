// SPDX-License-Identifier: Apache-2.0
// Virtual time for the plugin: see virtual_clock.h. State is a few atomics without constructors,
// because clock_gettime is called before main.
#include "sim/virtual_clock.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace ncclscope::sim {
namespace {

std::atomic<const std::atomic<std::int64_t>*> g_now{nullptr};
std::atomic<std::int64_t> g_epoch_offset{0};
std::atomic<std::uintptr_t> g_begin{0};
std::atomic<std::uintptr_t> g_end{0};
std::atomic<std::uint64_t> g_reads{0};

struct Range {
  std::uintptr_t address;
  std::uintptr_t begin;
  std::uintptr_t end;
};

int find_range(dl_phdr_info* info, std::size_t, void* data) {
  auto* range = static_cast<Range*>(data);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    begin = std::min<std::uintptr_t>(begin, info->dlpi_addr + header.p_vaddr);
    end = std::max<std::uintptr_t>(end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
  }
  if (range->address < begin || range->address >= end) return 0;
  range->begin = begin;
  range->end = end;
  return 1;
}

}  // namespace

void set_virtual_time_source(const std::atomic<std::int64_t>* now, std::int64_t epoch_offset_ns) {
  g_epoch_offset.store(epoch_offset_ns);
  g_now.store(now);
}

void set_virtual_clock_range(std::uintptr_t begin, std::uintptr_t end) {
  g_begin.store(begin);
  g_end.store(end);
}

void use_virtual_clock_for(const void* address) {
  Range range{reinterpret_cast<std::uintptr_t>(address), 0, 0};
  if (::dl_iterate_phdr(find_range, &range) == 1) set_virtual_clock_range(range.begin, range.end);
}

std::uint64_t virtual_clock_reads() {
  return g_reads.load();
}

bool read_virtual_clock(std::uintptr_t caller, clockid_t id, timespec* out) {
  const auto* now = g_now.load(std::memory_order_acquire);
  if (now == nullptr || caller < g_begin.load(std::memory_order_relaxed) ||
      caller >= g_end.load(std::memory_order_relaxed)) {
    return false;
  }
  std::int64_t ns = now->load(std::memory_order_acquire);
  switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
      ns += g_epoch_offset.load();
      break;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
      break;
    default:
      return false;
  }
  out->tv_sec = ns / 1000000000;
  out->tv_nsec = ns % 1000000000;
  g_reads.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace ncclscope::sim
