// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the CUDA driver in emulated ranks (preloaded as libcuda.so.1): tells the plugin
// which GPU a rank drives, so that series carry UUIDs as on real nodes. The UUID is made of the
// node's and the rank's number there.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

/// The digits at the end of a variable; 0 where there are none.
int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return 0;
  const char* digits = text + std::strlen(text);
  while (digits > text && std::isdigit(static_cast<unsigned char>(digits[-1])) != 0) --digits;
  return std::atoi(digits);
}

struct Uuid {
  unsigned char bytes[16];
};

}  // namespace

extern "C" {

int cuCtxGetDevice(int* device) {
  *device = number_of("SLURM_LOCALID");
  return 0;
}

int cuDeviceGetPCIBusId(char* out, int length, int device) {
  std::snprintf(out, static_cast<std::size_t>(length), "0000:%02x:00.0", 0x10 + device);
  return 0;
}

int cuDeviceGetUuid_v2(Uuid* out, int device) {
  *out = {};
  out->bytes[0] = 0xAB;
  out->bytes[14] = static_cast<unsigned char>(number_of("SLURMD_NODENAME"));
  out->bytes[15] = static_cast<unsigned char>(device);
  return 0;
}
}
