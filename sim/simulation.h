// SPDX-License-Identifier: Apache-2.0
// Runs an emulated training job: one process per rank (ncclscope-sim-rank), each with the profiler
// plugin loaded as the chosen NCCL release loads it, coupled through shared memory. For the command
// `ncclscope simulate`, end-to-end tests and benchmarks. Functions return or carry error texts; no
// exceptions cross this interface except std::bad_alloc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/fault.h"
#include "sim/host.h"
#include "sim/release.h"
#include "sim/workload.h"
#include "sim/world.h"

namespace ncclscope::sim {

using Environment = std::map<std::string, std::string>;

struct SimulationConfig {
  int nodes = 1;
  int gpus_per_node = 2;
  Layout layout;  ///< parse_layout
  Release release;
  std::vector<Fault> faults;  ///< parse_fault

  double duration_seconds = 0;  ///< in the job's time; 0: only `steps` limits
  std::int64_t steps = 0;       ///< 0: only the duration limits; both 0: 10 steps
  /// A job that hangs is given up this long after its duration (or after the start without one).
  double hang_seconds = 30;
  std::uint64_t seed = 1;
  Pace pace = Pace::kRealTime;

  /// Value of NCCL_PROFILER_PLUGIN; nullopt: unset.
  std::optional<std::string> plugin = "libnccl-profiler-ncclscope.so";
  /// Put before LD_LIBRARY_PATH of the ranks, so that the plugin is found by name.
  std::string library_path;
  /// Environment of all ranks (claims such as SLURM_JOB_ID, NCCLSCOPE_* settings).
  Environment job_environment;
  /// Environment of the ranks of one node, by node number: NCCLSCOPE_SOCKET of that node's agent.
  std::map<int, Environment> node_environment;
  /// Sets RANK, LOCAL_RANK, WORLD_SIZE, SLURM_PROCID and their like per rank.
  bool claim_ranks = true;

  HardwareModel hardware;
  Tuning tuning;
  Hazards hazards;
  StepModel model;
  /// GPU timers: rank r gets offset r * gpu_clock_spread_ns and a drift of up to this many ppm.
  std::int64_t gpu_clock_spread_ns = 0;
  double gpu_clock_drift_ppm = 0;
  bool log_nccl = false;  ///< NCCL's load messages on stderr
  bool destroy = true;    ///< ranks destroy their communicators at the end

  /// ncclscope-sim-rank; empty: NCCLSCOPE_SIM_RANK, else searched beside this program.
  std::string rank_executable;
};

struct RankResult {
  int rank = 0;
  int node = 0;
  pid_t pid = 0;
  bool exited = false;
  int exit_code = 0;  ///< 0 fine, 3 hung until given up, 4 aborted, 1 error
  int signal = 0;     ///< when killed by one
};

struct SimulationResult {
  std::string error;  ///< empty: ran (whatever the faults did)
  std::vector<RankResult> ranks;
  std::int64_t steps = 0;        ///< begun by the fastest rank
  std::uint64_t operations = 0;  ///< completed, all ranks together
  double wall_seconds = 0;
  double job_seconds = 0;     ///< in the job's time
  bool all_finished() const;  ///< every rank ended with code 0
};

class Simulation {
 public:
  explicit Simulation(SimulationConfig config);
  ~Simulation();  ///< stops what runs
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Starts all ranks. Error text, empty if started.
  std::string start();
  /// Waits for the end, at most `seconds` of real time (negative: without limit). True: all ended.
  bool wait(double seconds);
  /// Asks the ranks to end at once; kills those still there two seconds later.
  void stop();
  /// State so far; complete after wait() returned true.
  SimulationResult result();
  std::vector<pid_t> pids() const;
  std::int64_t steps() const;
  std::uint64_t operations() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// start, wait, result in one. `progress` is called about once per second if given; false stops.
SimulationResult run_simulation(const SimulationConfig& config,
                                const std::function<bool(const Simulation&)>& progress = {});

/// Checks a configuration without running it. Error text, empty if it can run.
std::string check(const SimulationConfig& config);

/// Body of ncclscope-sim-rank.
int rank_main(int argc, char** argv);

}  // namespace ncclscope::sim
