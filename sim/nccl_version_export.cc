// SPDX-License-Identifier: Apache-2.0
// ncclGetVersion of executables that emulate NCCL: see nccl_version.h.
#include "sim/nccl_version.h"

extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = ncclscope::sim::emulated_nccl_version();
  return 0;
}
