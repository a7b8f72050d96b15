// SPDX-License-Identifier: Apache-2.0
//
// Operations of one window of time by NCCL Inspector's labels: what /metrics/inspector shows of a
// job. Nothing is cumulative: a window that is over is shown until the next one is, and a label set
// that had no operation in it is not shown.
//   Thread: reactor.   Memory: bounded by whoever adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/aggregate/snapshot.h"
#include "agent/identity/gpu_table.h"

namespace ncclscope::agent {

class InspectorWindows {
 public:
  /// What tells operations apart.
  struct Key {
    std::uint64_t communicator = 0;  // its serial number
    std::uint32_t nranks = 0;
    GpuRef gpu;
    model::Function function{};
    model::Algorithm algorithm{};  // unknown for Send and Recv, as the protocol
    model::Protocol protocol{};
    model::inspector::SizeRange size;

    bool operator==(const Key&) const = default;
  };

  /// Adds an operation. `nnodes` and `name` are the communicator's, read where the key is new.
  /// False: it is new and `room` is 0, nothing was done; else a new one takes 1 of it.
  bool add(const Key& key, const std::string& name, std::uint32_t nnodes, std::uint64_t duration_ns,
           double bus_bytes, std::size_t& room);
  /// Ends the window. Rows with equal labels become one.
  void rotate(const GpuTable& gpus);
  /// Of the last complete window; null: it had no operation.
  [[nodiscard]] const std::shared_ptr<const std::vector<InspectorRow>>& last() const {
    return last_;
  }

 private:
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  struct Sums {
    std::string name;
    std::uint32_t nnodes = 0;
    std::uint64_t operations = 0;
    double microseconds = 0;
    std::uint64_t with_bandwidth = 0;
    double logarithms = 0;
  };
  std::unordered_map<Key, Sums, KeyHash> current_;
  std::shared_ptr<const std::vector<InspectorRow>> last_;
};

}  // namespace ncclscope::agent
