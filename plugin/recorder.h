// SPDX-License-Identifier: Apache-2.0
//
// The life of an operation, from NCCL's callbacks to a record in the ring. interfaces.cc turns each
// interface version's descriptors into these calls; nothing here knows a version's layout.
//   Threads: every function may be called from any thread at any time, in any order, with any
//   handle. Cost:    tens of nanoseconds; no allocation, lock, system call or exception (init and
//   finalize excepted, see there). Errors:  none. What does not fit is dropped and counted.
#pragma once

#include <cstdint>

#include "plugin/handle.h"
#include "proto/model/operation.h"
#include "proto/nccl/profiler_common.h"

namespace ncclscope::plugin {

struct InitArguments {
  std::uint8_t interface_version = 0;
  bool described = false;  // v4+: the fields below are given
  std::uint64_t hash = 0;
  const char* name = nullptr;
  int nnodes = 0, nranks = 0, rank = -1;
  nccl::DebugLogger log = nullptr;
  const void* caller = nullptr;  // code address of the caller
};

/// Sets up a communicator; may allocate, lock and start the sender thread. Never fails: without
/// room or when switched off, the context is a token that records nothing.
void init_communicator(void** context, int* activation_mask,
                       const InitArguments& arguments) noexcept;

/// Closes what is open, writes the communicator's last record. Lock-free.
void finalize_communicator(void* context) noexcept;

/// Closes everything that is open in the process (exit). Lock-free.
void close_all_operations() noexcept;

struct ApiCall {
  model::Function function{};
  model::DataType datatype{};
  std::uint64_t count = 0;
  int root = -1;  // collectives only
  bool captured = false;
};
[[nodiscard]] void* start_api(void* context, const void* parent, const ApiCall& call) noexcept;

/// True where v4's p2p.nChannels is NCCL's own (2.27); from 2.28 on the adapter leaves it
/// unwritten.
[[nodiscard]] bool p2p_channels_native() noexcept;

struct Task {
  // The names are read only where the API call has not told them already: comparing strings is a
  // tenth of what the event costs.
  model::Function function{};           // used if function_name is null
  const char* function_name = nullptr;  // of a collective
  model::DataType datatype{};           // used if datatype_name is null
  const char* datatype_name = nullptr;
  model::Algorithm algorithm{};
  model::Protocol protocol{};
  std::uint8_t channels = 0;
  bool channels_known = false;  // `channels` is the exact number that will report
  bool kernel_reports = false;  // the interface has KernelCh
  bool sequence_known = false;
  bool symmetric = false;
  bool copy_engine = false;
  bool ambiguous_type = false;
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  int root_or_peer = -1;  // a root counts only if the function has one
  int rank = -1;
  const void* parent = nullptr;  // CollApi / P2pApi token; null on interfaces without API events
  const void* group = nullptr;   // Group token
  // v1-v3 describe the communicator in every task.
  bool describes_communicator = false;
  const char* name = nullptr;
  std::uint64_t hash = 0;
};
[[nodiscard]] void* start_task(void* context, const Task& task) noexcept;

[[nodiscard]] void* start_group_api(void* context) noexcept;
[[nodiscard]] void* start_plan(void* context) noexcept;

/// `gpu_ns` 0: the interface carries no GPU time.
[[nodiscard]] void* start_kernel(const void* parent, std::uint8_t channel,
                                 std::uint64_t gpu_ns) noexcept;

struct ProxyOpCall {
  std::int32_t pid = 0;
  std::uint8_t channel = 0;
  int peer = -1;
  bool is_send = false;
  const void* parent = nullptr;
};
[[nodiscard]] void* start_proxy_op(void* context, const ProxyOpCall& call) noexcept;
[[nodiscard]] void* start_proxy_step(const void* parent) noexcept;

void stop(void* handle) noexcept;

/// `value`: kernel stop stamp for state 22, transferred bytes for proxy step states; has_value
/// false when NCCL passed none.
void record_state(void* handle, nccl::EventState state, bool has_value,
                  std::uint64_t value) noexcept;

// ---- for the sender thread ----
struct Lane;
struct Communicator;
struct Process;

/// Puts a communicator into the sampling of its block of operations: a new one, or any after the
/// sampling has changed.
void begin_blocks(Process& p, Communicator& c) noexcept;

struct SweepResult {
  std::uint32_t open = 0;  // operations in flight after the sweep
  bool pressed = false;    // more than half of the slots are taken
};
/// Closes operations for which nothing more will come (reports lost, API calls without a launch).
/// Once per interval.
SweepResult sweep_operations(Lane& lane, std::uint32_t interval_ms, bool pressed) noexcept;

/// The oldest operation of a communicator that is not complete. All that were numbered before the
/// call are looked at; but not those that have no slot: dropped ones, and calls that are only
/// counted.
struct OldestOperation {
  std::uint64_t index = ~std::uint64_t{0};  // ~0 = none
  std::uint32_t open = 0;                   // how many there are
  bool certain = true;                      // false: one is about to begin, and may be older
  std::uint64_t api_time_ns = 0;
  std::uint64_t signature = 0;
  bool started = false;
  bool on_network = false;
};
OldestOperation oldest_operation(Lane& lane, const Communicator& c, bool p2p) noexcept;

}  // namespace ncclscope::plugin
