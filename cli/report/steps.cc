// SPDX-License-Identifier: Apache-2.0
#include "cli/report/steps.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "cli/report/quantiles.h"
#include "cli/report/schema.h"
#include "cli/text.h"
#include "proto/model/operation.h"
#include "verdict/statistics.h"
#include "verdict/step_period.h"

namespace ncclscope::cli::report {
namespace {

constexpr std::size_t kBlocks = 20;
constexpr std::size_t kMostCommunicators = 65'535;

model::Function function_of(std::string_view name) {
  for (std::size_t i = 0; i < model::kFunctionCount; ++i) {
    const auto function = static_cast<model::Function>(i);
    if (model::name(function) == name) return function;
  }
  return model::Function::kUnknown;
}

/// When the application called it, as far as that is known.
const std::string kCalled =
    "coalesce(enqueued_ns, start_ns, end_ns - CAST(seconds * 1e9 AS BIGINT))";
const std::string kEnded = "coalesce(end_ns, start_ns + CAST(seconds * 1e9 AS BIGINT))";

/// The seconds of each step in which operations ran; they come in the order of their start.
class Covered {
 public:
  explicit Covered(std::vector<RunStep>& steps) : steps_(steps) {}

  void add(std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, until_);
    if (end <= begin) return;
    until_ = end;
    while (at_ < steps_.size() && steps_[at_].stop_ns <= begin) ++at_;
    for (std::size_t i = at_; i < steps_.size() && steps_[i].start_ns < end; ++i) {
      const std::int64_t from = std::max(begin, steps_[i].start_ns);
      const std::int64_t to = std::min(end, steps_[i].stop_ns);
      if (to > from) steps_[i].communication_seconds += static_cast<double>(to - from) * 1e-9;
    }
  }

 private:
  std::vector<RunStep>& steps_;
  std::int64_t until_ = 0;
  std::size_t at_ = 0;
};

}  // namespace

RunSteps find_steps(Connection& connection, const std::string& view) {
  RunSteps out;
  std::string where;
  for_each_row(
      connection,
      "SELECT job, coalesce(run, 0), coalesce(node, ''), coalesce(pid, -1), coalesce(gpu, ''),"
      " count(*) AS n FROM " +
          view + " WHERE " + kCalled +
          " IS NOT NULL GROUP BY ALL ORDER BY n DESC, 1, 2, 3, 4, 5 LIMIT 1",
      [&](const Rows& rows, std::size_t r) {
        where = " FROM " + view + " WHERE job = " + sql_literal(std::string(rows.text(0, r))) +
                " AND coalesce(run, 0) = " + std::to_string(rows.integer(1, r)) +
                " AND coalesce(node, '') = " + sql_literal(std::string(rows.text(2, r))) +
                " AND coalesce(pid, -1) = " + std::to_string(rows.integer(3, r)) +
                " AND coalesce(gpu, '') = " + sql_literal(std::string(rows.text(4, r))) + " AND " +
                kCalled + " IS NOT NULL";
        out.process =
            "pid " + std::to_string(rows.integer(3, r)) + " on " + printable(rows.text(2, r));
      });
  if (where.empty()) {
    out.why_none = "the input does not tell when operations began";
    return out;
  }
  verdict::StepPeriod finder;
  std::map<std::string, std::uint16_t, std::less<>> communicators;
  std::map<std::string, model::DataType, std::less<>> datatypes;
  for_each_row(
      connection,
      "SELECT communicator, collective, bytes, coalesce(datatype, ''), " + kCalled +
          " AS called, coalesce(start_ns, 0)" + where + " ORDER BY called, communicator, sequence",
      [&](const Rows& rows, std::size_t r) {
        const auto [communicator, is_new] = communicators.try_emplace(
            std::string(rows.text(0, r)),
            static_cast<std::uint16_t>(std::min(communicators.size(), kMostCommunicators)));
        const auto [datatype, is_new_type] = datatypes.try_emplace(
            std::string(rows.text(3, r)), static_cast<model::DataType>(datatypes.size()));
        verdict::StepOperation operation;
        operation.function = function_of(rows.text(1, r));
        operation.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, rows.integer(2, r)));
        operation.call_ns = static_cast<std::uint64_t>(rows.integer(4, r));
        operation.gpu_start_ns = static_cast<std::uint64_t>(rows.integer(5, r));
        operation.communicator = communicator->second;
        operation.signature = verdict::step_signature(operation.communicator, operation.function,
                                                      datatype->second, operation.bytes);
        finder.add(operation);
        for (const verdict::Step& step : finder.steps())
          out.steps.push_back(
              {static_cast<std::int64_t>(step.start_ns), static_cast<std::int64_t>(step.stop_ns)});
        finder.clear_steps();
      });
  finder.finish();
  for (const verdict::Step& step : finder.steps())
    out.steps.push_back(
        {static_cast<std::int64_t>(step.start_ns), static_cast<std::int64_t>(step.stop_ns)});
  std::erase_if(out.steps, [](const RunStep& step) { return step.stop_ns <= step.start_ns; });
  if (out.steps.empty()) {
    out.why_none = "the operations of " + out.process + " show no period";
    return out;
  }
  Covered covered(out.steps);
  bool known = false;
  for_each_row(connection,
               "SELECT " + kEnded + " - CAST(seconds * 1e9 AS BIGINT) AS began, " + kEnded + where +
                   " AND seconds > 0 AND " + kEnded + " IS NOT NULL ORDER BY began",
               [&](const Rows& rows, std::size_t r) {
                 known = true;
                 covered.add(rows.integer(0, r), rows.integer(1, r));
               });
  for (RunStep& step : out.steps) step.communication_known = known;
  return out;
}

std::vector<double> step_seconds(Connection& connection, const std::string& view) {
  const RunSteps found = find_steps(connection, view);
  std::vector<double> out;
  const std::size_t blocks = std::min(kBlocks, found.steps.size());
  for (std::size_t block = 0; block < blocks; ++block) {
    std::vector<double> seconds;
    for (std::size_t i = block * found.steps.size() / blocks;
         i < (block + 1) * found.steps.size() / blocks; ++i)
      seconds.push_back(found.steps[i].seconds());
    out.push_back(verdict::median(std::move(seconds)));
  }
  return out;
}

}  // namespace ncclscope::cli::report
