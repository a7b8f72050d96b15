// SPDX-License-Identifier: Apache-2.0
// What the emulated library answers to ncclGetVersion. Executables that link
// nccl_version_export.cc export that function, so that a plugin can ask for it. Thread-safe.
#pragma once

namespace ncclscope::sim {

/// `version`: as NCCL writes it, 22809 for 2.28.9. The last call of the process wins.
void set_emulated_nccl_version(int version);
int emulated_nccl_version();

}  // namespace ncclscope::sim
