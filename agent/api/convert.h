// SPDX-License-Identifier: Apache-2.0
//
// The agent's structures into API messages. Pure; nothing here decides who may see what.
#pragma once

#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/settings_judge.h"
#include "agent/aggregate/snapshot.h"
#include "ncclscope/v1/agent.pb.h"

namespace ncclscope::agent {

void to_message(const JobSnapshot& job, v1::JobSnapshot& out);
void to_message(const ProcessSnapshot& process, v1::ProcessBooks& out);
/// Adds the environments of its processes; `judge` may be null.
void add_environments(const JobSnapshot& job, const SettingsJudge* judge, v1::JobSnapshot& out);
void to_message(const CommunicatorSnapshot& communicator, const RankSnapshot& rank,
                v1::RankBooks& out);
void to_message(const RankSnapshot& rank, v1::RankProgress& out);

/// Operation, network or channel; false (and `out` untouched) for a record of another type.
[[nodiscard]] bool to_message(const TailRecord& record, v1::TailOperationsResponse& out);

}  // namespace ncclscope::agent
