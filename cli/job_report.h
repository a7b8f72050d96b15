// SPDX-License-Identifier: Apache-2.0
//
// What `ncclscope job start` tells the agent: flags first, then the environment of SLURM's prolog
// or of a job. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ncclscope/v1/agent.pb.h"

namespace ncclscope::cli {

/// The flags; empty = not given.
struct JobFlags {
  std::string id, user, uid, name, partition, account;
  std::string array_job, array_task, het_job, het_offset, restarts;
};

/// A variable of the environment, empty if there is none.
using Environment = std::function<std::string(const char* name)>;

/// SLURM's number of the job, from --id or SLURM_JOB_ID; empty if neither says.
[[nodiscard]] std::string job_id_of(const JobFlags& flags, const Environment& environment);

/// Fills `request`. Returns what is wrong with a value, empty if nothing is.
[[nodiscard]] std::string fill_start_request(const JobFlags& flags, const Environment& environment,
                                             v1::StartJobRequest& request);

}  // namespace ncclscope::cli
