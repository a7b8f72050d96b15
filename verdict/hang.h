// SPDX-License-Identifier: Apache-2.0
//
// Who keeps a job from moving, from how far everybody is now: the formulas of the recording rules
// (group ncclscope.progress). Pure; linear in the job.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "verdict/job.h"
#include "verdict/thresholds.h"

namespace ncclscope::verdict {

struct HangOptions {
  double hang_seconds = thresholds::kHangSeconds;
  double stalled_seconds = thresholds::kStalledSeconds;
  double coverage = thresholds::kCoverage;
  /// Nobody calls NCCL for so long.
  double outside_seconds = thresholds::kOutsideForSeconds;
  /// A running process that says nothing for so long is stopped, or its node is.
  double silent_seconds = thresholds::kSilentSeconds;
};

enum class HangClass : std::uint8_t {
  kProcessGone,       // ended, or reports no more
  kProcessStopped,    // is there, and says nothing
  kArgumentMismatch,  // other operation, size, datatype or root at the same index
  kRankNeverCalled,   // others wait in an operation that it did not call
  kGpuNeverStarted,   // called, and its GPU never started
  kNetworkStuck,      // all called and started; nobody is accused
  kOutsideNccl,       // nobody is in NCCL at all
  kUnknown,           // stands still, and what it would be known by was not recorded
};
/// As in the label `class` of NcclscopeHang.
[[nodiscard]] std::string_view name(HangClass hang_class);

/// A communicator that stands still.
struct Hang {
  HangClass hang_class{};
  std::uint32_t communicator = kNone;  // kNone: the whole job
  std::vector<std::uint32_t> members;  // accused, may be empty
  double seconds = 0;                  // so long it has stood still
  double threshold_seconds = 0;        // from here on it is a hang; below it is told as information
  std::uint32_t unreported = 0;        // ranks of which nothing is known
  bool point_to_point = false;         // what it stands still in are Send and Recv
  bool unobserved = false;             // of the accused's last operations nobody sees the end
  bool sure = true;                    // false: what is not known could change who is accused

  [[nodiscard]] bool is_hang() const { return seconds >= threshold_seconds; }
};

/// Every communicator that waits for at least `stalled_seconds` and has a cause of its own,
/// longest first; those that only wait for another one's cause are left out.
[[nodiscard]] std::vector<Hang> find_hangs(const Job& job, const Standing& standing,
                                           const HangOptions& options = {});

/// From here on a wait is a hang.
[[nodiscard]] double hang_threshold(const Standing& standing, const HangOptions& options);

}  // namespace ncclscope::verdict
