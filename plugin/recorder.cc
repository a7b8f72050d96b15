// SPDX-License-Identifier: Apache-2.0
//
// Trust in GPU times, in one place (see report_channel):
//  * NCCL finds a kernel's stamps by counting work items per channel. A send to itself is counted
//  by the GPU only, so from then on stamps of its channel are those of older work ("drift"), and
//  are not used. NCCL gives such a send one channel, the first. Stamps of the others count if the
//  kernel cannot have started before the call, by the calibrated clock: an operation's time is then
//  that of its other channels. One that has no other has no time.
//  * Several Broadcasts with different roots in one group run as one kernel (NCCL 2.29, 2.30) that
//  the host does not count
//    at all: from then on stamps are never used ("untrusted") and operations are closed without
//    their reports.
//  * Anywhere: stop <= start, or a start before the end of an earlier plan's work on the same
//  channel, is refused.
#include "plugin/recorder.h"

#include <algorithm>
#include <cstring>

#include "plugin/clock.h"
#include "plugin/names.h"
#include "plugin/own_time.h"
#include "plugin/process.h"
#include "plugin/tables.h"
#include "proto/wire/encode.h"

namespace ncclscope::plugin {
namespace {

namespace st = operation_state;
namespace of = wire::operation_flags;
using wire::UntimedReason;

constexpr std::uint64_t kNoTime = ~std::uint64_t{0};
constexpr std::uint64_t kWarmupOperations = 3;
/// Stamps of different channels come from different multiprocessors; their clock advances in steps
/// of up to 1 us.
constexpr std::uint64_t kStampToleranceNs = 1'000;
/// The two clocks drift apart between calibrations, so a sound counter is doubted only beyond this.
constexpr std::uint64_t kClockDoubtNs = 1'000'000;
/// Of a send to itself: NCCL's schedule of Sends and Receives begins with it.
constexpr unsigned kSelfChannel = 0;
constexpr unsigned kClaimProbes = 64;
constexpr unsigned kChildProbes = 16;
constexpr int kClaimedLooks = 1'000;  // some microseconds
constexpr std::uint32_t kNoRoomIndex = 0xFFFF;

Lane* lane_of(Process& p, Token t) noexcept {
  if (t.salt() != p.salt) return nullptr;
  return p.lanes[t.lane()].load(kAcquire);
}

Communicator* find_communicator(Process& p, const void* context) noexcept {
  const Token t = Token::from_handle(context);
  if (t.kind() != Kind::kContext || t.salt() != p.salt || t.index() >= kMaxCommunicators)
    return nullptr;
  Communicator* c = p.communicators[t.index()].load(kAcquire);
  if (c == nullptr || c->generation.load(kRelaxed) != t.generation()) return nullptr;
  return c->status.load(kRelaxed) == CommunicatorStatus::kLive ? c : nullptr;
}

Communicator* communicator_of(Process& p, const OperationSlot& slot) noexcept {
  return p.communicators[slot.communicator.load(kRelaxed)].load(kAcquire);
}

void store_max(std::atomic<std::uint64_t>& a, std::uint64_t v) noexcept {
  if (a.load(kRelaxed) < v) a.store(v, kRelaxed);
}
void store_max(std::atomic<std::uint32_t>& a, std::uint32_t v) noexcept {
  if (a.load(kRelaxed) < v) a.store(v, kRelaxed);
}
void store_min(std::atomic<std::uint64_t>& a, std::uint64_t v) noexcept {
  if (a.load(kRelaxed) > v) a.store(v, kRelaxed);
}
void store_min(std::atomic<std::uint32_t>& a, std::uint32_t v) noexcept {
  if (a.load(kRelaxed) > v) a.store(v, kRelaxed);
}

void count_drop(Lane& lane, Communicator* c, wire::DropReason reason) noexcept {
  lane.dropped[static_cast<std::size_t>(reason)].fetch_add(1, kRelaxed);
  if (c != nullptr) {
    c->dropped.fetch_add(1, kRelaxed);
  } else {
    lane.gone_seen.fetch_add(1, kRelaxed);
    lane.gone_dropped.fetch_add(1, kRelaxed);
  }
}

// ---- sampling by blocks ----

void set_block(std::atomic<std::uint8_t>& mine, std::atomic<std::int32_t>& all, bool in,
               bool& changed) noexcept {
  const std::uint8_t want = in ? 1 : 0;
  std::uint8_t have = mine.load(kRelaxed);
  if (have == want || !mine.compare_exchange_strong(have, want, kRelaxed)) return;
  all.fetch_add(in ? 1 : -1, kRelaxed);
  changed = true;
}

/// The next collective of `c` will have index `next`: adjusts the mask where that begins or ends a
/// sampled block.
void enter_blocks(Process& p, Communicator& c, std::uint64_t next) noexcept {
  bool changed = false;
  if (c.interface_version >= 4 && !p.settings.mask_set) {
    set_block(c.network_block, p.network_blocks, in_block(next, p.settings.network_sample),
              changed);
  }
  const std::uint32_t slice = p.kernel_slice.load(kRelaxed);
  const bool in_kernel_block =
      slice > 1 ? in_block(next, slice)
                : slice == 1 && in_probe_block(next, p.kernel_probe.load(kRelaxed));
  set_block(c.kernel_block, p.kernel_blocks, in_kernel_block, changed);
  if (changed) apply_mask(p);
}

/// After the operation's slot has been claimed: who sees the number go up sees the claim, and does
/// not take an operation for complete that is about to begin.
std::uint64_t take_index(Process& p, Communicator& c, bool p2p) noexcept {
  if (p2p) return c.next_p2p.fetch_add(1, kRelease);
  const std::uint64_t index = c.next_collective.fetch_add(1, kRelease);
  if ((index + 1) % kBlockOperations == 0) enter_blocks(p, c, index + 1);
  return index;
}

bool network_wanted(const Process& p, std::uint64_t index) noexcept {
  if (p.network_off.load(kRelaxed)) return false;
  if (p.settings.mask_set || p.network_always.load(kRelaxed)) return true;
  return in_block(index, p.settings.network_sample);
}

/// The plan's number as records carry it: 16 bits, 0 = none.
std::uint16_t plan_id(std::uint32_t order) noexcept {
  return order == kNever || order == 0 ? std::uint16_t{0}
                                       : static_cast<std::uint16_t>((order - 1) % 0xFFFFu + 1);
}

bool is_launched(const OperationSlot& slot) noexcept {
  return slot.order.load(kAcquire) != kNever;
}

/// True when no channel that has started is still to stop.
bool is_idle(const OperationSlot& slot, std::uint64_t state) noexcept {
  return slot.channels_started.load(kRelaxed) <= st::channels(state);
}

/// Where to look for a free slot next. A hint: two threads may get the same one and then compete
/// for the slot.
std::uint32_t next_hint(std::atomic<std::uint32_t>& cursor) noexcept {
  const std::uint32_t at = cursor.load(kRelaxed);
  cursor.store(at + 1, kRelaxed);
  return at;
}

// ---- closing ----

/// Writes the record of an operation that the caller has moved to kClosing, and frees its slot.
void write_and_free(Process& p, Lane& lane, OperationSlot& slot, std::uint64_t state,
                    UntimedReason reason) noexcept {
  Communicator* c = communicator_of(p, slot);
  const unsigned seen = st::channels(state);
  const unsigned expected = slot.expected.load(kRelaxed);
  const auto completion = slot.completion.load(kRelaxed);
  const auto rejected = static_cast<UntimedReason>(slot.rejected.load(kRelaxed));
  const std::uint64_t start = slot.gpu_start_ns.load(kRelaxed);
  const std::uint64_t end = slot.gpu_stop_ns.load(kRelaxed);
  const bool whole =
      completion == Completion::kEnqueueOnly ||
      (completion == Completion::kChannels ? seen >= expected
                                           : seen > 0 && reason == UntimedReason::kNone);

  wire::Operation record{};
  wire::set_header(record, wire::RecordType::kOperation);
  std::uint16_t flags = slot.flags.load(kRelaxed);
  bool timed = false;
  if (completion != Completion::kEnqueueOnly && whole && rejected == UntimedReason::kNone &&
      start != kNoTime && end > start) {
    timed = true;
    reason = UntimedReason::kNone;
    const bool host =
        (flags & of::kTimingMask) == static_cast<std::uint16_t>(wire::TimingSource::kHostCallback);
    flags = static_cast<std::uint16_t>(
        (flags & ~of::kTimingMask) |
        static_cast<std::uint16_t>(host ? wire::TimingSource::kHostCallback
                                        : wire::TimingSource::kGpu));
    if (host) reason = UntimedReason::kNotCarried;
  } else {
    flags = static_cast<std::uint16_t>(flags & ~of::kTimingMask);
    if (rejected != UntimedReason::kNone) {
      reason = rejected;
    } else if (whole && reason == UntimedReason::kNone && start == kNoTime && seen > 0 &&
               c != nullptr && slot.order.load(kRelaxed) >= c->drift_from.load(kRelaxed)) {
      reason = UntimedReason::kCounterDrift;  // all its reports were of the drifting channel
    } else if (reason == UntimedReason::kNone) {
      reason = whole ? UntimedReason::kNotCarried : UntimedReason::kLost;
    }
  }
  if (whole && reason != UntimedReason::kUnfinished) flags |= of::kComplete;
  if ((flags & of::kTaskSeen) == 0) flags |= of::kChannelsUnknown;
  const std::uint64_t index = slot.index.load(kRelaxed);
  if (index < kWarmupOperations) flags |= of::kWarmup;

  const std::uint64_t api = slot.api_time_ns.load(kRelaxed);
  const std::uint64_t enqueue = slot.enqueue_time_ns.load(kRelaxed);
  const std::uint64_t enqueue_delay = enqueue > api ? (enqueue - api) / 1000 : 0;
  record.communicator = c == nullptr ? wire::kNoCommunicator : c->wire_id.load(kRelaxed);
  record.function = static_cast<std::uint8_t>(slot.function.load(kRelaxed));
  record.datatype = static_cast<std::uint8_t>(slot.datatype.load(kRelaxed));
  record.algorithm_protocol = slot.algorithm_protocol.load(kRelaxed);
  record.untimed_reason = static_cast<std::uint8_t>(reason);
  record.channels = static_cast<std::uint8_t>(expected);
  record.channels_seen = static_cast<std::uint8_t>(seen);
  record.flags = flags;
  record.root_or_peer = slot.root_or_peer.load(kRelaxed);
  record.index = static_cast<std::uint32_t>(index);
  record.sequence = slot.sequence.load(kRelaxed);
  record.count_plan = wire::pack_count_plan(
      slot.count.load(kRelaxed),
      slot.in_plan.load(kRelaxed) != 0 ? plan_id(slot.order.load(kRelaxed)) : std::uint16_t{0});
  record.api_time_ns = api;
  record.gpu_start_ns = timed ? start : 0;
  record.duration_enqueue = wire::pack_duration_enqueue(timed ? end - start : 0, enqueue_delay);

  const bool pushed = lane.ring.push(record) != 0;
  if (c != nullptr) {
    if (whole && is_launched(slot)) store_max(c->completed_order, slot.order.load(kRelaxed));
    if (whole && completion != Completion::kEnqueueOnly) {
      store_max(model::is_point_to_point(slot.function.load(kRelaxed)) ? c->ended_p2p
                                                                       : c->ended_collectives,
                index + 1);
    }
    if (pushed) {
      c->recorded.fetch_add(1, kRelease);
    } else {
      count_drop(lane, c, wire::DropReason::kRingBusy);
    }
  }
  if (pushed) bump(lane.operations_pushed);
  if (reason != UntimedReason::kNone) bump(lane.untimed[static_cast<std::size_t>(reason)]);
  slot.state.store(st::at_generation(st::generation(state) + 1) | st::kFree, kRelease);
}

/// True when an open operation in this state has all it waits for.
bool is_done(const OperationSlot& slot, std::uint64_t state) noexcept {
  if ((state & st::kTaskStopped) == 0) return false;
  switch (slot.completion.load(kRelaxed)) {
    case Completion::kEnqueueOnly:
      return true;
    case Completion::kChannels:
      return st::channels(state) >= slot.expected.load(kRelaxed);
    case Completion::kUnknown:
      return false;
  }
  return false;
}

/// Moves an open operation from `state` to `next`, closing it when that completes it. False: the
/// state had changed.
bool advance(Process& p, Lane& lane, OperationSlot& slot, std::uint64_t& state,
             std::uint64_t next) noexcept {
  const bool done = is_done(slot, next);
  const std::uint64_t target = done ? (next & ~st::kPhaseMask) | st::kClosing : next;
  if (!slot.state.compare_exchange_weak(state, target, kAcqRel, kAcquire)) return false;
  if (done) write_and_free(p, lane, slot, target, UntimedReason::kNone);
  return true;
}

/// Closes an operation that is open in exactly this state. False: somebody was faster.
bool close_from(Process& p, Lane& lane, OperationSlot& slot, std::uint64_t state,
                UntimedReason reason) noexcept {
  const std::uint64_t target = (state & ~st::kPhaseMask) | st::kClosing;
  if (!slot.state.compare_exchange_strong(state, target, kAcqRel, kAcquire)) return false;
  write_and_free(p, lane, slot, target, reason);
  return true;
}

OperationSlot* operation_slot(Lane& lane, Token t) noexcept {
  return t.index() < kOperationSlots ? &lane.operations[t.index()] : nullptr;
}

bool is_open(std::uint64_t state, Token t) noexcept {
  return st::phase(state) == st::kOpen && st::generation(state) == t.generation();
}

/// Claims a slot and fills what both ways of beginning an operation share; the caller opens it with
/// open_slot.
OperationSlot* claim_operation(Lane& lane, Communicator& c, std::uint32_t& slot_index) noexcept {
  const std::uint32_t base = next_hint(lane.operation_cursor);
  for (unsigned probe = 0; probe < kClaimProbes; ++probe) {
    const std::uint32_t i = (base + probe) % kOperationSlots;
    OperationSlot& slot = lane.operations[i];
    std::uint64_t state = slot.state.load(kRelaxed);
    if (st::phase(state) != st::kFree) continue;
    if (!slot.state.compare_exchange_strong(state, state | st::kClaimed, kAcqRel, kRelaxed))
      continue;
    if (probe != 0) lane.operation_cursor.store(base + probe + 1, kRelaxed);
    slot.communicator.store(c.table_index, kRelaxed);
    slot.gpu_start_ns.store(kNoTime, kRelaxed);
    slot.gpu_stop_ns.store(0, kRelaxed);
    slot.expected.store(0, kRelaxed);
    slot.completion.store(Completion::kEnqueueOnly, kRelaxed);
    slot.rejected.store(0, kRelaxed);
    slot.sweeps.store(0, kRelaxed);
    slot.channels_started.store(0, kRelaxed);
    slot.on_network.store(0, kRelaxed);
    slot.in_plan.store(0, kRelaxed);
    slot.order.store(kNever, kRelaxed);
    slot.algorithm_protocol.store(0, kRelaxed);
    slot.flags.store(0, kRelaxed);
    slot.sequence.store(0, kRelaxed);
    slot.enqueue_time_ns.store(0, kRelaxed);
    slot_index = i;
    return &slot;
  }
  return nullptr;
}

/// Opens a claimed slot; returns its generation.
std::uint32_t open_slot(OperationSlot& slot) noexcept {
  const std::uint32_t generation = st::generation(slot.state.load(kRelaxed));
  slot.state.store(st::at_generation(generation) | st::kOpen, kRelease);
  return generation;
}

/// Whether NCCL is asked for channel reports of an operation that begins now. To be read before its
/// index is taken, which may begin the next block.
bool kernel_reports_now(const Process& p) noexcept {
  return (p.mask.load(kRelaxed) & nccl::kKernelCh) != 0;
}

/// Whether they are wanted. Where the mask is on for another communicator's block only, they are
/// not: on all ranks the same operations have GPU times.
bool kernel_reports_wanted(const Process& p, std::uint64_t index, bool p2p) noexcept {
  const std::uint32_t slice = p.kernel_slice.load(kRelaxed);
  if (p2p || slice == 0) return slice != 0;
  return slice == 1 ? !in_probe_block(index, p.kernel_probe.load(kRelaxed))
                    : in_block(index, slice);
}

/// Fills in what the launch of an operation tells; the order, written last, says that it is
/// launched. Only the launching thread gets here: an operation that waits for its launch is
/// otherwise touched only by a sweep that gives it up.
void fill_task(Process& p, Communicator& c, OperationSlot& slot, const Task& task,
               std::uint32_t order, std::uint64_t enqueue_ns, std::uint16_t flags,
               bool had_api) noexcept {
  const model::Function function = task.function_name == nullptr ? task.function
                                   : had_api                     ? slot.function.load(kRelaxed)
                                             : parse_function(task.function_name);
  const bool p2p = model::is_point_to_point(function);
  flags |= of::kTaskSeen;
  if (task.sequence_known) flags |= of::kSequenceKnown;
  if (task.symmetric) flags |= of::kSymmetric;
  if (task.copy_engine) flags |= of::kCopyEngine;
  if (task.ambiguous_type) flags |= of::kBytesAmbiguous;
  if (!task.channels_known) flags |= of::kChannelsUnknown;
  if (c.interface_version < 4)
    flags |= static_cast<std::uint16_t>(wire::TimingSource::kHostCallback);
  slot.flags.store(flags, kRelaxed);
  slot.enqueue_time_ns.store(enqueue_ns, kRelaxed);
  slot.sequence.store(static_cast<std::uint32_t>(task.sequence), kRelaxed);
  slot.algorithm_protocol.store(
      static_cast<std::uint8_t>(static_cast<unsigned>(task.algorithm) |
                                (static_cast<unsigned>(task.protocol) << 4)),
      kRelaxed);
  slot.expected.store(task.channels, kRelaxed);
  if (!had_api) {
    slot.function.store(function, kRelaxed);
    slot.datatype.store(
        task.datatype_name != nullptr ? parse_datatype(task.datatype_name) : task.datatype,
        kRelaxed);
    slot.count.store(task.count, kRelaxed);
  }
  if (p2p || !had_api) {
    slot.root_or_peer.store(p2p || model::is_rooted(function) ? task.root_or_peer : -1, kRelaxed);
  }

  const bool to_itself =
      p2p && task.root_or_peer >= 0 && task.root_or_peer == c.rank.load(kRelaxed);
  if (task.copy_engine || to_itself || !task.kernel_reports || !slot.kernel_asked.load(kRelaxed)) {
    slot.completion.store(Completion::kEnqueueOnly, kRelaxed);
    if (task.copy_engine)
      slot.rejected.store(static_cast<std::uint8_t>(UntimedReason::kCopyEngine), kRelaxed);
    if (to_itself) slot.rejected.store(static_cast<std::uint8_t>(UntimedReason::kSelf), kRelaxed);
    if (!task.copy_engine && !to_itself && task.kernel_reports &&
        (p.base_mask.load(kRelaxed) & nccl::kKernelCh) != 0)
      slot.rejected.store(static_cast<std::uint8_t>(UntimedReason::kNotAsked), kRelaxed);
  } else {
    slot.completion.store(
        task.channels_known && task.channels > 0 ? Completion::kChannels : Completion::kUnknown,
        kRelaxed);
  }
  if (to_itself && function == model::Function::kSend &&
      counters_drift(p.nccl_version, c.interface_version)) {
    // In the plan itself all stamps of a batch are about the same.
    store_min(c.drift_from, order + 1);
    if (task.channels_known && task.channels > 1) c.drift_everywhere.store(1, kRelaxed);
  }
  if (function == model::Function::kBroadcast && c.broadcast_visible.load(kRelaxed) == 0) {
    // NCCL counts Broadcasts of this communicator after all.
    c.broadcast_visible.store(1, kRelaxed);
    c.untrusted_from.store(kNever, kRelaxed);
  }
  slot.order.store(order, kRelease);
}

void describe_communicator(Communicator& c, const Task& task) noexcept {
  std::uint16_t flags = c.info_flags.load(kRelaxed);
  bool changed = false;
  if ((flags & wire::kCommRankKnown) == 0 && task.rank >= 0) {
    c.rank.store(task.rank, kRelaxed);
    flags |= wire::kCommRankKnown;
    changed = true;
  }
  if ((flags & wire::kCommHashKnown) == 0 && task.hash != 0) {
    c.hash.store(task.hash, kRelaxed);
    flags |= wire::kCommHashKnown;
    changed = true;
  }
  std::uint8_t unset = 0;
  if (task.name != nullptr && c.name_state.load(kRelaxed) == 0 &&
      c.name_state.compare_exchange_strong(unset, 1, kRelaxed)) {
    std::size_t n = 0;
    while (n < wire::kMaxCommNameBytes && task.name[n] != '\0') {
      c.name[n] = task.name[n];
      ++n;
    }
    c.name_state.store(2, kRelease);
    changed = true;
  }
  if (changed) {
    c.info_flags.store(flags, kRelaxed);
    c.info_version.fetch_add(1, kRelease);
  }
}

// ---- small slots ----

constexpr std::uint64_t slot_word(std::uint32_t generation, std::uint64_t low) noexcept {
  return (std::uint64_t{generation} << 32) | low;
}
constexpr std::uint32_t slot_generation(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}

/// True when the operation that a child token names is not open any more.
bool operation_gone(Process& p, std::uint64_t token_bits) noexcept {
  const Token t = Token::from_bits(token_bits);
  Lane* lane = lane_of(p, t);
  OperationSlot* slot = lane == nullptr ? nullptr : operation_slot(*lane, t);
  return slot == nullptr || !is_open(slot->state.load(kAcquire), t);
}

/// Claims a small slot; `reclaimable` says whether a busy one belongs to nobody any more. Returns
/// its index or -1.
template <typename Slot, std::size_t N, typename Reclaimable>
int claim_child(Slot (&slots)[N], std::atomic<std::uint32_t>& cursor, std::uint64_t low,
                std::uint32_t& generation, const Reclaimable& reclaimable) noexcept {
  const std::uint32_t base = next_hint(cursor);
  for (unsigned probe = 0; probe < kChildProbes; ++probe) {
    const std::uint32_t i = (base + probe) % N;
    std::uint64_t word = slots[i].state.load(kAcquire);
    if ((word & kBusy) != 0 && !reclaimable(slots[i])) continue;
    generation = slot_generation(word) + 1;
    if (!slots[i].state.compare_exchange_strong(word, slot_word(generation, low | kBusy), kAcqRel,
                                                kRelaxed))
      continue;
    if (probe != 0) cursor.store(base + probe + 1, kRelaxed);
    return static_cast<int>(i);
  }
  return -1;
}

template <typename Slot, std::size_t N>
Slot* child_slot(Slot (&slots)[N], Token t, std::uint64_t& word) noexcept {
  if (t.index() >= N) return nullptr;
  Slot& slot = slots[t.index()];
  word = slot.state.load(kAcquire);
  return (word & kBusy) != 0 && slot_generation(word) == t.generation() ? &slot : nullptr;
}

// ---- kernel channels ----

/// Decides whether a channel's stamps belong to the operation, and folds them in. GPU clock, ns.
void report_channel(Lane& lane, Communicator& c, OperationSlot& slot, unsigned channel,
                    std::uint64_t start, std::uint64_t end, bool clock_known) noexcept {
  const auto reject = [&slot](UntimedReason reason) {
    if (slot.rejected.load(kRelaxed) == 0)
      slot.rejected.store(static_cast<std::uint8_t>(reason), kRelaxed);
  };
  const std::uint32_t order = slot.order.load(kRelaxed);
  if (order >= c.untrusted_from.load(kRelaxed)) return reject(UntimedReason::kCounterDrift);
  const bool drifting = order >= c.drift_from.load(kRelaxed);
  if (drifting && (channel == kSelfChannel || c.drift_everywhere.load(kRelaxed) != 0)) return;
  if (end <= start) return reject(UntimedReason::kTimingRejected);

  ChannelState& ch = c.channels[channel % kMaxChannels];
  if (ch.plan.load(kRelaxed) != order) {
    ch.plan.store(order, kRelaxed);
    store_max(ch.earlier_stop_ns, ch.plan_stop_ns.load(kRelaxed));
    ch.plan_stop_ns.store(0, kRelaxed);
  }
  if (start + kStampToleranceNs < ch.earlier_stop_ns.load(kRelaxed)) {
    return reject(drifting ? UntimedReason::kCounterDrift : UntimedReason::kTimingRejected);
  }
  // Without an API event the call is known only from after the launch: no proof against a sound
  // counter.
  const bool call_known = (slot.flags.load(kRelaxed) & (of::kApiSeen | of::kGraph)) != 0;
  if (drifting || call_known) {
    if (drifting && !clock_known) return reject(UntimedReason::kCounterDrift);
    const std::uint64_t doubt = drifting ? 0 : kClockDoubtNs;
    if (clock_known && lane.clock.latest_host_ns(start) + doubt < slot.api_time_ns.load(kRelaxed)) {
      return reject(drifting ? UntimedReason::kCounterDrift : UntimedReason::kTimingRejected);
    }
  }
  store_max(ch.plan_stop_ns, end);
  store_min(slot.gpu_start_ns, start);
  store_max(slot.gpu_stop_ns, end);
}

void push_channel_detail(Lane& lane, Communicator& c, OperationSlot& slot, unsigned channel,
                         std::uint64_t start, std::uint64_t end, std::uint64_t host_start,
                         std::uint64_t host_stop) noexcept {
  wire::ChannelDetail d{};
  wire::set_header(d, wire::RecordType::kChannelDetail);
  d.communicator = c.wire_id.load(kRelaxed);
  d.index = static_cast<std::uint32_t>(slot.index.load(kRelaxed));
  d.channel = static_cast<std::uint8_t>(channel);
  const auto function = slot.function.load(kRelaxed);
  d.is_p2p = model::is_point_to_point(function) ? 1 : 0;
  d.flags = slot.rejected.load(kRelaxed) != 0 ? 1 : 0;
  d.function = static_cast<std::uint8_t>(function);
  d.gpu_start_ns = start;
  d.gpu_stop_ns = end;
  d.host_start_ns = host_start;
  d.host_stop_ns = host_stop;
  (void)lane.ring.push(d);
}

void stop_kernel(Process& p, Lane& lane, Token t) noexcept {
  std::uint64_t word = 0;
  KernelSlot* k = child_slot(lane.kernels, t, word);
  if (k == nullptr) return bump(lane.stops_unmatched);
  const Token op = Token::from_bits(k->operation.load(kRelaxed));
  const std::uint64_t start = k->start_ns.load(kRelaxed);
  const std::uint64_t end = k->stop_ns.load(kRelaxed);
  const std::uint64_t host_start = k->host_start_ns.load(kRelaxed);
  const auto channel = static_cast<unsigned>((word >> 8) & 0xFFu);
  // All calls of one handle come from one thread.
  k->state.store(slot_word(slot_generation(word), 0), kRelease);

  OperationSlot* slot = operation_slot(lane, op);
  if (slot == nullptr) return;
  std::uint64_t state = slot->state.load(kAcquire);
  if (!is_open(state, op)) return;
  Communicator* c = communicator_of(p, *slot);
  if (c == nullptr) return;
  bump(lane.kernel_reports);

  const bool full = p.channel_detail.load(kRelaxed);
  const bool host_only = c->interface_version < 4;
  const bool last = st::channels(state) + 1u >= slot->expected.load(kRelaxed);
  const bool drifting = slot->order.load(kRelaxed) >= c->drift_from.load(kRelaxed);
  std::uint64_t now = 0;
  if (host_only || full || last || drifting) now = monotonic_ns();
  if (host_only) {
    store_min(slot->gpu_start_ns, host_start);
    store_max(slot->gpu_stop_ns, now);
  } else if (end == 0) {
    // Stop without a stamp: the report is worth nothing.
    if (slot->rejected.load(kRelaxed) == 0) {
      slot->rejected.store(static_cast<std::uint8_t>(UntimedReason::kTimingRejected), kRelaxed);
    }
  } else {
    // No stamp is from the future, so every report tightens the bound, stale ones and this one
    // included.
    const bool clock_known = lane.clock.known();
    if (now != 0) lane.clock.observe(now, end);
    report_channel(lane, *c, *slot, channel, start, end, clock_known);
  }
  if (full) push_channel_detail(lane, *c, *slot, channel, start, end, host_start, now);
  for (;;) {
    if (!is_open(state, op)) return;
    if (advance(p, lane, *slot, state,
                st::channels(state) < 0xFF ? state + st::kChannelOne : state))
      return;
  }
}

// ---- network ----

/// What a NetworkPhases record says of its operation.
struct OperationName {
  std::uint16_t communicator = wire::kNoCommunicator;
  std::uint64_t index = 0;
  bool p2p = false;
  bool open = false;
};

/// Names an operation that is open, or closed but not yet overwritten: without kernel reports an
/// operation is closed before its network work begins. False: the token is of older work.
bool name_operation(Process& p, const OperationSlot& slot, Token t, OperationName& name) noexcept {
  const std::uint64_t state = slot.state.load(kAcquire);
  name.open = is_open(state, t);
  const bool just_closed =
      (st::phase(state) == st::kFree && st::generation(state) == t.generation() + 1) ||
      (st::phase(state) == st::kClosing && st::generation(state) == t.generation());
  if (!name.open && !just_closed) return false;
  const Communicator* c = communicator_of(p, slot);
  if (c == nullptr) return false;
  name.communicator = c->wire_id.load(kRelaxed);
  name.index = slot.index.load(kRelaxed);
  name.p2p = model::is_point_to_point(slot.function.load(kRelaxed));
  const std::uint64_t after = slot.state.load(kAcquire);
  return after == state || st::generation(after) == t.generation() ||
         (st::phase(after) == st::kFree && st::generation(after) == t.generation() + 1);
}

std::uint64_t network_key(std::uint64_t operation, bool is_send) noexcept {
  // The kind bits of the token are free to carry the direction.
  return (operation & ~(std::uint64_t{0xF} << 60)) | (std::uint64_t{is_send ? 2u : 1u} << 60);
}

NetworkSlot* network_slot(Lane& lane, std::uint64_t key, bool create) noexcept {
  // Fibonacci hashing: tokens of neighbouring slots differ in few bits.
  const std::size_t base =
      static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 58) % kNetworkSlots;
  for (unsigned probe = 0; probe < kChildProbes; ++probe) {
    NetworkSlot& n = lane.network[(base + probe) % kNetworkSlots];
    std::uint64_t have = n.key.load(kAcquire);
    if (have == key) return &n;
    if (!create || have != 0) continue;
    if (!n.key.compare_exchange_strong(have, 1, kAcqRel, kAcquire)) {
      if (have == key) return &n;
      continue;
    }
    n.open.store(0, kRelaxed);
    n.channels.store(0, kRelaxed);
    for (auto& ns : n.phase_ns) ns.store(0, kRelaxed);
    n.bytes.store(0, kRelaxed);
    n.steps.store(0, kRelaxed);
    n.steps_incomplete.store(0, kRelaxed);
    n.peer.store(-1, kRelaxed);
    n.key.store(key, kRelease);
    return &n;
  }
  return nullptr;
}

void push_network(Lane& lane, std::uint16_t communicator, std::uint64_t index, bool is_send,
                  bool p2p, const NetworkSlot& n) noexcept {
  // NCCL was asked for no steps: there is nothing to tell.
  if (n.steps.load(kRelaxed) == 0 && n.steps_incomplete.load(kRelaxed) == 0) return;
  wire::NetworkPhases r{};
  wire::set_header(r, wire::RecordType::kNetworkPhases);
  r.communicator = communicator;
  r.index = static_cast<std::uint32_t>(index);
  r.is_send = is_send ? 1 : 0;
  r.is_p2p = p2p ? 1 : 0;
  r.channels = static_cast<std::uint16_t>(n.channels.load(kRelaxed));
  r.peer = n.peer.load(kRelaxed);
  r.bytes = n.bytes.load(kRelaxed);
  r.steps = n.steps.load(kRelaxed);
  r.steps_incomplete = n.steps_incomplete.load(kRelaxed);
  for (std::size_t i = 0; i < 3; ++i) r.phase_ns[i] = n.phase_ns[i].load(kRelaxed);
  (void)lane.ring.push(r);
}

void stop_proxy_op(Process& p, Lane& lane, Token t) noexcept {
  std::uint64_t word = 0;
  ProxyOpSlot* o = child_slot(lane.proxy_ops, t, word);
  if (o == nullptr) return bump(lane.stops_unmatched);
  const bool is_send = o->is_send.load(kRelaxed) != 0;
  const std::uint64_t op_bits = o->operation.load(kRelaxed);
  const std::uint64_t key = network_key(op_bits == 0 ? t.bits() : op_bits, is_send);
  if (o->wanted.load(kRelaxed) != 0) {
    if (NetworkSlot* n = network_slot(lane, key, false); n != nullptr) {
      n->channels.fetch_add(1, kRelaxed);
      for (std::size_t i = 0; i < 3; ++i)
        n->phase_ns[i].fetch_add(o->phase_ns[i].load(kRelaxed), kRelaxed);
      n->bytes.fetch_add(o->bytes.load(kRelaxed), kRelaxed);
      n->steps.fetch_add(o->steps.load(kRelaxed), kRelaxed);
      n->steps_incomplete.fetch_add(o->steps_incomplete.load(kRelaxed), kRelaxed);
      if (n->peer.load(kRelaxed) < 0) n->peer.store(o->peer.load(kRelaxed), kRelaxed);
      if (n->open.fetch_sub(1, kAcqRel) == 1) {
        push_network(lane, n->communicator.load(kRelaxed), n->index.load(kRelaxed), is_send,
                     n->p2p.load(kRelaxed) != 0, *n);
        n->key.store(0, kRelease);
      }
    }
  }
  if (op_bits != 0) {
    const Token op = Token::from_bits(op_bits);
    if (OperationSlot* slot = operation_slot(lane, op);
        slot != nullptr && is_open(slot->state.load(kAcquire), op)) {
      slot->on_network.store(0, kRelaxed);
    }
  }
  o->state.compare_exchange_strong(word, slot_word(slot_generation(word), 0), kAcqRel, kRelaxed);
  (void)p;
}

void end_phase(ProxyOpSlot& o, ProxyStepSlot& s, std::uint64_t now) noexcept {
  const std::uint8_t phase = s.phase.load(kRelaxed);
  const std::uint64_t since = s.since_ns.load(kRelaxed);
  if (phase < 3 && now > since) o.phase_ns[phase].fetch_add(now - since, kRelaxed);
}

void stop_proxy_step(Lane& lane, Token t) noexcept {
  std::uint64_t word = 0;
  ProxyStepSlot* s = child_slot(lane.proxy_steps, t, word);
  if (s == nullptr) return bump(lane.stops_unmatched);
  std::uint64_t parent_word = 0;
  const Token parent = Token::from_bits(s->proxy_op.load(kRelaxed));
  if (ProxyOpSlot* o = child_slot(lane.proxy_ops, parent, parent_word); o != nullptr) {
    end_phase(*o, *s, monotonic_ns());
    o->steps.fetch_add(1, kRelaxed);
    o->steps_incomplete.fetch_sub(1, kRelaxed);
  }
  s->state.compare_exchange_strong(word, slot_word(slot_generation(word), 0), kAcqRel, kRelaxed);
}

void record_proxy_step(Lane& lane, Token t, nccl::EventState state, bool has_value,
                       std::uint64_t bytes) noexcept {
  std::uint64_t word = 0;
  ProxyStepSlot* s = child_slot(lane.proxy_steps, t, word);
  if (s == nullptr) return bump(lane.stops_unmatched);
  std::uint64_t parent_word = 0;
  ProxyOpSlot* o =
      child_slot(lane.proxy_ops, Token::from_bits(s->proxy_op.load(kRelaxed)), parent_word);
  if (o == nullptr) return;
  std::uint8_t phase = 3;
  bool counts_bytes = false;
  switch (state) {
    case nccl::kProxyStepSendGpuWait:
    case nccl::kProxyStepRecvWait:
      phase = 0;
      break;
    case nccl::kProxyStepSendPeerWait:
      phase = 1;
      break;
    case nccl::kProxyStepRecvFlushWait:
      phase = 1;
      counts_bytes = true;
      break;
    case nccl::kProxyStepSendWait:
      phase = 2;
      counts_bytes = true;
      break;
    case nccl::kProxyStepRecvGpuWait:
      phase = 2;
      break;
    default:
      return;
  }
  const std::uint8_t before = s->phase.load(kRelaxed);
  // A state that comes again (a send that is tried anew) does not begin a new phase.
  if (before < 3 && phase <= before) return;
  const std::uint64_t now = monotonic_ns();
  end_phase(*o, *s, now);
  s->since_ns.store(now, kRelaxed);
  s->phase.store(phase, kRelaxed);
  if (counts_bytes && has_value) o->bytes.fetch_add(bytes, kRelaxed);
}

void note_neighbour(Communicator& c, int peer, bool is_send, unsigned channel) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << (40 + std::min(channel, 22u));
  const std::uint64_t who = (std::uint64_t{1} << 63) | (std::uint64_t{is_send ? 1u : 0u} << 32) |
                            static_cast<std::uint32_t>(peer);
  constexpr std::uint64_t kWhoMask = (std::uint64_t{1} << 63) | 0x1FFFFFFFFu;
  for (auto& cell : c.neighbours) {
    std::uint64_t have = cell.load(kRelaxed);
    if (have == 0) {
      if (cell.compare_exchange_strong(have, who | bit, kRelaxed)) {
        c.neighbour_version.fetch_add(1, kRelaxed);
        return;
      }
    }
    if ((have & kWhoMask) == who) {
      if ((have & bit) == 0) {
        cell.fetch_or(bit, kRelaxed);
        c.neighbour_version.fetch_add(1, kRelaxed);
      }
      return;
    }
  }
}

