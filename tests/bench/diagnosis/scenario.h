// SPDX-License-Identifier: Apache-2.0
//
// What is played: a training job, its uneven places, its fault. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <string>

namespace ncclscope::bench {

enum class Family : std::uint8_t { kDdp, kFsdp, kTensorData, kTensorPipelineData, kExperts };
inline constexpr int kFamilies = 5;

enum class Fault : std::uint8_t {
  kNone,
  kDataLoader,  // the rank begins its steps late
  kSlowHost,    // its GPU waits for launches all the time
  kSlowGpu,     // its kernels take longer
  kLateNode,    // all GPUs of its node do
};
inline constexpr int kFaults = 5;

/// What stops a job for good.
enum class Stop : std::uint8_t {
  kNone,
  kProcessGone,
  kNeverCalled,
  kGpuNeverStarted,
  kNetworkStuck,
  kOtherArguments,
};
inline constexpr int kStops = 6;

struct Scenario {
  std::uint64_t seed = 0;
  Family family{};
  // Global rank = (stage * dp + replica) * tp + place in the tensor-parallel group.
  int tp = 1, pp = 1, dp = 1;
  int ep = 1;  // ranks of an expert-parallel group: neighbours in a data-parallel one
  int gpus_per_node = 8;
  int layers = 4;  // of one stage
  int microbatches = 1;
  double step_seconds = 1;     // compute of a rank in a step, mean
  double jitter = 0.01;        // standard deviation of a rank's step compute, of its mean
  double spread = 0.002;       // half width of what GPUs differ by for ever, of the mean
  double network_jitter = 0;   // standard deviation of a transfer, of its time
  double communication = 0.2;  // time of transfers in a step, of its compute

  // Uneven, and healthy.
  double uneven_stage = 0;  // what the last stage takes longer, of its compute
  double hot_expert = 0;    // what one expert takes longer, of its compute
  bool pauses = false;      // evaluations, checkpoints
  bool agent_restart = false;
  double telemetry_loss = 0;  // of records, on one node

  Fault fault = Fault::kNone;
  int culprit = -1;  // global rank; of a node: its first
  double delay = 0;  // added mean compute per step, of step_seconds
  int onset = 0;     // first step of the fault
  int steps = 75;    // all

  Stop stop = Stop::kNone;
  int stop_step = 0;      // in which it stops, ...
  double stop_place = 0;  // ... at this share of the culprit's collectives

  [[nodiscard]] int ranks() const { return tp * pp * dp; }
  [[nodiscard]] int nodes() const { return (ranks() + gpus_per_node - 1) / gpus_per_node; }
  [[nodiscard]] bool is_late(int rank) const {
    if (fault == Fault::kNone) return false;
    return fault == Fault::kLateNode ? rank / gpus_per_node == culprit / gpus_per_node
                                     : rank == culprit;
  }
};

/// A job without a fault: uneven stages, hot experts, pauses, restarts and loss among them.
[[nodiscard]] Scenario healthy_scenario(std::uint64_t seed, int most_ranks);
/// A job with a fault of at least three standard deviations of a rank's step compute.
[[nodiscard]] Scenario faulty_scenario(std::uint64_t seed, int most_ranks);

/// A job that stops for good in its fourth step.
[[nodiscard]] Scenario stopping_scenario(std::uint64_t seed, int most_ranks);

[[nodiscard]] const char* name(Stop stop);
[[nodiscard]] const char* name(Family family);
[[nodiscard]] const char* name(Fault fault);
/// One line that tells all of it.
[[nodiscard]] std::string describe(const Scenario& scenario);

}  // namespace ncclscope::bench
