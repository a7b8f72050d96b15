// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope probe`: measures collectives on this node's GPUs, or those of an allocation, and says
// by its exit status whether they are as fast as they should be. For prologs and burn-in.
//   What calls CUDA and NCCL is a program of its own, ncclscope-probe-worker, linked with both and
//   there only if both were found when ncclscope was built: `ncclscope` itself needs neither, a
//   worker that hangs in the driver does not hang us, and the loader finds the NCCL that jobs use.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/diagnose/nodes.h"
#include "cli/probe/baseline.h"
#include "cli/probe/conductor.h"
#include "cli/probe/exit_status.h"
#include "cli/probe/judgement.h"
#include "cli/probe/output.h"
#include "cli/probe/place.h"
#include "cli/probe/rendezvous.h"
#include "cli/probe/session.h"
#include "cli/text.h"
#include "topology/limits.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::cli {
namespace {

using namespace probe;  // NOLINT(google-build-using-namespace): this file is the command

constexpr const char* kWorkerName = "ncclscope-probe-worker";
constexpr std::chrono::milliseconds kPrometheusLimit{5000};
constexpr std::chrono::seconds kBackstop{40};  // after the limit; nothing of ours takes that long

std::atomic<bool> interrupted{false};

struct ProbeOptions {
  std::vector<std::string> collectives{"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"};
  std::string min_bytes = "1K", max_bytes = "256M", check_bytes = "1M";
  std::uint32_t factor = 4, iterations = 20, warmup = 5;
  std::vector<std::string> min_bus;
  double min_fraction = 0, min_baseline = 0;
  std::string prometheus, prometheus_ca, cluster;
  std::string timeout = "120s";
  PlaceOptions place;
  std::string gpus, worker, root;
  bool json = false;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread so far
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

std::uint64_t size_of(const char* option, const std::string& text) {
  const std::optional<std::uint64_t> size = parse_size(text);
  if (!size) refuse(option, "'" + printable(text) + "': wanted bytes, such as 8, 64K, 1M or 2G");
  return *size;
}

Plan plan_of(const ProbeOptions& options) {
  Plan plan;
  for (const std::string& name : options.collectives) {
    const std::optional<model::Function> collective = collective_of(name);
    if (!collective)
      refuse("--collectives",
             "'" + printable(name) + "': known are AllReduce, AllGather, ReduceScatter, AlltoAll");
    plan.collectives.push_back(*collective);
  }
  plan.min_bytes = size_of("--min-bytes", options.min_bytes);
  plan.max_bytes = size_of("--max-bytes", options.max_bytes);
  plan.check_bytes = size_of("--check-bytes", options.check_bytes);
  plan.factor = options.factor;
  plan.iterations = options.iterations;
  plan.warmup = options.warmup;
  if (const std::string problem = problem_of(plan); !problem.empty()) refuse("probe", problem);
  return plan;
}

Thresholds thresholds_of(const ProbeOptions& options) {
  Thresholds thresholds;
  for (const std::string& text : options.min_bus) {
    const auto one = parse_min_bus(text);
    if (!one) refuse("--min-busbw", "'" + printable(text) + "': wanted GB/s, or COLLECTIVE=GB/s");
    thresholds.min_bus.push_back(*one);
  }
  thresholds.min_fraction = options.min_fraction;
  thresholds.min_baseline_fraction = options.min_baseline;
  if (options.min_baseline > 0 && options.prometheus.empty())
    refuse("--min-baseline-fraction", "needs --prometheus, which knows the baseline");
  return thresholds;
}

/// Beside this program in a build tree, below libexec in an installation.
std::string find_worker() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {".", "../libexec/ncclscope"}) {
    const auto file = (self / place / kWorkerName).lexically_normal();
    if (std::filesystem::exists(file, error)) return file.string();
  }
  return {};
}

std::string no_worker() {
  return std::string("this installation has no ") + kWorkerName +
         ", which calls NCCL.\n"
         "  Install the package ncclscope-probe; or build ncclscope where CMake finds NCCL and the "
         "CUDA runtime\n"
         "  (scripts/fetch-nccl.sh brings both, NCCL_HOME and CUDA_HOME name others). See "
         "docs/probe.md.";
}

/// What is known of the paths of this node, and of the fleet.
class Knowledge {
 public:
  Knowledge(const ProbeOptions& options, const Conductor& conductor, bool shared_gpu)
      : conductor_(conductor), shared_gpu_(shared_gpu) {
    topology::Roots roots;
    if (!options.root.empty())
      roots = {topology::FileTree(options.root + "/sys"),
               topology::FileTree(options.root + "/proc")};
    machine_ = topology::read_machine(roots);
    for (const std::string& line : conductor.workers().front().link_lines)
      (void)add_links(machine_, line);
    paths_.emplace(machine_);
    ask(options);
  }

