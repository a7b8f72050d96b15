// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime without GPUs, under NVIDIA's name, for ncclscope-probe-worker: device memory is
// the host's, streams are done at once. From the environment:
//   FAKE_GPUS       their PCI addresses, separated by commas (default: two)
//   FAKE_CUDA_FAULT "no-driver"; "stream-hangs": streams never get done
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::vector<std::string> addresses() {
  const char* given = std::getenv("FAKE_GPUS");
  std::string rest = given == nullptr ? "0000:0A:00.0,0000:0B:00.0" : given;
  std::vector<std::string> out;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    out.push_back(rest.substr(0, comma));
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return out;
}

bool fault(const char* name) {
  const char* given = std::getenv("FAKE_CUDA_FAULT");
  return given != nullptr && std::strcmp(given, name) == 0;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names
extern "C" {
cudaError_t cudaGetDeviceCount(int* count) {
  if (fault("no-driver")) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(addresses().size());
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < addresses().size()
             ? cudaSuccess
             : cudaErrorInvalidDevice;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  (void)std::snprintf(text, static_cast<std::size_t>(size), "%s",
                      addresses()[static_cast<std::size_t>(device)].c_str());
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  (void)std::snprintf(properties->name, sizeof properties->name, "Stand-in GPU");
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return fault("stream-hangs") ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInsufficientDriver
             ? "CUDA driver version is insufficient for CUDA runtime version"
             : "an error of the stand-in";
}
}
// NOLINTEND(readability-identifier-naming)
