// SPDX-License-Identifier: Apache-2.0
//
// What the probe prints: the table that users of nccl-tests know, and JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/probe/conductor.h"
#include "cli/probe/judgement.h"

namespace ncclscope::cli::probe {

/// All there is to tell. Lines that not all ranks have measured are left out.
struct ProbeReport {
  const Conductor& conductor;
  const Judgement& judgement;
  bool shared_gpu = false;
  bool nvlink_known = true;
  std::string baseline_problem;  // why Prometheus said nothing; empty if all is well
};

[[nodiscard]] std::string report_text(const ProbeReport& report);
[[nodiscard]] nlohmann::ordered_json report_json(const ProbeReport& report);

}  // namespace ncclscope::cli::probe
