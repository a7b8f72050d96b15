// SPDX-License-Identifier: Apache-2.0
//
// What SLURM said of the jobs on this node: prolog and epilog through the API, and squeue.
//   Thread: reactor (other threads come through JobReports or post closures).   Times:
//   CLOCK_MONOTONIC, ns. Bounded: beyond `max_jobs` the job that ended first is forgotten, then the
//   one that started first; that costs its labels, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/identity/job_directory.h"

namespace ncclscope::agent {

/// A job as squeue lists it.
struct QueuedJob {
  std::string slurm_job_id;
  JobFacts facts;
};

/// Field by field: what the prolog reported comes before what squeue said.
class JobTable final : public JobDirectory {
 public:
  struct Options {
    std::size_t max_jobs = 4096;
    std::uint64_t grace_ns = 300'000'000'000;  // how long a job that has ended is remembered
  };
  JobTable(const Clock& clock, const Options& options) : clock_(clock), options_(options) {}

  [[nodiscard]] std::optional<JobFacts> find(std::string_view slurm_job_id) const override;
  /// Whether since the last call somebody asked for a job that squeue has not listed.
  [[nodiscard]] bool take_missed() { return std::exchange(missed_, false); }

  /// The prolog ran. Told once more while the job runs, it adds what was not known. After end() it
  /// is the job's next run, even if `facts` does not tell how often it was restarted. Returns the
  /// number of restarts.
  std::uint32_t start(std::string_view slurm_job_id, const JobFacts& facts);
  /// The epilog ran. False: the job is not known.
  bool end(std::string_view slurm_job_id);
  /// All jobs that run on this node as squeue sees them now. One that it listed before and does not
  /// list any more has ended.
  void set_queue(const std::vector<QueuedJob>& jobs);

  /// Forgets jobs that ended longer than the grace time ago.
  void tick();
  void set_grace_ns(std::uint64_t grace_ns) { options_.grace_ns = grace_ns; }

  [[nodiscard]] std::size_t size() const { return jobs_.size(); }
  /// Changes whenever find() may have learned something (not when a job is forgotten).
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

 private:
  struct Entry {
    JobFacts reported;        // by the prolog
    JobFacts queued;          // by squeue
    bool in_queue = false;    // listed the last time
    bool left_queue = false;  // listed before, in this run
    bool ended = false;
    std::uint64_t started_ns = 0, ended_ns = 0;
  };
  using Jobs = std::map<std::string, Entry, std::less<>>;

  Entry& entry(std::string_view slurm_job_id);
  void make_room();
  void begin_run(Entry& e) const;
  void end_run(Entry& e) const;

  const Clock& clock_;
  Options options_;
  Jobs jobs_;
  std::uint64_t generation_ = 0;
  mutable bool missed_ = false;
  LogLimiter full_;
};

}  // namespace ncclscope::agent
