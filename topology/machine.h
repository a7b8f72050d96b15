// SPDX-License-Identifier: Apache-2.0
//
// What a node is made of, as sysfs and /proc tell: PCI devices, NUMA nodes, GPUs, NICs. NVLink is
// not in sysfs: it comes from elsewhere (NVML, or what nvidia-smi prints) and is added by the
// caller.
//   Thread: plain data.   May fail: nothing; what cannot be read stays empty, -1 or 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/file_tree.h"

namespace ncclscope::topology {

/// Speed of a PCIe link. Zero is unknown.
struct LinkSpeed {
  std::string text;  // as sysfs has it: "32.0 GT/s PCIe"
  double gigatransfers = 0;
  unsigned lanes = 0;
};

struct PciDevice {
  std::string address;  // "0000:3b:00.0", lower case
  std::string path;     // "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
  std::uint32_t class_code = 0;
  std::uint32_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem_device = 0;
  std::string numa_text;  // as the file has it; empty if missing
  int numa_node = -1;
  LinkSpeed now, maximum;
  bool virtual_function = false;

  [[nodiscard]] bool bridge() const { return class_code >> 8 == 0x0604; }
  [[nodiscard]] bool nvswitch() const { return class_code == 0x068000 && vendor == 0x10de; }
};

struct Port {
  int number = 1;
  std::string state;       // "ACTIVE", "DOWN", "INIT", ...; empty if unknown
  std::string physical;    // "LinkUp", "Polling", "Disabled"
  std::string link_layer;  // "InfiniBand" or "Ethernet"
  std::string rate_text;   // "400 Gb/sec (4X NDR)"
  double gigabits = 0;     // 0 = unknown
  bool roce_v2 = false;    // it has a GID of that type
  bool gids_known = false;
};

/// What carries a job's data between nodes: an RDMA device, or where there is none a network
/// interface.
struct Nic {
  std::string name;  // "mlx5_0", "eth0"
  bool rdma = false;
  int pci = -1;  // in Machine::devices, -1 = it has no PCI device (or we cannot see it)
  std::vector<Port> ports;
  std::vector<std::string> interfaces;  // network interfaces of the same PCI device

  [[nodiscard]] bool active() const;
  /// Gbit/s of its fastest active port, 0 = unknown.
  [[nodiscard]] double gigabits() const;
};

struct Interface {
  std::string name;
  int pci = -1;
  bool up = false;
  bool loopback = false;
  double megabits = 0;               // 0 = unknown
  std::string bond;                  // the bond that it is part of
  std::vector<std::string> members;  // of a bond
};

struct Gpu {
  int pci = -1;
  int minor = -1;      // of /dev/nvidia<minor>
  std::string model;   // "NVIDIA H100 80GB HBM3"; empty if the driver does not say
  int capability = 0;  // 80, 90, 100; 0 = unknown
  int mig_instances = 0;
  int c2c_links = 0;
  double c2c_megabytes = 0;  // per second and link
  std::vector<int> nvlinks;  // to each other GPU, directly or through switches; empty = unknown
  int nvlinks_active = -1;   // of this GPU, all remotes; -1 = unknown
};

struct NumaNode {
  int id = 0;
  std::string cpus;    // "0-47,96-143"
  std::string cpumap;  // "0000ffff,ffffffff"
};

struct Cpu {
  std::string arch;    // as NCCL names it: x86_64, arm64, ppc64; empty if unknown
  std::string vendor;  // GenuineIntel, AuthenticAMD
  int family = 0, model = 0;
  bool hypervisor = false;
};

struct Machine {
  std::vector<PciDevice> devices;  // by address
  std::vector<Gpu> gpus;           // in PCI bus order, as nvidia-smi numbers them
  std::vector<Nic> nics;
  std::vector<Interface> interfaces;
  std::vector<NumaNode> numa;
  Cpu cpu;
  std::string product;  // "QEMU Standard PC (Q35 + ICH9, 2009)"
  bool nvlinks_known = false;

  /// -1 if there is none.
  [[nodiscard]] int find_device(std::string_view address) const;
  [[nodiscard]] const PciDevice* device(int index) const;
  /// The bridge above (downstream or root port), -1 below the root bus.
  [[nodiscard]] int parent(int index) const;
  [[nodiscard]] bool virtualised() const { return cpu.hypervisor; }
  [[nodiscard]] bool has_rdma() const;
};

/// Where to look. Agents have roots of their own for /sys and /proc.
struct Roots {
  FileTree sys{"/sys"};
  FileTree proc{"/proc"};
};
[[nodiscard]] Machine read_machine(const Roots& roots);

/// "0000:3b:00.0": what NCCL takes for an address.
[[nodiscard]] bool is_pci_address(std::string_view text);
/// "32.0 GT/s PCIe", "16" -> speed; unknown parts stay zero.
[[nodiscard]] LinkSpeed parse_link_speed(std::string_view speed, std::string_view width);

}  // namespace ncclscope::topology
