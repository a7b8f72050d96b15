// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "tests/bench/diagnosis/random.h"

namespace ncclscope::bench {
namespace {

/// Powers of two from 8 up: how jobs are cut.
int pick_ranks(Random& random, int most) {
  int steps = 0;
  while ((16 << steps) <= most) ++steps;
  return 8 << random.below(steps + 1);
}

void pick_layout(Random& random, Scenario& s, int ranks) {
  s.family = static_cast<Family>(random.below(kFamilies));
  switch (s.family) {
    case Family::kDdp:
    case Family::kFsdp:
      s.dp = ranks;
      s.layers = 4 + random.below(9);
      break;
    case Family::kTensorData:
      s.tp = random.one_of({2, 4, 8});
      s.dp = ranks / s.tp;
      s.layers = 3 + random.below(6);
      break;
    case Family::kTensorPipelineData: {
      s.tp = ranks >= 32 ? random.one_of({2, 4, 8}) : 2;
      s.pp = ranks >= 64 ? random.one_of({2, 4, 8}) : 2;
      while (s.tp * s.pp * 2 > ranks) s.pp /= 2;
      s.dp = ranks / s.tp / s.pp;
      s.layers = 1 + random.below(3);
      s.microbatches = s.pp * random.one_of({1, 2});
      break;
    }
    case Family::kExperts:
      s.dp = ranks;
      s.ep = random.one_of({4, 8});
      s.layers = 2 + random.below(3);
      break;
  }
}

Scenario common(Random& random, std::uint64_t seed, int most_ranks) {
  Scenario s;
  s.seed = seed;
  pick_layout(random, s, pick_ranks(random, most_ranks));
  s.step_seconds = random.log_uniform(0.2, 8);
  s.jitter = random.log_uniform(0.002, 0.03);
  s.network_jitter = random.uniform(0.01, 0.05);
  s.communication = random.uniform(0.05, 0.4);
  if (s.family == Family::kTensorPipelineData && random.chance(0.5))
    s.uneven_stage = random.uniform(0.05, 0.3);
  if (s.family == Family::kExperts && random.chance(0.5)) s.hot_expert = random.uniform(0.05, 0.5);
  s.pauses = random.chance(0.5);
  return s;
}

}  // namespace

Scenario healthy_scenario(std::uint64_t seed, int most_ranks) {
  Random random(seed * 2);
  Scenario s = common(random, seed, most_ranks);
  s.steps = 75;
  s.agent_restart = random.chance(0.3);
  if (random.chance(0.3)) s.telemetry_loss = 0.05;
  return s;
}

Scenario faulty_scenario(std::uint64_t seed, int most_ranks) {
  Random random(seed * 2 + 1);
  Scenario s = common(random, seed, most_ranks);
  s.fault = static_cast<Fault>(1 + random.below(s.nodes() > 1 ? kFaults - 1 : kFaults - 2));
  s.culprit = random.below(s.ranks());
  // A node that holds a whole stage, when late, is an uneven stage: nobody could tell.
  if (s.fault == Fault::kLateNode && s.pp > 1 && s.dp * s.tp <= s.gpus_per_node)
    s.fault = Fault::kSlowGpu;
  if (s.fault == Fault::kLateNode) s.culprit -= s.culprit % s.gpus_per_node;
  // Later stages wait for their input anyway.
  if (s.fault == Fault::kDataLoader) s.culprit %= s.dp * s.tp;
  s.delay = std::max(3 * s.jitter, random.log_uniform(0.02, 2));
  s.onset = random.chance(0.5) ? 0 : 30;
  s.steps = s.onset + 60;
  return s;
}

Scenario stopping_scenario(std::uint64_t seed, int most_ranks) {
  Random random(seed * 2 + 1);
  Scenario s = common(random, seed, most_ranks);
  s.pauses = false;
  s.stop = static_cast<Stop>(1 + random.below(kStops - 1));
  s.stop_step = 3;
  s.stop_place = random.uniform();
  s.culprit = random.below(s.ranks());
  s.steps = 4;
  return s;
}

const char* name(Stop stop) {
  constexpr std::array<const char*, kStops> kNames = {
      "none",          "process_gone",     "rank_never_called", "gpu_never_started",
      "network_stuck", "argument_mismatch"};
  return kNames[static_cast<std::size_t>(stop)];
}

const char* name(Family family) {
  constexpr std::array<const char*, kFamilies> kNames = {"ddp", "fsdp", "tp-dp", "tp-pp-dp", "moe"};
  return kNames[static_cast<std::size_t>(family)];
}

const char* name(Fault fault) {
  constexpr std::array<const char*, kFaults> kNames = {"none", "data_loader", "slow_host",
                                                       "slow_gpu", "late_node"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string describe(const Scenario& s) {
  std::ostringstream out;
  out << "seed " << s.seed << ": " << name(s.family) << " tp" << s.tp << " pp" << s.pp << " dp"
      << s.dp << " ep" << s.ep << ", layers " << s.layers << ", microbatches " << s.microbatches
      << ", step " << s.step_seconds << " s, jitter " << s.jitter << ", communication "
      << s.communication;
  if (s.uneven_stage > 0) out << ", uneven stage " << s.uneven_stage;
  if (s.hot_expert > 0) out << ", hot expert " << s.hot_expert;
  if (s.pauses) out << ", pauses";
  if (s.agent_restart) out << ", agent restart";
  if (s.telemetry_loss > 0) out << ", telemetry loss " << s.telemetry_loss;
  if (s.fault != Fault::kNone)
    out << ", " << name(s.fault) << " rank " << s.culprit << " +" << s.delay << " from step "
        << s.onset;
  if (s.stop != Stop::kNone)
    out << ", " << name(s.stop) << " rank " << s.culprit << " at " << s.stop_place
        << " of a step's collectives";
  return out.str();
}

}  // namespace ncclscope::bench
