// SPDX-License-Identifier: Apache-2.0
// Layouts of training jobs and the steps their ranks run: which communicators exist, who is in
// them, which collectives of which size come in which order beside how much computing. run_rank
// plays one rank on one Host, on the calling thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fault.h"
#include "sim/host.h"

namespace ncclscope::sim {

enum class LayoutKind { kDdp, kFsdp, kMegatron, kMoe };

struct Layout {
  LayoutKind kind = LayoutKind::kDdp;
  int tp = 1;       ///< tensor parallel, neighbouring ranks
  int pp = 1;       ///< pipeline stages, ranks farthest apart
  int dp = 0;       ///< data parallel; 0: what is left of the job
  int ep = 0;       ///< expert parallel, within data parallel; 0: one node's ranks
  int buffers = 0;  ///< of ddp: 1 broadcasts the module's buffers before each forward pass
  int hot = 0;      ///< of moe: the first expert takes so many percent more tokens
  int copy =
      0;  ///< of moe: 1 copies a rank's own tokens without NCCL, else they are sent to itself
};

/// Reads "ddp", "ddp:buffers=1", "fsdp", "megatron:tp=2,pp=2,dp=2" or "moe:ep=4,hot=50". On
/// failure *error says what is wrong.
Layout parse_layout(const std::string& text, std::string* error);
std::string to_text(const Layout& layout);
/// Fills in dp and ep for a job of `world` ranks; *error if the sizes do not fit.
Layout resolve_layout(Layout layout, int world, int gpus_per_node, std::string* error);

struct JobShape {
  int nodes = 1;
  int gpus_per_node = 1;
  Layout layout;  ///< resolved
  std::uint64_t seed = 1;
  int world() const { return nodes * gpus_per_node; }
  int node_of(int rank) const { return rank / gpus_per_node; }
};

/// One communicator of the job: its name and its members in order of rank.
struct GroupPlan {
  std::string name;
  std::uint64_t hash = 0;
  std::vector<int> members;  ///< global ranks
};
/// All communicators that `rank` is in, in order of creation.
std::vector<GroupPlan> groups_of(const JobShape& job, int rank);

struct StepModel {
  std::int64_t compute_ns = 20000000;  ///< computing of one step on one GPU
  double compute_noise = 0.01;         ///< relative standard deviation per rank and step
  double message_scale = 1;            ///< scales all message sizes
  int sync_every = 1;                  ///< steps between host synchronisations
};

struct RankRun {
  JobShape job;
  StepModel model;
  std::vector<Fault> faults;
  int rank = 0;
  std::int64_t end_time = kNever;  ///< when to begin no further step
  std::int64_t hard_end = kNever;  ///< when to give up waiting
  std::int64_t steps = INT64_MAX;
  bool destroy = true;  ///< destroy communicators at the end
};
struct RankOutcome {
  std::int64_t steps = 0;
  bool hung = false;
  bool aborted = false;
};
RankOutcome run_rank(Host* host, const RankRun& run);

}  // namespace ncclscope::sim
