// SPDX-License-Identifier: Apache-2.0
//
// Turns signals into reactor events. Construct before any other thread starts: it blocks them for
// all threads.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>

#include "agent/base/reactor.h"

namespace ncclscope::agent {

class Signals {
 public:
  /// Blocks `signals` in the calling thread (threads started later inherit that) and reports them
  /// on the reactor.
  static Result<std::unique_ptr<Signals>> create(Reactor& reactor,
                                                 std::initializer_list<int> signals,
                                                 std::function<void(int)> handler);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  Signals(Reactor& reactor, ScopedFd fd) : reactor_(reactor), fd_(std::move(fd)) {}
  Reactor& reactor_;
  ScopedFd fd_;
};

}  // namespace ncclscope::agent
