// SPDX-License-Identifier: Apache-2.0
#include "cli/report/memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <new>

namespace ncclscope::cli::report {

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

LargeMemory::LargeMemory(std::size_t bytes) : memory_(nullptr, Unmap{bytes}) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_.reset(static_cast<std::byte*>(memory));
  (void)madvise(memory, bytes, MADV_HUGEPAGE);  // a wish
}

void LargeMemory::Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

}  // namespace ncclscope::cli::report
