// SPDX-License-Identifier: Apache-2.0
#include "cli/report/memory.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

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

}  // namespace ncclscope::cli::report
