// SPDX-License-Identifier: Apache-2.0
//
// Bind, probe and clean up.
#include "agent/api/unix_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace ncclscope::agent {
namespace {

Status make_room(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0)
    return errno == ENOENT ? Status() : Status::system("cannot look at " + path);
  if (!S_ISSOCK(info.st_mode))
    return {ErrorCode::kInUse,
            path + " exists and is not a socket; remove it or choose another API socket"};
  const ScopedFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return Status::system("socket");
  const bool answered =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN;
  if (answered || errno == EPROTOTYPE)
    return {ErrorCode::kInUse, "somebody listens on " + path + " already (another agent?)"};
  if (errno != ECONNREFUSED) return Status::system("cannot probe " + path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return Status::system("cannot remove the stale socket " + path);
  return {};
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::create(const std::string& path, unsigned mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Status::invalid("API socket \"" + path + "\" must have between 1 and " +
                           std::to_string(sizeof address.sun_path - 1) + " characters");
  std::memcpy(address.sun_path, path.data(), path.size());

  if (Status status = make_room(path, address); !status.ok()) return status;
  std::unique_ptr<UnixListener> out(new UnixListener);
  out->path_ = path;
  out->socket_ = ScopedFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out->socket_.valid()) return Status::system("socket");
  if (::bind(out->socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Status::system("cannot bind " + path);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    out->device_ = info.st_dev;
    out->inode_ = info.st_ino;
  }
  if (::chmod(path.c_str(), mode) != 0) return Status::system("cannot set the mode of " + path);
  if (::listen(out->socket_.get(), 64) != 0) return Status::system("cannot listen on " + path);
  return Result<std::unique_ptr<UnixListener>>(std::move(out));
}

UnixListener::~UnixListener() {
  struct stat info {};
  if (inode_ != 0 && ::stat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_)
    ::unlink(path_.c_str());
}

ScopedFd UnixListener::accept() {
  for (;;) {
    ScopedFd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) return connection;
    switch (errno) {
      case EAGAIN:
      case EINTR:
      case ECONNABORTED: {
        pollfd readable{socket_.get(), POLLIN, 0};
        ::poll(&readable, 1, -1);
        // A non-blocking socket that was shut down goes on to say EAGAIN; only poll tells.
        if ((readable.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return {};
        break;
      }
      case EMFILE:
      case ENFILE:
      case ENOMEM:
      case ENOBUFS:
        ::poll(nullptr, 0, 100);  // nothing to be done but to wait for others to close
        break;
      default:
        return {};  // EINVAL after shutdown()
    }
  }
}

void UnixListener::shutdown() {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace ncclscope::agent
