// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/series.h"

#include <algorithm>
#include <fstream>

#include "agent/export/text_writer.h"
#include "tests/bench/diagnosis/agents.h"
#include "tests/bench/diagnosis/trial.h"
#include "verdict/judge.h"

namespace ncclscope::bench {

bool write_series(Scenario scenario, const std::string& directory) {
  scenario.step_seconds = 10;
  scenario.pauses = false;
  scenario.agent_restart = false;
  scenario.onset = 0;
  const std::string stem = directory + "/seed" + std::to_string(scenario.seed);
  std::ofstream series(stem + ".series");
  JobModel model(scenario);
  Agents agents(scenario, model);
  verdict::Judge judge(agents.job());
  Scrape before;
  int number = 0;
  constexpr int kScrapes = kSeriesWindows * kSeriesWindowSeconds / kScrapeSeconds;
  while (number <= kScrapes) {
    model.play_step();
    // A scrape sees the steps that have ended.
    for (; number <= kScrapes && number * kScrapeSeconds < model.now(); ++number) {
      agents.for_each_snapshot([&](const agent::Snapshot& snapshot) {
        series << "# scrape " << number << " " << snapshot.node << "\n"
               << agent::render_text(snapshot, agent::SelfStats{}, agent::TextFormat::kPrometheus);
      });
      const int seconds = number * kScrapeSeconds;
      if (seconds == 0 || seconds % kSeriesWindowSeconds != 0) continue;
      Scrape now = agents.scrape(seconds);
      if (seconds > kSeriesWindowSeconds) judge.add(agents.window(before, now));
      before = std::move(now);
    }
    agents.take_step(model);
  }
  std::ofstream accused(stem + ".verdict");
  for (const verdict::Finding& finding : judge.findings()) {
    if (!is_late_kind(finding.kind)) continue;
    for (const std::uint32_t gpu : finding.gpus)
      accused << agents.job().gpus[gpu].node << " " << agents.job().gpus[gpu].index << "\n";
  }
  return series.good() && accused.good();
}

}  // namespace ncclscope::bench
