// SPDX-License-Identifier: Apache-2.0
//
// Who a job is, and a process's place in it. Plain values; strings are label values, sanitised and
// bounded.
#pragma once

#include <cstdint>
#include <string>

namespace ncclscope::agent {

/// Who a job is. Label values are already sanitised and bounded.
struct JobIdentity {
  std::string job_id;
  std::string cluster;
  std::string user, partition, account, job_name, array_task;
  std::uint32_t run = 0;
  std::string kubernetes_namespace, pod;
  std::string identity_source;  // "cgroup", "claimed", "unknown"
  std::int64_t uid = -1;  // owner as the kernel says; -1: not proved. Decides who may see the job
};

/// A process: its job and its place there.
struct ProcessIdentity {
  JobIdentity job;
  std::string global_rank, local_rank;  // as the launcher numbers them; empty = unknown
  std::int32_t local_index = -1;        // local_rank (or the SLURM local id) as a number
  bool mismatch = false;                // what the process claims is not what the kernel says
};

}  // namespace ncclscope::agent
