// SPDX-License-Identifier: Apache-2.0
#include "cli/report/steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
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
constexpr std::size_t kMostDatatypes = 255;

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

/// The number of a text; those that come after `most` share a number, so that no input makes it
/// large.
class TextNumbers {
 public:
  explicit TextNumbers(std::size_t most) : most_(most) {}

  std::size_t of(std::string_view text) {
    const auto known = numbers_.find(text);
    if (known != numbers_.end()) return known->second;
    const std::size_t number = numbers_.size();
    if (number == most_) return most_;
    numbers_.emplace(text, number);
    return number;
  }

 private:
  std::size_t most_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
};

/// Gives a process's operations to the step finder.
class StepReader {
 public:
  explicit StepReader(std::size_t most) : most_(most) {}

  /// More steps than are kept have been found.
  [[nodiscard]] bool left_out() const { return left_out_; }

  /// Once more; returns the steps of this time.
  std::vector<RunStep> play(Connection& connection, const std::string& where) {
    // The finder's time goes on: what comes again comes later.
    const std::uint64_t shift = last_ns_ == 0 ? 0 : last_ns_ - first_ns_ + kBetweenNs;
    std::vector<RunStep> steps;
    for_each_row(connection,
                 "SELECT communicator, collective, bytes, coalesce(datatype, ''), " + kCalled +
                     " AS called, coalesce(start_ns, 0)" + where +
                     " ORDER BY called, communicator, sequence",
                 [&](const Rows& rows, std::size_t r) {
                   finder_.add(operation_of(rows, r, shift));
                   take(shift, steps);
                 });
    if (shift != 0) finder_.finish();
    take(shift, steps);
    std::erase_if(steps, [](const RunStep& step) { return step.stop_ns <= step.start_ns; });
    return steps;
  }

 private:
  static constexpr std::uint64_t kBetweenNs = 1'000'000'000;

  verdict::StepOperation operation_of(const Rows& rows, std::size_t r, std::uint64_t shift) {
    const auto datatype = static_cast<model::DataType>(datatypes_.of(rows.text(3, r)));
    const auto called_ns = static_cast<std::uint64_t>(rows.integer(4, r));
    const auto start_ns = static_cast<std::uint64_t>(rows.integer(5, r));
    if (shift == 0) {
      if (first_ns_ == 0) first_ns_ = called_ns;
      last_ns_ = std::max({last_ns_, called_ns, start_ns});
    }
    verdict::StepOperation operation;
    operation.function = function_of(rows.text(1, r));
    operation.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, rows.integer(2, r)));
    operation.call_ns = called_ns + shift;
    operation.gpu_start_ns = start_ns == 0 ? 0 : start_ns + shift;
    operation.communicator = static_cast<std::uint16_t>(communicators_.of(rows.text(0, r)));
    operation.signature = verdict::step_signature(operation.communicator, operation.function,
                                                  datatype, operation.bytes);
    return operation;
  }

  /// What the finder has told since, but for what began before this time.
  void take(std::uint64_t shift, std::vector<RunStep>& steps) {
    for (const verdict::Step& step : finder_.steps()) {
      if (step.start_ns < first_ns_ + shift) continue;
      if (steps.size() == most_) {
        left_out_ = true;
        break;
      }
      RunStep& made = steps.emplace_back();
      made.start_ns = static_cast<std::int64_t>(step.start_ns - shift);
      made.stop_ns = static_cast<std::int64_t>(step.stop_ns - shift);
    }
    finder_.clear_steps();
  }

  verdict::StepPeriod finder_;
  TextNumbers communicators_{kMostCommunicators};
  TextNumbers datatypes_{kMostDatatypes};
  std::size_t most_;
  bool left_out_ = false;
  std::uint64_t first_ns_ = 0, last_ns_ = 0;
};

/// Pauses and unusual steps are not among `steps`, but they count: the numbers are those of the
/// operation that times the steps.
void number_steps(Connection& connection, const std::string& where, std::vector<RunStep>& steps) {
  const std::string first = std::to_string(steps.front().start_ns);
  std::string alike;
  std::string key;
  for_each_row(connection,
               "SELECT communicator, collective, coalesce(bytes, -1), coalesce(datatype, ''), "
               "coalesce(start_ns = " +
                   first + ", false) AS on_gpu" + where + " AND (start_ns = " + first + " OR " +
                   kCalled + " = " + first + ") ORDER BY on_gpu DESC, communicator LIMIT 1",
               [&](const Rows& rows, std::size_t r) {
                 alike = " AND communicator = " + sql_literal(std::string(rows.text(0, r))) +
                         " AND collective = " + sql_literal(std::string(rows.text(1, r)));
                 // The finder does not tell the sizes of sends apart, either.
                 if (!model::is_point_to_point(function_of(rows.text(1, r))))
                   alike +=
                       " AND coalesce(bytes, -1) = " + std::to_string(rows.integer(2, r)) +
                       " AND coalesce(datatype, '') = " + sql_literal(std::string(rows.text(3, r)));
                 key = rows.integer(4, r) != 0 ? "start_ns" : kCalled;
               });
  // How many of them came before each step began and ended. Both follow each other in time.
  std::vector<std::int64_t> at_start(steps.size(), 0);
  std::vector<std::int64_t> at_stop(steps.size(), 0);
  std::int64_t seen = 0;
  std::size_t started = 0;
  std::size_t stopped = 0;
  const auto pass = [&](std::int64_t ns) {
    while (started < steps.size() && steps[started].start_ns <= ns) at_start[started++] = seen;
    while (stopped < steps.size() && steps[stopped].stop_ns <= ns) at_stop[stopped++] = seen;
  };
  if (!key.empty())
    for_each_row(connection, "SELECT " + key + " AS moment" + where + alike + " ORDER BY moment",
                 [&](const Rows& rows, std::size_t r) {
                   if (rows.is_null(0, r)) return;
                   pass(rows.integer(0, r));
                   ++seen;
                 });
  pass(std::numeric_limits<std::int64_t>::max());
  std::vector<double> in_a_step;
  in_a_step.reserve(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i)
    in_a_step.push_back(static_cast<double>(at_stop[i] - at_start[i]));
  const double usual = std::max(1.0, verdict::median(std::move(in_a_step)));
  std::int64_t next = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].number =
        std::max<std::int64_t>(next, std::llround(static_cast<double>(at_start[i]) / usual));
    next = steps[i].number + 1;
  }
}

}  // namespace

RunSteps find_steps(Connection& connection, const std::string& view, std::size_t most) {
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
  // Played twice: the first time the finder learns the period, so that the second time it knows it
  // from the first operation on and times every step by the same one of its operations.
  StepReader reader(most);
  reader.play(connection, where);
  out.steps = reader.play(connection, where);
  out.left_out = reader.left_out();
  std::erase_if(out.steps, [](const RunStep& step) { return step.stop_ns <= step.start_ns; });
  if (out.steps.empty()) {
    out.why_none = "the operations of " + out.process + " show no period";
    return out;
  }
  number_steps(connection, where, out.steps);
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