  [[nodiscard]] References references() const {
    return {[this](model::Function collective) { return allowed(collective); },
            [this](model::Function collective, std::uint64_t bytes) {
              return baseline(collective, bytes);
            }};
  }
  [[nodiscard]] bool nvlink_known() const { return machine_.nvlinks_known; }
  [[nodiscard]] const std::string& baseline_problem() const { return problem_; }

 private:
  void ask(const ProbeOptions& options) {
    asked_ = !options.prometheus.empty();
    if (!asked_) return;
    try {
      const Prometheus prometheus(options.prometheus, options.prometheus_ca, kPrometheusLimit);
      answer_ =
          prometheus.query(baseline_query(conductor_.ranks(), conductor_.nodes(), options.cluster));
    } catch (const std::runtime_error& error) {
      problem_ = error.what();
    }
  }

  /// This node's GPUs in the order of their ranks; false if sysfs does not show one of them.
  bool own_gpus(std::vector<std::size_t>& out) const {
    for (const Worker& worker : conductor_.workers()) {
      if (worker.host != conductor_.workers().front().host) continue;
      for (const GpuOfWorker& gpu : worker.gpus) {
        std::size_t index = 0;
        while (index < machine_.gpus.size() &&
               machine_.gpus[index].pci != machine_.find_device(gpu.pci))
          ++index;
        if (index == machine_.gpus.size()) return false;
        out.push_back(index);
      }
    }
    return true;
  }

  [[nodiscard]] topology::Limit allowed(model::Function collective) const {
    if (shared_gpu_) return {0, "two ranks share one GPU"};
    std::vector<std::size_t> gpus;
    if (!own_gpus(gpus)) return {0, "/sys does not show these GPUs"};
    // Without NVML a pair that has NVLink would be taken for one that has PCIe only.
    if (gpus.size() > 1 && !machine_.nvlinks_known) return {0, "NVML does not tell of NVLink"};
    const auto limit = collective == model::Function::kAllToAll ? topology::all_to_all_limit
                                                                : topology::ring_limit;
    return limit(machine_, *paths_, gpus, conductor_.nodes());
  }

  [[nodiscard]] topology::Limit baseline(model::Function collective, std::uint64_t bytes) const {
    if (!asked_) return {0, "no --prometheus"};
    if (!problem_.empty()) return {0, problem_};
    return baseline_of(answer_, collective, bytes);
  }

  const Conductor& conductor_;
  bool shared_gpu_;
  topology::Machine machine_;
  std::optional<topology::Paths> paths_;
  bool asked_ = false;
  std::vector<Prometheus::Sample> answer_;
  std::string problem_;
};

void print(const ProbeReport& report, bool json) {
  if (json) {
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::printf("%s\n", report_json(report).dump(2, ' ', false, replace).c_str());
  } else {
    std::fputs(report_text(report).c_str(), stdout);
  }
  std::fflush(stdout);
}

void complain(const std::string& what) {
  std::fprintf(stderr, "ncclscope probe: %s\n", what.c_str());
}

/// Ends us even if something that should take no time does not return: a name server, a shared
/// folder.
void arm_backstop(std::chrono::milliseconds limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(limit + kBackstop);
    complain("did not come to an end; given up");
    ::_exit(kNoEnd);
  }).detach();
}

void catch_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Pipes must not become standard input or output where these were closed.
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
    (void)::fcntl(fd, F_SETFD, 0);
  }
}

Status lead(const ProbeOptions& options, const SessionOptions& session, const Plan& plan,
            const Thresholds& thresholds) {
  Conductor conductor(plan, session.place.processes);
  Leader leader(session, conductor);
  const Outcome outcome = leader.run();
  Judgement judgement;
  std::unique_ptr<Knowledge> knowledge;
  if (outcome.end == End::kMeasured) {
    knowledge = std::make_unique<Knowledge>(options, conductor, leader.shares_gpu());
    judgement = judge(conductor.measured(), conductor.ranks(), thresholds, knowledge->references());
  } else {
    judgement.status = outcome.end == End::kTimeout ? kNoEnd : kCouldNotRun;
    judgement.reasons.push_back(outcome.why);
  }
  ProbeReport report{conductor, judgement, leader.shares_gpu(), true, ""};
  if (knowledge) {
    report.nvlink_known = knowledge->nvlink_known();
    report.baseline_problem = knowledge->baseline_problem();
  }
  const std::string first = judgement.reasons.empty() ? "" : judgement.reasons.front();
  const std::string stuck = leader.finish(judgement.status, first);
  if (!stuck.empty()) judgement.reasons.push_back(stuck);
  print(report, options.json);
  for (const std::string& reason : judgement.reasons) complain(reason);
  return judgement.status;
}

