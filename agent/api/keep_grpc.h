// SPDX-License-Identifier: Apache-2.0
//
// gRPC is kept to the end of the process. Its last user would shut it down, and so join a thread of
// its that may just have begun to wait for its descriptors for ten seconds: an agent that was asked
// to stop would be gone as much later, and its successor with it. Thread: any.
#pragma once

#include <grpc/grpc.h>

namespace ncclscope::agent {

inline void keep_grpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

}  // namespace ncclscope::agent
