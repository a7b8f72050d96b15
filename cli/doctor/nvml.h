// SPDX-License-Identifier: Apache-2.0
//
// NVLink and C2C of each GPU from NVIDIA's management library, which is loaded if it is there.
//   May fail: where there is no driver; the machine is then as it was.
#pragma once

#include <string>

#include "topology/machine.h"

namespace ncclscope::cli {

/// @param library  file name or path for dlopen, usually "libnvidia-ml.so.1"
/// @return why nothing is known of NVLink; empty if all is well
std::string add_nvml(topology::Machine& machine, const std::string& library);

}  // namespace ncclscope::cli
