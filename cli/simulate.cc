// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope simulate`: an emulated training job on this machine, one process per rank, each with
// the real plugin. To try dashboards and alerts, or an installation, without a GPU. The emulator is
// sim/; this file only reads the command line.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/text.h"
#include "sim/simulation.h"

namespace ncclscope::cli {
namespace {

std::atomic<bool> interrupted{false};

struct Options {
  int nodes = 2;
  int gpus = 4;
  std::string layout = "ddp";
  std::string release = "2.28";
  std::vector<std::string> faults;
  std::string duration = "30s";
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  bool fast = false;
  bool json = false;
  bool log = false;
  std::string plugin = "libnccl-profiler-ncclscope.so";
  std::string plugin_directory;
  std::vector<std::string> sockets;
  std::string job_id = "1";
  std::string job_name = "simulated";
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "ncclscope simulate: %s\n", text.c_str());
  throw CLI::RuntimeError(kUsage);
}

double to_seconds(const std::string& text) {
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds > 7 * 86400.0) {
    fail("--duration \"" + text +
         "\": wanted a number with s, m or h, up to seven days, such as 30s");
  }
  return *seconds;
}

/// Where the plugin lies: beside this program in a build tree or an installation; empty: on the
/// loader's path.
std::string find_plugin_directory(const std::string& plugin) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"../plugin", "../lib/ncclscope", "../lib", "."}) {
    const auto directory = (self / place).lexically_normal();
    if (std::filesystem::exists(directory / plugin, error)) return directory.string();
  }
  return {};
}

sim::SimulationConfig to_config(const Options& o) {
  sim::SimulationConfig c;
  std::string error;
  const auto take = [&error](const char* flag) {
    if (!error.empty()) fail(std::string(flag) + ": " + error);
  };
  c.nodes = o.nodes;
  c.gpus_per_node = o.gpus;
  c.layout = sim::parse_layout(o.layout, &error);
  take("--layout");
  c.release = sim::parse_release(o.release, &error);
  take("--release");
  for (const std::string& text : o.faults) {
    c.faults.push_back(sim::parse_fault(text, &error));
    take("--fault");
  }
  c.duration_seconds = to_seconds(o.duration);
  c.steps = o.steps;
  c.seed = o.seed;
  c.pace = o.fast ? sim::Pace::kAsFastAsPossible : sim::Pace::kRealTime;
  c.plugin = o.plugin;
  c.library_path =
      o.plugin_directory.empty() ? find_plugin_directory(o.plugin) : o.plugin_directory;
  c.log_nccl = o.log;
  c.job_environment["SLURM_JOB_ID"] = o.job_id;
  c.job_environment["SLURM_JOB_NAME"] = o.job_name;
  c.job_environment["SLURM_JOB_PARTITION"] = "emulated";
  c.job_environment["SLURM_CLUSTER_NAME"] = "emulated";
  if (!o.sockets.empty() && o.sockets.size() != 1 &&
      o.sockets.size() != static_cast<std::size_t>(o.nodes)) {
    fail("--socket was given " + std::to_string(o.sockets.size()) + " times for " +
         std::to_string(o.nodes) + " nodes; give it once for all nodes, or once for each");
  }
  for (int node = 0; node < o.nodes; ++node) {
    if (o.sockets.empty()) break;
    const std::size_t at = o.sockets.size() == 1 ? 0 : static_cast<std::size_t>(node);
    c.node_environment[node]["NCCLSCOPE_SOCKET"] =
        std::filesystem::absolute(o.sockets[at]).string();
  }
  if (const std::string text = sim::check(c); !text.empty()) fail(text);
  return c;
}