/// Counts a collective whose call is all that will be known of it.
void count_call(Lane& lane, Communicator& c, const ApiCall& call, std::uint64_t index) noexcept {
  wire::Operation record{};
  wire::set_header(record, wire::RecordType::kOperation);
  record.communicator = c.wire_id.load(kRelaxed);
  record.function = static_cast<std::uint8_t>(call.function);
  record.datatype = static_cast<std::uint8_t>(call.datatype);
  record.untimed_reason = static_cast<std::uint8_t>(UntimedReason::kNotAsked);
  record.flags = of::kApiSeen | of::kTypeFromApi | of::kComplete | of::kChannelsUnknown;
  if (index < kWarmupOperations) record.flags |= of::kWarmup;
  record.root_or_peer = call.root;
  record.index = static_cast<std::uint32_t>(index);
  record.count_plan = wire::pack_count_plan(call.count, 0);
  record.api_time_ns = monotonic_ns();
  if (lane.ring.push(record) == 0) return count_drop(lane, &c, wire::DropReason::kRingBusy);
  c.recorded.fetch_add(1, kRelease);
  bump(lane.operations_pushed);
  bump(lane.untimed[static_cast<std::size_t>(UntimedReason::kNotAsked)]);
}

}  // namespace

bool p2p_channels_native() noexcept {
  const std::uint32_t release = process().nccl_version;
  return release >= 22700 && release < 22800;
}

