// SPDX-License-Identifier: Apache-2.0
//
// Beginning and end: the first init of a process, communicators, fork, exit. Only this file
// allocates and locks, and only in init.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "plugin/clock.h"
#include "plugin/environment.h"
#include "plugin/gpu_identity.h"
#include "plugin/inspector/inspector.h"
#include "plugin/own_time.h"
#include "plugin/process.h"
#include "plugin/recorder.h"
#include "plugin/sender.h"

#ifndef NCCLSCOPE_VERSION
#define NCCLSCOPE_VERSION "0.0.0"
#endif

namespace ncclscope::plugin {
namespace {

constexpr std::uint32_t kNoRoomIndex = 0xFFFF;

std::uint64_t random_bits() noexcept {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof bits)) {
    bits = read_clock_ns(CLOCK_REALTIME) * 0x9E3779B97F4A7C15u ^
           (static_cast<std::uint64_t>(getpid()) << 32);
  }
  return bits;
}

/// Zeroed memory that is never given back, or null.
template <typename T>
T* map_object() noexcept {
  void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) T();
}

void in_fork_child() noexcept {
  // No thread, no socket and no trustworthy lock came along. Callbacks do nothing until an init
  // sets up anew.
  Process& p = process();
  p.active.store(false, kRelaxed);
  p.forked.store(true, kRelaxed);
  p.nccl_mask.store(nullptr, kRelaxed);
  pthread_mutex_init(&p.init_lock, nullptr);
  forget_sender_after_fork();
  inspector::forget_after_fork();
}

/// Under the init lock. Sets the process up on its first init, and again in a fork's child.
void set_up_process(Process& p, const InitArguments& a) noexcept {
  static bool registered = false;
  if (p.forked.exchange(false, kRelaxed)) {
    // The parent's tables stay mapped and unused: their owners are threads that do not exist here.
    for (auto& lane : p.lanes) lane.store(nullptr, kRelaxed);
    for (auto& c : p.communicators) c.store(nullptr, kRelaxed);
    p.lane_count.store(0, kRelaxed);
    p.network_blocks.store(0, kRelaxed);
    p.kernel_blocks.store(0, kRelaxed);
    p.live_communicators.store(0, kRelaxed);
    p.measuring.store(false, kRelaxed);
    p.sender_started = false;
    p.inspector_started = false;
  }
  if (!registered) {
    registered = true;
    pthread_atfork(nullptr, nullptr, in_fork_child);
  }
  p.settings = Settings();
  read_settings(p.settings, a.log);
  p.pid = static_cast<std::int32_t>(getpid());
  p.salt = static_cast<std::uint8_t>(random_bits() | 1u);
  p.interface_version = a.interface_version;
  p.nccl_version = nccl_release(a.caller);
  p.claim_count = read_claims(p.claims);
  read_environment(environ, p.settings.environment && !p.settings.disabled);
  p.start_time_ns = monotonic_ns();
  const MaskChoice choice = default_mask(a.interface_version, p.nccl_version);
  p.base_mask.store(p.settings.mask_set ? p.settings.mask : choice.mask, kRelaxed);
  p.release_slice = p.settings.mask_set ? 1 : choice.kernel_slice;
  p.clock_cost_ns = measure_clock_cost();
  apply_recording(p, choose_recording(own_wish(p.settings), Lowering::kNothing,
                                      p.base_mask.load(kRelaxed), p.release_slice));
}

/// Under the init lock. The lane of a local rank: ranks of one communicator in this process use
/// different lanes.
Lane* lane_for(Process& p, const InitArguments& a) noexcept {
  std::uint32_t same = 0;
  if (a.described && a.nranks > 1) {
    for (auto& entry : p.communicators) {
      const Communicator* c = entry.load(kRelaxed);
      if (c != nullptr && c->status.load(kRelaxed) == CommunicatorStatus::kLive &&
          c->hash.load(kRelaxed) == a.hash && c->rank.load(kRelaxed) != a.rank) {
        ++same;
      }
    }
  }
  const std::uint32_t number = same < kMaxLanes ? same : kMaxLanes - 1;
  for (std::uint32_t i = p.lane_count.load(kRelaxed); i <= number; ++i) {
    Lane* lane = map_object<Lane>();
    if (lane == nullptr) break;
    lane->number = i;
    do {
      lane->session_id = random_bits();
    } while (lane->session_id == 0);
    lane->start_time_ns = p.start_time_ns;
    p.lanes[i].store(lane, kRelease);
    p.lane_count.store(i + 1, kRelease);
  }
  const std::uint32_t count = p.lane_count.load(kRelaxed);
  return count == 0 ? nullptr : p.lanes[number < count ? number : count - 1].load(kRelaxed);
}

Communicator* free_entry(Process& p) noexcept {
  for (unsigned i = 0; i < kMaxCommunicators; ++i) {
    Communicator* c = p.communicators[i].load(kAcquire);
    if (c == nullptr) {
      c = map_object<Communicator>();
      if (c == nullptr) return nullptr;
      c->table_index = static_cast<std::uint16_t>(i);
      c->status.store(CommunicatorStatus::kSetUp, kRelaxed);
      p.communicators[i].store(c, kRelease);
      return c;
    }
    if (c->status.load(kAcquire) == CommunicatorStatus::kFree) {
      c->status.store(CommunicatorStatus::kSetUp, kRelaxed);
      return c;
    }
  }
  return nullptr;
}

