// SPDX-License-Identifier: Apache-2.0
//
// A listening stream socket in the file system that does not take a living agent's place.
//   Thread: one per object, except shutdown().
#pragma once

#include <memory>
#include <string>

#include "agent/base/result.h"
#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

class UnixListener {
 public:
  /// Binds `path` with `mode`. A socket on which nobody listens is replaced; one that answers, or a
  /// file of another kind, is an error. The directory must exist.
  static Result<std::unique_ptr<UnixListener>> create(const std::string& path, unsigned mode);
  ~UnixListener();  // removes the socket file if it is still ours
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  /// Waits for a connection. Invalid: shut down, or accept() failed for good.
  [[nodiscard]] ScopedFd accept();
  /// Ends accept() on another thread; no connection is accepted after that.
  void shutdown();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UnixListener() = default;

  std::string path_;
  ScopedFd socket_;
  unsigned long device_ = 0;
  unsigned long inode_ = 0;
};

}  // namespace ncclscope::agent