void begin_blocks(Process& p, Communicator& c) noexcept {
  enter_blocks(p, c, c.next_collective.load(kRelaxed));
}

// ---- starts ----

void* start_api(void* context, const void* parent, const ApiCall& call) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  Communicator* c = find_communicator(p, context);
  const bool p2p = model::is_point_to_point(call.function);
  if (c == nullptr) {
    const Token t = Token::from_handle(context);
    Lane* lane = p.lanes[0].load(kAcquire);
    if (t.kind() == Kind::kContext && t.salt() == p.salt && t.index() == kNoRoomIndex &&
        lane != nullptr && !call.captured) {
      count_drop(*lane, nullptr, wire::DropReason::kCommunicatorTable);
      return Token(Kind::kDropped, 0, p.salt, 0, 0).handle();
    }
    return nullptr;
  }
  Lane& lane = *p.lanes[c->lane].load(kAcquire);
  const std::size_t type = p2p ? 10 : 9;
  const std::uint64_t calls = count_up(lane.events[type]);
  // Recorded into a graph, not run: each replay is an operation of its own.
  // The mask of the call stays that of all replays: the generation remembers it.
  const bool kernel_asked = kernel_reports_now(p);
  if (call.captured) {
    return Token(Kind::kCaptured, c->lane, p.salt, kernel_asked ? 1 : 0, c->table_index).handle();
  }
  sample_own_time(p, lane, type, calls);

  if (call.function == model::Function::kBroadcast &&
      broadcasts_hidden(p.nccl_version, c->interface_version) &&
      c->broadcast_visible.load(kRelaxed) == 0) {
    const std::uint64_t group = Token::from_handle(parent).bits();
    if (group != 0 && c->broadcast_group.load(kRelaxed) == group) {
      if (c->broadcast_root.load(kRelaxed) != call.root)
        store_min(c->untrusted_from, lane.plan_cursor.load(kRelaxed) + 1);
    } else {
      c->broadcast_group.store(group, kRelaxed);
      c->broadcast_root.store(call.root, kRelaxed);
    }
  }

  if (!p2p && p.calls_only.load(kRelaxed)) {
    count_call(lane, *c, call, take_index(p, *c, p2p));
    return Token(Kind::kDropped, c->lane, p.salt, 0, 0).handle();
  }
  std::uint32_t at = 0;
  OperationSlot* slot = claim_operation(lane, *c, at);
  const std::uint64_t index = take_index(p, *c, p2p);
  if (slot == nullptr) {
    count_drop(lane, c, wire::DropReason::kNoOperationSlot);
    return Token(Kind::kDropped, c->lane, p.salt, 0, 0).handle();
  }
  slot->api_time_ns.store(monotonic_ns(), kRelaxed);
  slot->index.store(index, kRelaxed);
  slot->group.store(Token::from_handle(parent).bits(), kRelaxed);
  slot->count.store(call.count, kRelaxed);
  slot->function.store(call.function, kRelaxed);
  slot->datatype.store(call.datatype, kRelaxed);
  slot->root_or_peer.store(p2p ? -1 : call.root, kRelaxed);
  slot->flags.store(of::kApiSeen | of::kTypeFromApi, kRelaxed);
  slot->kernel_asked.store(kernel_asked && kernel_reports_wanted(p, index, p2p), kRelaxed);
  return Token(Kind::kOperationApi, c->lane, p.salt, open_slot(*slot), at).handle();
}

