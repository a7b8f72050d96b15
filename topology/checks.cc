// SPDX-License-Identifier: Apache-2.0
#include "topology/checks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <string>

namespace ncclscope::topology {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string gpu_name(std::size_t i) {
  return "GPU" + std::to_string(i);
}

std::string plural(std::size_t count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// ---- PCIe links ---------------------------------------------------------------------------------

/// PCI Express generation, 0 = unknown.
int generation(double gigatransfers) {
  constexpr std::array<double, 6> kRates{2.5, 5, 8, 16, 32, 64};
  for (std::size_t i = 0; i < kRates.size(); ++i)
    if (kRates[i] == gigatransfers) return static_cast<int>(i) + 1;
  return 0;
}

std::string speed_text(const LinkSpeed& link) {
  return "Gen" + std::to_string(generation(link.gigatransfers)) + " x" + std::to_string(link.lanes);
}

class LinkCheck {
 public:
  explicit LinkCheck(const Machine& machine) : machine_(machine) {}

  Findings run() {
    for (std::size_t g = 0; g < machine_.gpus.size(); ++g)
      look(machine_.gpus[g].pci, gpu_name(g), true);
    for (const Nic& nic : machine_.nics)
      if (nic.pci >= 0) look(nic.pci, nic.name, false);
    for (const auto& [bridge, below] : bridges_) look_at_bridge(bridge, below);
    if (links_ == 0 && findings_.empty()) return {};
    const auto worst =
        std::max_element(findings_.begin(), findings_.end(),
                         [](const Finding& a, const Finding& b) { return a.level < b.level; });
    if (worst == findings_.end())
      findings_.push_back({"pcie-link", Level::kOk, "node",
                           "all " + std::to_string(links_) +
                               " PCIe links of GPUs, NICs and switches run at their full speed and "
                               "width",
                           "current_link_speed, current_link_width", ""});
    return std::move(findings_);
  }

 private:
  /// What a link could be: the lesser of its two ends.
  static LinkSpeed possible(const PciDevice& device, const PciDevice* port) {
    LinkSpeed best = device.maximum;
    if (port == nullptr) return best;
    if (port->maximum.gigatransfers > 0)
      best.gigatransfers = std::min(best.gigatransfers, port->maximum.gigatransfers);
    if (port->maximum.lanes > 0) best.lanes = std::min(best.lanes, port->maximum.lanes);
    return best;
  }

  static std::string evidence(const PciDevice& device) {
    return device.address + ": current_link_speed '" + device.now.text + "', current_link_width " +
           std::to_string(device.now.lanes) + ", max_link_speed '" + device.maximum.text +
           "', max_link_width " + std::to_string(device.maximum.lanes);
  }

  void look(int index, const std::string& subject, bool gpu) {
    for (int above = machine_.parent(index); above >= 0; above = machine_.parent(above))
      if (seen_.insert(above).second && machine_.device(above)->bridge()) bridges_[above] = subject;
    if (!seen_.insert(index).second) return;
    const PciDevice& d = *machine_.device(index);
    if (d.virtual_function) return;  // the physical function's link is what counts
    const PciDevice* port = machine_.device(machine_.parent(index));
    if (d.now.gigatransfers == 0 || d.now.lanes == 0 || d.maximum.lanes == 0) {
      findings_.push_back(
          {"pcie-link", Level::kUnknown, subject,
           "its PCIe link shows no speed or width" +
               std::string(machine_.virtualised() ? ": the hypervisor hides it" : ""),
           evidence(d),
           machine_.virtualised() ? "look on the host: lspci -vv -s of the passed-through device"
                                  : ""});
      return;
    }
    ++links_;
    const LinkSpeed best = possible(d, port);
    if (d.now.lanes < best.lanes) {
      findings_.push_back(
          {"pcie-link", Level::kProblem, subject,
           "its PCIe link has " + std::to_string(d.now.lanes) + " of " +
               std::to_string(best.lanes) +
               " lanes: " + number(pcie_gigabytes(d.now.gigatransfers, d.now.lanes)) +
               " instead of " + number(pcie_gigabytes(best.gigatransfers, best.lanes)) + " GB/s",
           evidence(d),
           "reseat the card or its riser, look for correctable errors (dmesg, AER counters); if it "
           "stays, the slot or the card is broken"});
      return;
    }
    if (d.now.gigatransfers < best.gigatransfers) {
      findings_.push_back(
          {"pcie-link", gpu ? Level::kUnknown : Level::kProblem, subject,
           "its PCIe link runs at Gen" + std::to_string(generation(d.now.gigatransfers)) + ", Gen" +
               std::to_string(generation(best.gigatransfers)) + " is possible" +
               (gpu ? ": so does every GPU at rest" : ""),
           evidence(d),
           gpu ? "run this again while the GPU works"
               : "check the slot's speed in the firmware settings and the card's cable or riser; "
                 "after that retrain the link (reboot)"});
      return;
    }
    if (port != nullptr && (port->maximum.gigatransfers > 0 && port->maximum.lanes > 0) &&
        (best.gigatransfers < d.maximum.gigatransfers || best.lanes < d.maximum.lanes)) {
      findings_.push_back(
          {"pcie-link", Level::kWarning, subject,
           "its slot gives " + speed_text(best) + ", the card could " + speed_text(d.maximum),
           evidence(d) + "; port " + port->address + ": max " + speed_text(port->maximum),
           "put the card into a slot of its own speed and width, or lift the limit in "
           "the firmware settings"});
    }
  }

  /// Upstream ports only: their link is the one to the CPU. Downstream ports show their device's.
  void look_at_bridge(int index, const std::string& below) {
    const PciDevice& d = *machine_.device(index);
    const int above = machine_.parent(index);
    const PciDevice* port = machine_.device(above);
    if (port == nullptr || !port->bridge()) return;
    const bool upstream = (path_depth(index) % 2) == 1;
    if (!upstream || d.now.lanes == 0 || d.now.gigatransfers == 0 || d.maximum.lanes == 0) return;
    ++links_;
    const LinkSpeed best = possible(d, port);
    if (d.now.lanes >= best.lanes && d.now.gigatransfers >= best.gigatransfers) return;
    findings_.push_back({"pcie-link", Level::kProblem, "switch " + d.address,
                         "the link of the PCIe switch above " + below + " runs at " +
                             speed_text(d.now) + ", " + speed_text(best) + " is possible",
                         evidence(d),
                         "everything behind the switch shares this link: check firmware settings, "
                         "cables and risers of the switch board"});
  }

  /// Bridges above a device: 0 = on the root bus, odd = the upper side of a switch.
  int path_depth(int index) const {
    int depth = 0;
    for (int above = machine_.parent(index); above >= 0; above = machine_.parent(above)) ++depth;
    return depth;
  }

  const Machine& machine_;
  std::set<int> seen_;
  std::map<int, std::string> bridges_;  // and a device below
  std::size_t links_ = 0;
  Findings findings_;
};

// ---- NICs ---------------------------------------------------------------------------------------

void check_port(const Machine& machine, const Nic& nic, const Port& port, Findings& findings) {
  const std::string subject =
      nic.ports.size() > 1 ? nic.name + " port " + std::to_string(port.number) : nic.name;
  const std::string where =
      nic.rdma ? "/sys/class/infiniband/" + nic.name + "/ports/" + std::to_string(port.number)
               : "/sys/class/net/" + nic.name;
  if (port.state.empty()) {
    findings.push_back({"nic-port", Level::kUnknown, subject,
                        "the state of its port cannot be read", where + "/state", ""});
    return;
  }
  if (port.state != "ACTIVE") {
    const bool waits = port.state == "INIT";
    findings.push_back(
        {"nic-port", nic.rdma ? Level::kProblem : Level::kWarning, subject,
         "its port is " + port.state + (port.physical.empty() ? "" : " (" + port.physical + ")") +
             ": NCCL does not use it",
         where + (nic.rdma ? "/state" : "/operstate"),
         waits
             ? "no subnet manager has configured the port: start one, or ask who runs the fabric"
             : "check cable, transceiver and switch port; if it is not meant to be used, name the "
               "others in NCCL_IB_HCA"});
    return;
  }
  if (nic.rdma && port.link_layer == "Ethernet" && port.gids_known && !port.roce_v2) {
    findings.push_back({"nic-port", Level::kProblem, subject,
                        "RoCE without an address of version 2: packets are not routed",
                        where + "/gid_attrs/types", "give its network interface an IP address"});
    return;
  }
  // A card that is slower than its likes has negotiated a lower rate.
  const PciDevice* d = machine.device(nic.pci);
  double best = 0;
  for (const Nic& other : machine.nics) {
    const PciDevice* o = machine.device(other.pci);
    if (d != nullptr && o != nullptr && d->vendor == o->vendor && d->device == o->device)
      best = std::max(best, other.gigabits());
  }
  if (port.gigabits > 0 && port.gigabits < best)
    findings.push_back({"nic-port", Level::kProblem, subject,
                        "its port runs at " + number(port.gigabits) +
                            " Gbit/s, others of the same model at " + number(best),
                        where + (nic.rdma ? "/rate: " + port.rate_text : "/speed"),
                        "check cable and transceiver, and the speed set on the switch port"});
}

void check_cards(const Machine& machine, const Paths& paths, Findings& findings) {
  std::map<std::string, std::vector<std::string>> cards;  // as NCCL sees them
  std::map<std::string, std::set<std::string>> real;
  for (std::size_t n = 0; n < machine.nics.size(); ++n) {
    if (!machine.nics[n].rdma || machine.nics[n].pci < 0 || !machine.nics[n].active()) continue;
    const std::string address = paths.nccl_address(n);
    cards[address].push_back(machine.nics[n].name);
    const std::string& own = machine.device(machine.nics[n].pci)->address;
    real[address].insert(own.substr(0, own.size() - 1));
  }
  for (const auto& [address, names] : cards) {
    if (names.size() < 2) continue;
    const bool one_card = real[address].size() == 1;
    if (one_card) {
      findings.push_back({"nic-merge", Level::kOk, joined(names),
                          "ports of one card: NCCL makes one virtual NIC of up to four of them",
                          "PCI address " + address, ""});
    } else {
      findings.push_back(
          {"nic-merge", Level::kProblem, joined(names),
           "NCCL takes these for ports of one card, since it zeroes the device number of NICs' PCI "
           "addresses (NCCL_IB_MERGE_VFS): they are glued together, and rails vanish",
           "all become " + address,
           "set NCCL_IB_MERGE_VFS=0, or NCCL_NET_MERGE_LEVEL=LOC; or put each NIC on a PCI bus of "
           "its own in the hypervisor"});
    }
  }
  for (const Interface& bond : machine.interfaces) {
    if (bond.members.empty()) continue;
    std::vector<std::string> down;
    for (const std::string& member : bond.members)
      for (const Interface& i : machine.interfaces)
        if (i.name == member && !i.up) down.push_back(member);
    if (down.empty()) continue;
    findings.push_back({"nic-bond", Level::kProblem, bond.name,
                        "the bond lacks " + joined(down) + ": it carries less than it should",
                        "/sys/class/net/" + bond.name + "/bonding/slaves: " + joined(bond.members),
                        "check cable, transceiver and switch port of the member"});
  }
}

// ---- rails --------------------------------------------------------------------------------------

Finding far_nic(std::size_t gpu, const Rail& rail, const Machine& machine) {
  const Nic& nic = machine.nics[static_cast<std::size_t>(rail.nic)];
  const std::string grade(path_name(rail.path.type));
  const bool other_socket = rail.path.type == PathType::kSys;
  Finding finding{"gpu-nic", Level::kProblem, gpu_name(gpu), "", "", ""};
  finding.evidence = "best of " + plural(machine.nics.size(), "NIC") + ": " + nic.name + ", " +
                     grade + ", " + number(rail.path.gigabytes) + " GB/s";
  if (!nic.rdma) {
    finding.level = Level::kWarning;
    finding.reason = "its nearest network interface " + nic.name + " is " + grade +
                     ", and there is no RDMA: sockets, through the CPU's memory";
    finding.fix =
        "for jobs of several nodes use a node with InfiniBand, RoCE or the cloud's NCCL "
        "network plugin";
    return finding;
  }
  if (rail.relay >= 0) {
    finding.level = Level::kWarning;
    finding.reason = "no NIC near it (" + grade + " at best): NCCL goes over NVLink through " +
                     gpu_name(static_cast<std::size_t>(rail.relay)) +
                     "'s NIC (PXN), which both then share";
    finding.fix = "leave NCCL_PXN_DISABLE at 0; a NIC below the same PCIe switch would be better";
    return finding;
  }
  finding.reason = "no NIC near it (" + grade +
                   " at best): GPUDirect RDMA is off by default, data "
                   "goes through the CPU's memory" +
                   std::string(other_socket ? " and from one socket to the other" : "");
  if (machine.virtualised()) {
    finding.fix = "see the finding virtual-topology";
  } else if (other_socket) {
    finding.fix = "put a NIC on this GPU's socket, below the same PCIe switch if there is one";
  } else {
    finding.fix =
        "put NIC and GPU below one PCIe switch; where the CPU forwards well between its "
        "ports, try NCCL_NET_GDR_LEVEL=PHB and measure";
  }
  return finding;
}

// ---- virtual machines ---------------------------------------------------------------------------

/// No GPU and no NIC has a switch above it.
bool flat(const Machine& machine, const Paths& paths) {
  for (std::size_t g = 0; g < machine.gpus.size(); ++g)
    if (paths.switches_above_gpu(g) > 0) return false;
  return true;
}

}  // namespace

Findings check_pcie_links(const Machine& machine) {
  return LinkCheck(machine).run();
}

Findings check_nic_ports(const Machine& machine, const Paths& paths) {
  Findings findings;
  std::size_t active = 0;
  double least = 0, most = 0;
  for (const Nic& nic : machine.nics) {
    for (const Port& port : nic.ports) check_port(machine, nic, port, findings);
    if (!nic.active()) continue;
    ++active;
    const double rate = nic.gigabits();
    least = active == 1 ? rate : std::min(least, rate);
    most = std::max(most, rate);
  }
  if (findings.empty() && active > 0) {
    const std::string rate = most <= 0 ? ""
                             : least == most
                                 ? ", " + number(most) + " Gbit/s"
                                 : ", " + number(least) + " to " + number(most) + " Gbit/s";
    findings.push_back(
        {"nic-port", Level::kOk, "node",
         plural(active, machine.has_rdma() ? "RDMA device" : "network interface") + " up" + rate,
         machine.has_rdma() ? "/sys/class/infiniband/*/ports/*" : "/sys/class/net/*", ""});
  }
  check_cards(machine, paths, findings);
  return findings;
}

Findings check_rails(const Machine& machine, const Paths& paths) {
  Findings findings;
  if (machine.gpus.empty()) {
    findings.push_back({"gpu-nic", Level::kUnknown, "node", "sysfs lists no NVIDIA GPU",
                        "/sys/bus/pci/devices: vendor 0x10de, class 0x0300 or 0x0302",
                        "run this on a node with GPUs"});
    return findings;
  }
  const bool any = std::any_of(machine.nics.begin(), machine.nics.end(),
                               [](const Nic& nic) { return nic.active(); });
  if (!machine.has_rdma())
    findings.push_back(
        {"rdma", Level::kWarning, "node", "no RDMA device: NCCL uses sockets between nodes",
         "/sys/class/infiniband is empty",
         "nothing to do for jobs on one node; else install the NICs' driver, or pass "
         "the NICs into the virtual machine or container"});
  if (!any) return findings;
  std::map<int, std::vector<std::string>> users;
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    const Rail rail = paths.rail(g);
    if (rail.nic < 0) continue;
    users[rail.nic].push_back(gpu_name(g));
    const Nic& nic = machine.nics[static_cast<std::size_t>(rail.nic)];
    if (rail.gpudirect) {
      findings.push_back({"gpu-nic", Level::kOk, gpu_name(g),
                          nic.name + " is near it (" + std::string(path_name(rail.path.type)) +
                              "), " + number(rail.path.gigabytes) + " GB/s",
                          "PCI tree of " + machine.device(machine.gpus[g].pci)->address, ""});
    } else {
      findings.push_back(far_nic(g, rail, machine));
    }
  }
  std::vector<std::string> idle;
  std::size_t active = 0;
  for (std::size_t n = 0; n < machine.nics.size(); ++n) {
    if (!machine.nics[n].active() || !machine.nics[n].rdma) continue;
    ++active;
    if (users.count(static_cast<int>(n)) == 0) idle.push_back(machine.nics[n].name);
  }
  for (const auto& [nic, gpus] : users) {
    if (gpus.size() < 2 || active < machine.gpus.size()) continue;
    findings.push_back(
        {"nic-sharing", Level::kWarning, machine.nics[static_cast<std::size_t>(nic)].name,
         joined(gpus) + " begin at this NIC although there are as many NICs as GPUs",
         "NCCL takes the NIC with most bandwidth, then the nearest; not first choice of any GPU: " +
             joined(idle),
         "look at the grades of the others: a NIC that is slow or far is passed over"});
  }
  return findings;
}

