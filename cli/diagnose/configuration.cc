// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/configuration.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "cli/doctor/installation.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNodes = 2;     // named in a line
constexpr std::size_t kLongestText = 80;  // of a value in a line

/// Variables that are meant to differ.
bool is_of_one_process(const std::string& variable) {
  return variable == "NCCL_HOSTID";
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The global rank of a process; where nothing says it, its rank in the job's largest communicator,
/// which mostly holds all. -1: neither is known.
std::int64_t rank_of(const v1::Process& process, const v1::JobSnapshot& job) {
  const std::string& text = process.global_rank();
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos &&
      text.size() < 10)
    return std::strtoll(text.c_str(), nullptr, 10);
  std::map<std::string, std::uint32_t> sizes;
  for (const v1::Communicator& c : job.communicators()) sizes[c.comm()] = c.nranks();
  std::int64_t rank = -1;
  std::uint32_t size = 1;
  for (const v1::RankProgress& p : job.progress()) {
    if (p.session_id() != process.session_id() || sizes[p.comm()] <= size) continue;
    size = sizes[p.comm()];
    rank = p.rank();
  }
  return rank;
}

/// Values of one thing and who has them.
class Values {
 public:
  void add(bool set, const std::string& value, const Holders& holders) {
    for (SettingDifference::Value& known : values_) {
      if (known.set == set && known.value == value) return known.holders.add(holders);
    }
    values_.push_back({set, value, holders});
  }
  [[nodiscard]] bool differ() const { return values_.size() > 1; }
  [[nodiscard]] std::vector<SettingDifference::Value> sorted() const {
    std::vector<SettingDifference::Value> values = values_;
    const auto key = [](const SettingDifference::Value& v) {
      const std::int64_t first = v.holders.ranks.empty() ? std::numeric_limits<std::int64_t>::max()
                                                         : *v.holders.ranks.begin();
      return std::tuple(first, v.set, v.value);
    };
    std::sort(values.begin(), values.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    return values;
  }

 private:
  std::vector<SettingDifference::Value> values_;
};

Json holders_json(const Holders& holders) {
  Json json;
  json["ranks"] = holders.ranks;
  json["others"] = holders.others;
  json["nodes"] = holders.nodes;
  return json;
}

std::string shortened(const std::string& value) {
  if (value.empty()) return "empty";
  return value.size() <= kLongestText ? value : value.substr(0, kLongestText) + "...";
}

std::string more(std::size_t all, std::size_t shown) {
  return all <= shown ? "" : "  and " + std::to_string(all - shown) + " more\n";
}

}  // namespace

std::string format_ranges(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::int64_t first = *it;
    std::int64_t last = first;
    for (++it; it != numbers.end() && *it == last + 1; ++it) last = *it;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last != first) text += "-" + std::to_string(last);
  }
  return text;
}

void Holders::add(const Holders& more) {
  ranks.insert(more.ranks.begin(), more.ranks.end());
  others.insert(more.others.begin(), more.others.end());
  nodes.insert(more.nodes.begin(), more.nodes.end());
}

std::string Holders::text() const {
  std::string text;
  if (!ranks.empty()) text = (ranks.size() == 1 ? "rank " : "ranks ") + format_ranges(ranks);
  if (!others.empty()) text += (text.empty() ? "" : " and ") + joined(others);
  if (!ranks.empty() && !nodes.empty() && nodes.size() <= kMostNodes)
    text += " (" + joined(nodes) + ")";
  return text;
}

void ConfigurationCollector::add(const v1::JobSnapshot& job, const std::string& node) {
  for (const v1::ProcessEnvironment& environment : job.environments()) {
    std::map<std::pair<std::string, std::string>, Holders> by_release;
    Holders all;
    for (const v1::Process& process : environment.processes()) {
      if (process.state() != "connected") continue;
      Holders holder;
      if (const std::int64_t rank = rank_of(process, job); rank >= 0)
        holder.ranks.insert(rank);
      else
        holder.others.insert("pid " + std::to_string(process.pid()) + " of " + node);
      holder.nodes.insert(node);
      const std::string nccl = process.nccl_version() == 0
                                   ? std::string()
                                   : nccl_release(static_cast<int>(process.nccl_version()));
      by_release[{nccl, printable(process.plugin_version())}].add(holder);
      all.add(holder);
    }
    for (auto& [releases, holders] : by_release) {
      Environment& known = environments_.emplace_back();
      known.nccl = releases.first;
      known.plugin = releases.second;
      known.known = environment.known();
      known.holders = std::move(holders);
      for (const v1::Variable& variable : environment.variables())
        known.variables.emplace_back(printable(variable.name()), printable(variable.value()));
    }
    if (all.empty()) continue;
    for (const v1::SettingFinding& finding : environment.findings()) {
      const auto same =
          std::find_if(problems_.begin(), problems_.end(), [&](const SettingProblem& p) {
            return p.level == finding.level() && p.variable == printable(finding.variable()) &&
                   p.reason == printable(finding.reason()) &&
                   p.evidence == printable(finding.evidence()) && p.fix == printable(finding.fix());
          });
      if (same != problems_.end()) {
        same->holders.add(all);
        continue;
      }
      problems_.push_back({finding.level(), printable(finding.variable()),
                           printable(finding.reason()), printable(finding.evidence()),
                           printable(finding.fix()), all});
    }
  }
}

