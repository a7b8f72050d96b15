// SPDX-License-Identifier: Apache-2.0
//
// Roles, and peer credentials of Unix sockets.
#include "agent/api/authorizer.h"

#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace ncclscope::agent {
namespace {

std::vector<gid_t> supplementary_groups(int fd) {
  std::vector<gid_t> groups(64);
  for (;;) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
      groups.resize(bytes / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE || bytes / sizeof(gid_t) <= groups.size())
      return {};  // an old kernel: primary group only
    groups.resize(bytes / sizeof(gid_t));
  }
}

}  // namespace

std::string_view name(Role role) {
  switch (role) {
    case Role::kUser:
      return "user";
    case Role::kViewer:
      return "viewer";
    case Role::kOperator:
      return "operator";
    case Role::kIngest:
      return "ingest";
    case Role::kAdministrator:
      return "administrator";
  }
  return "unknown";
}

std::string Caller::principal() const {
  return name.empty() ? concat("uid:", uid) : name;
}

std::string refusal(const Caller& caller, Permission permission) {
  const bool of_network = !caller.name.empty();
  const auto lacks = [&](const char* what, const char* who) {
    return concat("not allowed: ",
                  of_network ? concat("the role ", name(caller.role), " of ", caller.name)
                             : concat("uid ", caller.uid),
                  " may not ", what, "; ", who, " may");
  };
  switch (permission) {
    case Permission::kRead:
      if (caller.role == Role::kIngest) return lacks("read", "the roles user, viewer and operator");
      break;
    case Permission::kControl:
      if (caller.role == Role::kIngest || caller.role == Role::kViewer)
        return lacks("change what is recorded", "the roles user (own jobs) and operator (all)");
      break;
    case Permission::kPublish:
      // On the node itself every user may, as on the plugins' socket.
      if (caller.role != Role::kIngest && of_network)
        return lacks("send frames", "the role ingest");
      break;
    case Permission::kAdminister:
      if (!caller.is_administrator())
        return lacks("report jobs",
                     "root, the agent's own user and members of the administrators' group "
                     "(ncclscope-admin)");
      return {};
  }
  if (caller.role == Role::kUser && caller.uid < 0) return "the caller's user is unknown";
  return {};
}

PeerCredentialsAuthorizer::PeerCredentialsAuthorizer(const std::string& administrators_group)
    : own_uid_(::geteuid()) {
  // Once, before threads look at it.
  if (const group* found = ::getgrnam(administrators_group.c_str());
      found != nullptr)  // NOLINT(concurrency-mt-unsafe)
    group_id_ = found->gr_gid;
}

std::optional<Caller> PeerCredentialsAuthorizer::identify(int fd) const {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      bytes != sizeof credentials)
    return {};
  Caller caller;
  caller.uid = credentials.uid;
  bool administrator = credentials.uid == 0 || caller.uid == own_uid_;
  if (!administrator && group_id_ >= 0) {
    const std::vector<gid_t> groups = supplementary_groups(fd);
    administrator =
        credentials.gid == static_cast<gid_t>(group_id_) ||
        std::find(groups.begin(), groups.end(), static_cast<gid_t>(group_id_)) != groups.end();
  }
  if (administrator) caller.role = Role::kAdministrator;
  return caller;
}

}  // namespace ncclscope::agent
