// SPDX-License-Identifier: Apache-2.0
//
// The fixed tables behind the tokens: operations, kernel channels, proxy operations and steps,
// groups, communicators, and the lane that holds them. A lane is what one local rank of the process
// uses: at most 1 MiB, mapped once at init.
//   Threads: any. Every field that two threads may touch is atomic; ownership of the rest is said
//   at the field. Slots are claimed by one compare-exchange and never freed to the system; nothing
//   here allocates or blocks.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/handle.h"
#include "plugin/record_ring.h"
#include "proto/model/operation.h"
#include "proto/wire/frame.h"

namespace ncclscope::plugin {

inline constexpr unsigned kMaxLanes = 16;
inline constexpr unsigned kMaxCommunicators = 512;    // alive in a process
inline constexpr std::size_t kOperationSlots = 1024;  // in flight per lane
inline constexpr std::size_t kKernelSlots = 512;
inline constexpr std::size_t kProxyOpSlots = 256;
inline constexpr std::size_t kProxyStepSlots = 512;
inline constexpr std::size_t kNetworkSlots = 64;
inline constexpr std::size_t kGroupSlots = 128;
/// Ten seconds at 1,000 operations/s, a sample of network phases, and the time an acknowledgement
/// may take.
inline constexpr std::size_t kRingRecords = 11'264;
inline constexpr unsigned kMaxChannels = 64;

inline constexpr std::uint32_t kNever = ~std::uint32_t{0};

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr auto kAcquire = std::memory_order_acquire;
inline constexpr auto kRelease = std::memory_order_release;
inline constexpr auto kAcqRel = std::memory_order_acq_rel;

/// Adds one without a locked instruction: for statistics that may miss a count when two threads
/// meet.
inline std::uint64_t count_up(std::atomic<std::uint64_t>& counter) noexcept {
  const std::uint64_t value = counter.load(kRelaxed) + 1;
  counter.store(value, kRelaxed);
  return value;
}
inline void bump(std::atomic<std::uint64_t>& counter) noexcept {
  (void)count_up(counter);
}

// ---- operations ----
/// State word of an operation slot, changed only by compare-exchange once the operation is open:
///   32..63 generation | 30..31 phase | 28 task stopped | 16..23 channels stopped
///
///          claim                last report or stop / sweep / finalize             record written
///   kFree ───────▶ kClaimed ──▶ kOpen ────────────────────────────────▶ kClosing
///   ──────────────────▶ kFree, generation + 1
namespace operation_state {
inline constexpr std::uint64_t kPhaseMask = std::uint64_t{3} << 30;
inline constexpr std::uint64_t kFree = std::uint64_t{0} << 30;
inline constexpr std::uint64_t kClaimed = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kOpen = std::uint64_t{2} << 30;
inline constexpr std::uint64_t kClosing = std::uint64_t{3} << 30;
inline constexpr std::uint64_t kTaskStopped = std::uint64_t{1} << 28;
inline constexpr std::uint64_t kChannelOne = std::uint64_t{1} << 16;
[[nodiscard]] constexpr std::uint32_t generation(std::uint64_t s) noexcept {
  return static_cast<std::uint32_t>(s >> 32);
}
[[nodiscard]] constexpr std::uint64_t phase(std::uint64_t s) noexcept {
  return s & kPhaseMask;
}
[[nodiscard]] constexpr unsigned channels(std::uint64_t s) noexcept {
  return static_cast<unsigned>((s >> 16) & 0xFFu);
}
[[nodiscard]] constexpr std::uint64_t at_generation(std::uint32_t g) noexcept {
  return std::uint64_t{g} << 32;
}
}  // namespace operation_state

/// How an operation learns that the GPU has done it.
enum class Completion : std::uint8_t {
  kEnqueueOnly = 0,  // no channel reports will come: closed when its task stops
  kChannels = 1,     // `expected` channels report start and stop
  kUnknown = 2,      // channels report, but their number is not known
};

struct alignas(32) OperationSlot {
  std::atomic<std::uint64_t> state{0};
  // Read by the sweeper while the operation is open.
  std::atomic<std::uint64_t> api_time_ns{0};   // API call; the task start where no API event exists
  std::atomic<std::uint64_t> index{0};         // in its communicator; collectives and p2p apart
  std::atomic<std::uint64_t> group{0};         // GroupApi token
  std::atomic<std::uint64_t> gpu_start_ns{0};  // minimum over channels; ~0 = none yet
  std::atomic<std::uint64_t> gpu_stop_ns{0};   // maximum over channels
  std::atomic<std::uint64_t> count{0};         // elements
  std::atomic<std::uint32_t> order{0};  // number of the plan that launched it, kNever = none yet
  std::atomic<std::int32_t> root_or_peer{-1};
  std::atomic<std::uint16_t> communicator{0};  // table index
  std::atomic<std::uint8_t> expected{0};
  std::atomic<Completion> completion{Completion::kEnqueueOnly};
  std::atomic<model::Function> function{};
  std::atomic<model::DataType> datatype{};
  std::atomic<std::uint8_t> rejected{0};  // wire::UntimedReason of the first rejected channel
  std::atomic<std::uint8_t> sweeps{0};    // sweeper: consecutive sweeps in which it looked finished
  std::atomic<std::uint8_t> channels_started{0};
  std::atomic<std::uint8_t> on_network{0};  // a proxy operation of it is in progress
  std::atomic<std::uint8_t> in_plan{0};     // `order` is the number of its own plan
  std::atomic<bool> kernel_asked{false};    // NCCL was asked for its channel reports
  std::atomic<std::uint8_t> algorithm_protocol{0};
  std::atomic<std::uint16_t> flags{0};  // wire::operation_flags
  std::atomic<std::uint32_t> sequence{0};
  std::atomic<std::uint64_t> enqueue_time_ns{0};
};
static_assert(sizeof(OperationSlot) <= 128);

// ---- children ----
/// Lowest bit of the small slots' state word.
inline constexpr std::uint64_t kBusy = 1;

struct KernelSlot {
  std::atomic<std::uint64_t> state{0};      // generation << 32 | channel << 8 | busy
  std::atomic<std::uint64_t> operation{0};  // token
  std::atomic<std::uint64_t> start_ns{
      0};  // GPU clock; host clock where the interface has no GPU time
  std::atomic<std::uint64_t> stop_ns{0};  // 0 = not recorded
  std::atomic<std::uint64_t> host_start_ns{0};
};

struct ProxyOpSlot {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint64_t> operation{0};  // token, 0 = another process's operation
  std::atomic<std::uint64_t> phase_ns[3]{};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint32_t> steps{0};
  std::atomic<std::uint32_t> steps_incomplete{0};
  std::atomic<std::int32_t> peer{-1};
  std::atomic<std::uint8_t> is_send{0};
  std::atomic<std::uint8_t> wanted{0};  // steps are summed
};

struct ProxyStepSlot {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint64_t> proxy_op{0};  // token
  std::atomic<std::uint64_t> since_ns{0};  // when the phase in progress began
  std::atomic<std::uint8_t> phase{0};      // 0..2, 3 = none yet
};

/// Sums of one direction of one operation while its proxy operations run.
struct NetworkSlot {
  std::atomic<std::uint64_t> key{
      0};  // operation token with bit 0 of `is_send` folded in; 0 = free, 1 = being set
  std::atomic<std::uint32_t> open{0};
  std::atomic<std::uint32_t> channels{0};
  std::atomic<std::uint64_t> phase_ns[3]{};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint32_t> steps{0};
  std::atomic<std::uint32_t> steps_incomplete{0};
  std::atomic<std::int32_t> peer{-1};
  std::atomic<std::uint64_t> index{0};         // of the operation
  std::atomic<std::uint16_t> communicator{0};  // its wire id
  std::atomic<std::uint8_t> p2p{0};
};

struct GroupSlot {
  std::atomic<std::uint64_t> state{0};  // generation << 32 | busy while the group is open
};

// ---- communicators ----
enum class CommunicatorStatus : std::uint8_t { kFree = 0, kSetUp = 1, kLive = 2, kFinalized = 3 };

/// What one channel of one communicator ran last. Owned by the thread that reports its kernels.
struct ChannelState {
  std::atomic<std::uint64_t> operation{0};        // token of the last operation started on it
  std::atomic<std::uint64_t> earlier_stop_ns{0};  // latest accepted stop of earlier plans
  std::atomic<std::uint64_t> plan_stop_ns{0};     // latest accepted stop of `plan`
  std::atomic<std::uint32_t> plan{~std::uint32_t{0}};
};

struct Communicator {
  std::atomic<std::uint32_t> generation{0};
  std::atomic<CommunicatorStatus> status{CommunicatorStatus::kFree};
  std::uint8_t lane = 0;
  std::uint16_t table_index = 0;
  std::atomic<std::uint16_t> wire_id{0};
  std::uint8_t interface_version = 0;

