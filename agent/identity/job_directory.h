// SPDX-License-Identifier: Apache-2.0
//
// What is known of SLURM jobs from elsewhere than their processes: from hooks that the scheduler
// runs on the node (prolog, epilog). The job resolver asks it for every new process.
//   Thread: reactor.   find() never blocks: it looks up what has been reported before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ncclscope::agent {

/// Facts win over what a process claims of itself. An empty string, -1 or nullopt: nothing is known
/// of that, so the claim may fill it in.
struct JobFacts {
  std::string user;       // login name of the owner
  std::int64_t uid = -1;  // of the owner
  std::string job_name, partition, account;
  /// Set for a task of a job array: the array's SLURM id and the task's index.
  std::string array_job_id, array_task;
  /// Set for a component of a heterogeneous job: the id of its leader and the component's number.
  std::string het_job_id, het_offset;
  /// How often the job has been restarted (requeued) before; 0 for its first run.
  std::optional<std::uint32_t> restarts;
  /// CLOCK_MONOTONIC, ns; 0: not reported. A requeued job starts again: `ended_ns` is then of the
  /// run before (and less than `started_ns`) until the new one ends.
  std::uint64_t started_ns = 0;
  std::uint64_t ended_ns = 0;

  bool operator==(const JobFacts&) const = default;
};

/// An implementation may know nothing: this one does.
class JobDirectory {
 public:
  virtual ~JobDirectory() = default;
  /// @param slurm_job_id  the number that names the job on the node, as digits (SLURM_JOB_ID; for
  /// a task of an array it is the task's own number, not the array's)
  [[nodiscard]] virtual std::optional<JobFacts> find(
      [[maybe_unused]] std::string_view slurm_job_id) const {
    return std::nullopt;
  }
};

}  // namespace ncclscope::agent