Configuration ConfigurationCollector::finish() const {
  Configuration result;
  Values nccl, plugin;
  std::set<std::string> names;
  for (const Environment& e : environments_) {
    if (!e.nccl.empty()) nccl.add(true, e.nccl, e.holders);
    if (!e.plugin.empty()) plugin.add(true, e.plugin, e.holders);
    (e.known ? result.told : result.untold).add(e.holders);
    for (const auto& [name, value] : e.variables) names.insert(name);
  }
  if (nccl.differ()) result.differences.push_back({"NCCL", nccl.sorted()});
  if (plugin.differ()) result.differences.push_back({"plugin", plugin.sorted()});
  for (const std::string& name : names) {
    if (is_of_one_process(name)) continue;
    Values values;
    for (const Environment& e : environments_) {
      if (!e.known) continue;
      const auto at = std::find_if(e.variables.begin(), e.variables.end(),
                                   [&](const auto& variable) { return variable.first == name; });
      const bool set = at != e.variables.end();
      values.add(set, set ? at->second : std::string(), e.holders);
    }
    if (values.differ()) result.differences.push_back({name, values.sorted()});
  }
  result.problems = problems_;
  const auto weight = [](const SettingProblem& p) {
    return p.level == "problem" ? 0 : p.level == "warning" ? 1 : 2;
  };
  std::stable_sort(result.problems.begin(), result.problems.end(),
                   [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  return result;
}

std::string difference_text(const SettingDifference& difference) {
  std::string line;
  for (const SettingDifference::Value& value : difference.values)
    line += (line.empty() ? "" : "; ") + (value.set ? shortened(value.value) : "unset") + " on " +
            value.holders.text();
  return difference.what + ": " + line;
}

std::string configuration_text(const Configuration& configuration, std::size_t max_rows) {
  std::string text;
  if (!configuration.differences.empty()) {
    text = "Configuration differs between ranks:\n";
    std::size_t shown = 0;
    for (const SettingDifference& difference : configuration.differences) {
      if (++shown > max_rows) break;
      text += "  " + difference_text(difference) + "\n";
    }
    text += more(configuration.differences.size(), max_rows);
    if (!configuration.untold.empty())
      text += "  (nothing is known of the variables of " + configuration.untold.text() + ")\n";
  }
  if (configuration.problems.empty()) return text;
  text += (text.empty() ? "" : "\n") + std::string("Settings that the agents find wrong:\n");
  std::size_t shown = 0;
  for (const SettingProblem& problem : configuration.problems) {
    if (++shown > max_rows) break;
    text += "  " + problem.level + ": " + shortened(problem.evidence) + " on " +
            problem.holders.text() + ": " + problem.reason + "; " + problem.fix + "\n";
  }
  return text + more(configuration.problems.size(), max_rows);
}

Json configuration_json(const Configuration& configuration) {
  Json json;
  json["differences"] = Json::array();
  for (const SettingDifference& difference : configuration.differences) {
    Json values = Json::array();
    for (const SettingDifference::Value& value : difference.values) {
      Json one;
      one["value"] = value.set ? Json(value.value) : Json();
      one.update(holders_json(value.holders));
      values.push_back(std::move(one));
    }
    json["differences"].push_back({{"what", difference.what}, {"values", std::move(values)}});
  }
  json["problems"] = Json::array();
  for (const SettingProblem& problem : configuration.problems) {
    Json one = {{"level", problem.level},
                {"variable", problem.variable},
                {"reason", problem.reason},
                {"evidence", problem.evidence},
                {"fix", problem.fix}};
    one.update(holders_json(problem.holders));
    json["problems"].push_back(std::move(one));
  }
  json["untold"] = holders_json(configuration.untold);
  return json;
}

}  // namespace ncclscope::cli
