// SPDX-License-Identifier: Apache-2.0
// Faults of a simulated job and their text form, as the command line takes them. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ncclscope::sim {

enum class FaultKind {
  kLate,        ///< host comes late to each step (data loader, Python)
  kSlowGpu,     ///< all kernels of the application take longer
  kSlowKernel,  ///< communication kernels of this GPU take longer
  kSlowLink,    ///< network transfers of this rank or node take longer
  kSlowNic,     ///< those to it as well
  kMissing,     ///< never calls again
  kStuck,       ///< network transfers of this rank or node never end
  kMismatch,    ///< calls one collective with another count
  kCrash,       ///< process dies by SIGKILL
  kAbort,       ///< all ranks abort their communicators in the middle of the step
  kPause,       ///< one long stay outside NCCL (checkpoint) at one step
};

struct Fault {
  FaultKind kind = FaultKind::kLate;
  int rank = -1;  ///< global rank, or -1: see node; abort concerns all
  int node = -1;  ///< all ranks of a node
  std::int64_t delay_ns = 0;
  double factor = 1;
  std::int64_t from_step = 0;
  std::int64_t until_step = INT64_MAX;  ///< exclusive
  bool concerns(int global_rank, int global_node) const {
    if (kind == FaultKind::kAbort) return true;
    return rank == global_rank || (node >= 0 && node == global_node);
  }
  bool active(std::int64_t step) const { return step >= from_step && step < until_step; }
};

/// Reads "kind:key=value,...", for instance "late:rank=3,ms=40" or
/// "slow-link:node=1,factor=4,from=20". Keys: rank, node, ms, us, factor, from (or step), until. On
/// failure *error says what was wrong with which value and what would be right; it is empty
/// otherwise.
Fault parse_fault(const std::string& text, std::string* error);
std::string to_text(const Fault& fault);
const char* fault_help();

}  // namespace ncclscope::sim
