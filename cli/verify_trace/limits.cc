// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/limits.h"

#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/verify_trace/trace.h"

namespace ncclscope::cli {
namespace {

template <typename T>
bool holds(const std::vector<T>& list, const T& value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

Limit limit_of(const nlohmann::json& j) {
  Limit l;
  l.field = j.at("field").get<std::string>();
  l.scenarios = j.at("scenarios").get<std::vector<std::string>>();
  for (const auto& i : j.value("interfaces", std::vector<std::string>{})) {
    if (i.size() != 2 || i[0] != 'v')
      throw std::runtime_error("interface \"" + i + "\" is not like \"v4\"");
    l.interfaces.push_back(i[1] - '0');
  }
  if (j.contains("nccl_from")) l.nccl_from = parse_release(j.at("nccl_from").get<std::string>());
  if (j.contains("nccl_below")) l.nccl_below = parse_release(j.at("nccl_below").get<std::string>());
  l.functions = j.value("functions", std::vector<std::string>{});
  l.visible = j.value("visible", std::vector<std::string>{});
  l.mask_mode = j.value("mask", "");
  l.instead = j.at("instead").get<std::string>();
  l.why = j.at("why").get<std::string>();
  l.section = j.at("section").get<std::string>();
  if (l.scenarios.empty())
    throw std::runtime_error("field \"" + l.field + "\": scenarios is empty; \"*\" means all");
  return l;
}

}  // namespace

Limits Limits::load(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in)
    throw std::runtime_error(file.string() +
                             ": cannot be read; it lists what interfaces do not carry");
  Limits limits;
  try {
    const nlohmann::json all = nlohmann::json::parse(in);
    for (const auto& entry : all.at("limits")) limits.entries_.push_back(limit_of(entry));
  } catch (const std::exception& e) {
    throw std::runtime_error(file.string() + ": " + e.what());
  }
  return limits;
}

bool Limits::allows(const std::string& field, const LimitContext& where) {
  for (Limit& l : entries_) {
    if (l.field != field || !holds(l.interfaces, where.interface_version) ||
        !holds(l.functions, where.function) || !holds(l.visible, where.visible) ||
        where.nccl_version < l.nccl_from || where.nccl_version >= l.nccl_below ||
        (!l.mask_mode.empty() && l.mask_mode != where.mask_mode)) {
      continue;
    }
    const bool scenario =
        std::any_of(l.scenarios.begin(), l.scenarios.end(), [&where](const std::string& glob) {
          return fnmatch(glob.c_str(), where.scenario.c_str(), 0) == 0;
        });
    if (!scenario) continue;
    ++l.used;
    return true;
  }
  return false;
}

void Limits::add_uses(const Limits& other) {
  for (std::size_t i = 0; i < entries_.size() && i < other.entries_.size(); ++i)
    entries_[i].used += other.entries_[i].used;
}

}  // namespace ncclscope::cli
