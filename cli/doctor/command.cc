// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope doctor`: looks at this node (or a copy of its /sys and /proc) and says what will make
// NCCL slow, with evidence and cure.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/doctor/environment.h"
#include "cli/doctor/installation.h"
#include "cli/doctor/nvml.h"
#include "cli/doctor/output.h"
#include "cli/doctor/running.h"
#include "cli/text.h"
#include "topology/checks.h"
#include "topology/description.h"
#include "topology/machine.h"
#include "topology/matrix.h"
#include "topology/paths.h"
#include "topology/prerequisites.h"
#include "topology/xml.h"

namespace ncclscope::cli {
namespace {

using topology::Finding;
using topology::Level;

constexpr std::size_t kMaxHeld = 20'000;  // operations of the agent's that are looked at

struct DoctorOptions {
  std::string root, nvidia_smi, nvml = "libnvidia-ml.so.1", nccl = "libnccl.so.2";
  std::string fail_on = "problem", window = "5s";
  std::string write, from, check, job;
  AgentOptions agents;
  bool agents_named = false;
  bool json = false, all = false, no_agent = false, describe = false;
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

void print(const nlohmann::ordered_json& json) {
  std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

/// The node's own state: nothing of it needs a job or an agent.
topology::Findings check_node(const topology::Machine& machine, const topology::Paths& paths,
                              const topology::Roots& roots) {
  topology::Findings findings = topology::check_topology(machine, paths);
  topology::append(findings, topology::check_gpudirect(machine, roots));
  topology::append(findings, topology::check_access_control(machine, paths, roots));
  topology::append(findings, topology::check_iommu(machine, roots));
  return findings;
}

/// What this process may do and what is installed here.
topology::Findings check_here(const topology::Machine& machine, const topology::Roots& roots,
                              const DoctorOptions& options) {
  const topology::ProcessLimits limits = topology::limits_of_this_process();
  topology::Findings findings = topology::check_shared_memory(machine, limits);
  topology::append(findings, topology::check_locked_memory(machine, limits));
  topology::append(findings, topology::check_devices(machine, roots, limits));
  const char* plugin = std::getenv("NCCL_PROFILER_PLUGIN");  // NOLINT(concurrency-mt-unsafe)
  topology::append(findings, check_plugin(plugin == nullptr ? "" : plugin));
  topology::append(findings, check_nccl(options.nccl));
  const char* socket = std::getenv("NCCLSCOPE_SOCKET");  // NOLINT(concurrency-mt-unsafe)
  topology::append(
      findings,
      check_socket(socket == nullptr || *socket == '\0' ? "/run/ncclscope/agent.sock" : socket));
  return findings;
}

HeldByJob held_operations(const Agent& agent, const std::string& job_id) {
  HeldByJob jobs;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + Agent::kPatience);
  v1::TailOperationsRequest request;
  request.set_job_id(job_id);
  request.set_include_held(true);
  const auto stream = agent.stub().TailOperations(&context, request);
  v1::TailOperationsResponse record;
  for (std::size_t n = 0; n < kMaxHeld && stream->Read(&record); ++n)
    if (record.has_operation()) jobs[record.operation().job_id()].add(record.operation());
  context.TryCancel();
  (void)stream->Finish();
  return jobs;
}

topology::Findings check_agent(const Agent& agent, const topology::Machine& machine,
                               const topology::Paths& paths, const topology::Roots& roots,
                               const DoctorOptions& options) {
  const auto unreachable = [&](const grpc::Status& status) {
    return topology::Findings{{"agent", Level::kUnknown, agent.address(),
                               "the agent does not answer: running jobs are not looked at",
                               status.error_message(), "start the agent, or give --agent"}};
  };
  const auto ask = [&](auto method, const auto& request, auto& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Agent::kPatience);
    return (agent.stub().*method)(&context, request, &response);
  };
  v1::GetSnapshotRequest request;
  request.set_job_id(options.job);
  request.set_with_environments(true);
  request.set_with_progress(true);
  v1::GetBooksRequest of_job;
  of_job.set_job_id(options.job);
  Moment before, after;
  v1::GetBooksResponse books;
  if (const grpc::Status status =
          ask(&v1::AgentService::Stub::GetSnapshot, request, before.snapshot);
      !status.ok())
    return unreachable(status);
  before.ports = read_port_bytes(machine, roots.sys);
  if (const grpc::Status status = ask(&v1::AgentService::Stub::GetBooks, of_job, books);
      !status.ok())
    return unreachable(status);
  topology::Findings findings = check_versions(before.snapshot, books, NCCLSCOPE_VERSION);
  if (before.snapshot.jobs().empty()) {
    if (!options.job.empty())
      findings.push_back({"job", Level::kUnknown, "job " + options.job,
                          "the agent does not know it: it does not run here, or is not observed",
                          "GetSnapshot of " + agent.address() + std::string(own_jobs_note()),
                          "run this on a node of the job; the other checks say whether jobs are "
                          "observed here"});
    return findings;
  }
  const bool here = target_of(agent.address()).compare(0, 5, "unix:") == 0;
  topology::append(findings, check_job_settings(before.snapshot, here ? &machine : nullptr));
  const double window = parse_duration(options.window).value_or(0);
  std::this_thread::sleep_for(std::chrono::duration<double>(window));
  if (const grpc::Status status =
          ask(&v1::AgentService::Stub::GetSnapshot, request, after.snapshot);
      !status.ok())
    return unreachable(status);
  after.ports = read_port_bytes(machine, roots.sys);
  const HeldByJob held = held_operations(agent, options.job);
  for (const auto& [job, operations] : held)
    topology::append(findings, check_launches(job, operations));
  topology::append(findings, check_run(before, after, machine, paths, held));
  return findings;
}

int run(const DoctorOptions& options) {
  const auto window = parse_duration(options.window);
  if (!window || *window > 600)
    throw CLI::ValidationError(
        "--window", "'" + printable(options.window) + "': wanted a time up to 10m, such as 5s");
  DoctorReport report;
  report.node = own_name();
  const topology::Roots roots = roots_of(options);
  const topology::Machine machine = look(options, report.findings);
  const topology::Paths paths(machine);
  topology::append(report.findings, check_node(machine, paths, roots));
  const topology::Settings settings = read_settings(options.root, report.findings);
  topology::append(report.findings, topology::check_settings(settings, machine));
  if (const auto file = settings.find("NCCL_TOPO_FILE");
      file != settings.end() && ::access(file->second.value.c_str(), R_OK) == 0)
    topology::append(
        report.findings,
        topology::check_topology_file(
            file->second.value, whole_file("NCCL_TOPO_FILE", file->second.value), machine, paths));
  // A copy of another machine says nothing of this process, nor of this node's agent.
  if (options.root.empty()) topology::append(report.findings, check_here(machine, roots, options));
  if (!options.no_agent && (options.root.empty() || options.agents_named))
    for (const Agent& agent : connect(options.agents))
      topology::append(report.findings, check_agent(agent, machine, paths, roots, options));
  if (options.json) {
    nlohmann::ordered_json json = findings_json(report);
    json["topology"] = topology_json(machine, paths);
    print(json);
  } else {
    std::fputs(findings_text(report, options.all).c_str(), stdout);
  }
  return status_of(report.findings, options.fail_on);
}

/// Written beside it and renamed into place: a job may be starting.
void write_whole_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream file(temporary, std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw CLI::ValidationError("--write", "cannot write " + printable(path));
  }
}

/// Makes NCCL's topology file from a description, or from what sysfs shows.
topology::Findings write_topology(const DoctorOptions& options, const topology::Machine& machine,
                                  const topology::Paths& paths) {
  const std::string text =
      options.from.empty() ? topology::describe(machine) : whole_file("--from", options.from);
  const topology::Description description = topology::parse_description(text);
  if (!description.error.empty())
    throw CLI::ValidationError(options.from.empty() ? "--write" : "--from",
                               printable(description.error));
  const std::string xml = topology::write_xml(topology::topology_file(description, machine));
  write_whole_file(options.write, xml);
  return topology::check_topology_file(options.write, xml, machine, paths);
}

int run_topology(const DoctorOptions& options) {
  DoctorReport report;
  report.node = own_name();
  const topology::Machine machine = look(options, report.findings);
  const topology::Paths paths(machine);
  if (options.describe) {
    std::fputs(topology::describe(machine).c_str(), stdout);
    return kSuccess;
  }
  const bool file_only = !options.write.empty() || !options.check.empty();
  if (!options.from.empty() && options.write.empty())
    throw CLI::RequiredError("--from needs --write");
  if (file_only) report.findings.clear();
  if (!options.write.empty())
    topology::append(report.findings, write_topology(options, machine, paths));
  if (!options.check.empty())
    topology::append(report.findings,
                     topology::check_topology_file(
                         options.check, whole_file("--check", options.check), machine, paths));
  if (!file_only) topology::append(report.findings, topology::check_topology(machine, paths));
  if (options.json) {
    nlohmann::ordered_json json = findings_json(report);
    if (!file_only) json["topology"] = topology_json(machine, paths);
    print(json);
  } else {
    if (!file_only) std::fputs((topology_text(machine, paths) + "\n").c_str(), stdout);
    std::fputs(findings_text(report, options.all || file_only).c_str(), stdout);
  }
  return status_of(report.findings, options.fail_on);
}

}  // namespace

