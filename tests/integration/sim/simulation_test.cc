// SPDX-License-Identifier: Apache-2.0
// Whole simulated jobs, one process per rank: they run to their end in both paces and every layout,
// faults show where they should, and the ranks' environment is what was asked for. The recorder
// plugin writes the calls of each rank down.
#include "sim/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/integration/sim/trace_view.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::sim {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Simulations : public testing::Test {
 protected:
  /// `nodes` x `gpus` ranks; rank r on node n records into <directory>/n<n>.<pid> by way of a
  /// plugin.
  SimulationConfig job(int nodes, int gpus, const std::string& layout) const {
    SimulationConfig config;
    std::string error;
    config.nodes = nodes;
    config.gpus_per_node = gpus;
    config.layout = parse_layout(layout, &error);
    EXPECT_EQ(error, "");
    config.plugin = "libnccl-profiler-recorder5.so";
    config.library_path = NCCLSCOPE_RECORDER_DIRECTORY;
    config.rank_executable = NCCLSCOPE_SIM_RANK_PROGRAM;
    config.pace = Pace::kAsFastAsPossible;
    config.steps = 8;
    config.hang_seconds = 5;
    config.model.compute_noise = 0;
    config.hardware.noise = 0;
    config.job_environment["NCCLSCOPE_SIM_RECORD_MASK"] = "0x46";
    for (int n = 0; n < nodes; ++n) {
      config.node_environment[n]["NCCLSCOPE_SIM_RECORD"] = directory_ + "/n" + std::to_string(n);
    }
    return config;
  }
  static void add_fault(SimulationConfig* config, const std::string& text) {
    std::string error;
    config->faults.push_back(parse_fault(text, &error));
    ASSERT_EQ(error, "");
  }

  /// Mean kernel time in ns of the AllReduces of the rank that is alone on `node`, steps after the
  /// first.
  double mean_kernel_ns(int node) const {
    const TraceView view = read_trace(directory_ + "/n" + std::to_string(node));
    double sum = 0;
    int count = 0;
    for (const auto& [name, time] : view.kernels) {
      if (time.stop <= time.start) continue;
      sum += static_cast<double>(time.stop - time.start);
      ++count;
    }
    return count > 0 ? sum / count : 0;
  }

  const tests::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
};

TEST_F(Simulations, EveryLayoutRunsToItsEnd) {
  for (const char* layout :
       {"ddp", "fsdp", "megatron:tp=2,pp=2", "megatron:tp=2", "moe:ep=4", "moe:ep=2"}) {
    SimulationConfig config = job(2, 4, layout);
    config.node_environment.clear();
    const SimulationResult result = run_simulation(config);
    EXPECT_EQ(result.error, "") << layout;
    EXPECT_TRUE(result.all_finished()) << layout;
    EXPECT_EQ(result.steps, 8) << layout;
    EXPECT_GT(result.operations, 8u * 8u) << layout;
  }
}

TEST_F(Simulations, EveryReleaseRunsAJob) {
  for (const char* release :
       {"2.23", "2.24", "2.25", "2.26", "2.27", "2.28", "2.29", "2.30", "2.31", "2.32"}) {
    SimulationConfig config = job(2, 2, "moe:ep=2");
    std::string error;
    config.release = parse_release(release, &error);
    config.plugin =
        "libnccl-profiler-recorder" + std::to_string(config.release.native_interface()) + ".so";
    const SimulationResult result = run_simulation(config);
    EXPECT_TRUE(result.all_finished()) << release << " " << result.error;
    EXPECT_GT(fs::file_size(directory_ + "/n0"), 1000u) << release;
    fs::remove(directory_ + "/n0");
    fs::remove(directory_ + "/n1");
  }
}

TEST_F(Simulations, VirtualTimeIsFasterThanTimeAndEqualInIt) {
  SimulationConfig config = job(2, 1, "ddp");
  config.steps = 0;
  config.duration_seconds = 10;
  config.node_environment.clear();
  const SimulationResult result = run_simulation(config);
  EXPECT_TRUE(result.all_finished());
  EXPECT_GE(result.job_seconds, 10);
  EXPECT_LT(result.job_seconds, 11);
  EXPECT_GT(result.steps, 300);
}

TEST_F(Simulations, RealTimeTakesItsTime) {
  SimulationConfig config = job(2, 1, "ddp");
  config.pace = Pace::kRealTime;
  config.steps = 0;
  config.duration_seconds = 1;
  const SimulationResult result = run_simulation(config);
  EXPECT_TRUE(result.all_finished());
  EXPECT_GE(result.wall_seconds, 1);
  EXPECT_GT(result.steps, 5);
}

TEST_F(Simulations, SameSeedGivesTheSameTimes) {
  std::vector<double> means;
  for (int i = 0; i < 2; ++i) {
    SimulationConfig config = job(3, 1, "ddp");
    config.seed = 99;
    config.hardware.noise = 0.1;
    config.hardware.seed = 5;
    EXPECT_TRUE(run_simulation(config).all_finished());
    means.push_back(mean_kernel_ns(0));
    for (int n = 0; n < 3; ++n) fs::remove(directory_ + "/n" + std::to_string(n));
  }
  // GPU timers start where the clock stood; their step of 32 ns is all that may differ.
  EXPECT_NEAR(means[0], means[1], 64);
}

