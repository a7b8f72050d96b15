// SPDX-License-Identifier: Apache-2.0
#include "plugin/sender.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "plugin/clock.h"
#include "plugin/detail_control.h"
#include "plugin/inspector/inspector.h"
#include "plugin/process.h"
#include "plugin/recorder.h"
#include "plugin/session.h"

namespace ncclscope::plugin {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr int kNice = 10;
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
  pthread_setname_np(pthread_self(), "ncclscope");
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
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
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  (void)pthread_attr_setstacksize(&attributes, kStackBytes);
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  // The new thread inherits the mask: no signal of the application is ever delivered to it.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, run, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return error == 0;
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
