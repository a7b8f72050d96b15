// SPDX-License-Identifier: Apache-2.0
//
// NCCL Inspector's environment variables (NCCL_INSPECTOR_*), and ours that add to them: what files
// the process is to write besides what it sends to the agent.
//   Thread: read once, in the first init, on the thread that calls it; constant after that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/model/inspector.h"
#include "proto/nccl/profiler_common.h"

namespace ncclscope::plugin::inspector {

inline constexpr std::size_t kMaxPathBytes = 1024;  // of a directory

enum class Format : std::uint8_t { kV40, kV42 };

struct Options {
  /// NCCL_INSPECTOR_DUMP_DIR is set and NCCL_INSPECTOR_DUMP_THREAD_ENABLE is not 0.
  bool enabled = false;
  char directory[kMaxPathBytes] = {};      // NCCL_INSPECTOR_DUMP_DIR
  char p2p_directory[kMaxPathBytes] = {};  // NCCLSCOPE_INSPECTOR_P2P_DIR; empty: none
  Format format = Format::kV40;            // NCCLSCOPE_INSPECTOR_FORMAT
  bool prometheus = false;                 // NCCL_INSPECTOR_PROM_DUMP: textfiles in place of lines
  bool p2p = true;                         // NCCL_INSPECTOR_ENABLE_P2P
  bool verbose = false;                    // NCCL_INSPECTOR_DUMP_VERBOSE
  bool gpu_times_only = true;              // NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING
  /// NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS, at least a second; 0: when a communicator
  /// ends, when the process ends, and when the queue is half full.
  std::uint64_t interval_ns = 0;
  /// NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, of one rank.
  std::uint64_t min_bytes = model::inspector::kMinBytes;
  char cluster[129] = {};  // NCCL_INSPECTOR_CLUSTER, SLURM_CLUSTER_NAME
  char job_id[129] = {};   // SLURM_JOB_ID, SLURM_JOBID, PBS_JOBID, LSB_JOBID
  /// LOCAL_RANK, SLURM_LOCALID: which GPU of the node it is, where nothing else says so; -1: not
  /// set
  std::int32_t local_rank = -1;

  /// Lines need the times of each channel.
  [[nodiscard]] bool wants_channels() const noexcept {
    return enabled && !prometheus && (verbose || !gpu_times_only);
  }
};

/// Fills `options`. What is bad, raised or without effect is named through `log` (may be null).
void read_options(Options& options, nccl::DebugLogger log) noexcept;

/// NCCL_INSPECTOR_ENABLE is 0: for processes without a setting of our own, the plugin is off.
[[nodiscard]] bool switched_off() noexcept;

}  // namespace ncclscope::plugin::inspector
