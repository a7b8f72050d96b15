// SPDX-License-Identifier: Apache-2.0
//
// How the processes of one job are configured, as their plugins told it: NCCL's release, the
// plugin's, the NCCL_* variables. What differs between them, and what their agents find wrong with
// it. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "ncclscope/v1/agent.pb.h"

namespace ncclscope::cli {

/// Some processes of a job.
struct Holders {
  std::set<std::int64_t> ranks;  // global ones
  std::set<std::string> others;  // "pid 4711 of node1": of no known rank
  std::set<std::string> nodes;

  void add(const Holders& more);
  [[nodiscard]] bool empty() const { return ranks.empty() && others.empty(); }
  /// "ranks 0-7, 9 (node0)"; no nodes where there are more than two.
  [[nodiscard]] std::string text() const;
};

/// "0-3, 5, 7-8".
[[nodiscard]] std::string format_ranges(const std::set<std::int64_t>& numbers);

/// Something that not all processes have alike.
struct SettingDifference {
  std::string what;  // "NCCL", "plugin", or a variable
  struct Value {
    bool set = true;
    std::string value;
    Holders holders;
  };
  std::vector<Value> values;  // by the first rank
};

/// Something that an agent finds wrong with a variable on its node.
struct SettingProblem {
  std::string level;  // unknown, warning, problem
  std::string variable, reason, evidence, fix;
  Holders holders;
};

struct Configuration {
  std::vector<SettingDifference> differences;  // releases first, then variables by name
  std::vector<SettingProblem> problems;
  Holders told;    // whose variables are known
  Holders untold;  // whose are not
};

/// Collects what agents say about one job.
class ConfigurationCollector {
 public:
  /// Only processes that are connected: one that has gone may be of an earlier start.
  void add(const v1::JobSnapshot& job, const std::string& node);
  [[nodiscard]] Configuration finish() const;

 private:
  struct Environment {
    std::string nccl, plugin;
    bool known = false;
    std::vector<std::pair<std::string, std::string>> variables;
    Holders holders;
  };
  std::vector<Environment> environments_;
  std::vector<SettingProblem> problems_;
};

/// "NCCL_ALGO: unset on ranks 0-1 (node0); Ring on ranks 2-3 (node1)".
[[nodiscard]] std::string difference_text(const SettingDifference& difference);

/// Empty where nothing differs and nothing is wrong. At most `max_rows` lines of each kind.
[[nodiscard]] std::string configuration_text(const Configuration& configuration,
                                             std::size_t max_rows);
[[nodiscard]] nlohmann::ordered_json configuration_json(const Configuration& configuration);

}  // namespace ncclscope::cli