void describe(Process& p, Communicator& c, Lane& lane, const InitArguments& a) noexcept {
  c.generation.fetch_add(1, kRelaxed);
  c.lane = static_cast<std::uint8_t>(lane.number);
  c.interface_version = a.interface_version;
  // 1..65534, wrapping: an id comes again only long after its records have left the ring.
  c.wire_id.store(p.next_wire_id, kRelaxed);
  p.next_wire_id = static_cast<std::uint16_t>(
      p.next_wire_id >= wire::kNoCommunicator - 1 ? 1 : p.next_wire_id + 1);
  for (auto* counter : {&c.next_collective, &c.next_p2p, &c.recorded, &c.dropped,
                        &c.started_collectives, &c.started_p2p, &c.ended_collectives, &c.ended_p2p,
                        &c.broadcast_group, &c.plan_time_ns, &c.finalize_index}) {
    counter->store(0, kRelaxed);
  }
  for (auto* counter : {&c.plan, &c.completed_order, &c.neighbour_version}) {
    counter->store(0, kRelaxed);
  }
  c.drift_from.store(kNever, kRelaxed);
  c.untrusted_from.store(kNever, kRelaxed);
  c.broadcast_root.store(-1, kRelaxed);
  for (auto* flag : {&c.drift_everywhere, &c.broadcast_visible, &c.tasks_seen, &c.late_tasks_seen,
                     &c.network_block, &c.kernel_block}) {
    flag->store(0, kRelaxed);
  }
  for (auto& n : c.neighbours) n.store(0, kRelaxed);
  for (ChannelState& ch : c.channels) {
    ch.operation.store(0, kRelaxed);
    ch.earlier_stop_ns.store(0, kRelaxed);
    ch.plan_stop_ns.store(0, kRelaxed);
    ch.plan.store(kNever, kRelaxed);
  }
  c.announced_version = 0;
  c.announced_connection = 0;
  c.announced_neighbours = 0;
  c.last_progress = {};

  std::uint16_t flags = 0;
  c.hash.store(a.described ? a.hash : 0, kRelaxed);
  c.rank.store(a.described ? a.rank : -1, kRelaxed);
  c.nranks = a.described && a.nranks > 0 ? static_cast<std::uint32_t>(a.nranks) : 0;
  c.nnodes = a.described && a.nnodes > 0 ? static_cast<std::uint32_t>(a.nnodes) : 0;
  if (a.described) flags = wire::kCommHashKnown | wire::kCommRanksKnown | wire::kCommRankKnown;
  c.info_flags.store(flags, kRelaxed);
  std::memset(c.name, 0, sizeof c.name);
  if (a.described && a.name != nullptr) std::strncpy(c.name, a.name, sizeof c.name - 1);
  c.name_state.store(a.described ? 2 : 0, kRelaxed);
  const GpuIdentity gpu = current_gpu();
  c.device = gpu.device;
  std::memcpy(c.pci_bus_id, gpu.pci_bus_id, sizeof c.pci_bus_id);
  std::memcpy(c.uuid, gpu.uuid, sizeof c.uuid);
  c.init_time_ns = monotonic_ns();
  c.info_version.fetch_add(1, kRelaxed);
}

}  // namespace

void init_communicator(void** context, int* activation_mask,
                       const InitArguments& arguments) noexcept {
  Process& p = process();
  if (context == nullptr) return;
  pthread_mutex_lock(&p.init_lock);
  const bool first =
      !p.active.load(kRelaxed) && (p.forked.load(kRelaxed) || p.lane_count.load(kRelaxed) == 0);
  if (first) set_up_process(p, arguments);
  *context = Token(Kind::kContext, 0, p.salt, 0, kNoRoomIndex).handle();
  if (p.settings.disabled) {
    pthread_mutex_unlock(&p.init_lock);
    return;
  }
  Lane* lane = lane_for(p, arguments);
  Communicator* c = lane == nullptr ? nullptr : free_entry(p);
  if (c != nullptr) {
    describe(p, *c, *lane, arguments);
    c->status.store(CommunicatorStatus::kLive, kRelease);
    p.live_communicators.fetch_add(1, kRelaxed);
    *context =
        Token(Kind::kContext, lane->number, p.salt, c->generation.load(kRelaxed), c->table_index)
            .handle();
  }
  p.active.store(lane != nullptr, kRelease);
  if (activation_mask != nullptr && lane != nullptr) {
    p.nccl_mask.store(activation_mask, kRelease);
    if (c != nullptr) begin_blocks(p, *c);
    apply_mask(p);
  }
  if (lane != nullptr && !p.inspector_started) p.inspector_started = inspector::start(p);
  if (lane != nullptr && !p.sender_started) p.sender_started = start_sender();
  pthread_mutex_unlock(&p.init_lock);

  if (first && arguments.log != nullptr) {
    arguments.log(nccl::kLogInfo, nccl::kSubsysInit, "ncclscope", 0,
                  "ncclscope: plugin %s, interface v%d, NCCL %u, mask 0x%x, socket %s",
                  NCCLSCOPE_VERSION, static_cast<int>(arguments.interface_version), p.nccl_version,
                  p.mask.load(kRelaxed), p.settings.socket);
  }
}

namespace {
__attribute__((destructor)) void at_exit() {
  flush_at_exit();
}
}  // namespace

}  // namespace ncclscope::plugin