  // Counters, absolute since init.
  std::atomic<std::uint64_t> next_collective{0};
  std::atomic<std::uint64_t> next_p2p{0};
  std::atomic<std::uint32_t> plan{0};          // number of the newest plan
  std::atomic<std::uint64_t> plan_time_ns{0};  // when it was submitted
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> dropped{0};
  std::atomic<std::uint64_t> started_collectives{0};  // highest index started + 1
  std::atomic<std::uint64_t> started_p2p{0};
  // Likewise of those whose end was seen: operations that NCCL reports no kernels of are closed
  // when they are launched, and it is not known when they end.
  std::atomic<std::uint64_t> ended_collectives{0};
  std::atomic<std::uint64_t> ended_p2p{0};
  std::atomic<std::uint32_t> completed_order{0};  // highest order completed

  // Trust in GPU times (see recorder.cc).
  std::atomic<std::uint32_t> drift_from{
      kNever};  // from this order on stamps of the first channel are those of older work, ...
  std::atomic<std::uint8_t> drift_everywhere{0};      // ... or of any channel
  std::atomic<std::uint32_t> untrusted_from{kNever};  // from this order on stamps are never used
  std::atomic<std::uint64_t> broadcast_group{0};
  std::atomic<std::int32_t> broadcast_root{-1};
  std::atomic<std::uint8_t> broadcast_visible{
      0};  // Broadcasts come as tasks: they are counted by NCCL
  std::atomic<std::uint8_t> tasks_seen{0};
  std::atomic<std::uint8_t> late_tasks_seen{
      0};  // tasks start after their group call ended (non-blocking)

