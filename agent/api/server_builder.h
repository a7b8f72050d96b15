// SPDX-License-Identifier: Apache-2.0
//
// What the servers on the Unix socket and on TCP have in common: the threads of gRPC that each may
// have, how large a request may be, and that gRPC lives as long as the process. Thread: any.
#pragma once

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <string>

#include "proto/wire/frame.h"

namespace ncclscope::agent {

/// The last user of gRPC would shut it down, and so join a thread of its that may just have begun
/// to wait for its descriptors for ten seconds: an agent that was asked to stop would be gone as
/// much later, and its successor with it.
inline void keep_grpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

/// To be called before anything else is done with `builder`.
inline void set_limits(grpc::ServerBuilder& builder, const std::string& name, int max_threads) {
  keep_grpc();
  grpc::ResourceQuota quota(name);
  quota.SetMaxThreads(max_threads);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  // Requests are small; a frame is the largest.
  builder.SetMaxReceiveMessageSize(static_cast<int>(2 * wire::kMaxFrameBytes));
}

}  // namespace ncclscope::agent