Findings check_peers(const Machine& machine, const Paths& paths) {
  Findings findings;
  const std::size_t gpus = machine.gpus.size();
  if (gpus < 2) return findings;
  if (machine.nvlinks_known) {
    int most = 0;
    std::vector<int> links(gpus, 0);
    for (std::size_t g = 0; g < gpus; ++g) {
      links[g] = machine.gpus[g].nvlinks_active;
      if (links[g] < 0) {
        links[g] = 0;
        for (const int count : machine.gpus[g].nvlinks) links[g] = std::max(links[g], count);
      }
      most = std::max(most, links[g]);
    }
    for (std::size_t g = 0; g < gpus; ++g)
      if (links[g] < most)
        findings.push_back({"nvlink", Level::kProblem, gpu_name(g),
                            std::to_string(links[g]) + " active NVLinks where other GPUs have " +
                                std::to_string(most) + ": NCCL counts on all GPUs with the least",
                            "NVML or nvidia-smi topo -m",
                            "nvidia-smi nvlink --status, dmesg (Xid 74), fabric manager's log; a "
                            "GPU that stays so wants a reset or service"});
    if (most > 0 && findings.empty())
      findings.push_back(
          {"nvlink", Level::kOk, "node",
           "all " + std::to_string(gpus) + " GPUs have " + std::to_string(most) + " active NVLinks",
           "NVML or nvidia-smi topo -m", ""});
  }
  std::size_t through_memory = 0, pairs = 0;
  std::string example;
  for (std::size_t a = 0; a < gpus; ++a) {
    for (std::size_t b = a + 1; b < gpus; ++b) {
      ++pairs;
      if (paths.peer_to_peer(a, b)) continue;
      if (through_memory++ == 0)
        example = gpu_name(a) + "-" + gpu_name(b) + " " +
                  std::string(path_name(paths.gpu_gpu(a, b).type));
    }
  }
  if (through_memory > 0) {
    const bool sure = machine.nvlinks_known;
    findings.push_back(
        {"gpu-gpu", sure ? Level::kWarning : Level::kUnknown, "node",
         std::to_string(through_memory) + " of " + std::to_string(pairs) +
             " pairs of GPUs have no PCIe switch in common: without NVLink NCCL goes through the "
             "CPU's memory between them",
         example + (sure ? ", no NVLink" : "; whether there is NVLink is not known"),
         sure ? "nothing, where the machine is built so; place jobs on GPUs below one switch"
              : "run where libnvidia-ml.so.1 can be loaded, or give the output of nvidia-smi topo "
                "-m (--nvidia-smi FILE)"});
  } else {
    findings.push_back({"gpu-gpu", Level::kOk, "node",
                        "all pairs of GPUs exchange directly (NVLink or PCIe)", "PCI tree, NVLink",
                        ""});
  }
  return findings;
}

