// SPDX-License-Identifier: Apache-2.0
//
// Who calls, and what they may see. One place decides; services ask it for every job.
//   Users see and control their own jobs. Root, the agent's own user and members of the
//   administrators' group see all. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

/// A caller as the kernel proves it.
struct Caller {
  std::int64_t uid = -1;  // -1: unknown, sees nothing
  bool administrator = false;

  /// May see and control what belongs to `owner_uid` (-1: owner unknown).
  [[nodiscard]] bool may_access(std::int64_t owner_uid) const noexcept {
    return administrator || (uid >= 0 && uid == owner_uid);
  }
};

/// Finds out who is at the other end of a connection.
class Authorizer {
 public:
  virtual ~Authorizer() = default;
  /// Identifies the peer of a connected Unix socket. Empty: refuse the connection.
  [[nodiscard]] virtual std::optional<Caller> identify(int fd) const = 0;
};

/// SO_PEERCRED and SO_PEERGROUPS. The group need not exist: then only root and the agent's user are
/// administrators.
class PeerCredentialsAuthorizer final : public Authorizer {
 public:
  explicit PeerCredentialsAuthorizer(const std::string& administrators_group = "ncclscope-admin");
  [[nodiscard]] std::optional<Caller> identify(int fd) const override;

 private:
  std::int64_t own_uid_;
  std::int64_t group_id_ = -1;
};

}  // namespace ncclscope::agent
