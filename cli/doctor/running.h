// SPDX-License-Identifier: Apache-2.0
//
// What the node's running jobs show, from two pictures of the agent a few seconds apart and the
// counters of the RDMA ports at the same times: who they are, over which network they go, and
// whether they are as fast as the paths allow. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ncclscope/v1/agent.pb.h"
#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::cli {

/// Bytes sent and received by each active port, "mlx5_0/1". Empty: there are none, or none can be
/// read.
using PortBytes = std::map<std::string, std::uint64_t>;
[[nodiscard]] PortBytes read_port_bytes(const topology::Machine& machine,
                                        const topology::FileTree& sys);

struct Moment {
  v1::GetSnapshotResponse snapshot;
  PortBytes ports;
};

/// Agent and plugins of one release, jobs proved and not only claimed, one NCCL per job.
[[nodiscard]] topology::Findings check_versions(const v1::GetSnapshotResponse& snapshot,
                                                const v1::GetBooksResponse& books,
                                                const std::string& own_version);

/// What happened between the two moments.
[[nodiscard]] topology::Findings check_run(const Moment& before, const Moment& after,
                                           const topology::Machine& machine,
                                           const topology::Paths& paths);

/// Of the operations the agent still holds: short ones without CUDA graphs, where launches are what
/// takes the time.
struct LaunchCount {
  std::uint64_t operations = 0, timed_short = 0, graph = 0;
  void add(const v1::Operation& operation);
};
[[nodiscard]] topology::Findings check_launches(const std::string& job, const LaunchCount& count);

}  // namespace ncclscope::cli
