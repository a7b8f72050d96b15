// SPDX-License-Identifier: Apache-2.0
#include "cli/report/quantiles.h"

#include <cmath>
#include <limits>

namespace ncclscope::cli::report {

std::map<std::int64_t, GroupQuantiles> quantiles_of(Connection& connection, const std::string& sql,
                                                    const std::vector<double>& wanted) {
  std::map<std::int64_t, GroupQuantiles> out;
  for_each_row(connection, "SELECT g, count(*) FROM (" + sql + ") AS t(g, v) GROUP BY 1",
               [&](const Rows& rows, std::size_t r) {
                 GroupQuantiles& group = out[rows.integer(0, r)];
                 group.count = static_cast<std::uint64_t>(rows.integer(1, r));
                 group.values.assign(wanted.size(), std::numeric_limits<double>::quiet_NaN());
               });
  GroupQuantiles* group = nullptr;
  std::int64_t of = 0;
  std::uint64_t seen = 0;
  for_each_row(connection, "SELECT g, v FROM (" + sql + ") AS t(g, v) ORDER BY 1, 2",
               [&](const Rows& rows, std::size_t r) {
                 if (group == nullptr || rows.integer(0, r) != of) {
                   of = rows.integer(0, r);
                   group = &out.at(of);
                   seen = 0;
                 }
                 const double value = rows.number(1, r);
                 for (std::size_t i = 0; i < wanted.size(); ++i) {
                   const double place = wanted[i] * static_cast<double>(group->count - 1);
                   const double lower = std::floor(place);
                   double& q = group->values[i];
                   if (static_cast<std::uint64_t>(lower) == seen) q = value;
                   // The neighbour above, of which the fraction is taken.
                   if (place > lower && static_cast<std::uint64_t>(lower) + 1 == seen)
                     q += (value - q) * (place - lower);
                 }
                 ++seen;
               });
  return out;
}

}  // namespace ncclscope::cli::report
