// SPDX-License-Identifier: Apache-2.0
//
// NCCL's settings as this process has them: its environment, and the nccl.conf files.
#pragma once

#include <string>

#include "topology/finding.h"
#include "topology/settings.h"

namespace ncclscope::cli {

/// This process's environment and, below `root`, the files that NCCL reads.
[[nodiscard]] topology::Settings read_settings(const std::string& root,
                                               topology::Findings& findings);

}  // namespace ncclscope::cli