void* start_task(void* context, const Task& task) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  const Token parent = Token::from_handle(task.parent);
  if (parent.kind() == Kind::kDropped && parent.salt() == p.salt) {
    return Token(Kind::kDropped, parent.lane(), p.salt, 0, 0).handle();
  }
  Communicator* c = find_communicator(p, context);
  const bool p2p = task.function_name == nullptr && model::is_point_to_point(task.function);
  if (c == nullptr) {
    const Token t = Token::from_handle(context);
    Lane* lane = p.lanes[0].load(kAcquire);
    if (t.kind() == Kind::kContext && t.salt() == p.salt && t.index() == kNoRoomIndex &&
        lane != nullptr) {
      count_drop(*lane, nullptr, wire::DropReason::kCommunicatorTable);
      return Token(Kind::kDropped, 0, p.salt, 0, 0).handle();
    }
    return nullptr;
  }
  Lane& lane = *p.lanes[c->lane].load(kAcquire);
  const Token plan = Token::from_handle(task.group);
  const bool in_plan =
      plan.kind() == Kind::kPlan && plan.salt() == p.salt && plan.generation() != kNever;
  const std::uint32_t order = in_plan ? plan.generation() : c->plan.load(kRelaxed);
  const std::size_t type = task.copy_engine ? 12 : p2p ? 2 : 1;
  const std::uint64_t events = count_up(lane.events[type]);
  if (task.describes_communicator) describe_communicator(*c, task);
  if (c->tasks_seen.load(kRelaxed) == 0) c->tasks_seen.store(1, kRelaxed);

  // The operation that the API call began. A token that is no longer open is a stale handle: then
  // this is a new one.
  if (parent.kind() == Kind::kOperationApi && parent.salt() == p.salt && parent.lane() == c->lane &&
      parent.index() < kOperationSlots) {
    OperationSlot& slot = lane.operations[parent.index()];
    if (is_open(slot.state.load(kAcquire), parent) && !is_launched(slot) &&
        slot.communicator.load(kRelaxed) == c->table_index) {
      slot.sweeps.store(0, kRelaxed);
      if (const Token g = Token::from_bits(slot.group.load(kRelaxed));
          g.kind() == Kind::kGroupApi && g.index() < kGroupSlots) {
        const std::uint64_t word = lane.groups[g.index()].state.load(kRelaxed);
        if (slot_generation(word) == g.generation() && (word & kBusy) == 0)
          c->late_tasks_seen.store(1, kRelaxed);
      }
      // A plan is submitted in one go: its time serves for all its tasks.
      slot.in_plan.store(in_plan ? 1 : 0, kRelaxed);
      const std::uint64_t enqueued = in_plan ? c->plan_time_ns.load(kRelaxed) : monotonic_ns();
      fill_task(p, *c, slot, task, order, enqueued, slot.flags.load(kRelaxed), true);
      return Token(Kind::kOperation, c->lane, p.salt, parent.generation(), parent.index()).handle();
    }
  }

  sample_own_time(p, lane, type, events);
  // A parent that was only captured: this is a replay of the graph.
  const bool graph = parent.kind() == Kind::kCaptured && parent.salt() == p.salt;
  const bool kernel_asked = graph ? parent.generation() != 0 : kernel_reports_now(p);
  const std::uint64_t now = monotonic_ns();
  std::uint32_t at = 0;
  OperationSlot* slot = claim_operation(lane, *c, at);
  const std::uint64_t index = take_index(p, *c, p2p);
  if (slot == nullptr) {
    count_drop(lane, c, wire::DropReason::kNoOperationSlot);
    return Token(Kind::kDropped, c->lane, p.salt, 0, 0).handle();
  }
  slot->api_time_ns.store(now, kRelaxed);
  slot->index.store(index, kRelaxed);
  slot->group.store(0, kRelaxed);
  slot->kernel_asked.store(kernel_asked && kernel_reports_wanted(p, index, p2p), kRelaxed);
  slot->in_plan.store(in_plan ? 1 : 0, kRelaxed);
  fill_task(p, *c, *slot, task, order, now, graph ? of::kGraph : std::uint16_t{0}, false);
  return Token(Kind::kOperation, c->lane, p.salt, open_slot(*slot), at).handle();
}

