// SPDX-License-Identifier: Apache-2.0
//
// The few declarations that are used of NVML's C interface, which is stable, are our own: its
// header is not needed to build. As NCCL does, a link counts if it is active and its other end is
// known.
#include "cli/doctor/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace ncclscope::cli {
namespace {

using Device = struct NvmlDevice*;

struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  std::array<char, 32> bus_id;
};
static_assert(sizeof(PciInfo) == 68);

struct FieldValue {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  unsigned type;
  int result;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value;
};
static_assert(sizeof(FieldValue) == 40);

constexpr unsigned kC2cLinks = 170, kC2cStatus = 171, kC2cMegabytes = 172;
constexpr unsigned kMaxLinks = 18;

/// One instance loads, initialises and in the end shuts down the library.
class Nvml {
 public:
  explicit Nvml(const std::string& library) : handle_(::dlopen(library.c_str(), RTLD_NOW)) {
    if (handle_ == nullptr) {
      const char* why = ::dlerror();
      error_ = why == nullptr ? library + " cannot be loaded" : why;
      return;
    }
    find(init_, "nvmlInit_v2");
    find(shutdown_, "nvmlShutdown");
    find(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2");
    find(capability_, "nvmlDeviceGetCudaComputeCapability");
    find(link_state_, "nvmlDeviceGetNvLinkState");
    find(link_remote_, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    find(fields_, "nvmlDeviceGetFieldValues");
    if (!error_.empty()) return;
    if (const int result = init_(); result != 0) {
      error_ = "nvmlInit_v2 answers " + std::to_string(result);
    } else {
      running_ = true;
    }
  }
  ~Nvml() {
    if (running_) shutdown_();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] const std::string& error() const { return error_; }

  [[nodiscard]] Device device(const std::string& address) const {
    Device device = nullptr;
    return by_bus_id_(address.c_str(), &device) == 0 ? device : nullptr;
  }
  [[nodiscard]] int capability(Device device) const {
    int major = 0, minor = 0;
    return capability_(device, &major, &minor) == 0 ? 10 * major + minor : 0;
  }
  /// PCI address of the other end, in lower case and with 4 digits of domain; empty if the link is
  /// not active.
  [[nodiscard]] std::string remote(Device device, unsigned link) const {
    unsigned active = 0;
    PciInfo info{};
    if (link_state_(device, link, &active) != 0 || active == 0 ||
        link_remote_(device, link, &info) != 0)
      return {};
    info.bus_id.back() = '\0';
    std::string address = info.bus_id.data();
    for (char& c : address)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return address.size() > 12 ? address.substr(address.size() - 12) : address;
  }
  [[nodiscard]] std::uint64_t field(Device device, unsigned id, unsigned scope) const {
    FieldValue value{};
    value.field = id;
    value.scope = scope;
    if (fields_(device, 1, &value) != 0 || value.result != 0) return 0;
    return value.type == 0   ? static_cast<std::uint64_t>(value.value.d)
           : value.type == 1 ? value.value.u
                             : value.value.ull;
  }

 private:
  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function == nullptr && error_.empty()) error_ = std::string("the library lacks ") + name;
  }

  void* handle_;
  std::string error_;
  bool running_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*by_bus_id_)(const char*, Device*) = nullptr;
  int (*capability_)(Device, int*, int*) = nullptr;
  int (*link_state_)(Device, unsigned, unsigned*) = nullptr;
  int (*link_remote_)(Device, unsigned, PciInfo*) = nullptr;
  int (*fields_)(Device, int, FieldValue*) = nullptr;
};

struct Links {
  int through_switch = 0;
  std::map<std::string, int> direct;  // by the GPU's address
};

Links links_of(const Nvml& nvml, Device device, const topology::Machine& machine) {
  Links links;
  for (unsigned l = 0; l < kMaxLinks; ++l) {
    const std::string remote = nvml.remote(device, l);
    if (remote.empty()) continue;
    const topology::PciDevice* other = machine.device(machine.find_device(remote));
    // A remote that sysfs does not show is a switch that belongs to somebody else.
    const bool gpu = other != nullptr && other->class_code >> 16 == 0x03;
    if (gpu) {
      ++links.direct[remote];
    } else {
      ++links.through_switch;
    }
  }
  return links;
}

void add_c2c(const Nvml& nvml, Device device, topology::Gpu& gpu) {
  const std::uint64_t count = std::min<std::uint64_t>(nvml.field(device, kC2cLinks, 0), 64);
  for (unsigned l = 0; l < count; ++l) {
    if (nvml.field(device, kC2cStatus, l) != 1) continue;
    ++gpu.c2c_links;
    gpu.c2c_megabytes = static_cast<double>(nvml.field(device, kC2cMegabytes, l));
  }
}

}  // namespace

std::string add_nvml(topology::Machine& machine, const std::string& library) {
  const Nvml nvml(library);
  if (!nvml.error().empty()) return nvml.error();
  std::vector<Links> links;
  std::vector<topology::Gpu> gpus = machine.gpus;
  for (topology::Gpu& gpu : gpus) {
    const std::string& address = machine.device(gpu.pci)->address;
    Device device = nvml.device(address);
    if (device == nullptr) return "NVML does not know the GPU at " + address;
    if (const int capability = nvml.capability(device); capability > 0) gpu.capability = capability;
    links.push_back(links_of(nvml, device, machine));
    gpu.nvlinks_active = links.back().through_switch;
    for (const auto& [remote, count] : links.back().direct) gpu.nvlinks_active += count;
    if (gpu.capability >= 90) add_c2c(nvml, device, gpu);
  }
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    gpus[a].nvlinks.assign(gpus.size(), 0);
    for (std::size_t b = 0; b < gpus.size(); ++b) {
      if (a == b) continue;
      const auto direct = links[a].direct.find(machine.device(gpus[b].pci)->address);
      gpus[a].nvlinks[b] = direct != links[a].direct.end()
                               ? direct->second
                               : std::min(links[a].through_switch, links[b].through_switch);
    }
  }
  machine.gpus = std::move(gpus);
  machine.nvlinks_known = true;
  return {};
}

}  // namespace ncclscope::cli
