// SPDX-License-Identifier: Apache-2.0
//
// What the graded paths allow a communicator to reach on the bus, and which link decides it.
//   Thread: pure.   Units: GB/s (10^9 bytes) of bus bandwidth, as nccl-tests counts it.
//   May fail: where a link's speed is not known, nothing is known of the whole: never guessed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::topology {

struct Limit {
  double gigabytes = 0;  // per second; 0 = not known
  std::string what;      // the link that decides, or why nothing is known
};

/// Of a ring, hence of AllReduce, AllGather and ReduceScatter by any algorithm that does not let
/// switches compute (NVLS and SHARP may pass it).
/// @param gpus  this node's GPUs in the communicator, in the order of their ranks; doubles are
/// ranks that share one
/// @param nnodes  nodes of the communicator; the others are taken to be like this one
[[nodiscard]] Limit ring_limit(const Machine& machine, const Paths& paths,
                               const std::vector<std::size_t>& gpus, unsigned nnodes);

/// Of AlltoAll, in which every GPU sends to every other at once. Known where GPUs are joined by
/// NVLink or PCIe switches; through CPUs the pairs share links in ways that the grades do not tell.
[[nodiscard]] Limit all_to_all_limit(const Machine& machine, const Paths& paths,
                                     const std::vector<std::size_t>& gpus, unsigned nnodes);

}  // namespace ncclscope::topology