TEST_F(Simulations, LateRankHasTheShortKernels) {
  SimulationConfig config = job(4, 1, "ddp");
  add_fault(&config, "late:rank=2,ms=30");
  EXPECT_TRUE(run_simulation(config).all_finished());
  for (const int node : {0, 1, 3}) EXPECT_GT(mean_kernel_ns(node), 2 * mean_kernel_ns(2)) << node;
}

TEST_F(Simulations, SlowGpuHasTheShortKernelsToo) {
  SimulationConfig config = job(4, 1, "ddp");
  add_fault(&config, "slow-gpu:rank=1,factor=2");
  EXPECT_TRUE(run_simulation(config).all_finished());
  for (const int node : {0, 2, 3}) EXPECT_GT(mean_kernel_ns(node), 1.5 * mean_kernel_ns(1)) << node;
}

TEST_F(Simulations, SlowKernelAndSlowLinkAreLongEverywhere) {
  for (const char* fault :
       {"slow-kernel:rank=1,ms=20", "slow-link:rank=1,factor=20", "slow-nic:rank=1,factor=20"}) {
    SimulationConfig healthy = job(3, 1, "ddp");
    EXPECT_TRUE(run_simulation(healthy).all_finished());
    const double before = mean_kernel_ns(0);
    for (int n = 0; n < 3; ++n) fs::remove(directory_ + "/n" + std::to_string(n));
    SimulationConfig config = job(3, 1, "ddp");
    add_fault(&config, fault);
    EXPECT_TRUE(run_simulation(config).all_finished());
    for (int n = 0; n < 3; ++n) {
      EXPECT_GT(mean_kernel_ns(n), 3 * before) << fault << " node " << n;
      EXPECT_NEAR(mean_kernel_ns(n), mean_kernel_ns(0), 0.1 * mean_kernel_ns(0)) << fault;
    }
    for (int n = 0; n < 3; ++n) fs::remove(directory_ + "/n" + std::to_string(n));
  }
}

TEST_F(Simulations, HangsAreGivenUpAndReported) {
  for (const char* fault :
       {"missing:rank=1,step=3", "stuck:node=1,step=3", "mismatch:rank=0,step=3"}) {
    SimulationConfig config = job(2, 2, "ddp");
    config.node_environment.clear();
    add_fault(&config, fault);
    const SimulationResult result = run_simulation(config);
    EXPECT_EQ(result.error, "");
    ASSERT_EQ(result.ranks.size(), 4u);
    for (const RankResult& rank : result.ranks) {
      EXPECT_TRUE(rank.exited) << fault;
      EXPECT_EQ(rank.exit_code, 3) << fault << " rank " << rank.rank;
    }
  }
}

TEST_F(Simulations, CrashedRankIsKilledAndTheOthersHang) {
  SimulationConfig config = job(2, 1, "ddp");
  add_fault(&config, "crash:rank=1,step=3");
  const SimulationResult result = run_simulation(config);
  ASSERT_EQ(result.ranks.size(), 2u);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  EXPECT_EQ(result.ranks[0].exit_code, 3);
}

TEST_F(Simulations, AbortEndsEverybodyWithFinalize) {
  SimulationConfig config = job(2, 1, "ddp");
  add_fault(&config, "abort:step=3");
  const SimulationResult result = run_simulation(config);
  for (const RankResult& rank : result.ranks) EXPECT_EQ(rank.exit_code, 4);
  std::ifstream file(directory_ + "/n0");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("\"cb\":\"finalize\""));
}

TEST_F(Simulations, StopEndsRunningRanks) {
  SimulationConfig config = job(2, 2, "ddp");
  config.pace = Pace::kRealTime;
  config.steps = 1000000;
  config.hang_seconds = 600;
  Simulation simulation(config);
  ASSERT_EQ(simulation.start(), "");
  EXPECT_EQ(simulation.pids().size(), 4u);
  while (simulation.steps() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(simulation.wait(0));
  simulation.stop();
  EXPECT_TRUE(simulation.wait(0));
  for (const RankResult& rank : simulation.result().ranks) EXPECT_TRUE(rank.exited);
}

TEST_F(Simulations, StartRefusesWhatCannotRunAndSaysWhy) {
  SimulationConfig config = job(1, 2, "ddp");
  config.rank_executable = "/does/not/exist";
  Simulation missing(config);
  EXPECT_THAT(missing.start(), HasSubstr("/does/not/exist"));
  config = job(1, 3, "megatron:tp=2");
  Simulation uneven(config);
  EXPECT_THAT(uneven.start(), HasSubstr("2 GPUs, the job has 3"));
}

}  // namespace
}  // namespace ncclscope::sim