void register_doctor(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Says what on this node will make NCCL slow, with evidence and cure");
  command->add_option(
      "--root", options->root,
      "Look at a copy: DIR/sys and DIR/proc instead of /sys and /proc; running jobs "
      "only with --agent");
  command->add_option("--nvidia-smi", options->nvidia_smi,
                      "File with the output of nvidia-smi topo -m (and c2c -s) instead of asking "
                      "NVML");
  command->add_option("--nvml", options->nvml, "NVIDIA's management library")
      ->capture_default_str();
  command->add_option("--nccl", options->nccl, "NCCL's library, a name for the loader or a path")
      ->capture_default_str();
  command->add_option("--window", options->window, "How long to watch running jobs")
      ->capture_default_str();
  command->add_option("--job", options->job, "Of the running jobs only this one");
  command->add_flag("--no-agent", options->no_agent, "Do not ask the agent about running jobs");
  add_agent_option(*command, options->agents);
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
  topology->add_option(
      "--write", options->write,
      "Write a topology file for NCCL_TOPO_FILE, of --from or of what sysfs shows");
  topology->add_option("--from", options->from,
                       "Description of the machine: what --describe prints, completed");
  topology->add_option("--check", options->check, "Check a topology file against this machine");
  topology->add_flag(
      "--describe", options->describe,
      "Print a description of what sysfs shows, to be completed and given to --from");
  topology->callback([options] { throw CLI::RuntimeError(run_topology(*options)); });
  command->callback([options, topology, command] {
    options->agents_named = command->get_option("--agent")->count() > 0;
    if (!topology->parsed()) throw CLI::RuntimeError(run(*options));
  });
}

}  // namespace ncclscope::cli
