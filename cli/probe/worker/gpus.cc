// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/worker/gpus.h"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace ncclscope::cli::probe {
namespace {

using model::Function;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

/// CUDA's words for a driver that is not there sound like one that is too old.
void explain_driver(cudaError_t result, const char* what) {
  if (result != cudaErrorInsufficientDriver && result != cudaErrorNoDevice) return;
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY); driver != nullptr) {
    ::dlclose(driver);
    return;
  }
  const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread in glibc
  fail(std::string("no NVIDIA driver: libcuda.so.1 cannot be loaded (") +
       (why == nullptr ? "no reason given" : why) +
       "). Install the driver; in a container, let its runtime mount it (" + what + ": " +
       cudaGetErrorString(result) + ")");
}

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  explain_driver(result, what);
  fail(std::string(what) + ": " + cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* what, ncclComm_t communicator = nullptr) {
  if (result == ncclSuccess) return;
  const char* last = ncclGetLastError(communicator);
  fail(std::string(what) + ": " + ncclGetErrorString(result) +
       (last == nullptr || *last == '\0' ? "" : std::string(": ") + last) +
       ". NCCL_DEBUG=WARN says more");
}

int number(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    fail("'" + std::string(text) + "' is no number of a GPU");
  return value;
}

std::vector<int> devices_of(std::string_view which, int visible) {
  std::vector<int> devices;
  if (which == "all") {
    for (int d = 0; d < visible; ++d) devices.push_back(d);
  } else if (which.starts_with("local:")) {
    // Launchers either show a process its GPU only, or all of the node's to each.
    devices.push_back(visible == 1 ? 0 : number(which.substr(6)));
  } else {
    while (!which.empty()) {
      const std::size_t comma = std::min(which.find(','), which.size());
      devices.push_back(number(which.substr(0, comma)));
      which.remove_prefix(std::min(comma + 1, which.size()));
    }
  }
  for (const int device : devices)
    if (device >= visible)
      fail("GPU " + std::to_string(device) + " is wanted, and CUDA shows " +
           std::to_string(visible) + ". One process for each GPU, or one for each node?");
  if (devices.empty()) fail("CUDA shows no GPU");
  return devices;
}

/// ncclGroupStart to ncclGroupEnd.
template <typename Body>
void group(Body body) {
  check(ncclGroupStart(), "ncclGroupStart");
  body();
  check(ncclGroupEnd(), "ncclGroupEnd");
}

char* at(void* base, std::uint64_t elements) {
  return static_cast<char*>(base) + elements * kElementBytes;
}

}  // namespace

Gpus::Gpus(const std::string& which) {
  int visible = 0;
  check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  for (const int device : devices_of(which, visible)) {
    Gpu gpu;
    gpu.device = device;
    gpus_.push_back(gpu);
  }
}

std::string Gpus::address(std::size_t gpu) const {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), gpus_[gpu].device),
        "cudaDeviceGetPCIBusId");
  std::string address = text.data();
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return address;
}

std::string Gpus::name(std::size_t gpu) const {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, gpus_[gpu].device), "cudaGetDeviceProperties");
  return {properties.name, ::strnlen(properties.name, sizeof properties.name)};
}

void Gpus::begin(const std::string& id, std::uint32_t first_rank, std::uint32_t ranks,
                 std::uint64_t bytes) {
  first_rank_ = first_rank;
  ranks_ = ranks;
  for (Gpu& gpu : gpus_) {
    check(cudaSetDevice(gpu.device), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaMalloc(&gpu.send, bytes), "cudaMalloc");
    check(cudaMalloc(&gpu.receive, bytes), "cudaMalloc");
    check(cudaMemset(gpu.send, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ncclUniqueId unique{};
  std::memcpy(unique.internal, id.data(), std::min(id.size(), sizeof unique.internal));
  std::vector<ncclComm_t> communicators(gpus_.size());
  group([&] {
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      check(cudaSetDevice(gpus_[i].device), "cudaSetDevice");
      check(ncclCommInitRank(&communicators[i], static_cast<int>(ranks), unique,
                             static_cast<int>(first_rank + i)),
            "ncclCommInitRank");
    }
  });
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < gpus_.size(); ++i) gpus_[i].communicator = communicators[i];
}

void Gpus::issue(const Row& row) {
  if (row.collective == Function::kAllToAll) {
    // A rank's part for itself is copied, not sent: NCCL's work counters drift where a rank sends
    // to itself, and profilers would have no times after that.
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const std::uint64_t own = (first_rank_ + i) * row.count;
      check(cudaSetDevice(gpus_[i].device), "cudaSetDevice");
      check(cudaMemcpyAsync(at(gpus_[i].receive, own), at(gpus_[i].send, own),
                            row.count * kElementBytes, cudaMemcpyDeviceToDevice, gpus_[i].stream),
            "cudaMemcpyAsync");
    }
  }
  group([&] {
    for (std::size_t i = 0; i < gpus_.size(); ++i)
      issue(row, gpus_[i], first_rank_ + static_cast<std::uint32_t>(i));
  });
}

