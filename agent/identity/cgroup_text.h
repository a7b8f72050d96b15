// SPDX-License-Identifier: Apache-2.0
//
// Reads /proc/<pid>/cgroup: which SLURM job, pod and container a process is in.
//   Thread: any (pure).   Memory: none; what it returns points into the text.
//
// Whatever a user can name must not count. The kernel refuses line breaks in names, so a line is a
// line; within a line names are believed from the root downwards for as long as only root and its
// services can have made them:
//   slices           *.slice except user.slice and below
//   SLURM, v2        .../[<node>_]slurmstepd.scope/job_J/step_S/{user,slurm}/task_T
//   SLURM, v1        /slurm[_<node>]/uid_U/job_J/step_S/task_T
//   pods             .../kubepods[/<qos>]/pod<uid>/<container>,
//   .../[..-]kubepods[-<qos>]-pod<uid>.slice/
//                    <runtime>-<container>.scope, <pod slice>:<runtime>:<container>
// Which wins where they are nested:
//   - SLURM in a pod: SLURM. Its daemon runs there as root and hands out the jobs. Whoever is root
//   in
//     some other pod could imitate that, so the pod is reported too, and the job must be kept apart
//     from the same id elsewhere.
//   - anything below a SLURM job: SLURM. What is below a job may be its owner's doing.
//   - a container in a pod: the pod.
//   - anything in a container outside Kubernetes (/docker/<id>, libpod-<id>.scope): the container,
//     which proves nothing. Its root may have made what is in it.
// A leading "/.." (the agent looks from a cgroup namespace of its own) is passed over: what follows
// is a sibling of one of the agent's own ancestors, and only root makes those.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ncclscope::agent {

struct CgroupPlace {
  std::string_view slurm_job, slurm_step, slurm_task;
  std::int64_t slurm_uid = -1;
  std::string_view pod_uid;  // as written; see normal_pod_uid
  std::string_view container_id, runtime;
  bool contradictory = false;  // hierarchies name different jobs or pods; all else is empty then
  bool operator==(const CgroupPlace&) const = default;
};

/// @param text  the whole file, or its beginning: an unfinished last line is passed over
[[nodiscard]] CgroupPlace parse_cgroup_text(std::string_view text);

/// One path out of that file ("/system.slice/slurmstepd.scope/job_7/step_0").
[[nodiscard]] CgroupPlace parse_cgroup_path(std::string_view path);

/// A pod uid as the API server writes it: underscores of systemd units become dashes. Empty unless
/// it is a UUID or, for static pods, 32 hexadecimal digits.
[[nodiscard]] std::string normal_pod_uid(std::string_view text);

}  // namespace ncclscope::agent
