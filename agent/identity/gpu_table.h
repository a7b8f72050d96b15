// SPDX-License-Identifier: Apache-2.0
//
// Numbers the node's GPUs in PCI bus order, as nvidia-smi and dcgm-exporter do.
//   Thread: reactor.   Reads sysfs once. GPUs that it does not list are numbered per owner (the
//   principal of the process), so that nobody's inventions move another's numbers; they take at
//   most kMaxUnlisted places of an owner and kMaxUnlistedOfAll together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::agent {

/// A GPU as far as a process told us. Resolve with GpuTable::index when it is shown: the order of
/// GPUs that sysfs does not list can still change while ranks arrive.
struct GpuRef {
  std::int32_t entry = -1;     // in the table, -1 = no bus id
  std::int32_t fallback = -1;  // index to use without bus id, -1 = unknown
  bool operator==(const GpuRef&) const = default;
};

class GpuTable {
 public:
  static constexpr std::size_t kMaxUnlisted = 64;
  static constexpr std::size_t kMaxUnlistedOfAll = 4096;

  /// Lists NVIDIA display and 3D controllers below `sysfs_root`/bus/pci/devices.
  explicit GpuTable(const std::string& sysfs_root = "/sys");

  /// @param pci_bus_id  as the process gave it; any case, domain of 4 or 8 digits; may be empty or
  /// nonsense
  /// @param local_index local rank, -1 = unknown; taken when there is no bus id
  /// @param cuda_device ordinal in the process, -1 = unknown; taken when there is no local rank
  /// @param owner       whose process it is; only matters for GPUs that are not listed
  [[nodiscard]] GpuRef find(std::string_view pci_bus_id, std::int32_t local_index,
                            std::int32_t cuda_device, std::string_view owner = {});
  /// Index on the node, -1 = unknown.
  [[nodiscard]] std::int32_t index(GpuRef gpu) const;
  [[nodiscard]] std::size_t listed() const { return listed_; }

 private:
  struct Entry {
    std::string id;
    std::string owner;       // empty for listed ones
    std::int32_t index = 0;  // on the node
  };
  std::vector<Entry> entries_;  // listed ones, sorted; then the others, as they came
  std::size_t listed_ = 0;
};

/// "0000:3b:00.0" from "00000000:3B:00.0" and the like; empty if it is no bus id.
[[nodiscard]] std::string normal_pci_bus_id(std::string_view text);

}  // namespace ncclscope::agent
