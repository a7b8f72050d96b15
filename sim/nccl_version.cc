// SPDX-License-Identifier: Apache-2.0
// The emulated library's version number: see nccl_version.h.
#include "sim/nccl_version.h"

#include <atomic>

namespace ncclscope::sim {
namespace {
std::atomic<int> g_version{0};
}
void set_emulated_nccl_version(int version) {
  g_version.store(version);
}
int emulated_nccl_version() {
  return g_version.load();
}
}  // namespace ncclscope::sim
