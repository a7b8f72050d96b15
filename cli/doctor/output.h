// SPDX-License-Identifier: Apache-2.0
//
// Findings and topology as text for people and as JSON for scripts. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::cli {

struct DoctorReport {
  std::string node;
  topology::Findings findings;
};

/// Worst first. What is ok is only counted, unless `all`.
[[nodiscard]] std::string findings_text(const DoctorReport& report, bool all);
/// {"node", "summary": {level: count}, "findings": [{check, level, subject, reason, evidence,
/// fix}]}
[[nodiscard]] nlohmann::ordered_json findings_json(const DoctorReport& report);

/// The matrix of nvidia-smi topo -m, NCCL's, and the NIC of each GPU.
[[nodiscard]] std::string topology_text(const topology::Machine& machine,
                                        const topology::Paths& paths);
[[nodiscard]] nlohmann::ordered_json topology_json(const topology::Machine& machine,
                                                   const topology::Paths& paths);

}  // namespace ncclscope::cli
