// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/hang_trial.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tests/bench/diagnosis/agents.h"
#include "tests/bench/diagnosis/job_model.h"
#include "verdict/hang.h"

namespace ncclscope::bench {
namespace {

/// Above the longest step and the threshold of a hang.
constexpr double kLookAfterSeconds = 120;

verdict::HangClass class_of(Stop stop) {
  switch (stop) {
    case Stop::kProcessGone:
      return verdict::HangClass::kProcessGone;
    case Stop::kNeverCalled:
      return verdict::HangClass::kRankNeverCalled;
    case Stop::kGpuNeverStarted:
      return verdict::HangClass::kGpuNeverStarted;
    case Stop::kOtherArguments:
      return verdict::HangClass::kArgumentMismatch;
    default:
      return verdict::HangClass::kNetworkStuck;
  }
}

/// What each member of a communicator has done by `now`.
class Counts {
 public:
  explicit Counts(const Scenario& scenario)
      : progress_(static_cast<std::size_t>(scenario.ranks())),
        oldest_(static_cast<std::size_t>(scenario.ranks())),
        oldest_collective_(static_cast<std::size_t>(scenario.ranks())) {
    for (auto& row : oldest_) row.fill(kNever);
    for (auto& row : oldest_collective_) row.fill(kNever);
  }

  void add(const JobModel& model, double now) {
    for (std::size_t rank = 0; rank < model.operations().size(); ++rank) {
      for (const PlayedOperation& o : model.operations()[rank]) {
        if (o.call > now) continue;
        const auto d = static_cast<std::size_t>(o.dimension);
        verdict::Progress& p = progress_[rank][d];
        const bool p2p = model::is_point_to_point(o.function);
        ++(p2p ? p.p2p_enqueued : p.enqueued);
        if (o.start <= now) ++(p2p ? p.p2p_started : p.started);
        if (o.stop <= now) {
          ++(p2p ? p.p2p_completed : p.completed);
          continue;
        }
        oldest_[rank][d] = std::min(oldest_[rank][d], o.call);
        p.inflight_seconds = now - oldest_[rank][d];
        if (p2p || o.call >= oldest_collective_[rank][d]) continue;
        oldest_collective_[rank][d] = o.call;
        p.signature = static_cast<std::uint64_t>(o.function) << 40 | o.bytes << 1 |
                      (o.other_arguments ? 1u : 0u);
      }
    }
  }

  [[nodiscard]] const verdict::Progress& of(int rank, Dimension dimension) const {
    return progress_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(dimension)];
  }

 private:
  std::vector<std::array<verdict::Progress, kDimensions>> progress_;
  std::vector<std::array<double, kDimensions>> oldest_, oldest_collective_;
};

}  // namespace

HangOutcome play_stop(const Scenario& scenario) {
  // Twice, since when it stops decides when to look.
  JobModel first(scenario);
  for (int step = 0; step < scenario.steps; ++step) first.play_step();
  const double now = first.stopped_at() + kLookAfterSeconds;
  JobModel model(scenario);
  Counts counts(scenario);
  for (int step = 0; step < scenario.steps; ++step) {
    model.play_step();
    counts.add(model, now);
  }
  const verdict::Job job = job_of(scenario, model);
  verdict::Standing standing;
  standing.coverage.assign(job.communicators.size(), 1);
  std::uint32_t stopped_in = verdict::kNone;
  for (std::uint32_t c = 0; c < model.groups().size(); ++c) {
    const Group& group = model.groups()[c];
    if (&group == model.stopped_in()) stopped_in = c;
    for (const int rank : group.members) {
      verdict::Progress p = counts.of(rank, group.dimension);
      if (rank == scenario.culprit && scenario.stop == Stop::kProcessGone) {
        p.state = verdict::MemberState::kVanished;
        p.inflight_seconds = 0;
      }
      standing.progress.push_back(p);
    }
  }
  HangOutcome outcome;
  outcome.class_right = outcome.ranks_right = true;
  bool found = false;
  for (const verdict::Hang& hang : verdict::find_hangs(job, standing)) {
    if (!hang.is_hang()) continue;
    outcome.class_right &= hang.hang_class == class_of(scenario.stop);
    outcome.said += std::string(verdict::name(hang.hang_class)) + " of " +
                    job.communicators[hang.communicator].name + ":";
    for (const std::uint32_t member : hang.members) {
      const std::uint32_t gpu = job.members[member].gpu;
      outcome.said += " " + std::to_string(gpu);
      // Of two that differ, nobody can tell which one is wrong.
      const bool either = scenario.stop == Stop::kOtherArguments && hang.members.size() == 2 &&
                          job.communicators[hang.communicator].nranks == 2;
      outcome.ranks_right &= static_cast<int>(gpu) == scenario.culprit || either;
      found |= static_cast<int>(gpu) == scenario.culprit;
    }
    outcome.said += "; ";
    found |= scenario.stop == Stop::kNetworkStuck && hang.communicator == stopped_in &&
             hang.members.empty();
  }
  outcome.class_right &= found;
  outcome.ranks_right &= found;
  return outcome;
}

}  // namespace ncclscope::bench
