// SPDX-License-Identifier: Apache-2.0
#include "plugin/detail_control.h"

#include <algorithm>

#include "plugin/recorder.h"

namespace ncclscope::plugin {

void DetailControl::set_up(const Process& p) noexcept {
  set_up_ = true;
  wish_ = own_wish(p.settings);
  ladder_ = ladder_for(p.base_mask.load(kRelaxed), p.release_slice);
  Governor::Options options;
  options.budget = p.settings.overhead_budget;
  options.calm_ns = std::uint64_t{p.settings.calm_ms} * 1'000'000u;
  options.highest = ladder_.highest;
  governor_ = Governor(options);
  recording_ =
      choose_recording(wish_, Lowering::kNothing, p.base_mask.load(kRelaxed), p.release_slice);
}

void DetailControl::request(Process& p, DetailWish wish, std::uint32_t duration_ms,
                            std::uint64_t now_ns) noexcept {
  if (!set_up_) set_up(p);
  wish_ = wish;
  wish_.channels = own_wish(p.settings).channels;
  until_ns_ = duration_ms == 0 ? 0 : now_ns + std::uint64_t{duration_ms} * 1'000'000u;
  apply(p);
}

void DetailControl::tick(Process& p, std::uint64_t now_ns) noexcept {
  if (!set_up_) set_up(p);
  bool changed = governor_.observe(now_ns, busiest_thread_ns(p));
  if (until_ns_ != 0 && now_ns >= until_ns_) {
    until_ns_ = 0;
    wish_ = own_wish(p.settings);
    changed = true;
  }
  if (changed) apply(p);
  // Two threads that changed it at the same time may have left the older one's mask.
  if (p.mask.load(kRelaxed) != wanted_mask(p)) apply_mask(p);
}

void DetailControl::apply(Process& p) noexcept {
  recording_ = choose_recording(wish_, ladder_.steps[governor_.step()], p.base_mask.load(kRelaxed),
                                p.release_slice);
  apply_recording(p, recording_);
  for (auto& entry : p.communicators) {
    Communicator* c = entry.load(kAcquire);
    if (c != nullptr && c->status.load(kAcquire) == CommunicatorStatus::kLive) begin_blocks(p, *c);
  }
}

std::uint64_t DetailControl::busiest_thread_ns(const Process& p) noexcept {
  // Ranks that one thread launches share that thread's time.
  pthread_t threads[kMaxLanes] = {};
  std::uint64_t sums[kMaxLanes] = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < kMaxLanes; ++i) {
    const Lane* lane = p.lanes[i].load(kAcquire);
    if (lane == nullptr) continue;
    const std::uint64_t now = lane->sampled_ns.load(kRelaxed);
    const std::uint64_t since = now - lane_ns_[i];
    lane_ns_[i] = now;
    const pthread_t thread = lane->launcher.load(kRelaxed);
    std::size_t at = 0;
    while (at < count && pthread_equal(threads[at], thread) == 0) ++at;
    if (at == count) threads[count++] = thread;
    sums[at] += since;
  }
  busiest_ns_ += *std::max_element(sums, sums + kMaxLanes);
  return busiest_ns_;
}

void DetailControl::describe(const Process& p, wire::Books& books) const noexcept {
  books.detail = static_cast<std::uint8_t>(recording_.detail);
  books.detail_asked = static_cast<std::uint8_t>(wish_.level);
  books.network = recording_.network_off ? 0 : recording_.network_always ? 2 : 1;
  books.kernel_slice =
      (p.base_mask.load(kRelaxed) & nccl::kKernelCh) != 0 ? recording_.kernel_slice : 0;
  const Lowering lowering = ladder_.steps[governor_.step()];
  books.governor = lowering == Lowering::kCountersOnly   ? 3
                   : lowering >= Lowering::kKernelSlices ? 2
                   : lowering == Lowering::kNetwork      ? 1
                                                         : 0;
  books.governor_changes = static_cast<std::uint32_t>(governor_.changes());
  books.governor_since_ns = governor_.changed_at_ns();
  books.governor_trigger_ratio = governor_.trigger_ratio();
  books.recent_ratio = governor_.recent_ratio();
  books.budget_ratio = p.settings.overhead_budget;
}

}  // namespace ncclscope::plugin