void Gpus::issue(const Row& row, const Gpu& gpu, std::uint32_t rank) const {
  switch (row.collective) {
    case Function::kAllReduce:
      check(ncclAllReduce(gpu.send, gpu.receive, row.count, ncclFloat, ncclSum, gpu.communicator,
                          gpu.stream),
            "ncclAllReduce", gpu.communicator);
      return;
    case Function::kAllGather:
      check(
          ncclAllGather(gpu.send, gpu.receive, row.count, ncclFloat, gpu.communicator, gpu.stream),
          "ncclAllGather", gpu.communicator);
      return;
    case Function::kReduceScatter:
      check(ncclReduceScatter(gpu.send, gpu.receive, row.count, ncclFloat, ncclSum,
                              gpu.communicator, gpu.stream),
            "ncclReduceScatter", gpu.communicator);
      return;
    default:
      break;
  }
  // Send and Recv rather than ncclAlltoAll, which releases before 2.28 do not have.
  for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank) continue;
    check(ncclSend(at(gpu.send, peer * row.count), row.count, ncclFloat, static_cast<int>(peer),
                   gpu.communicator, gpu.stream),
          "ncclSend", gpu.communicator);
    check(ncclRecv(at(gpu.receive, peer * row.count), row.count, ncclFloat, static_cast<int>(peer),
                   gpu.communicator, gpu.stream),
          "ncclRecv", gpu.communicator);
  }
}

void Gpus::wait() {
  // cudaStreamSynchronize would not come back from an operation whose peer is gone.
  std::size_t done = 0;
  while (done < gpus_.size()) {
    const cudaError_t state = cudaStreamQuery(gpus_[done].stream);
    if (state == cudaSuccess) {
      ++done;
      continue;
    }
    if (state != cudaErrorNotReady) check(state, "cudaStreamQuery");
    for (const Gpu& gpu : gpus_) {
      ncclResult_t error = ncclSuccess;
      check(ncclCommGetAsyncError(gpu.communicator, &error), "ncclCommGetAsyncError");
      check(error, "NCCL, while it was waited for", gpu.communicator);
    }
    ::sched_yield();
  }
}

std::vector<std::uint64_t> Gpus::wrong_results(const Row& row) {
  const std::uint64_t sent = sent_elements(row, ranks_), received = received_elements(row, ranks_);
  std::vector<float> values(std::max(sent, received));
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    for (std::uint64_t e = 0; e < sent; ++e) values[e] = contribution(first_rank_ + i, e);
    check(cudaSetDevice(gpus_[i].device), "cudaSetDevice");
    check(cudaMemcpy(gpus_[i].send, values.data(), sent * kElementBytes, cudaMemcpyHostToDevice),
          "cudaMemcpy");
    // What is not written stays no number.
    check(cudaMemset(gpus_[i].receive, 0xff, received * kElementBytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  issue(row);
  wait();
  std::vector<std::uint64_t> wrong;
  values.resize(received);
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    check(cudaSetDevice(gpus_[i].device), "cudaSetDevice");
    check(cudaMemcpy(values.data(), gpus_[i].receive, received * kElementBytes,
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    wrong.push_back(count_wrong(row, first_rank_ + i, ranks_, values));
  }
  return wrong;
}

std::uint64_t Gpus::repeat(const Row& row, std::uint32_t times) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  for (std::uint32_t i = 0; i < times; ++i) issue(row);
  wait();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now() - begin).count());
}

void Gpus::end() {
  {
    const std::lock_guard lock(mutex_);
    group([&] {
      for (Gpu& gpu : gpus_) {
        check(ncclCommDestroy(gpu.communicator), "ncclCommDestroy");
        gpu.communicator = nullptr;
      }
    });
  }
  for (Gpu& gpu : gpus_) {
    check(cudaSetDevice(gpu.device), "cudaSetDevice");
    check(cudaFree(gpu.send), "cudaFree");
    check(cudaFree(gpu.receive), "cudaFree");
    check(cudaStreamDestroy(gpu.stream), "cudaStreamDestroy");
  }
}

void Gpus::abort() noexcept {
  // end() may hang with the lock held, and there is nothing to abort for it then.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const bool grouped = ncclGroupStart() == ncclSuccess;
  for (Gpu& gpu : gpus_) {
    if (gpu.communicator != nullptr) (void)ncclCommAbort(gpu.communicator);
    gpu.communicator = nullptr;
  }
  if (grouped) (void)ncclGroupEnd();
}

}  // namespace ncclscope::cli::probe
