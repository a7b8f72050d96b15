// SPDX-License-Identifier: Apache-2.0
#include "plugin/gpu_identity.h"

#include <dlfcn.h>

#include <cstdio>

namespace ncclscope::plugin {
namespace {

template <typename Function>
Function symbol(void* library, const char* name) noexcept {
  return reinterpret_cast<Function>(dlsym(library, name));
}

struct CudaUuid {
  unsigned char bytes[16];
};

}  // namespace

GpuIdentity current_gpu() noexcept {
  GpuIdentity gpu;
  void* cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (cuda == nullptr) return gpu;
  const auto get_device = symbol<int (*)(int*)>(cuda, "cuCtxGetDevice");
  const auto get_bus_id = symbol<int (*)(char*, int, int)>(cuda, "cuDeviceGetPCIBusId");
  auto get_uuid = symbol<int (*)(CudaUuid*, int)>(cuda, "cuDeviceGetUuid_v2");
  if (get_uuid == nullptr) get_uuid = symbol<int (*)(CudaUuid*, int)>(cuda, "cuDeviceGetUuid");
  int device = -1;
  if (get_device != nullptr && get_device(&device) == 0 && device >= 0) {
    gpu.device = device;
    char bus[24] = {};
    if (get_bus_id != nullptr && get_bus_id(bus, sizeof bus - 1, device) == 0) {
      for (std::size_t i = 0; i < sizeof bus && bus[i] != '\0'; ++i) {
        gpu.pci_bus_id[i] =
            static_cast<char>(bus[i] >= 'A' && bus[i] <= 'F' ? bus[i] - 'A' + 'a' : bus[i]);
      }
    }
    CudaUuid u{};
    if (get_uuid != nullptr && get_uuid(&u, device) == 0) {
      const unsigned char* b = u.bytes;
      std::snprintf(gpu.uuid, sizeof gpu.uuid,
                    "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                    b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
                    b[13], b[14], b[15]);
    }
  }
  dlclose(cuda);
  return gpu;
}

std::uint32_t nccl_release(const void* caller) noexcept {
  using GetVersion = int (*)(int*);
  GetVersion get_version = nullptr;
  void* library = nullptr;
  Dl_info info{};
  if (caller != nullptr && dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) get_version = symbol<GetVersion>(library, "ncclGetVersion");
  }
  if (get_version == nullptr) get_version = symbol<GetVersion>(RTLD_DEFAULT, "ncclGetVersion");
  int version = 0;
  const bool ok =
      get_version != nullptr && get_version(&version) == 0 && version >= 22300 && version < 100000;
  if (library != nullptr) dlclose(library);
  return ok ? static_cast<std::uint32_t>(version) : 0;
}

}  // namespace ncclscope::plugin
