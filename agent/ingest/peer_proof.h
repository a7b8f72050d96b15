// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says of a process that has connected: the scheduler's objects that it runs in.
// Plain values, taken once, when the connection is accepted.   Thread: any (a value).
#pragma once

#include <cstdint>
#include <string>

namespace ncclscope::agent {

struct PeerProof {
  enum class Outcome : std::uint8_t {
    kNotAsked,     // no process of this machine, or nobody looked
    kRead,         // the process's cgroups were read; they may say nothing of a job
    kNotVisible,   // the process lives in a pid namespace that the agent cannot see
    kGone,         // the process had ended before its cgroups could be read
    kMayBeReused,  // without pidfd and too young: its pid may have been another's when it connected
    kUnreadable,   // procfs refused (hidepid, not mounted)
    kContradictory,  // two hierarchies name two different jobs or pods
  };
  Outcome outcome = Outcome::kNotAsked;

  // SLURM, empty: in no job. The ids are digits; step may also be "batch", "extern", "interactive".
  std::string slurm_job, slurm_step, slurm_task;
  std::int64_t slurm_uid = -1;  // owner of the job; -1: the cgroup does not say

  // Kubernetes, empty: in no pod. A job of a SLURM that runs inside Kubernetes has both.
  std::string pod_uid;                  // lower case, dashes where the kubelet writes some
  std::string pod_namespace, pod_name;  // empty: the pod is not among the node's log directories

  std::string container_id, runtime;  // also of containers outside Kubernetes; may be empty

  [[nodiscard]] bool in_slurm() const { return !slurm_job.empty(); }
  [[nodiscard]] bool in_pod() const { return !pod_uid.empty(); }
};

}  // namespace ncclscope::agent
