// SPDX-License-Identifier: Apache-2.0
//
// Matrices of distances as text, and what nvidia-smi prints of NVLink and C2C, read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::topology {

/// As `nvidia-smi topo -m` prints it, columns aligned by blanks; names of NICs below.
[[nodiscard]] std::string smi_matrix(const Machine& machine, const Paths& paths);
/// The same with NCCL's grades, without affinities.
[[nodiscard]] std::string nccl_matrix(const Machine& machine, const Paths& paths);

struct SmiText {
  std::string error;  // why the text cannot be used; then the machine is as it was
  /// Cells in which the text and sysfs differ: "GPU0-NIC1: nvidia-smi PIX, sysfs NODE".
  std::vector<std::string> differences;
};
/// Adds NVLinks from the output of `nvidia-smi topo -m`, and C2C links from `nvidia-smi c2c -s`,
/// which may stand in one text in any order.
SmiText add_nvidia_smi(Machine& machine, std::string_view text);

}  // namespace ncclscope::topology
