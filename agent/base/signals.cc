// SPDX-License-Identifier: Apache-2.0
//
// signalfd, and the datagram that systemd's Type=notify waits for.
#include "agent/base/signals.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>

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

void notify_service_manager(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const ScopedFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  // Best effort: a service manager that does not listen is not our trouble.
  [[maybe_unused]] const ssize_t ignored =
      ::sendto(fd.get(), state, std::strlen(state), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

}  // namespace ncclscope::agent
