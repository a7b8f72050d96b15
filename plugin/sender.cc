// SPDX-License-Identifier: Apache-2.0
#include "plugin/sender.h"

#include <poll.h>
#include <time.h>

#include <atomic>

#include "plugin/background_thread.h"
#include "plugin/clock.h"
#include "plugin/detail_control.h"
#include "plugin/inspector/inspector.h"
#include "plugin/process.h"
#include "plugin/recorder.h"
#include "plugin/session.h"

namespace ncclscope::plugin {
namespace {

/// Exit waits for the sender's interval in progress at most this long: a starved sender may need
/// it.
constexpr int kExitWaitUs = 100'000;
constexpr int kExitStepUs = 500;

struct Sender {
  Session sessions[kMaxLanes];
  DetailControl detail;
  std::atomic<bool> busy{false};  // an interval's work is being done
  std::atomic<bool> stopped{false};
};
constinit Sender sender;

void tick_all(bool last) noexcept {
  Process& p = process();
  if (!last) sender.detail.tick(p, monotonic_ns());
  const std::uint32_t lanes = p.lane_count.load(kAcquire);
  for (std::uint32_t i = 0; i < lanes; ++i) {
    if (Lane* lane = p.lanes[i].load(kAcquire); lane != nullptr)
      sender.sessions[i].tick(p, *lane, sender.detail, last);
  }
}

void* run(void*) {
  settle_background_thread("ncclscope");
  const int interval_ms = static_cast<int>(process().settings.interval_ms);
  while (!sender.stopped.load(std::memory_order_acquire)) {
    bool idle = false;
    if (sender.busy.compare_exchange_strong(idle, true, std::memory_order_acq_rel)) {
      tick_all(false);
      sender.busy.store(false, std::memory_order_release);
    }
    (void)poll(nullptr, 0, interval_ms);
  }
  return nullptr;
}

}  // namespace

bool start_sender() noexcept {
  return start_background_thread(run, nullptr);
}

void flush_at_exit() noexcept {
  Process& p = process();
  if (!p.active.load(kAcquire) || p.lane_count.load(kAcquire) == 0) return;
  sender.stopped.store(true, std::memory_order_release);
  for (int waited_us = 0; waited_us <= kExitWaitUs; waited_us += kExitStepUs) {
    bool idle = false;
    if (sender.busy.compare_exchange_strong(idle, true, std::memory_order_acq_rel)) {
      close_all_operations();
      tick_all(true);
      // Kept busy: nothing may follow the goodbye.
      break;
    }
    const timespec step{0, kExitStepUs * 1000};
    (void)nanosleep(&step, nullptr);
  }
  inspector::finish_at_exit();
}

void forget_sender_after_fork() noexcept {
  for (Session& session : sender.sessions) {
    session.disconnect();
    session = Session();
  }
  Session::forget_comparisons();
  sender.detail = DetailControl();
  sender.busy.store(false, std::memory_order_relaxed);
  sender.stopped.store(false, std::memory_order_relaxed);
}

}  // namespace ncclscope::plugin
