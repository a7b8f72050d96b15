// SPDX-License-Identifier: Apache-2.0
#include "agent/base/signals.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace ncclscope::agent {

Result<std::unique_ptr<Signals>> Signals::create(Reactor& reactor,
                                                 std::initializer_list<int> signals,
                                                 std::function<void(int)> handler) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return Status::system("pthread_sigmask", error);
  }
  ScopedFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return Status::system("signalfd");
  const int raw = fd.get();
  std::unique_ptr<Signals> made(new Signals(reactor, std::move(fd)));
  if (Status s = reactor.add(raw, EPOLLIN,
                             [raw, handler = std::move(handler)](std::uint32_t) {
                               signalfd_siginfo info;
                               while (::read(raw, &info, sizeof info) == sizeof info) {
                                 handler(static_cast<int>(info.ssi_signo));
                               }
                             });
      !s.ok()) {
    return s;
  }
  return made;
}

Signals::~Signals() {
  reactor_.remove(fd_.get());
}

}  // namespace ncclscope::agent