Findings check_virtual_topology(const Machine& machine, const Paths& paths) {
  Findings findings;
  if (machine.gpus.empty()) return findings;
  const bool no_node = std::all_of(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& gpu) {
    return machine.device(gpu.pci)->numa_node < 0;
  });
  if (!machine.virtualised()) {
    if (no_node && machine.numa.size() > 1)
      findings.push_back({"numa", Level::kWarning, "node",
                          "the firmware does not say to which of " +
                              plural(machine.numa.size(), "NUMA node") + " GPUs belong",
                          "numa_node of all GPUs is -1",
                          "update the firmware, or set numa_node where the kernel allows it; NCCL "
                          "can be told with NCCL_TOPO_FILE"});
    return findings;
  }
  if (!flat(machine, paths)) {
    findings.push_back({"virtual-topology", no_node ? Level::kWarning : Level::kOk, "node",
                        std::string("virtual machine that shows PCIe switches above its GPUs") +
                            (no_node ? ", but no NUMA node" : ""),
                        machine.product,
                        no_node ? "give the virtual switches' buses a NUMA node (QEMU: pxb-pcie "
                                  "with numa_node=)"
                                : ""});
    return findings;
  }
  std::string decides =
      machine.gpus.size() > 1
          ? "NCCL grades all GPU pairs without NVLink PHB (through the CPU's memory)"
          : "NCCL grades the GPU";
  if (machine.has_rdma())
    decides +=
        " and all GPU-NIC pairs alike: GPUDirect RDMA off, few and narrow channels, NICs "
        "chosen by number and not by distance";
  else
    decides += " as directly below the CPU";
  findings.push_back(
      {"virtual-topology",
       machine.gpus.size() > 1 || machine.has_rdma() ? Level::kProblem : Level::kWarning, "node",
       "virtual machine with a flat PCI tree: no switch is to be seen above any GPU" +
           std::string(no_node ? ", nor a NUMA node" : "") + ". " + decides,
       machine.product + "; " + machine.device(machine.gpus[0].pci)->path,
       "have the hypervisor show the real tree (QEMU q35: pxb-pcie with numa_node=, "
       "x3130-upstream and xio3130-downstream ports, GPU and NIC below one switch), or describe it "
       "to NCCL: ncclscope doctor topology --write FILE, then NCCL_TOPO_FILE=FILE"});
  return findings;
}

Findings check_mig(const Machine& machine) {
  Findings findings;
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    if (machine.gpus[g].mig_instances == 0) continue;
    findings.push_back(
        {"mig", Level::kWarning, gpu_name(g),
         "MIG is on: " +
             plural(static_cast<std::size_t>(machine.gpus[g].mig_instances), "instance") +
             ". NCCL knows GPUs by PCI address: two instances of one GPU cannot be "
             "in one communicator (\"Duplicate GPU\"), and instances have no NVLink",
         "/proc/driver/nvidia/capabilities/gpu" + std::to_string(machine.gpus[g].minor) + "/mig",
         "give each rank a GPU of its own, or turn MIG off for training"});
  }
  return findings;
}

Findings check_topology(const Machine& machine, const Paths& paths) {
  Findings findings = check_rails(machine, paths);
  append(findings, check_peers(machine, paths));
  append(findings, check_nic_ports(machine, paths));
  append(findings, check_pcie_links(machine));
  append(findings, check_virtual_topology(machine, paths));
  append(findings, check_mig(machine));
  return findings;
}

}  // namespace ncclscope::topology
