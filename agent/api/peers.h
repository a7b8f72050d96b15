// SPDX-License-Identifier: Apache-2.0
//
// Remembers who is behind each connection. gRPC names a connection that it was handed by its
// descriptor ("fd:17"), so callers are found by descriptor number.
//   A number must not be reused while a call of the earlier connection may still ask: connections
//   get numbers of a range of their own, in turn. The range is also the limit on connections.
//   Thread: any.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/api/authorizer.h"
#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

class Peers {
 public:
  /// `max_per_principal` does not hold for administrators. `reserved`: how many numbers above the
  /// range are somebody else's.
  Peers(std::size_t max_connections, std::size_t max_per_principal, std::size_t reserved = 0);

  /// Moves a connection to a number of the range and remembers its caller. Invalid: the range is in
  /// use, or the principal has as many connections as one may have.
  [[nodiscard]] ScopedFd admit(ScopedFd connection, const Caller& caller);
  /// The caller behind a gRPC peer name; empty if it is no connection of ours.
  [[nodiscard]] std::optional<Caller> find(std::string_view grpc_peer) const;

 private:
  [[nodiscard]] std::size_t connections_of(const std::string& principal) const;

  mutable std::mutex mutex_;
  int first_;
  std::size_t max_per_principal_;
  std::size_t next_ = 0;
  std::vector<std::optional<Caller>> callers_;  // index: number - first_
};

}  // namespace ncclscope::agent
