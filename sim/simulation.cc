// SPDX-License-Identifier: Apache-2.0
// Parent side of a simulation: see simulation.h. Children are started with posix_spawn, waited for
// by pid and, where they do not end by themselves, killed by pid.
#include "sim/simulation.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "sim/config_text.h"

extern char** environ;

namespace ncclscope::sim {
namespace {

using Clock = std::chrono::steady_clock;

std::string own_directory() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return ".";
  path[length] = '\0';
  const std::string text(path);
  return text.substr(0, text.find_last_of('/'));
}

/// Searches the rank program; empty if there is none.
std::string find_rank_executable(const std::string& configured) {
  if (!configured.empty()) return configured;
  if (const char* given = std::getenv("NCCLSCOPE_SIM_RANK")) return given;
  const std::string here = own_directory();
  for (const char* place : {"/ncclscope-sim-rank", "/../libexec/ncclscope/ncclscope-sim-rank",
                            "/../sim/ncclscope-sim-rank", "/sim/ncclscope-sim-rank",
                            "/../lib/ncclscope/ncclscope-sim-rank"}) {
    if (::access((here + place).c_str(), X_OK) == 0) return here + place;
  }
  return "";
}

std::int64_t seconds_ns(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace

bool SimulationResult::all_finished() const {
  return error.empty() && !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(),
                     [](const RankResult& r) { return r.exited && r.exit_code == 0; });
}

std::string check(const SimulationConfig& config) {
  if (config.nodes < 1 || config.gpus_per_node < 1) {
    return "a job has at least 1 node and 1 GPU per node, asked for " +
           std::to_string(config.nodes) + " and " + std::to_string(config.gpus_per_node);
  }
  const int world = config.nodes * config.gpus_per_node;
  if (config.nodes > 1024 || world > 1024) {
    return "at most 1024 ranks are simulated, asked for " + std::to_string(world);
  }
  if (config.duration_seconds < 0 || config.steps < 0 || config.hang_seconds <= 0) {
    return "duration and steps must not be negative and hang time must be positive";
  }
  std::string error;
  resolve_layout(config.layout, world, config.gpus_per_node, &error);
  if (!error.empty()) return error;
  for (const Fault& fault : config.faults) {
    if (fault.rank >= world) {
      return "fault " + to_text(fault) + " names rank " + std::to_string(fault.rank) +
             ", ranks are 0 to " + std::to_string(world - 1);
    }
    if (fault.node >= config.nodes) {
      return "fault " + to_text(fault) + " names node " + std::to_string(fault.node) +
             ", nodes are 0 to " + std::to_string(config.nodes - 1);
    }
  }
  return "";
}

struct Simulation::Impl {
  SimulationConfig config;
  std::shared_ptr<World> world;
  std::vector<RankResult> ranks;
  Clock::time_point started;
  std::int64_t job_start = 0;
  double wall_seconds = 0;
  std::string error;

  Environment environment_of(int rank, int node, const std::string& text) const;
  bool reap();
};

Simulation::Simulation(SimulationConfig config) : impl_(std::make_unique<Impl>()) {
  impl_->config = std::move(config);
}

Simulation::~Simulation() {
  if (impl_->world != nullptr && !impl_->reap()) stop();
}

Environment Simulation::Impl::environment_of(int rank, int node, const std::string& text) const {
  Environment out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equal = std::strchr(*entry, '=');
    if (equal == nullptr) continue;
    out[std::string(static_cast<const char*>(*entry), equal)] = equal + 1;
  }
  const int local = rank % config.gpus_per_node;
  if (config.claim_ranks) {
    const std::string world_size = std::to_string(config.nodes * config.gpus_per_node);
    out["RANK"] = std::to_string(rank);
    out["LOCAL_RANK"] = std::to_string(local);
    out["WORLD_SIZE"] = world_size;
    out["LOCAL_WORLD_SIZE"] = std::to_string(config.gpus_per_node);
    out["SLURM_PROCID"] = std::to_string(rank);
    out["SLURM_LOCALID"] = std::to_string(local);
    out["SLURM_NODEID"] = std::to_string(node);
    out["SLURM_NTASKS"] = world_size;
    out["SLURM_NNODES"] = std::to_string(config.nodes);
    out["SLURMD_NODENAME"] = "node" + std::to_string(node);
  }
  out["NCCL_HOSTID"] = "node" + std::to_string(node);
  for (const auto& [key, value] : config.job_environment) out[key] = value;
  const auto own = config.node_environment.find(node);
  if (own != config.node_environment.end()) {
    for (const auto& [key, value] : own->second) out[key] = value;
  }
  out.erase("NCCL_PROFILER_PLUGIN");
  if (config.plugin) out["NCCL_PROFILER_PLUGIN"] = *config.plugin;
  if (!config.library_path.empty()) {
    std::string& path = out["LD_LIBRARY_PATH"];
    path = config.library_path + (path.empty() ? "" : ":" + path);
  }
  out[kConfigVariable] = text;
  return out;
}

