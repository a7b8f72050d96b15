// SPDX-License-Identifier: Apache-2.0
//
// What is inferred about a job from its operations: how long its steps are, for how long its GPUs
// communicate, and the share of a step that communication takes.
//   Thread: reactor.   Memory: fixed per GPU and job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "agent/aggregate/busy_union.h"
#include "agent/aggregate/snapshot.h"
#include "agent/identity/gpu_table.h"
#include "verdict/step_period.h"

namespace ncclscope::agent {

using verdict::Step;
using verdict::step_signature;
using verdict::StepOperation;
using verdict::StepPeriod;

/// One GPU in one job: all processes of the job on that GPU share it.
struct GpuActivity {
  GpuRef gpu;
  std::uint64_t session_id = 0;  // of the only process, where the GPU is not known; else 0
  BusyUnion busy;

  /// Takes the steps that have ended, in order, of one process.
  void add_steps(std::span<const Step> steps) {
    for (const Step& step : steps) {
      if (!step.on_gpu) {
        last_stop_ns_ = 0;
        continue;
      }
      const std::uint64_t busy_ns = busy.busy_before_ns(step.stop_ns);
      if (step.start_ns == last_stop_ns_ && &step == &steps.back()) {
        // The past fades: the ratio is that of some ten steps.
        busy_of_steps_ns_ = 0.9 * busy_of_steps_ns_ + static_cast<double>(busy_ns - last_busy_ns_);
        steps_ns_ = 0.9 * steps_ns_ + static_cast<double>(step.stop_ns - since_ns_);
        since_ns_ = step.stop_ns;
        last_busy_ns_ = busy_ns;
      } else if (step.start_ns != last_stop_ns_) {
        since_ns_ = step.stop_ns;
        last_busy_ns_ = busy_ns;
      }
      last_stop_ns_ = step.stop_ns;
    }
  }
  /// Communication time of a step / its length, over the last steps.
  [[nodiscard]] std::optional<double> communication_ratio() const {
    if (steps_ns_ <= 0) return std::nullopt;
    return std::min(1.0, busy_of_steps_ns_ / steps_ns_);
  }

 private:
  std::uint64_t since_ns_ = 0;      // step end that last_busy_ns_ belongs to
  std::uint64_t last_stop_ns_ = 0;  // of the step taken last
  std::uint64_t last_busy_ns_ = 0;
  double busy_of_steps_ns_ = 0;
  double steps_ns_ = 0;
};

/// The smallest i with length <= kStepBoundsNs[i]; kStepBounds for longer ones.
[[nodiscard]] constexpr std::size_t step_bucket(std::uint64_t length_ns) noexcept {
  std::size_t i = 0;
  while (i < kStepBounds && length_ns > kStepBoundsNs[i]) ++i;
  return i;
}

}  // namespace ncclscope::agent
