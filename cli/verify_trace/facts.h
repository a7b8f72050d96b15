// SPDX-License-Identifier: Apache-2.0
//
// What a recording's lines say about each operation of expected.json, as far as the plugin was
// told. Pure functions over a loaded trace; line indexes are those of the trace with restored
// handles.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/verify_trace/trace.h"

namespace ncclscope::cli {

struct ChannelFacts {
  std::int64_t host_start_ns = 0, host_stop_ns = 0;  // relative to the first callback
  std::uint64_t gpu_start_ns = 0, gpu_stop_ns = 0;   // 0 = not carried
  int channel = 0;
  bool stopped = false;
};

/// Sums of one direction.
struct NetworkFacts {
  std::uint64_t phase_ns[3] = {};
  std::uint64_t bytes = 0;
  std::uint64_t steps = 0;
  std::uint64_t steps_incomplete = 0;
  bool whole = true;      // every proxy operation of this direction stopped
  bool answered = false;  // the plugin took at least one of the steps
};

struct OperationFacts {
  const nlohmann::json* expected = nullptr;
  const TraceLine* api = nullptr;   // CollApi, P2pApi: null where the plugin did not get one
  const TraceLine* task = nullptr;  // Coll, P2p, CeColl
  std::size_t api_line = 0, task_line = 0;
  std::int64_t plan = kNoHandle;  // Group handle
  std::int64_t plan_t_ns = 0;     // when that began
  bool point_to_point = false;
  bool copy_engine = false;
  std::vector<ChannelFacts> channels;  // KernelCh that the plugin got
  bool channels_masked = false;  // KernelCh were recorded, and the mask in force left them out
  bool has_steps = false;        // ProxySteps were sent to the plugin
  std::map<bool, NetworkFacts> network;  // by is_send
  std::uint64_t index =
      0;  // among the communicator's collectives or Send/Recv, as NCCL called them
  bool visible() const { return api != nullptr || task != nullptr; }
};

/// The lines of one process with lookups.
class TraceIndex {
 public:
  /// @param delivery  one Delivery character per line
  TraceIndex(const Trace& trace, const std::string& delivery);

  /// Facts of all operations of one communicator, in the order of expected.json's `ops`.
  [[nodiscard]] std::vector<OperationFacts> operations(const nlohmann::json& communicator) const;

  /// min(host time noticed - GPU stamp) over reports before line `before` of operations that are
  /// trustworthy: an upper bound of the GPU clock's offset. Empty when nothing was reported by
  /// then.
  [[nodiscard]] std::optional<std::int64_t> clock_bound(std::size_t before) const;

  [[nodiscard]] const Trace& trace() const { return trace_; }

 private:
  [[nodiscard]] bool carried(std::size_t line) const;
  void add_channels(OperationFacts& f, std::int64_t handle) const;
  void add_network(OperationFacts& f, std::int64_t handle) const;

  const Trace& trace_;
  const std::string& delivery_;
  std::unordered_map<std::int64_t, std::size_t> starts_;  // by handle
  std::unordered_map<std::int64_t, std::vector<std::size_t>>
      children_;  // start lines by parent handle
  std::unordered_map<std::int64_t, std::vector<std::size_t>>
      later_;  // stop and record lines by handle
};

}  // namespace ncclscope::cli