void* start_group_api(void* context) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  Communicator* c = find_communicator(p, context);
  if (c == nullptr) return nullptr;
  Lane& lane = *p.lanes[c->lane].load(kAcquire);
  bump(lane.events[8]);
  std::uint32_t generation = 0;
  // A group that has been open for a whole round of the table gives way: its operations then count
  // as ungrouped.
  const int at = claim_child(lane.groups, lane.group_cursor, 0, generation,
                             [](const GroupSlot&) { return true; });
  if (at < 0) return nullptr;
  return Token(Kind::kGroupApi, c->lane, p.salt, generation, static_cast<std::uint32_t>(at))
      .handle();
}

void* start_plan(void* context) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  Communicator* c = find_communicator(p, context);
  // Never null: before NCCL 2.28 a null Group suppresses its collectives.
  if (c == nullptr) return Token(Kind::kIgnored, 0, p.salt, 0, 0).handle();
  Lane& lane = *p.lanes[c->lane].load(kAcquire);
  bump(lane.events[0]);
  const std::uint32_t number = lane.plan_cursor.fetch_add(1, kRelaxed) + 1;
  c->plan.store(number, kRelaxed);
  c->plan_time_ns.store(monotonic_ns(), kRelaxed);
  return Token(Kind::kPlan, c->lane, p.salt, number, 0).handle();
}

