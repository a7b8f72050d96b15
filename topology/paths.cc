// SPDX-License-Identifier: Apache-2.0
#include "topology/paths.h"

#include <algorithm>
#include <array>
#include <limits>

namespace ncclscope::topology {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// From the host bridge ("pci0000:3a") on; what lies above it is the platform's.
std::vector<std::string> below_root(const std::string& path) {
  std::vector<std::string> parts = components(path);
  std::size_t root = 0;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].compare(0, 3, "pci") == 0) root = i;
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(root));
  return parts;
}

/// Switches that are one device to their maker and two in the PCI tree: NCCL takes both as one.
/// @return the generation, 0 = no such switch
int two_level_switch(const PciDevice& d, bool upper) {
  constexpr std::uint32_t kBroadcom = 0x1000;
  if (d.vendor != kBroadcom || d.subsystem_vendor != kBroadcom) return 0;
  const std::uint32_t kind = d.subsystem_device >> 12;
  if (d.device == 0xc010 && kind == 0xa) return 4;
  if (d.device == 0xc030 && kind == (upper ? 0x0u : 0x1u)) return 5;
  return 0;
}

double known(double gigabytes) {
  return gigabytes == kNoLimit ? 0 : gigabytes;
}

}  // namespace

std::string_view path_name(PathType type) noexcept {
  constexpr std::array<std::string_view, 12> kNames{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                                    "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
  return kNames[static_cast<std::size_t>(type)];
}

double pcie_gigabytes(double gigatransfers, unsigned lanes) noexcept {
  // NCCL's table, in 100 Mbit/s per lane.
  double rate = 60;
  if (gigatransfers == 2.5) rate = 15;
  if (gigatransfers == 5) rate = 30;
  if (gigatransfers == 16) rate = 120;
  if (gigatransfers == 32) rate = 240;
  if (gigatransfers == 64) rate = 480;
  return rate * (lanes == 0 ? 16 : lanes) / 80;
}

double nvlink_gigabytes(int capability) noexcept {
  if (capability >= 100) return 40.1;
  if (capability >= 90) return 20.6;
  if (capability == 86) return 12;
  if (capability >= 70) return 20;
  if (capability >= 60) return 18;
  return 0;
}

Paths::Paths(const Machine& machine) : machine_(machine) {
  for (const Gpu& gpu : machine.gpus) gpus_.push_back(branch(gpu.pci, true));
  for (std::size_t n = 0; n < machine.nics.size(); ++n) {
    const Nic& nic = machine.nics[n];
    nics_.push_back(branch(nic.rdma ? machine.find_device(nccl_address(n)) : nic.pci, true));
  }
}

Paths::Branch Paths::branch(int device, bool flatten) const {
  Branch result;
  const PciDevice* d = machine_.device(device);
  if (d == nullptr) {  // NCCL puts it under its first CPU
    result.numa = gpus_.empty() ? "0" : gpus_.front().numa;
    return result;
  }
  const std::vector<std::string> parts = components(d->path);
  std::size_t at = parts.size() - 1;
  result.nodes.push_back(device);
  while (at >= 2 && is_pci_address(parts[at - 1]) && is_pci_address(parts[at - 2])) {
    at -= 2;
    const int above = machine_.find_device(parts[at]);
    if (above < 0) break;
    result.nodes.push_back(above);
  }
  // A missing file is node 0 to NCCL; "-1" is a node of its own.
  result.numa = machine_.device(result.nodes.back())->numa_text;
  if (result.numa.empty()) result.numa = "0";
  if (flatten) {
    for (std::size_t i = 1; i + 1 < result.nodes.size();) {
      const int lower = two_level_switch(*machine_.device(result.nodes[i]), false);
      const int upper = two_level_switch(*machine_.device(result.nodes[i + 1]), true);
      if (lower != 0 && lower == upper) {
        result.nodes.erase(result.nodes.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
  return result;
}

double Paths::link_gigabytes(int device) const {
  const PciDevice& d = *machine_.device(device);
  const PciDevice* port = machine_.device(machine_.parent(device));
  double speed = d.maximum.gigatransfers;
  if (port != nullptr && port->maximum.gigatransfers > 0)
    speed = speed > 0 ? std::min(speed, port->maximum.gigatransfers) : 0;
  const unsigned lanes =
      std::min(d.maximum.lanes, port == nullptr ? 0U : port->maximum.lanes);  // 0 = taken for 16
  return pcie_gigabytes(speed, lanes);
}

Path Paths::between(const Branch& a, const Branch& b) const {
  if (!a.nodes.empty() && !b.nodes.empty() && a.nodes[0] == b.nodes[0])
    return {PathType::kPix, link_gigabytes(a.nodes[0])};
  std::size_t in_a = a.nodes.size(), in_b = b.nodes.size();
  bool common = false;
  for (std::size_t i = 1; i < a.nodes.size() && !common; ++i) {
    for (std::size_t j = 1; j < b.nodes.size() && !common; ++j) {
      if (a.nodes[i] != b.nodes[j]) continue;
      in_a = i;
      in_b = j;
      common = true;
    }
  }
  Path path;
  path.gigabytes = kNoLimit;
  for (std::size_t i = 0; i < in_a; ++i)
    path.gigabytes = std::min(path.gigabytes, link_gigabytes(a.nodes[i]));
  for (std::size_t j = 0; j < in_b; ++j)
    path.gigabytes = std::min(path.gigabytes, link_gigabytes(b.nodes[j]));
  if (common) {
    path.type = in_a == 1 && in_b == 1 ? PathType::kPix : PathType::kPxb;
  } else if (a.numa == b.numa) {
    path.type = PathType::kPhb;
  } else {
    path.type = PathType::kSys;
    path.gigabytes = std::min(path.gigabytes, between_cpus());
  }
  return path;
}

double Paths::between_cpus() const {
  const Cpu& cpu = machine_.cpu;
  if (cpu.vendor == "GenuineIntel") {
    if (cpu.family != 6) return 6;
    if (cpu.model >= 0xcf) return 40;
    if (cpu.model >= 0x8f) return 22;
    return cpu.model >= 0x55 ? 10 : 6;
  }
  if (cpu.vendor == "AuthenticAMD") return 16;
  if (cpu.arch == "arm64") return 6;
  if (cpu.arch == "ppc64") return 32;
  return kNoLimit;
}

bool Paths::nvlinked(std::size_t a, std::size_t b) const {
  const std::vector<int>& links = machine_.gpus[a].nvlinks;
  return b < links.size() && links[b] > 0;
}

Path Paths::gpu_gpu(std::size_t a, std::size_t b) const {
  if (a == b) return {PathType::kLoc, 0};
  const double each =
      nvlink_gigabytes(std::min(machine_.gpus[a].capability, machine_.gpus[b].capability));
  if (nvlinked(a, b)) return {PathType::kNvl, machine_.gpus[a].nvlinks[b] * each};
  for (std::size_t relay = 0; relay < machine_.gpus.size(); ++relay) {
    if (relay == a || relay == b || !nvlinked(a, relay) || !nvlinked(relay, b)) continue;
    const int links = std::min(machine_.gpus[a].nvlinks[relay], machine_.gpus[relay].nvlinks[b]);
    return {PathType::kNvb, links * each};
  }
  Path path = between(gpus_[a], gpus_[b]);
  path.gigabytes = known(path.gigabytes);
  return path;
}

Path Paths::gpu_nic(std::size_t gpu, std::size_t nic) const {
  Path path = between(gpus_[gpu], nics_[nic]);
  const Gpu& g = machine_.gpus[gpu];
  if (path.type == PathType::kPhb && g.c2c_links > 0) {
    path.type = PathType::kP2c;
    path.gigabytes = g.c2c_links * g.c2c_megabytes / 1000;
    for (const int node : nics_[nic].nodes)
      path.gigabytes = std::min(path.gigabytes, link_gigabytes(node));
  }
  if (const double gigabits = machine_.nics[nic].gigabits(); gigabits > 0)
    path.gigabytes = std::min(path.gigabytes, gigabits / 8);
  path.gigabytes = known(path.gigabytes);
  return path;
}

Path Paths::nic_nic(std::size_t a, std::size_t b) const {
  if (a == b) return {PathType::kLoc, 0};
  Path path = between(nics_[a], nics_[b]);
  path.gigabytes = known(path.gigabytes);
  return path;
}

Rail Paths::rail(std::size_t gpu) const {
  // Highest bandwidth first, then least distance: a fast NIC far away beats a slow one nearby.
  std::vector<std::size_t> best;
  Path found;
  for (std::size_t nic = 0; nic < nics_.size(); ++nic) {
    if (!machine_.nics[nic].active()) continue;
    const Path path = gpu_nic(gpu, nic);
    const bool better = best.empty() || path.gigabytes > found.gigabytes ||
                        (path.gigabytes == found.gigabytes && path.type < found.type);
    if (better) {
      best.clear();
      found = path;
    }
    if (path.gigabytes == found.gigabytes && path.type == found.type) best.push_back(nic);
  }
  Rail rail;
  if (best.empty()) return rail;
  std::size_t start = gpu;
  const std::size_t count = best.size();
  if (count > 1 && (count & (count - 1)) == 0) {  // NCCL reverses the bits of the GPU's number
    std::size_t reversed = 0;
    for (std::size_t bit = 1, rest = gpu; bit < count; bit <<= 1, rest >>= 1)
      reversed = (reversed << 1) | (rest & 1);
    start = reversed;
  }
  rail.nic = static_cast<int>(best[start % count]);
  rail.path = found;
  rail.gpudirect =
      machine_.nics[static_cast<std::size_t>(rail.nic)].rdma && found.type <= PathType::kP2c;
  if (found.type < PathType::kPxn) return rail;
  for (std::size_t other = 0; other < gpus_.size() && rail.relay < 0; ++other) {
    if (other == gpu || !nvlinked(gpu, other)) continue;
    for (std::size_t nic = 0; nic < nics_.size(); ++nic)
      if (machine_.nics[nic].active() && gpu_nic(other, nic).type <= PathType::kP2c)
        rail.relay = static_cast<int>(other);
  }
  return rail;
}

bool Paths::peer_to_peer(std::size_t a, std::size_t b) const {
  const bool amd_pair = machine_.cpu.vendor == "AuthenticAMD" && machine_.gpus.size() <= 2;
  return gpu_gpu(a, b).type <= (amd_pair ? PathType::kSys : PathType::kPxb);
}

std::string Paths::smi(int a, int b) const {
  const PciDevice* x = machine_.device(a);
  const PciDevice* y = machine_.device(b);
  if (x == nullptr || y == nullptr) return "SYS";
  const std::vector<std::string> in_x = below_root(x->path), in_y = below_root(y->path);
  std::size_t same = 0;
  while (same < in_x.size() && same < in_y.size() && in_x[same] == in_y[same]) ++same;
  // components: the host bridge, bridges, the device
  if (same < 1) return x->numa_node == y->numa_node ? "NODE" : "SYS";
  if (same < 2) return "PHB";
  const bool one_switch = in_x.size() - same <= 2 && in_y.size() - same <= 2;
  return one_switch ? "PIX" : "PXB";
}

std::string Paths::smi_gpu_gpu(std::size_t a, std::size_t b) const {
  if (a == b) return "X";
  if (nvlinked(a, b)) return "NV" + std::to_string(machine_.gpus[a].nvlinks[b]);
  return smi(machine_.gpus[a].pci, machine_.gpus[b].pci);
}

std::string Paths::smi_gpu_nic(std::size_t gpu, std::size_t nic) const {
  return smi(machine_.gpus[gpu].pci, machine_.nics[nic].pci);
}

std::string Paths::smi_nic_nic(std::size_t a, std::size_t b) const {
  return a == b ? "X" : smi(machine_.nics[a].pci, machine_.nics[b].pci);
}

std::string Paths::nccl_address(std::size_t nic) const {
  const PciDevice* d = machine_.device(machine_.nics[nic].pci);
  if (d == nullptr) return {};
  return d->address.substr(0, 8) + "00.0";
}

std::size_t Paths::switches_above_gpu(std::size_t gpu) const {
  return gpus_[gpu].nodes.size() - 1;
}

}  // namespace ncclscope::topology
