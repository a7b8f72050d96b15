// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope doctor`: looks at this node (or a copy of its /sys and /proc) and says what will make
// NCCL slow, with evidence and cure.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "cli/commands.h"
#include "cli/doctor/nvml.h"
#include "cli/doctor/output.h"
#include "cli/text.h"
#include "topology/checks.h"
#include "topology/machine.h"
#include "topology/matrix.h"
#include "topology/paths.h"

namespace ncclscope::cli {
namespace {

using topology::Finding;
using topology::Level;

struct DoctorOptions {
  std::string root, nvidia_smi, nvml = "libnvidia-ml.so.1";
  std::string fail_on = "problem";
  bool json = false, all = false;
};

std::string own_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "node";
}

/// Throws CLI::ValidationError if the file cannot be read.
std::string whole_file(const char* option, const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw CLI::ValidationError(option, "cannot read " + printable(path));
  return text.str();
}

topology::Roots roots_of(const DoctorOptions& options) {
  return {topology::FileTree(options.root + "/sys"), topology::FileTree(options.root + "/proc")};
}

/// The machine with what NVML or nvidia-smi know of NVLink; `findings` gets what could not be
/// learnt.
topology::Machine look(const DoctorOptions& options, topology::Findings& findings) {
  topology::Machine machine = topology::read_machine(roots_of(options));
  if (!options.nvidia_smi.empty()) {
    const topology::SmiText text =
        topology::add_nvidia_smi(machine, whole_file("--nvidia-smi", options.nvidia_smi));
    if (!text.error.empty()) throw CLI::ValidationError("--nvidia-smi", printable(text.error));
    for (const std::string& difference : text.differences)
      findings.push_back({"nvidia-smi", Level::kWarning, "node",
                          "nvidia-smi and sysfs differ on a distance", difference,
                          "was the text taken on this node and inside the same virtual machine?"});
    return machine;
  }
  if (machine.gpus.empty() || !options.root.empty()) return machine;
  const std::string error = add_nvml(machine, options.nvml);
  if (!error.empty())
    findings.push_back(
        {"nvlink", Level::kUnknown, "node", "nothing is known of NVLink", error,
         "run this where the driver's libraries are to be had, or give the output of "
         "nvidia-smi topo -m (--nvidia-smi FILE)"});
  return machine;
}

int status_of(const topology::Findings& findings, const std::string& fail_on) {
  const Level least = fail_on == "unknown"   ? Level::kUnknown
                      : fail_on == "warning" ? Level::kWarning
                                             : Level::kProblem;
  const bool failed = std::any_of(findings.begin(), findings.end(),
                                  [&](const Finding& f) { return f.level >= least; });
  return failed && fail_on != "never" ? kNegative : kSuccess;
}

int run(const DoctorOptions& options) {
  DoctorReport report;
  report.node = own_name();
  const topology::Machine machine = look(options, report.findings);
  const topology::Paths paths(machine);
  topology::append(report.findings, topology::check_topology(machine, paths));
  if (options.json) {
    nlohmann::ordered_json json = findings_json(report);
    json["topology"] = topology_json(machine, paths);
    std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    std::fputs(findings_text(report, options.all).c_str(), stdout);
  }
  return status_of(report.findings, options.fail_on);
}

int run_topology(const DoctorOptions& options) {
  DoctorReport report;
  report.node = own_name();
  const topology::Machine machine = look(options, report.findings);
  const topology::Paths paths(machine);
  topology::append(report.findings, topology::check_topology(machine, paths));
  if (options.json) {
    const nlohmann::ordered_json json = topology_json(machine, paths);
    std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return kSuccess;
  }
  std::fputs(topology_text(machine, paths).c_str(), stdout);
  std::fputs(("\n" + findings_text(report, options.all)).c_str(), stdout);
  return status_of(report.findings, options.fail_on);
}

}  // namespace

void register_doctor(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Says what on this node will make NCCL slow, with evidence and cure");
  command->add_option("--root", options->root,
                      "Look at a copy: DIR/sys and DIR/proc instead of /sys and /proc");
  command->add_option("--nvidia-smi", options->nvidia_smi,
                      "File with the output of nvidia-smi topo -m (and c2c -s) instead of asking "
                      "NVML");
  command->add_option("--nvml", options->nvml, "NVIDIA's management library")
      ->capture_default_str();
  command
      ->add_option("--fail-on", options->fail_on,
                   "Exit with 1 from this level on: unknown, warning, problem, never")
      ->check(CLI::IsMember({"unknown", "warning", "problem", "never"}))
      ->capture_default_str();
  command->add_flag("--all", options->all, "Show what is ok, too");
  command->add_flag("--json", options->json, "JSON for scripts");
  CLI::App* topology = command->add_subcommand(
      "topology", "Distances between GPUs and NICs, as nvidia-smi and NCCL grade them");
  topology->fallthrough();
  topology->callback([options] { throw CLI::RuntimeError(run_topology(*options)); });
  command->callback([options, topology] {
    if (!topology->parsed()) throw CLI::RuntimeError(run(*options));
  });
}

}  // namespace ncclscope::cli
