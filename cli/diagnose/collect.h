// SPDX-License-Identifier: Apache-2.0
//
// Asks all agents of a job at once, each with the same deadline.
//   Threads: its own while it asks, at most kMostThreads. An agent that does not answer costs the
//   deadline once, whatever their number.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/agents.h"
#include "cli/diagnose/observation.h"

namespace ncclscope::cli {

inline constexpr std::size_t kMostThreads = 64;

[[nodiscard]] Round ask_all(const std::vector<Agent>& agents, const std::string& job_id,
                            std::chrono::milliseconds deadline);

}  // namespace ncclscope::cli
