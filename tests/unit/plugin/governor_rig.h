// SPDX-License-Identifier: Apache-2.0
//
// A load on an injected clock for the governor: so many operations per second, each of which costs
// what the plugin's calls of a 16-channel AllReduce cost at the step in force. Own time is seen as
// the plugin sees it, one operation in 128, for 128.
#pragma once

#include <array>
#include <cstdint>
#include <random>

#include "plugin/governor.h"

namespace ncclscope::plugin {

struct GovernorRig {
  static constexpr double kBudget = 0.001;
  static constexpr std::uint64_t kTickNs = 100'000'000;
  /// ns of own time for an operation, by step: all, without network, GPU times for one block in 16,
  /// in 64, calls only.
  static constexpr std::array<double, 5> kCostNs = {1200, 1100, 260, 220, 75};

  explicit GovernorRig(unsigned seed = 1) : random(seed) {}

  /// A load that costs this share of the budget at step 0.
  void load_at_budget_share(double share) { rate = share * kBudget * 1e9 / kCostNs[0]; }
  void multiply(double factor) { rate *= factor; }

  void tick() {
    now_ns += kTickNs;
    std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
    const double operations = rate * static_cast<double>(kTickNs) * 1e-9 * factor(random);
    true_ns += operations * kCostNs[governor.step()];
    waiting += operations;
    for (; waiting >= 128; waiting -= 128)
      own_ns += static_cast<std::uint64_t>(128 * kCostNs[governor.step()] * factor(random));
    governor.observe(now_ns, own_ns);
  }
  void run(double seconds) {
    for (double t = 0; t < seconds; t += 0.1) tick();
  }
  /// Multiplies the load; the time until its true cost is under the budget and stays there for a
  /// second (99 = never).
  double seconds_to_recover(double factor) {
    multiply(factor);
    double last_over = 0;
    for (int i = 1; i <= 60; ++i) {
      const double before = true_ns;
      tick();
      if (true_ns - before > kBudget * static_cast<double>(kTickNs)) last_over = 0.1 * i;
    }
    return last_over >= 5 ? 99 : last_over;
  }

  std::mt19937 random;
  Governor governor;
  std::uint64_t now_ns = 1'000'000'000;
  std::uint64_t own_ns = 0;
  double true_ns = 0;
  double rate = 0;     // operations per second
  double waiting = 0;  // since the last one measured
  double noise = 0;    // of load and cost, +- this share
};

}  // namespace ncclscope::plugin
