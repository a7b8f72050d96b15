// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/output.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/text.h"
#include "topology/matrix.h"

namespace ncclscope::cli {
namespace {

using nlohmann::ordered_json;
using topology::Finding;
using topology::Level;

constexpr std::array<Level, 4> kWorstFirst{Level::kProblem, Level::kWarning, Level::kUnknown,
                                           Level::kOk};

std::string one_decimal(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::size_t count(const topology::Findings& findings, Level level) {
  return static_cast<std::size_t>(std::count_if(
      findings.begin(), findings.end(), [&](const Finding& f) { return f.level == level; }));
}

/// Names come from files and other people's environments.
std::string finding_text(const Finding& f) {
  constexpr std::size_t kIndent = 9;
  const std::string indent(kIndent, ' ');
  std::string text = padded(std::string(topology::level_name(f.level)), kIndent) +
                     std::string(f.check) + ": " + printable(f.subject) + ": " +
                     printable(f.reason) + "\n";
  if (f.level == Level::kOk) return text;
  if (!f.evidence.empty()) text += indent + "seen: " + printable(f.evidence) + "\n";
  if (!f.fix.empty()) text += indent + "fix:  " + printable(f.fix) + "\n";
  return text;
}

std::string rails_text(const topology::Machine& machine, const topology::Paths& paths) {
  Table table(
      {{"GPU"}, {"PCI"}, {"NIC"}, {"path"}, {"GB/s", Table::Align::kRight}, {"GPUDirect RDMA"}});
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    const topology::Rail rail = paths.rail(g);
    const std::string address = machine.device(machine.gpus[g].pci)->address;
    if (rail.nic < 0) {
      table.add({"GPU" + std::to_string(g), address, "none", "", "", ""});
      continue;
    }
    const topology::Nic& nic = machine.nics[static_cast<std::size_t>(rail.nic)];
    std::string gpudirect = rail.gpudirect ? "yes" : nic.rdma ? "off by default" : "no RDMA";
    if (rail.relay >= 0) gpudirect = "through GPU" + std::to_string(rail.relay);
    table.add({"GPU" + std::to_string(g), address, printable(nic.name),
               std::string(topology::path_name(rail.path.type)), one_decimal(rail.path.gigabytes),
               gpudirect});
  }
  return table.render();
}

ordered_json path_json(const topology::Path& path) {
  return {{"type", topology::path_name(path.type)}, {"gigabytes_per_second", path.gigabytes}};
}

}  // namespace

std::string findings_text(const DoctorReport& report, bool all) {
  std::string text;
  for (const Level level : kWorstFirst) {
    if (level == Level::kOk && !all) continue;
    for (const Finding& f : report.findings)
      if (f.level == level) text += finding_text(f);
  }
  text += (text.empty() ? "" : "\n") + printable(report.node) + ": ";
  for (const Level level : kWorstFirst) {
    if (level != Level::kProblem) text += ", ";
    text += std::to_string(count(report.findings, level)) + " " +
            std::string(topology::level_name(level));
  }
  if (!all && count(report.findings, Level::kOk) > 0) text += " (--all shows these, too)";
  return text + "\n";
}

ordered_json findings_json(const DoctorReport& report) {
  ordered_json json;
  json["node"] = report.node;
  for (const Level level : kWorstFirst)
    json["summary"][std::string(topology::level_name(level))] = count(report.findings, level);
  json["findings"] = ordered_json::array();
  for (const Level level : kWorstFirst) {
    for (const Finding& f : report.findings) {
      if (f.level != level) continue;
      json["findings"].push_back({{"check", f.check},
                                  {"level", topology::level_name(f.level)},
                                  {"subject", f.subject},
                                  {"reason", f.reason},
                                  {"evidence", f.evidence},
                                  {"fix", f.fix}});
    }
  }
  return json;
}

std::string topology_text(const topology::Machine& machine, const topology::Paths& paths) {
  return "As nvidia-smi topo -m shows it:\n\n" + smi_matrix(machine, paths) +
         "\nAs NCCL grades it:\n\n" + nccl_matrix(machine, paths) +
         "\nThe NIC of each GPU, as NCCL chooses:\n\n" + rails_text(machine, paths);
}

ordered_json topology_json(const topology::Machine& machine, const topology::Paths& paths) {
  ordered_json json;
  json["virtualised"] = machine.virtualised();
  json["product"] = machine.product;
  json["nvlinks_known"] = machine.nvlinks_known;
  json["gpus"] = ordered_json::array();
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    ordered_json gpu;
    gpu["pci_bus_id"] = machine.device(machine.gpus[g].pci)->address;
    gpu["numa_node"] = machine.device(machine.gpus[g].pci)->numa_node;
    const topology::Rail rail = paths.rail(g);
    gpu["nic"] = rail.nic < 0 ? ordered_json()
                              : ordered_json(machine.nics[static_cast<std::size_t>(rail.nic)].name);
    gpu["gpudirect_rdma"] = rail.gpudirect;
    gpu["to_gpus"] = ordered_json::array();
    for (std::size_t o = 0; o < machine.gpus.size(); ++o) {
      ordered_json path = path_json(paths.gpu_gpu(g, o));
      path["nvidia_smi"] = paths.smi_gpu_gpu(g, o);
      gpu["to_gpus"].push_back(std::move(path));
    }
    gpu["to_nics"] = ordered_json::array();
    for (std::size_t n = 0; n < machine.nics.size(); ++n) {
      ordered_json path = path_json(paths.gpu_nic(g, n));
      path["nvidia_smi"] = paths.smi_gpu_nic(g, n);
      gpu["to_nics"].push_back(std::move(path));
    }
    json["gpus"].push_back(std::move(gpu));
  }
  json["nics"] = ordered_json::array();
  for (const topology::Nic& nic : machine.nics) {
    const topology::PciDevice* device = machine.device(nic.pci);
    json["nics"].push_back({{"name", nic.name},
                            {"pci_bus_id", device == nullptr ? "" : device->address},
                            {"rdma", nic.rdma},
                            {"active", nic.active()},
                            {"gigabits_per_second", nic.gigabits()}});
  }
  return json;
}

}  // namespace ncclscope::cli