void* start_kernel(const void* parent, std::uint8_t channel, std::uint64_t gpu_ns) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  const Token op = Token::from_handle(parent);
  if (op.kind() != Kind::kOperation) return nullptr;
  Lane* lane = lane_of(p, op);
  OperationSlot* slot = lane == nullptr ? nullptr : operation_slot(*lane, op);
  if (slot == nullptr) return nullptr;
  std::uint64_t state = slot->state.load(kAcquire);
  if (!is_open(state, op)) return nullptr;
  Communicator* c = communicator_of(p, *slot);
  if (c == nullptr) return nullptr;
  bump(lane->events[6]);

  std::uint32_t generation = 0;
  const int at = claim_child(
      lane->kernels, lane->kernel_cursor, std::uint64_t{channel} << 8, generation,
      [&p](const KernelSlot& k) { return operation_gone(p, k.operation.load(kRelaxed)); });
  if (at < 0) {
    bump(lane->children_dropped);
    return nullptr;
  }
  KernelSlot& k = lane->kernels[at];
  k.operation.store(op.bits(), kRelaxed);
  k.start_ns.store(gpu_ns, kRelaxed);
  k.stop_ns.store(0, kRelaxed);

  const std::uint8_t started = slot->channels_started.load(kRelaxed);
  const bool first = started == 0;
  const bool host_only = c->interface_version < 4;
  if (first || host_only || p.channel_detail.load(kRelaxed)) {
    const std::uint64_t now = monotonic_ns();
    k.host_start_ns.store(now, kRelaxed);
    if (!host_only && gpu_ns != 0) lane->clock.observe(now, gpu_ns);
  } else {
    k.host_start_ns.store(0, kRelaxed);
  }
  if (started < 0xFF)
    slot->channels_started.store(static_cast<std::uint8_t>(started + 1), kRelaxed);
  if (first) {
    const std::uint64_t index = slot->index.load(kRelaxed) + 1;
    store_max(model::is_point_to_point(slot->function.load(kRelaxed)) ? c->started_p2p
                                                                      : c->started_collectives,
              index);
  }

  // Work of one channel runs in order, so what ran before on it has reported all it will on this
  // channel: enough to close an operation whose number of channels is not known.
  ChannelState& ch = c->channels[channel % kMaxChannels];
  const Token previous = Token::from_bits(ch.operation.load(kRelaxed));
  if (previous.bits() != op.bits()) {
    ch.operation.store(op.bits(), kRelaxed);
    OperationSlot* old = previous.bits() == 0 ? nullptr : operation_slot(*lane, previous);
    if (old != nullptr && old->completion.load(kRelaxed) == Completion::kUnknown) {
      const std::uint64_t s = old->state.load(kAcquire);
      if (is_open(s, previous) && (s & st::kTaskStopped) != 0 && is_idle(*old, s) &&
          st::channels(s) > 0 && old->order.load(kRelaxed) != slot->order.load(kRelaxed)) {
        (void)close_from(p, *lane, *old, s, UntimedReason::kNone);
      }
    }
  }
  return Token(Kind::kKernel, lane->number, p.salt, generation, static_cast<std::uint32_t>(at))
      .handle();
}