std::string Simulation::start() {
  SimulationConfig& config = impl_->config;
  if (std::string error = check(config); !error.empty()) return error;
  if (config.steps == 0 && config.duration_seconds <= 0) config.steps = 10;
  const std::string program = find_rank_executable(config.rank_executable);
  if (program.empty() || ::access(program.c_str(), X_OK) != 0) {
    return program.empty() ? "ncclscope-sim-rank is not beside " + own_directory() +
                                 "; set NCCLSCOPE_SIM_RANK to its path"
                           : program + " cannot be executed: " + std::strerror(errno);
  }
  try {
    impl_->world = World::create(config.pace);
  } catch (const std::exception& e) {
    return std::string("shared memory of the simulation: ") + e.what();
  }
  World& world = *impl_->world;
  impl_->started = Clock::now();
  impl_->job_start = world.now();
  const std::int64_t end =
      config.duration_seconds > 0 ? world.now() + seconds_ns(config.duration_seconds) : kNever;
  const std::int64_t hard_end =
      (end == kNever ? world.now() : end) + seconds_ns(config.hang_seconds);
  const int n = config.nodes * config.gpus_per_node;
  std::vector<RankOrders> orders(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    // All slots exist before the first rank runs: virtual time cannot leave anybody behind.
    orders[static_cast<std::size_t>(rank)] = {world.path(), rank, world.reserve_actor(rank), end,
                                              hard_end};
  }
  for (int rank = 0; rank < n; ++rank) {
    const int node = rank / config.gpus_per_node;
    const Environment environment = impl_->environment_of(
        rank, node, write_config(config, orders[static_cast<std::size_t>(rank)]));
    std::vector<std::string> storage;
    std::vector<char*> envp;
    storage.reserve(environment.size());
    for (const auto& [key, value] : environment) storage.push_back(key + "=" + value);
    for (std::string& entry : storage) envp.push_back(entry.data());
    envp.push_back(nullptr);
    std::string argv0 = program;
    char* argv[] = {argv0.data(), nullptr};
    RankResult result;
    result.rank = rank;
    result.node = node;
    const int failed =
        ::posix_spawn(&result.pid, program.c_str(), nullptr, nullptr, argv, envp.data());
    if (failed != 0) {
      impl_->error =
          "rank " + std::to_string(rank) + " could not be started: " + std::strerror(failed);
      stop();
      return impl_->error;
    }
    impl_->ranks.push_back(result);
  }
  return "";
}

bool Simulation::Impl::reap() {
  bool all = true;
  for (RankResult& rank : ranks) {
    if (rank.exited) continue;
    int status = 0;
    const pid_t got = ::waitpid(rank.pid, &status, WNOHANG);
    if (got != rank.pid) {
      all = false;
      continue;
    }
    rank.exited = true;
    if (WIFEXITED(status)) rank.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) {
      rank.signal = WTERMSIG(status);
      rank.exit_code = 128 + rank.signal;
    }
    world->drop_owner(rank.rank);
  }
  if (all && wall_seconds <= 0) {
    wall_seconds = std::chrono::duration<double>(Clock::now() - started).count();
  }
  return all;
}

bool Simulation::wait(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds < 0 ? 0 : seconds);
  for (;;) {
    if (impl_->reap()) return true;
    if (seconds >= 0 && Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void Simulation::stop() {
  if (impl_->world == nullptr) return;
  impl_->world->request_stop();
  if (wait(2)) return;
  for (const RankResult& rank : impl_->ranks) {
    if (!rank.exited) ::kill(rank.pid, SIGKILL);
  }
  wait(5);
}

SimulationResult Simulation::result() {
  SimulationResult result;
  if (impl_->world == nullptr) return result;
  impl_->reap();
  result.error = impl_->error;
  result.ranks = impl_->ranks;
  result.steps = impl_->world->steps_begun();
  result.operations = impl_->world->completed_operations().load();
  result.wall_seconds = impl_->wall_seconds > 0
                            ? impl_->wall_seconds
                            : std::chrono::duration<double>(Clock::now() - impl_->started).count();
  result.job_seconds = impl_->config.pace == Pace::kRealTime
                           ? result.wall_seconds
                           : static_cast<double>(impl_->world->now() - impl_->job_start) / 1e9;
  return result;
}

std::vector<pid_t> Simulation::pids() const {
  std::vector<pid_t> pids;
  for (const RankResult& rank : impl_->ranks) pids.push_back(rank.pid);
  return pids;
}

std::int64_t Simulation::steps() const {
  return impl_->world != nullptr ? impl_->world->steps_begun() : 0;
}
std::uint64_t Simulation::operations() const {
  return impl_->world != nullptr ? impl_->world->completed_operations().load() : 0;
}

SimulationResult run_simulation(const SimulationConfig& config,
                                const std::function<bool(const Simulation&)>& progress) {
  Simulation simulation(config);
  SimulationResult result;
  result.error = simulation.start();
  if (!result.error.empty()) return result;
  while (!simulation.wait(1)) {
    if (progress && !progress(simulation)) simulation.stop();
  }
  return simulation.result();
}

}  // namespace ncclscope::sim
