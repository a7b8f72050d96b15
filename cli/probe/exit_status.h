// SPDX-License-Identifier: Apache-2.0
//
// Exit statuses of `ncclscope probe`, documented in docs/probe.md: scripts depend on them.
#pragma once

namespace ncclscope::cli::probe {

enum Status : int {
  kOk = 0,
  kBelow = 1,        // bandwidth below a threshold, or wrong results
  kWrongUsage = 2,   // arguments
  kCouldNotRun = 3,  // no GPU, driver or NCCL; processes that do not come; errors of NCCL
  kNoEnd = 4,        // did not end within --timeout: a hang
};

}  // namespace ncclscope::cli::probe