void* start_proxy_op(void* context, const ProxyOpCall& call) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  const bool own_operation = call.pid == p.pid;
  Lane* lane = nullptr;
  OperationSlot* slot = nullptr;
  OperationName name;
  Token op;
  if (own_operation) {
    // Context and parent are ours only then; under PXN they are another process's pointers.
    Communicator* c = find_communicator(p, context);
    if (c == nullptr) return nullptr;
    lane = p.lanes[c->lane].load(kAcquire);
    note_neighbour(*c, call.peer, call.is_send, call.channel);
    op = Token::from_handle(call.parent);
    if (op.kind() == Kind::kOperation && op.salt() == p.salt && op.lane() == lane->number) {
      slot = operation_slot(*lane, op);
    }
    if (slot == nullptr || !name_operation(p, *slot, op, name)) op = Token();
  } else {
    lane = p.lanes[0].load(kAcquire);
    if (lane == nullptr) return nullptr;
  }
  bump(lane->events[3]);
  std::uint32_t generation = 0;
  const int at =
      claim_child(lane->proxy_ops, lane->proxy_cursor, 0, generation, [&p](const ProxyOpSlot& o) {
        const std::uint64_t bits = o.operation.load(kRelaxed);
        return bits != 0 && operation_gone(p, bits) && o.wanted.load(kRelaxed) == 0;
      });
  if (at < 0) {
    bump(lane->children_dropped);
    return nullptr;
  }
  ProxyOpSlot& o = lane->proxy_ops[at];
  const Token mine(Kind::kProxyOp, lane->number, p.salt, generation,
                   static_cast<std::uint32_t>(at));
  o.operation.store(op.bits(), kRelaxed);
  for (auto& ns : o.phase_ns) ns.store(0, kRelaxed);
  o.bytes.store(0, kRelaxed);
  o.steps.store(0, kRelaxed);
  o.steps_incomplete.store(0, kRelaxed);
  o.peer.store(call.peer, kRelaxed);
  o.is_send.store(call.is_send ? 1 : 0, kRelaxed);
  bool wanted = !own_operation || (op.bits() != 0 && network_wanted(p, name.index));
  if (wanted) {
    NetworkSlot* n = network_slot(
        *lane, network_key(own_operation ? op.bits() : mine.bits(), call.is_send), true);
    if (n == nullptr) {
      wanted = false;
      bump(lane->children_dropped);
    } else {
      n->open.fetch_add(1, kAcqRel);
      n->communicator.store(name.communicator, kRelaxed);
      n->index.store(name.index, kRelaxed);
      n->p2p.store(name.p2p ? 1 : 0, kRelaxed);
    }
  }
  o.wanted.store(wanted ? 1 : 0, kRelaxed);
  if (name.open) slot->on_network.store(1, kRelaxed);
  return mine.handle();
}

void* start_proxy_step(const void* parent) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return nullptr;
  const Token op = Token::from_handle(parent);
  Lane* lane = op.kind() == Kind::kProxyOp ? lane_of(p, op) : nullptr;
  if (lane == nullptr) return nullptr;
  std::uint64_t word = 0;
  ProxyOpSlot* o = child_slot(lane->proxy_ops, op, word);
  if (o == nullptr || o->wanted.load(kRelaxed) == 0) return nullptr;
  bump(lane->events[4]);
  std::uint32_t generation = 0;
  const int at = claim_child(
      lane->proxy_steps, lane->step_cursor, 0, generation, [lane](const ProxyStepSlot& s) {
        std::uint64_t parent_word = 0;
        return child_slot(lane->proxy_ops, Token::from_bits(s.proxy_op.load(kRelaxed)),
                          parent_word) == nullptr;
      });
  if (at < 0) {
    bump(lane->children_dropped);
    return nullptr;
  }
  ProxyStepSlot& s = lane->proxy_steps[at];
  s.proxy_op.store(op.bits(), kRelaxed);
  s.since_ns.store(0, kRelaxed);
  s.phase.store(3, kRelaxed);
  // Counted as incomplete until its stop: a refused receive is started again and its first start
  // never stops.
  o->steps_incomplete.fetch_add(1, kRelaxed);
  return Token(Kind::kProxyStep, lane->number, p.salt, generation, static_cast<std::uint32_t>(at))
      .handle();
}

// ---- stops and states ----

void stop(void* handle) noexcept {
  const Token t = Token::from_handle(handle);
  Process& p = process();
  if (!p.active.load(kRelaxed)) return;
  Lane* lane = lane_of(p, t);
  if (lane == nullptr) {
    if (Lane* first = p.lanes[0].load(kAcquire); first != nullptr && handle != nullptr)
      bump(first->stops_unmatched);
    return;
  }
  switch (t.kind()) {
    case Kind::kKernel:
      return stop_kernel(p, *lane, t);
    case Kind::kOperation: {
      OperationSlot* slot = operation_slot(*lane, t);
      if (slot == nullptr) return;
      std::uint64_t state = slot->state.load(kAcquire);
      while (is_open(state, t)) {
        // A second stop of the same handle changes nothing.
        if ((state & st::kTaskStopped) != 0) return bump(lane->stops_unmatched);
        if (advance(p, *lane, *slot, state, state | st::kTaskStopped)) return;
      }
      return bump(lane->stops_unmatched);
    }
    case Kind::kProxyStep:
      return stop_proxy_step(*lane, t);
    case Kind::kProxyOp:
      return stop_proxy_op(p, *lane, t);
    case Kind::kGroupApi:
      if (t.index() < kGroupSlots) {
        std::atomic<std::uint64_t>& word = lane->groups[t.index()].state;
        if (word.load(kRelaxed) == slot_word(t.generation(), kBusy))
          word.store(slot_word(t.generation(), 0), kRelease);
      }
      return;
    default:
      return;
  }
}

void record_state(void* handle, nccl::EventState state, bool has_value,
                  std::uint64_t value) noexcept {
  const Token t = Token::from_handle(handle);
  Process& p = process();
  if (!p.active.load(kRelaxed)) return;
  Lane* lane = lane_of(p, t);
  if (lane == nullptr) return;
  if (t.kind() == Kind::kKernel && state == nccl::kKernelChStop) {
    std::uint64_t word = 0;
    KernelSlot* k = child_slot(lane->kernels, t, word);
    if (k == nullptr) return bump(lane->stops_unmatched);
    if (has_value) k->stop_ns.store(value, kRelaxed);
  } else if (t.kind() == Kind::kProxyStep) {
    record_proxy_step(*lane, t, state, has_value, value);
  }
}

