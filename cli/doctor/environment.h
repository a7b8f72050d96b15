// SPDX-License-Identifier: Apache-2.0
//
// NCCL's settings: variables of an environment and of nccl.conf files, read as NCCL reads them, and
// what in them makes it slow, does nothing, or names things that are not there. Pure but for
// read_settings().
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/finding.h"
#include "topology/machine.h"

namespace ncclscope::cli {

/// NCCL_* variables and where each comes from.
struct NcclSetting {
  std::string value;
  std::string source;  // "environment", "/etc/nccl.conf"
};
using NcclSettings = std::map<std::string, NcclSetting>;

/// NCCL_* of `environment` ("NAME=value" each).
[[nodiscard]] NcclSettings settings_of(const std::vector<std::string>& environment);

/// Adds what a file sets and the settings do not have yet, as NCCL does; says what in it will not
/// do what it looks like.
[[nodiscard]] topology::Findings add_conf_file(NcclSettings& settings, const std::string& name,
                                               const std::string& text);

/// What these settings do on this machine; one finding that is ok if nothing is wrong.
[[nodiscard]] topology::Findings check_settings(const NcclSettings& settings,
                                                const topology::Machine& machine);

/// This process's environment and, below `root`, the files that NCCL reads.
[[nodiscard]] NcclSettings read_settings(const std::string& root, topology::Findings& findings);

}  // namespace ncclscope::cli
