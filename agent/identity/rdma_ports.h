// SPDX-License-Identifier: Apache-2.0
//
// The node's RDMA ports, as sysfs lists them.
//   Thread: any.   Reads a few small files each time; what cannot be read counts as not active.
#pragma once

#include <cstdint>
#include <string>

namespace ncclscope::agent {

/// InfiniBand and RoCE ports below `sysfs_root`/class/infiniband whose state is ACTIVE.
[[nodiscard]] std::uint64_t active_rdma_ports(const std::string& sysfs_root);

}  // namespace ncclscope::agent
