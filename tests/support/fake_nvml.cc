// SPDX-License-Identifier: Apache-2.0
//
// What `ncclscope doctor` asks of libnvidia-ml.so.1, answered for the machine "rail8": eight GPUs
// of compute capability 9.0 with 18 NVLinks to switches, of which the fourth GPU has lost two, and
// two C2C links. Also NCCL's version, so that it passes for a libnccl.so.2.
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace {

constexpr std::array<const char*, 8> kGpus{"0000:13:00.0", "0000:23:00.0", "0000:33:00.0",
                                           "0000:43:00.0", "0000:53:00.0", "0000:63:00.0",
                                           "0000:73:00.0", "0000:83:00.0"};
constexpr int kSuccess = 0, kNotFound = 6;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  unsigned type;
  int result;
  union {
    double d;
    unsigned u;
  } value;
};

std::size_t index_of(const void* device) {
  std::size_t i = 0;
  while (i < kGpus.size() && device != kGpus[i]) ++i;
  return i;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names
extern "C" {
int nvmlInit_v2() {
  return kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, const void** device) {
  for (const char* gpu : kGpus) {
    if (std::strcmp(gpu, bus_id) != 0) continue;
    *device = gpu;
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetCudaComputeCapability(const void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(const void* device, unsigned link, unsigned* active) {
  *active = index_of(device) == 3 && link >= 16 ? 0 : 1;
  return kSuccess;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(const void*, unsigned link, PciInfo* info) {
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:A%u:00.0", link % 4);
  return kSuccess;
}
int nvmlDeviceGetFieldValues(const void*, int, FieldValue* value) {
  value->result = kSuccess;
  value->type = 1;
  value->value.u = value->field == 170 ? 2 : value->field == 171 ? 1 : 44'712;
  return kSuccess;
}
int ncclGetVersion(int* version) {
  *version = 22'809;
  return kSuccess;
}
}
// NOLINTEND(readability-identifier-naming)
