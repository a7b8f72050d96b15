// SPDX-License-Identifier: Apache-2.0
//
// The plugin's state in one process: settings, lanes, communicators, the activation mask. One
// static object that is never destroyed, because callbacks may come after finalize, after dlclose
// and during exit.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "plugin/settings.h"
#include "plugin/tables.h"
#include "proto/nccl/profiler_common.h"

namespace ncclscope::plugin {

/// Operations of one block share their sampling; a block's number decides, so all ranks sample the
/// same operations.
inline constexpr std::uint64_t kBlockOperations = 16;

struct Process {
  std::atomic<bool> active{false};  // set up and not switched off (NCCLSCOPE_DISABLE, fork child)
  std::atomic<bool> forked{false};  // this is a child that must set itself up anew
  std::uint8_t salt = 0;            // in every token of this process
  std::int32_t pid = 0;
  std::uint32_t nccl_version = 0;  // 0 = unknown
  std::uint8_t interface_version = 0;
  Settings settings;
  std::array<Claim, kMaxClaims> claims{};
  std::size_t claim_count = 0;
  std::uint64_t start_time_ns = 0;

  // Own time (own_time.h). On a line of their own that is hardly ever written.
  alignas(64) std::atomic<bool> measuring{false};
  std::atomic<std::uint32_t> measured_calls{0};
  std::uint64_t clock_cost_ns = 0;

  // The mask. NCCL's int is written by us only; it stays mapped as long as NCCL does.
  std::atomic<int*> nccl_mask{nullptr};
  std::atomic<std::uint32_t> mask{0};       // in force
  std::atomic<std::uint32_t> base_mask{0};  // without what sampling switches
  std::atomic<std::int32_t> network_blocks{
      0};  // communicators whose next operation is in a sampled block
  std::atomic<std::int32_t> kernel_blocks{0};  // with GPU times, or without in a probe
  std::atomic<std::int32_t> live_communicators{0};
  std::uint32_t release_slice = 1;  // GPU times for one block in so many by default

  // What is recorded: see Recording. Written by init, then by the sender.
  std::atomic<std::uint32_t> kernel_slice{1};
  std::atomic<std::uint32_t> kernel_probe{0};  // one block in so many does without GPU times
  std::atomic<bool> network_always{false};
  std::atomic<bool> network_off{false};
  std::atomic<bool> channel_detail{false};
  std::atomic<bool> calls_only{false};

  std::atomic<std::uint32_t> lane_count{0};
  std::atomic<Lane*> lanes[kMaxLanes]{};
  std::atomic<Communicator*> communicators[kMaxCommunicators]{};
  std::uint16_t next_wire_id = 1;  // under the init lock

  pthread_mutex_t init_lock =
      PTHREAD_MUTEX_INITIALIZER;  // init and finalize bookkeeping only, never on the hot path
  bool sender_started = false;
  bool inspector_started = false;
};

/// The one instance. Constant-initialised and trivially destructible: usable before and after every
/// other static.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit
extern constinit Process the_process __attribute__((visibility("hidden")));
[[nodiscard]] inline Process& process() noexcept {
  return the_process;
}

/// What the governor gives up, in this order; values as in wire::Books::governor, except that both
/// slices are its 2.
enum class Lowering : std::uint8_t {
  kNothing,
  kNetwork,       // no network phases, no per-channel records
  kKernelSlices,  // GPU times for one block of operations in 16
  kFewerSlices,   // for one in 64
  kCountersOnly,  // for none; collectives are counted at their API call
};
/// The lowerings that make a difference with this mask, mildest first; kNothing is the first.
struct Ladder {
  std::array<Lowering, 5> steps{};
  std::uint8_t highest = 0;  // index of the last
};
[[nodiscard]] Ladder ladder_for(std::uint32_t base_mask, std::uint32_t release_slice) noexcept;

/// What is recorded: what was asked for, less what the governor has taken.
struct Recording {
  wire::DetailLevel detail = wire::DetailLevel::kNormal;  // in force
  bool network_always = false;                            // phases of every operation
  bool network_off = false;                               // of none, not even of sampled blocks
  bool channel_detail = false;                            // a record for each channel
  bool calls_only = false;         // collectives are counted at their API call and not followed
  std::uint32_t kernel_slice = 1;  // GPU times for one block in so many, 0 = for none
};
struct DetailWish {
  wire::DetailLevel level = wire::DetailLevel::kNormal;
  bool network = false;
  bool channels = false;  // a record for each channel whatever the level
};
/// What the environment asks for.
[[nodiscard]] inline DetailWish own_wish(const Settings& settings) noexcept {
  return {settings.detail, false, settings.inspector.wants_channels()};
}
[[nodiscard]] Recording choose_recording(DetailWish wish, Lowering lowering,
                                         std::uint32_t base_mask,
                                         std::uint32_t release_slice) noexcept;
/// Puts a recording into force, mask included. Init, then the sender.
void apply_recording(Process& p, const Recording& recording) noexcept;

/// The mask that the state of the process asks for.
[[nodiscard]] std::uint32_t wanted_mask(const Process& p) noexcept;
/// Recomputes the mask and writes it to NCCL. Lock-free; any thread.
void apply_mask(Process& p) noexcept;

/// The mask without sampling for an interface version and a release (0 = unknown): what is safe and
/// useful there.
struct MaskChoice {
  std::uint32_t mask;
  std::uint32_t kernel_slice;  // 1 = always, N = one block in N
};
[[nodiscard]] MaskChoice default_mask(std::uint8_t interface_version,
                                      std::uint32_t nccl_version) noexcept;

/// True where a send to itself leaves NCCL's work counters behind the GPU's (2.31 counts on its
/// own).
[[nodiscard]] constexpr bool counters_drift(std::uint32_t nccl_version,
                                            std::uint8_t interface_version) noexcept {
  return nccl_version == 0 ? interface_version < 7 : nccl_version < 23100;
}
/// True where grouped Broadcasts may run as one kernel that NCCL's counters do not know.
[[nodiscard]] constexpr bool broadcasts_hidden(std::uint32_t nccl_version,
                                               std::uint8_t interface_version) noexcept {
  return nccl_version == 0 ? interface_version >= 5 : nccl_version >= 22900;
}

/// Of each `one_in` blocks one is chosen, at an irregular place: training steps have regular ones.
[[nodiscard]] constexpr std::uint64_t chosen_place(std::uint64_t group,
                                                   std::uint32_t one_in) noexcept {
  return ((group * 0x9E3779B97F4A7C15u) >> 32) % one_in;
}
/// True when operation `index` of a communicator lies in a sampled block, one in so many; the very
/// first is.
[[nodiscard]] constexpr bool in_block(std::uint64_t index, std::uint32_t one_in) noexcept {
  if (one_in == 0) return false;
  const std::uint64_t block = index / kBlockOperations;
  return block % one_in == chosen_place(block / one_in, one_in);
}
/// True when it lies in a block that does without GPU times to show what they cost.
[[nodiscard]] constexpr bool in_probe_block(std::uint64_t index, std::uint32_t one_in) noexcept {
  if (one_in == 0) return false;
  const std::uint64_t block = index / kBlockOperations;
  return block % one_in == (chosen_place(block / one_in, one_in) + one_in / 2) % one_in;
}

}  // namespace ncclscope::plugin
