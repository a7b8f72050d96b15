// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/inspector.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "plugin/background_thread.h"
#include "plugin/clock.h"
#include "plugin/inspector/feed.h"
#include "plugin/inspector/writer.h"

namespace ncclscope::plugin::inspector {
namespace {

constexpr int kLongestSleepMs = 1'000;
/// Exit waits for the thread in steps of a millisecond: so many at most, ...
constexpr int kExitMs = 5'000;
/// ... and so many for one answer of the file system.
constexpr int kExitFileMs = 500;

struct State {
  Shared shared;
  Feed feed;
  FileWriter writer;
  int wake = -1;  // eventfd
};
constinit std::atomic<State*> the_state{nullptr};

void wake(const State& state) noexcept {
  const std::uint64_t one = 1;
  (void)!::write(state.wake, &one, sizeof one);
}

/// Until somebody wakes it, or something is due.
void rest(const State& state) noexcept {
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t due = state.writer.due_ns();
  const std::uint64_t left_ms = due <= now ? 0 : (due - now) / 1'000'000 + 1;
  pollfd event{state.wake, POLLIN, 0};
  (void)poll(&event, 1, static_cast<int>(std::min<std::uint64_t>(left_ms, kLongestSleepMs)));
  std::uint64_t count = 0;
  (void)!::read(state.wake, &count, sizeof count);
}

void* run(void* argument) {
  State& state = *static_cast<State*>(argument);
  settle_background_thread("ncclscope-files");
  bool last = false;
  while (!last) {
    rest(state);
    last = state.shared.stop.load(kAcquire);
    state.writer.work(monotonic_ns(), process().live_communicators.load(kRelaxed) > 0, last);
  }
  state.shared.finished.store(true, kRelease);
  return nullptr;
}

}  // namespace

bool start(Process& p) noexcept {
  if (!p.settings.inspector.enabled) return false;
  void* memory =
      mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Without parentheses: what has no initial value is not touched.
  State* state = new (memory) State;
  state->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  state->writer.set_up(p.settings.inspector, state->shared, p.pid, monotonic_ns());
  if (state->wake < 0 || !start_background_thread(run, state)) {
    if (state->wake >= 0) close(state->wake);
    munmap(memory, sizeof(State));
    return false;
  }
  the_state.store(state, kRelease);
  return true;
}

void read(Process& p, Lane& lane) noexcept {
  State* state = the_state.load(kAcquire);
  if (state == nullptr) return;
  state->feed.read(p, lane, state->shared);
  if (state->shared.flush.load(kRelaxed) || state->shared.queue.size() >= kQueueItems / 2)
    wake(*state);
}

bool waits_for(const Lane& lane, std::uint64_t index) noexcept {
  const State* state = the_state.load(kAcquire);
  return state != nullptr && !state->feed.has_passed(lane, index);
}

void forget(const Communicator& c) noexcept {
  if (State* state = the_state.load(kAcquire); state != nullptr) state->feed.end(c, state->shared);
}

void finish_at_exit() noexcept {
  State* state = the_state.load(kAcquire);
  if (state == nullptr) return;
  state->shared.stop.store(true, kRelease);
  wake(*state);
  const auto progress = [state] {
    return state->shared.counts.written.load(kRelaxed) + state->shared.counts.failed.load(kRelaxed);
  };
  std::uint64_t before = progress();
  for (int waited = 0, in_files = 0; waited < kExitMs && in_files < kExitFileMs; ++waited) {
    if (state->shared.finished.load(kAcquire)) return;
    const timespec step{0, 1'000'000};
    (void)nanosleep(&step, nullptr);
    const std::uint64_t now = progress();
    in_files = state->shared.in_files.load(kRelaxed) && now == before ? in_files + 1 : 0;
    before = now;
  }
}

void forget_after_fork() noexcept {
  const State* state = the_state.exchange(nullptr, kAcqRel);
  // Its files stay open: to close them can wait for the file system.
  if (state != nullptr) close(state->wake);
}

Totals totals() noexcept {
  const State* state = the_state.load(kAcquire);
  if (state == nullptr) return {};
  const Counts& c = state->shared.counts;
  return {c.written.load(kRelaxed), c.queue_full.load(kRelaxed), c.overwritten.load(kRelaxed),
          c.failed.load(kRelaxed)};
}

}  // namespace ncclscope::plugin::inspector
