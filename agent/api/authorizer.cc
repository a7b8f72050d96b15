// SPDX-License-Identifier: Apache-2.0
//
// Peer credentials of Unix sockets.
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
  caller.administrator = credentials.uid == 0 || caller.uid == own_uid_;
  if (!caller.administrator && group_id_ >= 0) {
    const std::vector<gid_t> groups = supplementary_groups(fd);
    caller.administrator =
        credentials.gid == static_cast<gid_t>(group_id_) ||
        std::find(groups.begin(), groups.end(), static_cast<gid_t>(group_id_)) != groups.end();
  }
  return caller;
}

}  // namespace ncclscope::agent
