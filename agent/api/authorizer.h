// SPDX-License-Identifier: Apache-2.0
//
// Who calls, and what they may do. One place decides; services ask it for every job.
//   Users see and control their own jobs. On the Unix socket root, the agent's own user and members
//   of the administrators' group see and control all; over the network a certificate or a token has
//   one of the other roles. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agent/base/result.h"

namespace ncclscope::agent {

enum class Role : std::uint8_t {
  kUser,           // own jobs: read and control
  kViewer,         // reads all jobs
  kOperator,       // viewer, and sets the detail of all jobs
  kIngest,         // sends frames, reads nothing
  kAdministrator,  // everything; never over the network
};
[[nodiscard]] std::string_view name(Role role);

/// What a call wants to do, before it is known to which job.
enum class Permission : std::uint8_t { kRead, kControl, kPublish, kAdminister };

/// A caller as the kernel, a certificate or a token proves it.
struct Caller {
  std::int64_t uid = -1;  // -1: unknown, owns nothing
  Role role = Role::kUser;
  std::string name{};  // for logs and quotas, of the certificate or token; empty on the Unix socket

  [[nodiscard]] bool is_administrator() const noexcept { return role == Role::kAdministrator; }
  /// May see what belongs to `owner_uid` (-1: owner unknown).
  [[nodiscard]] bool may_read(std::int64_t owner_uid) const noexcept {
    return reads_all() || owns(owner_uid);
  }
  [[nodiscard]] bool reads_all() const noexcept { return role == Role::kViewer || controls_all(); }
  [[nodiscard]] bool controls_all() const noexcept {
    return role == Role::kOperator || is_administrator();
  }
  /// Who pays for what the caller does: "uid:1000", "token:grafana".
  [[nodiscard]] std::string principal() const;

 private:
  [[nodiscard]] bool owns(std::int64_t owner_uid) const noexcept {
    return role == Role::kUser && uid >= 0 && uid == owner_uid;
  }
};

/// Empty if a caller may do such things at all; else why not, for the caller to read. Says nothing
/// of jobs: one that belongs to another looks like one that does not exist.
[[nodiscard]] std::string refusal(const Caller& caller, Permission permission);

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