  std::atomic<std::uint8_t> network_block{0};  // counts in Process::network_blocks
  std::atomic<std::uint8_t> kernel_block{0};

  // Description; written in init, hash/rank once more by the first task of v1-v3. `info_version`
  // publishes it.
  std::atomic<std::uint32_t> info_version{0};
  std::atomic<std::uint64_t> hash{0};
  std::atomic<std::int32_t> rank{-1};
  std::atomic<std::uint16_t> info_flags{0};
  std::uint32_t nranks = 0, nnodes = 0;
  std::uint64_t init_time_ns = 0;
  std::atomic<std::uint8_t> name_state{0};  // 0 unset, 1 being written, 2 set
  char name[wire::kMaxCommNameBytes + 1] = {};
  std::int32_t device = -1;
  char pci_bus_id[24] = {};
  char uuid[48] = {};

  // Neighbours seen in proxy operations: bit per known (peer, direction), small and approximate
  // when full.
  static constexpr unsigned kMaxNeighbours = 8;
  std::atomic<std::uint64_t>
      neighbours[kMaxNeighbours]{};  // valid << 63 | channels << 40 | is_send << 32 | peer
  std::atomic<std::uint32_t> neighbour_version{0};

  std::atomic<std::uint64_t> finalize_index{0};  // ring index of its finalize record

