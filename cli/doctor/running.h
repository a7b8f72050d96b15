// SPDX-License-Identifier: Apache-2.0
//
// What the node's running jobs show, from two pictures of the agent a few seconds apart and the
// counters of the RDMA ports at the same times: who they are, over which network they go, and
// whether they are as fast as the paths allow. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

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

/// The NCCL_* variables of the jobs' processes, as the agent judges them on its node, and where
/// they are not alike. Asked for with environments.
/// @param here  the agent's node, to judge on where the agent does not; null: it is another node
[[nodiscard]] topology::Findings check_job_settings(const v1::GetSnapshotResponse& snapshot,
                                                    const topology::Machine* here);

/// Of one job, the operations that the agent still holds. Of a collective's local ranks the one
/// that waited least tells how long it takes.
class HeldOperations {
 public:
  void add(const v1::Operation& operation);
  [[nodiscard]] std::uint64_t count() const { return shortest_ns_.size(); }
  /// Of those with a GPU time, less than 20 us long.
  [[nodiscard]] std::uint64_t short_ones() const;
  /// One of them was launched by a CUDA graph.
  [[nodiscard]] bool graph() const { return graph_; }
  /// Bus bandwidth that half of the large AllReduces reach, bytes per second, and how many there
  /// are.
  struct Speed {
    double median = 0;
    std::size_t operations = 0;
    std::string choice;  // "RING/SIMPLE", of the last one
  };
  [[nodiscard]] Speed large_reductions(const std::string& comm) const;

 private:
  /// Communicator, rank (-1: all of a collective), index.
  using Key = std::tuple<std::string, std::int32_t, std::uint64_t>;
  std::map<Key, std::uint64_t> shortest_ns_;
  struct Reductions {
    std::map<std::uint64_t, double> best;  // by index
    std::string choice;
  };
  std::map<std::string, Reductions> reductions_;  // large ones, by communicator
  bool graph_ = false;
};
using HeldByJob = std::map<std::string, HeldOperations>;  // by job_id

/// What happened between the two moments; the later one was asked for with environments.
[[nodiscard]] topology::Findings check_run(const Moment& before, const Moment& after,
                                           const topology::Machine& machine,
                                           const topology::Paths& paths, const HeldByJob& held);

/// Short operations without CUDA graphs, where launches are what takes the time.
[[nodiscard]] topology::Findings check_launches(const std::string& job, const HeldOperations& held);

}  // namespace ncclscope::cli
