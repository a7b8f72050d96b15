// SPDX-License-Identifier: Apache-2.0
//
// epoll loop. Watches that are removed while a batch of events is handled live on until the batch
// is done, because the batch may still hold pointers to them.
#include "agent/base/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <utility>

namespace ncclscope::agent {

Result<std::unique_ptr<Reactor>> Reactor::create() {
  std::unique_ptr<Reactor> reactor(new Reactor);
  reactor->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!reactor->epoll_.valid()) return Status::system("epoll_create1");
  reactor->wakeup_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!reactor->wakeup_.valid()) return Status::system("eventfd");
  Reactor* raw = reactor.get();
  if (Status s = reactor->add(reactor->wakeup_.get(), EPOLLIN,
                              [raw](std::uint32_t) {
                                std::uint64_t count = 0;
                                while (::read(raw->wakeup_.get(), &count, sizeof count) > 0) {
                                }
                              });
      !s.ok()) {
    return s;
  }
  return reactor;
}

Reactor::~Reactor() {
  finish();
}

Status Reactor::add(int fd, std::uint32_t events, IoHandler handler) {
  auto watch = std::make_unique<Watch>();
  watch->fd = fd;
  watch->handler = std::move(handler);
  epoll_event event{};
  event.events = events;
  event.data.ptr = watch.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status::system(concat("epoll_ctl(ADD, ", fd, ")"));
  }
  watches_[fd] = std::move(watch);
  return {};
}

void Reactor::remove(int fd) {
  const auto it = watches_.find(fd);
  if (it == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  it->second->removed = true;
  graveyard_.push_back(std::move(it->second));
  watches_.erase(it);
}

Status Reactor::add_timer(std::chrono::milliseconds period, Closure handler) {
  ScopedFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid()) return Status::system("timerfd_create");
  itimerspec spec{};
  spec.it_interval.tv_sec = period.count() / 1000;
  spec.it_interval.tv_nsec = period.count() % 1000 * 1'000'000;
  spec.it_value = spec.it_interval;
  if (::timerfd_settime(timer.get(), 0, &spec, nullptr) != 0) {
    return Status::system("timerfd_settime");
  }
  const int fd = timer.get();
  if (Status s = add(fd, EPOLLIN,
                     [fd, handler = std::move(handler)](std::uint32_t) {
                       std::uint64_t expirations = 0;
                       if (::read(fd, &expirations, sizeof expirations) > 0) handler();
                     });
      !s.ok()) {
    return s;
  }
  timers_.push_back(std::move(timer));
  return {};
}

bool Reactor::post(Closure closure) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return false;
    posted_.push_back(std::move(closure));
  }
  const std::uint64_t one = 1;
  // A full counter already wakes the reactor.
  [[maybe_unused]] const ssize_t ignored = ::write(wakeup_.get(), &one, sizeof one);
  return true;
}

bool Reactor::call(const Closure& closure) {
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    bool ran = false;
    bool dropped = false;
  };
  bool own_thread = false;
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return false;
    own_thread = thread_ == std::this_thread::get_id();
  }
  if (own_thread) {
    closure();
    return true;
  }
  auto state = std::make_shared<State>();
  // Tells the caller when the closure is destroyed without having run.
  struct Guard {
    std::shared_ptr<State> state;
    explicit Guard(std::shared_ptr<State> s) : state(std::move(s)) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() {
      const std::lock_guard lock(state->mutex);
      if (!state->ran) state->dropped = true;
      state->done.notify_all();
    }
  };
  auto guard = std::make_shared<Guard>(state);
  if (!post([guard = std::move(guard), &closure] {
        closure();
        const std::lock_guard lock(guard->state->mutex);
        guard->state->ran = true;
      })) {
    return false;
  }
  std::unique_lock lock(state->mutex);
  state->done.wait(lock, [&] { return state->ran || state->dropped; });
  return state->ran;
}

void Reactor::run_posted() {
  std::vector<Closure> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (Closure& closure : batch) {
    closure();
    closure = nullptr;
  }
}

void Reactor::run_once(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    thread_ = std::this_thread::get_id();
  }
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(timeout.count()));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    auto* watch = static_cast<Watch*>(event.data.ptr);
    if (!watch->removed) watch->handler(event.events);
  }
  run_posted();
  graveyard_.clear();
}

void Reactor::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    run_once(std::chrono::milliseconds(1000));
  }
  finish();
}

void Reactor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(wakeup_.get(), &one, sizeof one);
}

void Reactor::finish() {
  std::vector<Closure> dropped;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    dropped.swap(posted_);
  }
  dropped.clear();  // outside the lock: destroying a closure wakes whoever waits for it
}

}  // namespace ncclscope::agent
