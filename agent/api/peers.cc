// SPDX-License-Identifier: Apache-2.0
//
// Descriptor numbers in turn.
#include "agent/api/peers.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>

namespace ncclscope::agent {
namespace {

/// Start of the range: at the end of what the process may open, so that nobody else comes there
/// before all other numbers are taken; but not so high that the kernel's table of descriptors grows
/// large.
int range_start(std::size_t size) {
  constexpr rlim_t kHighest = 16'384;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1'024;
  const rlim_t end = std::min(limit.rlim_cur, kHighest);
  return static_cast<int>(end > size ? end - size : 0);
}

}  // namespace

Peers::Peers(std::size_t max_connections, std::size_t max_per_principal, std::size_t reserved)
    : first_(range_start(max_connections + reserved)),
      max_per_principal_(max_per_principal),
      callers_(max_connections) {}

std::size_t Peers::connections_of(const std::string& principal) const {
  std::size_t count = 0;
  for (std::size_t slot = 0; slot < callers_.size(); ++slot) {
    if (callers_[slot] && callers_[slot]->principal() == principal &&
        ::fcntl(first_ + static_cast<int>(slot), F_GETFD) != -1)
      ++count;
  }
  return count;
}

ScopedFd Peers::admit(ScopedFd connection, const Caller& caller) {
  const std::lock_guard lock(mutex_);
  if (!caller.is_administrator() && connections_of(caller.principal()) >= max_per_principal_)
    return {};
  for (std::size_t tried = 0; tried < callers_.size(); ++tried) {
    const std::size_t slot = (next_ + tried) % callers_.size();
    const int number = first_ + static_cast<int>(slot);
    if (::fcntl(number, F_GETFD) != -1) continue;  // open: a living connection
    ScopedFd moved(::fcntl(connection.get(), F_DUPFD_CLOEXEC, number));
    if (moved.get() != number) continue;  // somebody was faster, or no descriptor is left
    callers_[slot] = caller;
    next_ = slot + 1;
    return moved;
  }
  return {};
}

std::optional<Caller> Peers::find(std::string_view grpc_peer) const {
  constexpr std::string_view kPrefix = "fd:";
  if (!grpc_peer.starts_with(kPrefix)) return {};
  grpc_peer.remove_prefix(kPrefix.size());
  int number = -1;
  const auto [end, error] =
      std::from_chars(grpc_peer.data(), grpc_peer.data() + grpc_peer.size(), number);
  if (error != std::errc() || end != grpc_peer.data() + grpc_peer.size()) return {};
  const std::lock_guard lock(mutex_);
  if (number < first_ || number >= first_ + static_cast<int>(callers_.size())) return {};
  return callers_[static_cast<std::size_t>(number - first_)];
}

}  // namespace ncclscope::agent
