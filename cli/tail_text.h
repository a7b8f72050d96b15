// SPDX-License-Identifier: Apache-2.0
//
// One line per record of the tail. Pure.
#pragma once

#include <string>

#include "ncclscope/v1/agent.pb.h"

namespace ncclscope::cli {

/// Without a newline; empty for a response without a record.
[[nodiscard]] std::string tail_line(const std::string& node,
                                    const v1::TailOperationsResponse& response);

}  // namespace ncclscope::cli
