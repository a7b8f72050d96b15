// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/trial.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "tests/bench/diagnosis/agents.h"
#include "verdict/judge.h"

namespace ncclscope::bench {
namespace {

/// Who has called fewest operations at a moment within the step; -1 where that is no single one.
int furthest_behind(const JobModel& model, double begin, Random& random) {
  const double at = random.uniform(begin, model.now());
  int least = -1;
  std::size_t fewest = 0;
  bool alone = false;
  for (std::size_t rank = 0; rank < model.operations().size(); ++rank) {
    std::size_t calls = 0;
    for (const PlayedOperation& o : model.operations()[rank]) calls += o.call <= at ? 1u : 0u;
    if (least >= 0 && calls == fewest) alone = false;
    if (least >= 0 && calls >= fewest) continue;
    least = static_cast<int>(rank);
    fewest = calls;
    alone = true;
  }
  return alone ? least : -1;
}

int longest_mean(const verdict::Job& job, const Scrape& begin, const Scrape& end) {
  std::vector<double> seconds(job.gpus.size(), 0), operations(job.gpus.size(), 0);
  for (const auto& [key, sums] : end.collectives) {
    const auto before = begin.collectives.find(key);
    const Scrape::Sums old = before == begin.collectives.end() ? Scrape::Sums{} : before->second;
    const std::uint32_t gpu = job.members[key.member].gpu;
    seconds[gpu] += sums.seconds - old.seconds;
    operations[gpu] += static_cast<double>(sums.operations) - static_cast<double>(old.operations);
  }
  int longest = 0;
  double most = 0;
  for (std::size_t g = 0; g < seconds.size(); ++g) {
    const double mean = operations[g] > 0 ? seconds[g] / operations[g] : 0;
    if (mean <= most) continue;
    most = mean;
    longest = static_cast<int>(g);
  }
  return longest;
}

}  // namespace

bool is_late_kind(verdict::Kind kind) {
  return kind == verdict::Kind::kLateGpu || kind == verdict::Kind::kLateNode ||
         kind == verdict::Kind::kLateGroup || kind == verdict::Kind::kLateReplica;
}

bool Outcome::is_right(const Scenario& scenario) const {
  if (scenario.fault == Fault::kNone) return accused.empty();
  if (accused.empty() || steps > kVerdictSteps) return false;
  return std::all_of(accused.begin(), accused.end(),
                     [&](int rank) { return scenario.is_late(rank); });
}

Outcome play(const Scenario& scenario) {
  JobModel model(scenario);
  Agents agents(scenario, model);
  Random random(scenario.seed);
  const int restart = scenario.agent_restart ? 20 + random.below(40) : -1;
  constexpr int kPhases = kWindowSteps / kStrideSteps;
  std::vector<std::unique_ptr<verdict::Judge>> judges;
  for (int phase = 0; phase < kPhases; ++phase)
    judges.push_back(std::make_unique<verdict::Judge>(agents.job()));
  std::deque<Scrape> scrapes;
  std::vector<int> behind(static_cast<std::size_t>(scenario.ranks()), 0);
  Scrape at_onset;
  Outcome outcome;
  for (int step = 1; step <= scenario.steps; ++step) {
    const double begin = model.now();
    model.play_step();
    agents.take_step(model);
    if (step > scenario.onset) {
      const int rank = furthest_behind(model, begin, random);
      if (rank >= 0) ++behind[static_cast<std::size_t>(rank)];
    }
    if (step == restart) agents.restart(random.below(scenario.nodes()));
    if (step % kStrideSteps != 0) continue;
    scrapes.push_back(agents.scrape(model.now()));
    if (step == std::max(scenario.onset, kStrideSteps)) at_onset = scrapes.back();
    if (scrapes.size() <= kPhases) continue;
    verdict::Judge& judge = *judges[static_cast<std::size_t>(step / kStrideSteps % kPhases)];
    judge.add(agents.window(scrapes.front(), scrapes.back()));
    scrapes.pop_front();
    std::vector<int> accused;
    for (const verdict::Finding& finding : judge.findings()) {
      if (!is_late_kind(finding.kind)) continue;
      for (const std::uint32_t gpu : finding.gpus) accused.push_back(static_cast<int>(gpu));
    }
    if (accused.empty()) continue;
    for (const int rank : accused)
      outcome.falsely |= !scenario.is_late(rank) || step <= scenario.onset;
    if (outcome.accused.empty()) {
      outcome.accused = accused;
      outcome.steps = step - scenario.onset;
    }
  }
  outcome.longest_mean = longest_mean(agents.job(), at_onset, scrapes.back());
  outcome.furthest_behind = static_cast<int>(
      std::distance(behind.begin(), std::max_element(behind.begin(), behind.end())));
  outcome.records = agents.records();
  return outcome;
}

}  // namespace ncclscope::bench
