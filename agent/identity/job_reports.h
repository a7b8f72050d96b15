// SPDX-License-Identifier: Apache-2.0
//
// The door through which the API hands what prolog and epilog say to the job table.
//   Thread: any; each call runs on the reactor and waits for it.   Whoever calls has checked that
//   the caller may report jobs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "agent/base/reactor.h"
#include "agent/identity/job_table.h"

namespace ncclscope::agent {

class JobReports {
 public:
  virtual ~JobReports() = default;
  /// Number of restarts of the job as now known; empty: the agent is stopping.
  virtual std::optional<std::uint32_t> start(std::string_view slurm_job_id,
                                             const JobFacts& facts) = 0;
  /// Whether the job was known; empty: the agent is stopping.
  virtual std::optional<bool> end(std::string_view slurm_job_id) = 0;
};

/// Both must outlive it.
class ReactorJobReports final : public JobReports {
 public:
  ReactorJobReports(Reactor& reactor, JobTable& table) : reactor_(reactor), table_(table) {}

  std::optional<std::uint32_t> start(std::string_view slurm_job_id,
                                     const JobFacts& facts) override {
    std::optional<std::uint32_t> restarts;
    reactor_.call([&] { restarts = table_.start(slurm_job_id, facts); });
    return restarts;
  }
  std::optional<bool> end(std::string_view slurm_job_id) override {
    std::optional<bool> known;
    reactor_.call([&] { known = table_.end(slurm_job_id); });
    return known;
  }

 private:
  Reactor& reactor_;
  JobTable& table_;
};

}  // namespace ncclscope::agent
