// SPDX-License-Identifier: Apache-2.0
//
// PCI bus ids of GPUs from sysfs, and the order among those that sysfs does not show (containers,
// tests).
#include "agent/identity/gpu_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace ncclscope::agent {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string normal_pci_bus_id(std::string_view text) {
  std::string s(text);
  std::transform(s.begin(), s.end(), s.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const std::size_t colon = s.find(':');
  if (colon == 8 && s.compare(0, 4, "0000") == 0) s.erase(0, 4);
  const std::string_view v = s;
  const bool good = v.size() == 12 && v[4] == ':' && v[7] == ':' && v[10] == '.' &&
                    is_hex(v.substr(0, 4)) && is_hex(v.substr(5, 2)) && is_hex(v.substr(8, 2)) &&
                    is_hex(v.substr(11, 1));
  return good ? s : std::string();
}

GpuTable::GpuTable(const std::string& sysfs_root) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(sysfs_root + "/bus/pci/devices", error)) {
    if (first_line(entry.path() / "vendor") != "0x10de") continue;
    if (first_line(entry.path() / "class").compare(0, 4, "0x03") != 0) continue;
    if (std::string id = normal_pci_bus_id(entry.path().filename().string()); !id.empty()) {
      entries_.push_back({std::move(id), {}, 0});
    }
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  listed_ = entries_.size();
  for (std::size_t i = 0; i < listed_; ++i) entries_[i].index = static_cast<std::int32_t>(i);
}

GpuRef GpuTable::find(std::string_view pci_bus_id, std::int32_t local_index,
                      std::int32_t cuda_device, std::string_view owner) {
  GpuRef gpu;
  gpu.fallback = local_index >= 0 ? local_index : cuda_device;
  if (gpu.fallback < 0 || gpu.fallback >= 1024) gpu.fallback = -1;
  const std::string id = normal_pci_bus_id(pci_bus_id);
  if (id.empty()) return gpu;
  const auto others = entries_.begin() + static_cast<std::ptrdiff_t>(listed_);
  auto it = std::find_if(entries_.begin(), others, [&](const Entry& e) { return e.id == id; });
  if (it == others) {
    it = std::find_if(others, entries_.end(),
                      [&](const Entry& e) { return e.id == id && e.owner == owner; });
  }
  if (it == entries_.end()) {
    std::size_t owned = 0;
    std::int32_t index = static_cast<std::int32_t>(listed_);
    for (auto other = others; other != entries_.end(); ++other) {
      if (other->owner != owner) continue;
      ++owned;
      if (other->id < id) ++index;
    }
    if (owned >= kMaxUnlisted || entries_.size() - listed_ >= kMaxUnlistedOfAll) return gpu;
    for (auto other = others; other != entries_.end(); ++other) {
      if (other->owner == owner && other->id > id) ++other->index;
    }
    entries_.push_back({id, std::string(owner), index});
    it = entries_.end() - 1;
  }
  gpu.entry = static_cast<std::int32_t>(it - entries_.begin());
  gpu.fallback = -1;
  return gpu;
}

std::int32_t GpuTable::index(GpuRef gpu) const {
  if (gpu.entry < 0) return gpu.fallback;
  return entries_[static_cast<std::size_t>(gpu.entry)].index;
}

}  // namespace ncclscope::agent
