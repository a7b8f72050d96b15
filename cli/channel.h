// SPDX-License-Identifier: Apache-2.0
//
// A channel to one agent, for services other than AgentService.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "cli/agents.h"

namespace ncclscope::cli {

/// To the only agent of `options`, which connect() has checked. Throws CLI::ValidationError.
[[nodiscard]] std::shared_ptr<grpc::Channel> open_channel(const AgentOptions& options);

}  // namespace ncclscope::cli