void print_result(const sim::SimulationResult& r, bool json) {
  if (json) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const auto& rank : r.ranks) {
      ranks.push_back({{"rank", rank.rank},
                       {"node", rank.node},
                       {"pid", rank.pid},
                       {"exit_code", rank.exit_code},
                       {"signal", rank.signal}});
    }
    std::printf("%s\n", nlohmann::json{{"steps", r.steps},
                                       {"operations", r.operations},
                                       {"job_seconds", r.job_seconds},
                                       {"wall_seconds", r.wall_seconds},
                                       {"finished", r.all_finished()},
                                       {"ranks", ranks}}
                            .dump()
                            .c_str());
    return;
  }
  std::printf(
      "%lld steps, %llu operations on %zu ranks in %.1f s of the job's time (%.1f s here)\n",
      static_cast<long long>(r.steps), static_cast<unsigned long long>(r.operations),
      r.ranks.size(), r.job_seconds, r.wall_seconds);
  for (const auto& rank : r.ranks) {
    if (rank.signal != 0) {
      std::printf("rank %d on node %d was ended by signal %d\n", rank.rank, rank.node, rank.signal);
    } else if (rank.exit_code != 0) {
      std::printf("rank %d on node %d ended with %d (%s)\n", rank.rank, rank.node, rank.exit_code,
                  rank.exit_code == 3   ? "hung until given up"
                  : rank.exit_code == 4 ? "aborted"
                                        : "error");
    }
  }
}

void run(const Options& o) {
  const sim::SimulationConfig config = to_config(o);
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const bool show = !o.json && isatty(STDERR_FILENO) != 0;
  const sim::SimulationResult result =
      sim::run_simulation(config, [show](const sim::Simulation& s) {
        if (show) {
          std::fprintf(stderr, "\r%lld steps, %llu operations", static_cast<long long>(s.steps()),
                       static_cast<unsigned long long>(s.operations()));
        }
        return !interrupted.load();
      });
  if (show) std::fputc('\n', stderr);
  if (!result.error.empty()) fail(result.error);
  print_result(result, o.json);
  // A fault that was asked for is no failure of the command; an end that nobody asked for is.
  if (!result.all_finished() && config.faults.empty() && !interrupted.load())
    throw CLI::RuntimeError(kNegative);
}

}  // namespace

void register_simulate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand(
      "simulate", "Plays a training job with an emulated NCCL and the real plugin");
  c->add_option("--nodes", options->nodes, "Emulated nodes")
      ->capture_default_str()
      ->check(CLI::Range(1, 512));
  c->add_option("--gpus", options->gpus, "GPUs (ranks) per node")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  c->add_option("--layout", options->layout, "ddp, fsdp, megatron:tp=2,pp=2, moe:ep=4 and the like")
      ->capture_default_str();
  c->add_option("--release", options->release, "NCCL release to behave like, 2.23 to 2.32")
      ->capture_default_str();
  c->add_option("--fault", options->faults,
                "What goes wrong; may be given several times (see below)")
      ->type_name("KIND:KEY=VALUE,...");
  c->add_option("--duration", options->duration,
                "How long, in the job's time: 30s, 5m, 1h; 0 = until --steps")
      ->capture_default_str();
  c->add_option("--steps", options->steps, "End after so many training steps; 0 = until --duration")
      ->capture_default_str();
  c->add_option("--seed", options->seed, "Of all random choices")->capture_default_str();
  c->add_flag("--fast", options->fast, "As fast as possible instead of in real time");
  c->add_option("--socket", options->sockets,
                "Agent's socket for all nodes, or once per node; default: NCCLSCOPE_SOCKET or the "
                "plugin's default");
  c->add_option("--job-id", options->job_id, "SLURM job id that the ranks claim")
      ->capture_default_str();
  c->add_option("--job-name", options->job_name, "Its name")->capture_default_str();
  c->add_option("--plugin", options->plugin, "Value of NCCL_PROFILER_PLUGIN")
      ->capture_default_str();
  c->add_option("--plugin-dir", options->plugin_directory,
                "Where the plugin lies, if not beside this program");
  c->add_flag("--log", options->log, "NCCL's own messages about the plugin, on standard error");
  c->add_flag("--json", options->json, "Result as JSON");
  c->footer(std::string("Faults:\n") + sim::fault_help() +
            "\nExit status: 0 the job ran (faults that were asked for included); 1 ranks failed "
            "without a fault;\n"
            "2 wrong arguments, or the job could not be started.");
  c->callback([options] { run(*options); });
}

}  // namespace ncclscope::cli
