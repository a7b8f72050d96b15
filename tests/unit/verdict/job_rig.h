// SPDX-License-Identifier: Apache-2.0
//
// Jobs, windows and standings made by hand. Times in seconds; rates per second of the window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verdict/judge.h"

namespace ncclscope::verdict {

/// `nodes` nodes of `gpus` GPUs; global ranks in that order.
inline Job make_job(int nodes, int gpus) {
  Job job;
  job.job_id = "4711";
  for (int n = 0; n < nodes; ++n) {
    for (int g = 0; g < gpus; ++g) {
      const std::string node = "node" + std::to_string(n);
      job.gpus.push_back({node, g, std::to_string(n * gpus + g)});
    }
  }
  return job;
}

inline std::uint32_t add_communicator(Job& job, const std::string& name,
                                      const std::string& dimension,
                                      const std::vector<std::uint32_t>& gpus) {
  const auto index = static_cast<std::uint32_t>(job.communicators.size());
  Communicator c;
  c.comm = std::string(15, '0') + std::to_string(index);
  c.name = name;
  c.dimension = dimension;
  c.nranks = static_cast<std::uint32_t>(gpus.size());
  c.nnodes = 2;
  job.communicators.push_back(c);
  for (std::size_t r = 0; r < gpus.size(); ++r)
    job.members.push_back({index, gpus[r], static_cast<std::int32_t>(r)});
  return index;
}

/// The member of (communicator, rank).
inline std::uint32_t member(const Job& job, std::uint32_t communicator, std::int32_t rank) {
  for (std::uint32_t m = 0; m < job.members.size(); ++m) {
    if (job.members[m].communicator == communicator && job.members[m].rank == rank) return m;
  }
  return kNone;
}

/// One communicator of all GPUs, data-parallel.
inline Job ddp_job(int nodes, int gpus) {
  Job job = make_job(nodes, gpus);
  std::vector<std::uint32_t> all;
  for (std::uint32_t g = 0; g < job.gpus.size(); ++g) all.push_back(g);
  add_communicator(job, "dp_group", "dp", all);
  return job;
}

/// 10 s in which every rank did 10 operations per second of 10 ms in each communicator.
inline Window even_window(const Job& job) {
  Window window;
  window.seconds = 10;
  for (std::uint32_t m = 0; m < job.members.size(); ++m)
    window.collectives.push_back({m, Collective::kAllReduce, 10, 0.1, 1e9});
  for (std::uint32_t c = 0; c < job.communicators.size(); ++c)
    window.shapes.push_back({c, Collective::kAllReduce, "<=256MiB", "RING", 1});
  window.gpus.resize(job.gpus.size());
  window.coverage.assign(job.communicators.size(), 1);
  return window;
}

/// The same, and all ranks of `communicator` but `rank` wait `seconds` per second for it.
inline void make_late(const Job& job, Window& window, std::uint32_t communicator, std::int32_t rank,
                      double seconds) {
  for (CollectiveRates& rates : window.collectives) {
    const Member& m = job.members[rates.member];
    if (m.communicator == communicator && m.rank != rank) rates.seconds += seconds;
  }
}

/// Everybody did 100 collectives of each communicator, and nothing is in flight.
inline Standing idle(const Job& job) {
  Standing standing;
  Progress progress;
  progress.enqueued = progress.started = progress.completed = 100;
  standing.progress.assign(job.members.size(), progress);
  standing.coverage.assign(job.communicators.size(), 1);
  return standing;
}

/// `member` has called and started one more, and has waited in it for `seconds`.
inline void wait_in(Standing& standing, std::uint32_t member, double seconds,
                    std::uint64_t signature = 7) {
  Progress& p = standing.progress[member];
  p.enqueued = p.completed + 1;
  p.started = p.completed + 1;
  p.inflight_seconds = seconds;
  p.signature = signature;
}

}  // namespace ncclscope::verdict
