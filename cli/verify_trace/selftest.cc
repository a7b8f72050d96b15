// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/selftest.h"

#include <algorithm>
#include <map>

namespace ncclscope::cli {

using nlohmann::json;

void change_value(json& answer, const ComparedValue& value) {
  json& v = answer.at(value.where);
  if (v.is_object()) {  // a whole record: it goes missing
    json& list = answer.at(value.where.parent_pointer());
    list.erase(static_cast<std::size_t>(std::stoull(value.where.back())));
  } else if (v.is_boolean()) {
    v = !v.get<bool>();
  } else if (value.field == "plan") {
    v = v == 0 ? 1 : 0;  // plan numbers mean nothing but who shares them
  } else if (v.is_number_float()) {
    v = v.get<double>() == 0.0 ? 1.0 : v.get<double>() * 1.00000001;
  } else if (v.is_number()) {
    v = v.get<std::int64_t>() + 1;
  } else if (v == "Send") {
    v = "Recv";
  } else if (v == "Recv") {
    v = "Send";
  } else if (v == "gpu") {
    v = "none";
  } else {
    v = v.get<std::string>() + "x";
  }
}

SelftestResult change_every_field(const ReplayedFolder& replayed, const json& expected,
                                  const Comparison& clean, const Limits& limits) {
  std::map<std::string, std::vector<const ComparedValue*>> by_field;
  for (const ComparedValue& c : clean.compared) by_field[c.field].push_back(&c);
  SelftestResult result;
  for (const auto& [field, values] : by_field) {
    ReplayedFolder changed = replayed;
    // Neither the first nor always the same place.
    change_value(changed.answer, *values[values.size() * 2 / 3]);
    Limits own = limits;
    const Comparison comparison = compare(changed, expected, own);
    const bool named =
        std::any_of(comparison.differences.begin(), comparison.differences.end(),
                    [&field = field](const Difference& d) { return d.field == field; });
    (named ? result.noticed : result.missed).push_back(field);
  }
  return result;
}

}  // namespace ncclscope::cli
