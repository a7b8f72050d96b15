// SPDX-License-Identifier: Apache-2.0
//
// How far apart GPUs and NICs are, graded as NCCL does (release 2.28) and as nvidia-smi does.
// NCCL walks up a device's path in sysfs two components at a time, so root ports and the lower side
// of switches do not count; it knows the NUMA node of the topmost device, not the root complex.
//   Thread: const after construction.   Units: GB/s (10^9 bytes), one direction, protocol overhead
//   taken off, as in NCCL's log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "topology/machine.h"

namespace ncclscope::topology {

/// NCCL's numbers: smaller is closer.
enum class PathType : unsigned char {
  kLoc = 0,
  kNvl = 1,
  kNvb = 2,
  kC2c = 3,
  kPix = 4,
  kPxb = 5,
  kP2c = 6,
  kPxn = 7,
  kPhb = 8,
  kSys = 9,
  kDis = 11,
};
[[nodiscard]] std::string_view path_name(PathType type) noexcept;

struct Path {
  PathType type = PathType::kDis;
  double gigabytes = 0;  // per second; 0 = unknown
};

/// The NIC that NCCL gives a GPU for its first channel.
struct Rail {
  int nic = -1;
  Path path;
  int relay = -1;          // a GPU with a near NIC that NCCL goes through instead (PXN), -1 = none
  bool gpudirect = false;  // near enough for GPUDirect RDMA by default
};

class Paths {
 public:
  explicit Paths(const Machine& machine);

  [[nodiscard]] Path gpu_gpu(std::size_t a, std::size_t b) const;
  [[nodiscard]] Path gpu_nic(std::size_t gpu, std::size_t nic) const;
  [[nodiscard]] Path nic_nic(std::size_t a, std::size_t b) const;
  [[nodiscard]] Rail rail(std::size_t gpu) const;
  /// NCCL lets the pair exchange directly by default.
  [[nodiscard]] bool peer_to_peer(std::size_t a, std::size_t b) const;

  /// "X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", as nvidia-smi topo -m has it.
  [[nodiscard]] std::string smi_gpu_gpu(std::size_t a, std::size_t b) const;
  [[nodiscard]] std::string smi_gpu_nic(std::size_t gpu, std::size_t nic) const;
  [[nodiscard]] std::string smi_nic_nic(std::size_t a, std::size_t b) const;

  /// What NCCL takes for an RDMA device's PCI address: the function's digit is zeroed, and so are
  /// the device's two (NCCL_IB_MERGE_VFS). Empty without a PCI device.
  [[nodiscard]] std::string nccl_address(std::size_t nic) const;
  /// PCI switches above a GPU that NCCL sees.
  [[nodiscard]] std::size_t switches_above_gpu(std::size_t gpu) const;
  /// GB/s between two NUMA nodes that NCCL assumes for this CPU.
  [[nodiscard]] double between_cpus() const;
  /// GB/s of a device's link by its maximum, and the port's above it.
  [[nodiscard]] double link_gigabytes(int device) const;

 private:
  struct Branch {
    std::vector<int> nodes;  // the device, then the switches above it
    std::string numa;
  };
  [[nodiscard]] Branch branch(int device, bool flatten) const;
  [[nodiscard]] Path between(const Branch& a, const Branch& b) const;
  [[nodiscard]] std::string smi(int a, int b) const;
  [[nodiscard]] bool nvlinked(std::size_t a, std::size_t b) const;

  const Machine& machine_;
  std::vector<Branch> gpus_, nics_;
};

/// GB/s of `gigatransfers` per lane and `lanes`; what is unknown counts as NCCL counts it (8 GT/s,
/// 16 lanes).
[[nodiscard]] double pcie_gigabytes(double gigatransfers, unsigned lanes) noexcept;
/// GB/s of one NVLink; 0 = unknown.
[[nodiscard]] double nvlink_gigabytes(int capability) noexcept;

}  // namespace ncclscope::topology
