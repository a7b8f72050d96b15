// SPDX-License-Identifier: Apache-2.0
//
// What must be so on a node besides its topology: GPUDirect RDMA's drivers, what makes the PCIe
// switches send everything through the CPU, and limits of this process.
//   May fail: what only root can see is kUnknown for others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::topology {

/// nvidia-peermem or dma-buf: without either the NIC cannot reach the GPU's memory.
[[nodiscard]] Findings check_gpudirect(const Machine& machine, const Roots& roots);
/// PCIe access control services of the bridges between near devices: redirecting, they send what
/// could stay below the switch up to the CPU.
[[nodiscard]] Findings check_access_control(const Machine& machine, const Paths& paths,
                                            const Roots& roots);
[[nodiscard]] Findings check_iommu(const Machine& machine, const Roots& roots);

/// What this process may do.
struct ProcessLimits {
  std::optional<std::uint64_t> shm_bytes;      // size of /dev/shm
  std::optional<std::uint64_t> memlock_bytes;  // UINT64_MAX = unlimited
  /// errno of opening a device file for reading and writing, 0 = it can be opened.
  std::function<int(const std::string& path)> open_error;
};
[[nodiscard]] ProcessLimits limits_of_this_process();

[[nodiscard]] Findings check_shared_memory(const Machine& machine, const ProcessLimits& limits);
[[nodiscard]] Findings check_locked_memory(const Machine& machine, const ProcessLimits& limits);
/// Device files of GPUs and RDMA devices: there, and allowed by the control group.
[[nodiscard]] Findings check_devices(const Machine& machine, const Roots& roots,
                                     const ProcessLimits& limits);

}  // namespace ncclscope::topology