// ---- finalize ----

namespace {

struct Closed {
  std::uint32_t unfinished = 0;                        // launched and not complete
  std::uint64_t first_collective = ~std::uint64_t{0};  // lowest index of an unfinished one
  std::uint64_t first_p2p = ~std::uint64_t{0};
};

/// Closes the open operations of `c` (null: of all).
Closed close_operations(Process& p, Lane& lane, const Communicator* c) noexcept {
  Closed closed;
  for (OperationSlot& slot : lane.operations) {
    std::uint64_t state = slot.state.load(kAcquire);
    while (st::phase(state) == st::kOpen) {
      if (c != nullptr && slot.communicator.load(kRelaxed) != c->table_index) break;
      const bool launched = is_launched(slot);
      // Nothing more will come: an operation of unknown width that has reported and has nothing
      // open is complete.
      const bool whole = slot.completion.load(kRelaxed) == Completion::kUnknown &&
                         st::channels(state) > 0 && is_idle(slot, state);
      const UntimedReason reason = !launched ? UntimedReason::kApiOnly
                                   : whole   ? UntimedReason::kNone
                                             : UntimedReason::kUnfinished;
      const std::uint64_t index = slot.index.load(kRelaxed);
      const bool p2p = model::is_point_to_point(slot.function.load(kRelaxed));
      if (close_from(p, lane, slot, state, reason)) {
        if (reason == UntimedReason::kUnfinished) {
          ++closed.unfinished;
          std::uint64_t& first = p2p ? closed.first_p2p : closed.first_collective;
          first = std::min(first, index);
        }
        break;
      }
      state = slot.state.load(kAcquire);
    }
  }
  return closed;
}

}  // namespace

void finalize_communicator(void* context) noexcept {
  Process& p = process();
  if (!p.active.load(kRelaxed)) return;
  Communicator* c = find_communicator(p, context);
  if (c == nullptr) return;
  auto live = CommunicatorStatus::kLive;
  if (!c->status.compare_exchange_strong(live, CommunicatorStatus::kFinalized, kAcqRel)) return;
  Lane& lane = *p.lanes[c->lane].load(kAcquire);
  p.live_communicators.fetch_sub(1, kRelaxed);
  bool changed = false;
  set_block(c->network_block, p.network_blocks, false, changed);
  set_block(c->kernel_block, p.kernel_blocks, false, changed);
  if (changed) apply_mask(p);

  wire::CommunicatorFinalize record{};
  wire::set_header(record, wire::RecordType::kCommunicatorFinalize);
  record.collectives_enqueued = c->next_collective.load(kRelaxed);
  record.p2p_enqueued = c->next_p2p.load(kRelaxed);
  const Closed closed = close_operations(p, lane, c);
  record.collectives_completed = std::min(record.collectives_enqueued, closed.first_collective);
  record.p2p_completed = std::min(record.p2p_enqueued, closed.first_p2p);
  record.unfinished = closed.unfinished;
  record.communicator = c->wire_id.load(kRelaxed);
  record.time_ns = monotonic_ns();
  record.seen = record.collectives_enqueued + record.p2p_enqueued;
  const std::uint64_t index = lane.ring.push(record);
  // 0 (a stalled writer) makes the sender treat it as already gone.
  c->finalize_index.store(index == 0 ? 1 : index, kRelease);
}

void close_all_operations() noexcept {
  Process& p = process();
  for (auto& entry : p.lanes) {
    if (Lane* lane = entry.load(kAcquire); lane != nullptr) close_operations(p, *lane, nullptr);
  }
}

// ---- sweeping ----

SweepResult sweep_operations(Lane& lane, std::uint32_t interval_ms, bool pressed) noexcept {
  Process& p = process();
  SweepResult result;
  const auto sweeps_for = [interval_ms](std::uint32_t ms) {
    return std::min<std::uint32_t>(250, std::max<std::uint32_t>(2, ms / interval_ms));
  };
  std::uint32_t used = 0;
  for (OperationSlot& slot : lane.operations) {
    const std::uint64_t state = slot.state.load(kAcquire);
    if (st::phase(state) == st::kFree) continue;
    ++used;
    if (st::phase(state) != st::kOpen) continue;
    ++result.open;
    Communicator* c = communicator_of(p, slot);
    if (c == nullptr) continue;
    const std::uint32_t order = slot.order.load(kRelaxed);
    const auto completion = slot.completion.load(kRelaxed);
    const bool idle = is_idle(slot, state);
    const bool launched = is_launched(slot);
    UntimedReason reason = UntimedReason::kNone;
    std::uint32_t patience = 0;
    if (c->status.load(kRelaxed) != CommunicatorStatus::kLive) {
      patience = 2;
      reason = launched ? UntimedReason::kUnfinished : UntimedReason::kApiOnly;
    } else if (!launched) {
      const Token g = Token::from_bits(slot.group.load(kRelaxed));
      bool group_open = false;
      if (g.kind() == Kind::kGroupApi && g.index() < kGroupSlots) {
        const std::uint64_t word = lane.groups[g.index()].state.load(kRelaxed);
        group_open = slot_generation(word) == g.generation() && (word & kBusy) != 0;
      }
      if (!group_open) {
        reason = UntimedReason::kApiOnly;
        if (pressed) {
          patience = 2;
        } else if (c->tasks_seen.load(kRelaxed) == 0) {
          patience = sweeps_for(10'000);
        } else {
          patience = sweeps_for(c->late_tasks_seen.load(kRelaxed) != 0 ? 5'000 : 300);
        }
      }
    } else if ((state & st::kTaskStopped) != 0) {
      if (order >= c->untrusted_from.load(kRelaxed) && st::channels(state) == 0 && idle) {
        reason = UntimedReason::kCounterDrift;
        patience = sweeps_for(1'000);
      } else if (completion == Completion::kUnknown && st::channels(state) > 0 && idle) {
        patience = sweeps_for(300);
      } else if (order < c->completed_order.load(kRelaxed)) {
        // Later work of the communicator is complete: what has not come by now is lost.
        reason = UntimedReason::kLost;
        patience = sweeps_for(1'000);
      }
    }
    if (patience == 0) {
      slot.sweeps.store(0, kRelaxed);
      continue;
    }
    const std::uint8_t sweeps = slot.sweeps.load(kRelaxed);
    if (sweeps < patience) {
      slot.sweeps.store(static_cast<std::uint8_t>(sweeps + 1), kRelaxed);
    } else if (close_from(p, lane, slot, state, reason)) {
      --result.open;
    }
  }
  result.pressed = used > kOperationSlots / 2;
  return result;
}

namespace {

/// A slot is claimed for some 50 ns before its index and communicator are known; for longer only if
/// its thread was interrupted there.
std::uint64_t state_once_opened(const OperationSlot& slot) noexcept {
  std::uint64_t state = slot.state.load(kAcquire);
  for (int look = 0; look < kClaimedLooks && st::phase(state) == st::kClaimed; ++look)
    state = slot.state.load(kAcquire);
  return state;
}

}  // namespace

OldestOperation oldest_operation(Lane& lane, const Communicator& c, bool p2p) noexcept {
  OldestOperation oldest;
  for (OperationSlot& slot : lane.operations) {
    const std::uint64_t state = state_once_opened(slot);
    if (st::phase(state) == st::kFree) continue;
    if (st::phase(state) == st::kClaimed) {
      oldest.certain = false;
      continue;
    }
    if (slot.communicator.load(kRelaxed) != c.table_index) continue;
    const auto function = slot.function.load(kRelaxed);
    if (model::is_point_to_point(function) != p2p) continue;
    ++oldest.open;
    const std::uint64_t index = slot.index.load(kRelaxed);
    if (index >= oldest.index) continue;
    oldest.index = index;
    oldest.api_time_ns = slot.api_time_ns.load(kRelaxed);
    oldest.started = slot.channels_started.load(kRelaxed) > 0;
    oldest.on_network = slot.on_network.load(kRelaxed) != 0;
    oldest.signature =
        model::operation_signature(function, slot.count.load(kRelaxed),
                                   slot.datatype.load(kRelaxed), slot.root_or_peer.load(kRelaxed));
  }
  return oldest;
}

}  // namespace ncclscope::plugin
