// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/feed.h"

#include <algorithm>
#include <cstring>

#include "plugin/clock.h"
#include "proto/model/inspector.h"

namespace ncclscope::plugin::inspector {
namespace {

/// When the operation was done, CLOCK_MONOTONIC. GPU times are on a clock of their own, whose
/// distance to the host's is known as an upper bound that tightens.
std::uint64_t completed_ns(const Lane& lane, const wire::Operation& o) noexcept {
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t end = o.gpu_start_ns + wire::duration_ns_of(o);
  std::uint64_t done = now;
  if (wire::timing_of(o) == wire::TimingSource::kHostCallback) {
    done = end;
  } else if (wire::timing_of(o) == wire::TimingSource::kGpu && lane.clock.known()) {
    done = lane.clock.latest_host_ns(end);
  }
  return std::clamp(done, std::min(wire::enqueue_time_ns_of(o), now), now);
}

bool is_wanted(const Options& options, const wire::Operation& o) noexcept {
  const auto function = static_cast<model::Function>(o.function);
  if (model::is_point_to_point(function)) {
    const bool place =
        options.prometheus || options.format != Format::kV40 || options.p2p_directory[0] != '\0';
    if (!options.p2p || !place) return false;
  }
  const std::uint64_t bytes =
      model::inspector::rank_bytes(wire::count_of(o), static_cast<model::DataType>(o.datatype));
  if (bytes < options.min_bytes) return false;
  switch (wire::timing_of(o)) {
    case wire::TimingSource::kGpu:
      return true;
    case wire::TimingSource::kHostCallback:
      return !options.gpu_times_only;
    default:
      // Its channels may have told the host's times.
      return !options.gpu_times_only && options.wants_channels() && o.channels_seen > 0;
  }
}

}  // namespace

void Feed::read(Process& p, Lane& lane, Shared& shared) noexcept {
  std::uint64_t& cursor = cursor_[lane.number];
  cursor = std::max<std::uint64_t>(cursor, 1);
  realtime_offset_ns_ = realtime_offset_ns();
  if (ended_ > 0) retire_ended(shared);
  // Bounded, as the sender's own reading is.
  std::uint64_t budget = 4 * kRingRecords;
  while (budget-- > 0) {
    RecordWords words;
    const auto read = lane.ring.read(cursor, words);
    if (read == RecordRing<kRingRecords>::Read::kNotYet) break;
    if (read == RecordRing<kRingRecords>::Read::kOverwritten) {
      const std::uint64_t oldest = std::max(lane.ring.oldest_index(), cursor + 1);
      shared.counts.overwritten.fetch_add(oldest - cursor, kRelaxed);
      cursor = oldest;
      continue;
    }
    ++cursor;
    std::uint8_t type = 0;
    std::memcpy(&type, &words, sizeof type);
    switch (static_cast<wire::RecordType>(type)) {
      case wire::RecordType::kOperation:
        read_operation(p, lane, shared, words);
        break;
      case wire::RecordType::kChannelDetail:
        if (p.settings.inspector.wants_channels()) {
          wire::ChannelDetail detail;
          std::memcpy(&detail, &words, sizeof detail);
          Item item{words, 0};
          const std::uint16_t context = context_of(p, detail.communicator, shared);
          // Traces are worth less than lines: they leave half of the queue to them.
          if (context != kNone && shared.queue.size() < kQueueItems / 2) put(shared, item, context);
        }
        break;
      case wire::RecordType::kCommunicatorFinalize:
        shared.flush.store(true, kRelease);
        break;
      default:
        break;
    }
  }
}

void Feed::read_operation(Process& p, Lane& lane, Shared& shared,
                          const RecordWords& words) noexcept {
  wire::Operation o;
  std::memcpy(&o, &words, sizeof o);
  if (!is_wanted(p.settings.inspector, o)) return;
  const std::uint16_t context = context_of(p, o.communicator, shared);
  if (context == kNone) {
    shared.counts.queue_full.fetch_add(1, kRelaxed);
    return;
  }
  Item item{words, completed_ns(lane, o) + static_cast<std::uint64_t>(realtime_offset_ns_)};
  put(shared, item, context);
}

void Feed::put(Shared& shared, Item& item, std::uint16_t context) noexcept {
  // The field `communicator` of every record.
  std::memcpy(reinterpret_cast<std::byte*>(&item.record) + 2, &context, sizeof context);
  if (shared.queue.push(item)) return;
  std::uint8_t type = 0;
  std::memcpy(&type, &item.record, sizeof type);
  if (type != static_cast<std::uint8_t>(wire::RecordType::kOperation)) return;
  wire::Operation o;
  std::memcpy(&o, &item.record, sizeof o);
  Context& c = shared.contexts[context];
  const bool p2p = model::is_point_to_point(static_cast<model::Function>(o.function));
  (p2p ? c.p2p_refused : c.collectives_refused).fetch_add(1, kRelaxed);
  shared.counts.queue_full.fetch_add(1, kRelaxed);
}

std::uint16_t Feed::context_of(Process& p, std::uint16_t wire_id, Shared& shared) noexcept {
  const std::uint16_t known = contexts_[wire_id];
  if (known != 0) {
    const Sent& sent = sent_[known - 1u];
    if (sent.communicator->wire_id.load(kRelaxed) != wire_id ||
        sent.communicator->info_version.load(kAcquire) == sent.version)
      return static_cast<std::uint16_t>(known - 1u);
  }
  for (auto& entry : p.communicators) {
    const Communicator* c = entry.load(kAcquire);
    if (c == nullptr) break;  // entries are taken in order
    const auto status = c->status.load(kAcquire);
    if ((status != CommunicatorStatus::kLive && status != CommunicatorStatus::kFinalized) ||
        c->wire_id.load(kRelaxed) != wire_id)
      continue;
    const std::uint16_t made = describe(*c, shared);
    if (made == kNone) return known == 0 ? kNone : static_cast<std::uint16_t>(known - 1u);
    if (known != 0) retire(static_cast<std::uint16_t>(known - 1u), shared);
    contexts_[wire_id] = static_cast<std::uint16_t>(made + 1u);
    return made;
  }
  return known == 0 ? kNone : static_cast<std::uint16_t>(known - 1u);
}

std::uint16_t Feed::describe(const Communicator& c, Shared& shared) noexcept {
  for (std::uint32_t probe = 0; probe < kContexts; ++probe) {
    const std::uint32_t at = (next_context_ + probe) % kContexts;
    Context& to = shared.contexts[at];
    if (to.used.load(kAcquire)) continue;
    next_context_ = at + 1;
    const std::uint32_t version = c.info_version.load(kAcquire);
    to.text.hash = c.hash.load(kRelaxed);
    to.text.rank = c.rank.load(kRelaxed);
    to.text.nranks = c.nranks;
    to.text.nnodes = c.nnodes;
    std::memset(to.text.name, 0, sizeof to.text.name);
    if (c.name_state.load(kAcquire) == 2)
      std::memcpy(to.text.name, c.name, sizeof to.text.name - 1);
    to.device = c.device;
    std::memcpy(to.pci_bus_id, c.pci_bus_id, sizeof to.pci_bus_id);
    std::memcpy(to.gpu_uuid, c.uuid, sizeof to.gpu_uuid);
    to.collectives_refused.store(0, kRelaxed);
    to.p2p_refused.store(0, kRelaxed);
    to.collectives = to.p2p = 0;
    to.collectives_lost = to.p2p_lost = to.collectives_told = to.p2p_told = 0;
    to.used.store(true, kRelease);
    sent_[at] = {&c, version, false};
    return static_cast<std::uint16_t>(at);
  }
  return kNone;
}

void Feed::end(const Communicator& c, Shared& shared) noexcept {
  std::uint16_t& known = contexts_[c.wire_id.load(kRelaxed)];
  if (known == 0) return;
  retire(static_cast<std::uint16_t>(known - 1u), shared);
  known = 0;
}

void Feed::retire(std::uint16_t context, Shared& shared) noexcept {
  sent_[context].ended = true;
  ++ended_;
  retire_ended(shared);
}

void Feed::retire_ended(Shared& shared) noexcept {
  for (std::uint16_t i = 0; i < kContexts && ended_ > 0; ++i) {
    if (!sent_[i].ended) continue;
    Item last{};
    std::memcpy(reinterpret_cast<std::byte*>(&last.record) + 2, &i, sizeof i);
    if (!shared.queue.push(last)) return;  // told once there is room
    sent_[i] = {};
    --ended_;
  }
}

}  // namespace ncclscope::plugin::inspector