Status run(const ProbeOptions& options) {
  const Plan plan = plan_of(options);
  const Thresholds thresholds = thresholds_of(options);
  const std::optional<double> seconds = parse_duration(options.timeout);
  if (!seconds || *seconds < 0.1 || *seconds > 86'400)
    refuse("--timeout", "'" + printable(options.timeout) + "': wanted a time such as 120s or 10m");
  SessionOptions session;
  session.place = find_place(options.place, environment);
  if (!session.place.error.empty()) refuse("probe", session.place.error);
  session.rendezvous = options.place.rendezvous;
  session.worker = options.worker.empty() ? find_worker() : options.worker;
  session.worker_root = options.root;
  session.gpus = options.gpus;
  session.limit = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1e3));
  session.interrupted = &interrupted;
  if (session.worker.empty()) {
    complain(no_worker());
    return kCouldNotRun;
  }
  catch_signals();
  arm_backstop(session.limit);
  if (session.place.process == 0) return lead(options, session, plan, thresholds);
  std::string why;
  const int status = follow(session, why);
  if (!why.empty()) complain("process " + std::to_string(session.place.process) + ": " + why);
  return static_cast<Status>(status);
}

void add_measurement(CLI::App& command, ProbeOptions& options) {
  command
      .add_option("--collectives", options.collectives,
                  "Which, of AllReduce, AllGather, ReduceScatter, AlltoAll (default: all)")
      ->delimiter(',')
      ->type_name("NAME,...");
  command.add_option("--min-bytes", options.min_bytes, "Smallest message")->capture_default_str();
  command.add_option("--max-bytes", options.max_bytes, "Largest message")->capture_default_str();
  command.add_option("--factor", options.factor, "From one size to the next")
      ->capture_default_str();
  command.add_option("--iterations", options.iterations, "Operations that are timed, of each size")
      ->capture_default_str();
  command.add_option("--warmup", options.warmup, "Operations before them")->capture_default_str();
  command
      .add_option("--check-bytes", options.check_bytes,
                  "Results of messages up to this size are checked")
      ->capture_default_str();
  command
      .add_option("--gpus", options.gpus,
                  "CUDA's numbers of the GPUs of this process: 0,1 (default: all, or one per "
                  "process where a node has several)")
      ->type_name("N,...");
}

void add_thresholds(CLI::App& command, ProbeOptions& options) {
  command
      .add_option("--min-busbw", options.min_bus,
                  "GB/s on the bus that the largest message must reach; for one collective: "
                  "AllReduce=300")
      ->delimiter(',')
      ->type_name("[NAME=]GB/s");
  command
      .add_option("--min-fraction", options.min_fraction,
                  "The same, as a fraction of what the paths of this node allow")
      ->check(CLI::Range(0.0, 2.0))
      ->type_name("0..2");
  command
      .add_option("--min-baseline-fraction", options.min_baseline,
                  "The same, as a fraction of what the fleet's jobs have reached")
      ->check(CLI::Range(0.0, 2.0))
      ->type_name("0..2");
  command
      .add_option("--prometheus", options.prometheus,
                  "URL of a Prometheus with ncclscope's recording rules, which knows the fleet's "
                  "baseline")
      ->type_name("URL");
  command
      .add_option("--prometheus-ca", options.prometheus_ca,
                  "Authority of its certificate, if not "
                  "one of the system's")
      ->type_name("FILE");
  command.add_option("--cluster", options.cluster, "Baseline of this cluster only")
      ->type_name("NAME");
}

void add_place(CLI::App& command, ProbeOptions& options) {
  command
      .add_option("--rendezvous", options.place.rendezvous,
                  "Folder that all processes share: process 0 writes there where it is")
      ->type_name("DIR");
  command
      .add_option("--root", options.place.root,
                  "Where process 0 is, if neither a folder nor SLURM or torchrun say so")
      ->type_name("HOST[:PORT]");
  command.add_option("--process", options.place.process,
                     "This process's number, if not of SLURM, torchrun, Open MPI or PMI");
  command.add_option("--processes", options.place.processes, "How many there are");
  command.add_option("--local", options.place.local,
                     "This process's number on its node: it takes that GPU, not all");
}

}  // namespace

void register_probe(CLI::App& app) {
  const auto options = std::make_shared<ProbeOptions>();
  CLI::App* command = app.add_subcommand(
      "probe", "Measures collectives on the GPUs of this node or of an allocation");
  add_measurement(*command, *options);
  add_thresholds(*command, *options);
  add_place(*command, *options);
  command->add_option("--timeout", options->timeout, "Give up after this time: a hang")
      ->capture_default_str();
  command->add_option("--worker", options->worker, "The program that calls NCCL")
      ->type_name("FILE");
  command->add_option("--sys-root", options->root,
                      "Grade paths of a copy of a machine: DIR/sys and DIR/proc");
  command->add_flag("--json", options->json, "JSON for scripts");
  command->footer(
      "One process takes all GPUs of its node. Under srun, mpirun or torchrun: one process per GPU "
      "or per node.\n"
      "A single GPU is shared by two ranks over loopback, which tries driver and NCCL only.\n"
      "Exit status: 0 ok; 1 below a threshold, or wrong results; 2 wrong arguments; 3 could not "
      "run;\n"
      "4 not done within --timeout.");
  command->callback([options] {
    const Status status = run(*options);
    if (status != kOk) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli
