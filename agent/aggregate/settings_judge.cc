// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/settings_judge.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "agent/identity/label_value.h"
#include "proto/wire/frame.h"
#include "topology/settings.h"

namespace ncclscope::agent {
namespace {

/// Of one environment. A value is anybody's text, and each word of a list could be a finding.
constexpr std::size_t kMostFindings = 24;

topology::Findings judge_on(const topology::Machine& machine,
                            const ProcessEnvironment& environment) {
  topology::Settings settings;
  for (const auto& [name, value] : environment.variables)
    settings.emplace(label_value(name),
                     topology::Setting{label_value(value, wire::kMaxVariableBytes), "environment"});
  topology::Findings findings =
      topology::check_settings(settings, machine, topology::Viewpoint::kOutside);
  if (findings.size() > kMostFindings) findings.resize(kMostFindings);
  return findings;
}

}  // namespace

std::optional<topology::Findings> SettingsJudge::judge(
    const ProcessEnvironment& environment) const {
  const Machine seen = machine();
  if (seen == nullptr) return {};
  topology::Findings findings = judge_on(*seen, environment);
  std::erase_if(findings,
                [](const topology::Finding& f) { return f.level == topology::Level::kOk; });
  return findings;
}

NodeFindings SettingsJudge::count(const Snapshot& snapshot) const {
  NodeFindings counts{"job-env", {}};
  const Machine seen = machine();
  if (seen == nullptr) return counts;
  for (const JobSnapshot& job : snapshot.jobs) {
    std::set<const ProcessEnvironment*> known;
    for (const ProcessSnapshot& process : job.processes) {
      if (!process.connected || process.environment == nullptr ||
          !known.insert(process.environment.get()).second)
        continue;
      for (const topology::Finding& finding : judge_on(*seen, *process.environment))
        ++counts.by_level[static_cast<std::size_t>(finding.level)];
    }
  }
  return counts;
}

}  // namespace ncclscope::agent
