// SPDX-License-Identifier: Apache-2.0
//
// Which GPU a communicator runs on, and which NCCL release called. Both are asked of libraries that
// the process has already loaded; none is ever loaded for it. Called in init only.
#pragma once

#include <cstdint>

namespace ncclscope::plugin {

struct GpuIdentity {
  std::int32_t device = -1;  // CUDA ordinal in this process, -1 = unknown
  char pci_bus_id[24] = {};  // "0000:3b:00.0", empty = unknown
  char uuid[48] = {};        // "GPU-xxxxxxxx-xxxx-...", empty = unknown
};

/// The device that is current on the calling thread.
[[nodiscard]] GpuIdentity current_gpu() noexcept;

/// ncclGetVersion's number (22809 = 2.28.9) of the library that holds `caller` (a code address),
/// else of one that is visible to all; 0 = unknown.
[[nodiscard]] std::uint32_t nccl_release(const void* caller) noexcept;

}  // namespace ncclscope::plugin
