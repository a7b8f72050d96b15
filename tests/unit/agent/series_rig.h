// SPDX-License-Identifier: Apache-2.0
//
// What a rig exposes, as a scraper sees it: rendered and read back.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "agent/export/text_writer.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent::testing {

/// Series with their values, by "name{labels}".
using Samples = std::map<std::string, double>;

inline Samples read_samples(const std::string& text) {
  Samples out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    const double value = std::strtod(line.c_str() + space + 1, nullptr);
    EXPECT_TRUE(out.emplace(line.substr(0, space), value).second) << "twice: " << line;
  }
  return out;
}

inline std::string name_of(const std::string& series) {
  return series.substr(0, series.find('{'));
}

/// Empty if it has no such label.
inline std::string label_of(const std::string& series, std::string_view label) {
  for (const char before : {'{', ','}) {
    const std::string key = before + std::string(label) + "=\"";
    const std::size_t at = series.find(key);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + key.size();
    return series.substr(begin, series.find('"', begin) - begin);
  }
  return {};
}

/// All series of a snapshot. Checks on the way that what the agent says of their number is true.
inline Samples exposed(const Snapshot& snapshot) {
  const Samples all = read_samples(render_text(snapshot, {}, TextFormat::kPrometheus));
  std::map<std::string, double> by_job;
  double of_jobs = 0;
  for (const auto& [series, value] : all) {
    if (series.starts_with("ncclscope_agent_")) continue;
    ++by_job[label_of(series, "job_id")];
    ++of_jobs;
  }
  for (const JobSnapshot& job : snapshot.jobs) {
    const std::string& id = job.identity.job_id;
    EXPECT_EQ(by_job[id], static_cast<double>(count_series(job).total())) << "job " << id;
    EXPECT_EQ(by_job[id], all.at("ncclscope_job_series{cluster=\"\",job_id=\"" + id + "\"}"));
  }
  EXPECT_EQ(all.at("ncclscope_agent_series"), of_jobs);
  return all;
}

inline Samples of_job(const Samples& all, std::string_view job) {
  Samples out;
  for (const auto& [series, value] : all) {
    if (label_of(series, "job_id") == job) out.emplace(series, value);
  }
  return out;
}

}  // namespace ncclscope::agent::testing