  // Sender only.
  std::uint32_t announced_version = 0;
  std::uint64_t announced_connection = 0;
  std::uint32_t announced_neighbours = 0;
  wire::Progress last_progress{};

  ChannelState channels[kMaxChannels];
};

// ---- lane ----
/// The offset of the GPU clock against the host clock, as an upper bound that tightens: minimum
/// over reports of (host time when noticed - GPU stamp), over the current and the previous window
/// so that drift is followed.
class ClockBound {
 public:
  void observe(std::uint64_t host_ns, std::uint64_t gpu_ns) noexcept {
    const auto offset = static_cast<std::int64_t>(host_ns - gpu_ns);
    if (host_ns - window_start_.load(kRelaxed) > kWindowNs) {
      previous_.store(current_.load(kRelaxed), kRelaxed);
      current_.store(offset, kRelaxed);
      window_start_.store(host_ns, kRelaxed);
    } else if (offset < current_.load(kRelaxed)) {
      current_.store(offset, kRelaxed);
    }
  }
  /// Latest host time at which the GPU clock can have shown `gpu_ns`.
  [[nodiscard]] std::uint64_t latest_host_ns(std::uint64_t gpu_ns) const noexcept {
    const std::int64_t a = current_.load(kRelaxed), b = previous_.load(kRelaxed);
    return gpu_ns + static_cast<std::uint64_t>(a < b ? a : b);
  }
  [[nodiscard]] bool known() const noexcept { return current_.load(kRelaxed) != kNone; }

 private:
  static constexpr std::int64_t kNone = INT64_MAX;
  static constexpr std::uint64_t kWindowNs = 2'000'000'000;
  std::atomic<std::uint64_t> window_start_{0};
  std::atomic<std::int64_t> current_{kNone};
  std::atomic<std::int64_t> previous_{kNone};
};

struct Lane {
  unsigned number = 0;
  std::uint64_t session_id = 0;
  std::uint64_t start_time_ns = 0;
  std::atomic<pthread_t> launcher{};  // a thread that launches its operations

  alignas(64) std::atomic<std::uint32_t> operation_cursor{0};
  std::atomic<std::uint32_t> plan_cursor{0};
  alignas(64) std::atomic<std::uint32_t> kernel_cursor{0};
  std::atomic<std::uint32_t> proxy_cursor{0};
  std::atomic<std::uint32_t> step_cursor{0};
  std::atomic<std::uint32_t> group_cursor{0};
  alignas(64) ClockBound clock;

  // Books. Sums of communicators that are gone; see Communicator for those alive.
  std::atomic<std::uint64_t> gone_seen{0}, gone_recorded{0}, gone_dropped{0};
  std::atomic<std::uint64_t> dropped[wire::kDropReasonCount]{};
  std::atomic<std::uint64_t> untimed[wire::kUntimedReasonCount]{};
  std::atomic<std::uint64_t> events[16]{};
  std::atomic<std::uint64_t> next_measured[16]{};  // of `events`: when own time is measured next
  std::atomic<std::uint64_t> stops_unmatched{0};
  std::atomic<std::uint64_t> children_dropped{0};
  std::atomic<std::uint64_t> sampled_ns{0};  // own time, estimated (own_time.h)
  std::atomic<std::uint64_t> operations_pushed{0};
  std::atomic<std::uint64_t> kernel_reports{0};

  OperationSlot operations[kOperationSlots];
  KernelSlot kernels[kKernelSlots];
  ProxyOpSlot proxy_ops[kProxyOpSlots];
  ProxyStepSlot proxy_steps[kProxyStepSlots];
  NetworkSlot network[kNetworkSlots];
  GroupSlot groups[kGroupSlots];
  RecordRing<kRingRecords> ring;
};

/// What a rank with 64 live communicators needs; the promise is 1 MiB.
static_assert(sizeof(Lane) + 64 * sizeof(Communicator) <= 1024 * 1024);

}  // namespace ncclscope::plugin
