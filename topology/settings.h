// SPDX-License-Identifier: Apache-2.0
//
// NCCL's settings: variables of an environment and of nccl.conf files, read as NCCL reads them, and
// what in them makes it slow, does nothing, or names things that are not there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/finding.h"
#include "topology/machine.h"

namespace ncclscope::topology {

/// NCCL_* variables and where each comes from.
struct Setting {
  std::string value;
  std::string source;  // "environment", "/etc/nccl.conf"
};
using Settings = std::map<std::string, Setting>;

/// NCCL_* of `environment` ("NAME=value" each).
[[nodiscard]] Settings settings_of(const std::vector<std::string>& environment);

/// Adds what a file sets and the settings do not have yet, as NCCL does; says what in it will not
/// do what it looks like.
[[nodiscard]] Findings add_conf_file(Settings& settings, const std::string& name,
                                     const std::string& text);

/// From where the process is looked at whose settings they are.
enum class Viewpoint : unsigned char {
  kInside,   // itself, or one beside it: files and network interfaces are the same
  kOutside,  // it may be in a container: files are not looked at, and interfaces may be others
};

/// What these settings do on this machine; one finding that is ok if nothing is wrong. The subject
/// is the variable.
[[nodiscard]] Findings check_settings(const Settings& settings, const Machine& machine,
                                      Viewpoint viewpoint = Viewpoint::kInside);

}  // namespace ncclscope::topology
