// SPDX-License-Identifier: Apache-2.0
//
// One thread that waits for descriptors, timers and closures from other threads, and runs their
// handlers.
//   Thread: all but post(), call() and stop() belong to the thread that runs run(), or to the time
//   before it. Order:  handlers run one after another; a handler may add and remove anything,
//   itself included.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agent/base/result.h"
#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

class Reactor {
 public:
  using Closure = std::function<void()>;
  using IoHandler = std::function<void(std::uint32_t events)>;  // EPOLL... bits

  static Result<std::unique_ptr<Reactor>> create();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// Calls `handler` while `fd` has one of `events` (level-triggered). The caller keeps owning `fd`
  /// and removes it before closing it.
  Status add(int fd, std::uint32_t events, IoHandler handler);
  void remove(int fd);

  /// Calls `handler` every `period` (ticks that were missed are not made up for).
  Status add_timer(std::chrono::milliseconds period, Closure handler);

  /// Runs `closure` on the reactor soon. False, and it is dropped, once the reactor has stopped.
  bool post(Closure closure);
  /// Runs `closure` on the reactor and waits for it. On the reactor's own thread it runs at once.
  /// False when the reactor stopped before it ran.
  bool call(const Closure& closure);

  void run();   // until stop()
  void stop();  // any thread
  /// Handles what is ready now, waiting at most `timeout` for something. For tests and draining.
  void run_once(std::chrono::milliseconds timeout);

 private:
  Reactor() = default;
  void run_posted();
  void finish();

  struct Watch {
    int fd = -1;
    IoHandler handler;
    bool removed = false;
  };
  ScopedFd epoll_;
  ScopedFd wakeup_;
  std::unordered_map<int, std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Watch>> graveyard_;  // removed while handlers run
  std::vector<ScopedFd> timers_;
  std::mutex mutex_;
  std::vector<Closure> posted_;
  bool stopping_ = false;   // guarded by mutex_
  bool finished_ = false;   // guarded by mutex_
  std::thread::id thread_;  // guarded by mutex_
};

}  // namespace ncclscope::agent
