// SPDX-License-Identifier: Apache-2.0
//
// CUDA and NCCL for the ranks of this process: one per GPU, driven from one thread by group calls.
//   Thread: one, but for abort(), which any may call at any time and after which nothing else may
//   be done. Errors are thrown as std::runtime_error and name the call.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/probe/plan.h"

namespace ncclscope::cli::probe {

class Gpus {
 public:
  /// @param which  "all", "0,3", or "local:2" for the third GPU, or the only one that can be seen
  explicit Gpus(const std::string& which);
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  [[nodiscard]] std::size_t size() const { return gpus_.size(); }
  /// "0000:1b:00.0", lower case.
  [[nodiscard]] std::string address(std::size_t gpu) const;
  [[nodiscard]] std::string name(std::size_t gpu) const;

  /// Joins the communicator and reserves memory for the largest row.
  void begin(const std::string& id, std::uint32_t first_rank, std::uint32_t ranks,
             std::uint64_t bytes);
  /// Once with known contents. Wrong elements by GPU.
  [[nodiscard]] std::vector<std::uint64_t> wrong_results(const Row& row);
  /// So many times; returns when all are done. Nanoseconds of host time for all together.
  std::uint64_t repeat(const Row& row, std::uint32_t times);
  void end();

  /// Ends communicators that hang, as far as NCCL can.
  void abort() noexcept;

 private:
  struct Gpu {
    int device = 0;
    cudaStream_t stream = nullptr;
    void* send = nullptr;
    void* receive = nullptr;
    ncclComm_t communicator = nullptr;
  };
  void issue(const Row& row);
  void issue(const Row& row, const Gpu& gpu, std::uint32_t rank) const;
  /// Waits for all streams, and for errors of communicators meanwhile.
  void wait();

  std::vector<Gpu> gpus_;
  std::uint32_t first_rank_ = 0, ranks_ = 0;
  std::mutex mutex_;  // of which communicators there are
};

}  // namespace ncclscope::cli::probe
