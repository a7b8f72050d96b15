// SPDX-License-Identifier: Apache-2.0
//
// A machine's topology as a few lines of text, for those who know what a hypervisor hides:
//
//   cpu 0 cpus=0-47                a NUMA node
//     switch speed=32 width=16     what is indented is below it
//       gpu 0000:00:05.0
//       nic 0000:00:07.0
//
// read, written from what sysfs shows, and turned into NCCL's topology file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/machine.h"
#include "topology/paths.h"
#include "topology/xml.h"

namespace ncclscope::topology {

enum class Kind : unsigned char { kCpu, kSwitch, kGpu, kNic };

struct Part {
  Kind kind = Kind::kCpu;
  std::string name;    // NUMA node, or PCI address; empty for a switch without a real one
  std::string cpus;    // of a cpu: "0-47,96-143"; empty: as the machine has it
  std::string speed;   // "32.0 GT/s PCIe"; empty: as the machine has it
  unsigned width = 0;  // lanes; 0: as the machine has it
  std::vector<Part> below;
};

struct Description {
  std::vector<Part> cpus;
  std::string error;  // "line 3: ...", empty if all is well
};
[[nodiscard]] Description parse_description(std::string_view text);
/// The machine as sysfs shows it. In a flat virtual machine that is the draft to be completed.
[[nodiscard]] std::string describe(const Machine& machine);
/// Switches without an address get invented ones in the domain ffff.
[[nodiscard]] XmlElement topology_file(const Description& description, const Machine& machine);

/// "0-3,8" -> "0000010f": as NCCL and the kernel write masks of CPUs; empty if it is no list.
[[nodiscard]] std::string cpu_mask(std::string_view list);

}  // namespace ncclscope::topology
