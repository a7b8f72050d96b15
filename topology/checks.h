// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a node as its PCI tree tells: links, ports, distances, and what a hypervisor
// hides. Each check says one thing at least, so that what was looked at and is well can be seen.
//   Thread: pure.
#pragma once

#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::topology {

/// Speed and width of the links of GPUs, NICs and the switches above them.
[[nodiscard]] Findings check_pcie_links(const Machine& machine);
/// State, rate and RoCE addresses of the NICs' ports; bonds; cards with several ports.
[[nodiscard]] Findings check_nic_ports(const Machine& machine, const Paths& paths);
/// Whether each GPU has a NIC near enough, and its own.
[[nodiscard]] Findings check_rails(const Machine& machine, const Paths& paths);
/// Whether GPUs exchange directly, and whether all their NVLinks are there.
[[nodiscard]] Findings check_peers(const Machine& machine, const Paths& paths);
/// What the hypervisor or firmware does not say.
[[nodiscard]] Findings check_virtual_topology(const Machine& machine, const Paths& paths);
[[nodiscard]] Findings check_mig(const Machine& machine);

/// All of these.
[[nodiscard]] Findings check_topology(const Machine& machine, const Paths& paths);

}  // namespace ncclscope::topology
