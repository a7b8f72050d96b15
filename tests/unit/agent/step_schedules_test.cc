// SPDX-License-Identifier: Apache-2.0
//
// The step finder on a thousand seeded schedules of training jobs; prints how many it gets exactly
// right, by family, and which not. NCCLSCOPE_FIRST_SCHEDULE and NCCLSCOPE_SCHEDULES choose others.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/aggregate/all_to_all.h"
#include "agent/aggregate/dimension.h"
#include "proto/model/bandwidth.h"
#include "tests/unit/agent/training_schedule.h"
#include "verdict/step_period.h"

namespace ncclscope::agent {
namespace {

using testing::Schedule;
using testing::ScheduledOperation;
using testing::ScheduleMaker;
using verdict::Step;
using verdict::step_signature;
using verdict::StepOperation;
using verdict::StepPeriod;

StepOperation to_operation(const ScheduledOperation& o, std::uint32_t nranks) {
  StepOperation out;
  out.call_ns = o.call_ns;
  out.gpu_start_ns = o.start_ns;
  out.bytes = model::message_bytes(o.function, o.count, o.datatype, nranks);
  out.communicator = o.communicator;
  out.function = o.function;
  out.signature = step_signature(o.communicator, o.function, o.datatype, o.count);
  return out;
}

/// Why the finder is wrong about a schedule; empty if it is right.
std::string judge(const Schedule& schedule) {
  StepPeriod finder;
  std::vector<Step> steps;
  for (const ScheduledOperation& o : schedule.operations) {
    finder.add(to_operation(o, schedule.communicators[o.communicator].nranks));
    steps.insert(steps.end(), finder.steps().begin(), finder.steps().end());
    finder.clear_steps();
  }
  finder.finish();
  steps.insert(steps.end(), finder.steps().begin(), finder.steps().end());
  if (finder.period() != schedule.period) {
    return "period " + std::to_string(finder.period()) + " of " + std::to_string(schedule.period);
  }
  std::size_t wrong = 0;
  for (const Step& step : steps) {
    const double seconds = static_cast<double>(step.stop_ns - step.start_ns) * 1e-9;
    if (std::abs(seconds / schedule.step_seconds - 1) > 0.15) ++wrong;
  }
  if (finder.step_count() < static_cast<std::size_t>(schedule.steps) / 2) {
    return "only " + std::to_string(finder.step_count()) + " of " + std::to_string(schedule.steps) +
           " steps";
  }
  if (wrong * 50 > steps.size()) {
    return std::to_string(wrong) + " of " + std::to_string(steps.size()) +
           " steps of another length";
  }
  return {};
}

TEST(StepPeriod, IsExactInAThousandSchedules) {
  // Other seeds than those with which the rules were made.
  const char* first = std::getenv("NCCLSCOPE_FIRST_SCHEDULE");
  const char* many = std::getenv("NCCLSCOPE_SCHEDULES");
  const int begin = first != nullptr ? std::atoi(first) : 20'000;
  const int end = begin + (many != nullptr ? std::atoi(many) : 1000);
  int right = 0;
  int made = 0;
  std::map<std::string, std::pair<int, int>> by_family;
  for (int seed = begin; seed < end; ++seed) {
    const Schedule schedule = ScheduleMaker(static_cast<std::uint64_t>(seed)).make();
    const std::string wrong = judge(schedule);
    ++made;
    auto& [family_right, family_made] = by_family[schedule.family];
    ++family_made;
    if (wrong.empty()) {
      ++right;
      ++family_right;
    } else {
      std::printf("seed %d, %s: %s\n", seed, schedule.family.c_str(), wrong.c_str());
    }
  }
  for (const auto& [family, counts] : by_family) {
    std::printf("%-9s %d of %d exact\n", family.c_str(), counts.first, counts.second);
  }
  std::printf("step period exact in %d of %d schedules\n", right, made);
  EXPECT_GE(right * 100, made * 99);
}

/// What the dimensions of a schedule's communicators are taken for, from operations alone.
std::vector<std::string_view> inferred(const Schedule& schedule) {
  StepPeriod finder;
  AllToAllRecogniser recogniser;
  std::vector<CommunicatorUse> uses(schedule.communicators.size());
  for (std::size_t c = 0; c < uses.size(); ++c) {
    const auto& communicator = schedule.communicators[c];
    uses[c].nranks = communicator.nranks;
    uses[c].nnodes = std::max(1u, communicator.nranks * communicator.stride / 8);
  }
  const auto end_plan = [&](std::uint16_t c, const std::vector<Transfer>& transfers) {
    const auto& communicator = schedule.communicators[c];
    const std::int32_t rank = communicator.dimension == "pp" ? schedule.pipeline_rank : 0;
    if (const auto found = recogniser.recognise(transfers, rank, communicator.nranks)) {
      ++uses[c].all_to_alls;
      if (!found->even) ++uses[c].uneven_all_to_alls;
      return;
    }
    bool sends = false;
    bool receives = false;
    for (const Transfer& t : transfers) {
      (t.is_send ? sends : receives) = true;
      uses[c].peers.add_peer(rank, communicator.nranks, t.peer, t.is_send);
    }
    uses[c].peers.add(sends, receives);
  };
  std::map<std::uint16_t, std::pair<std::uint16_t, std::vector<Transfer>>> open;
  for (const ScheduledOperation& o : schedule.operations) {
    const StepOperation operation = to_operation(o, schedule.communicators[o.communicator].nranks);
    finder.add(operation);
    if (!model::is_point_to_point(o.function)) continue;
    auto& [plan, transfers] = open[o.communicator];
    if (!transfers.empty() && plan != o.plan) {
      end_plan(o.communicator, transfers);
      transfers.clear();
    }
    plan = o.plan;
    transfers.push_back({o.peer, o.function == model::Function::kSend, operation.bytes});
  }
  finder.finish();
  finder.for_each_signature([&](const StepPeriod::SignatureCount& s) {
    add_collectives(uses[s.communicator], s.function, s.bytes, s.count);
  });
  return infer_dimensions(uses, finder.periods());
}

TEST(Dimension, IsRightOrUnknownInAThousandLayouts) {
  const char* first = std::getenv("NCCLSCOPE_FIRST_SCHEDULE");
  const char* many = std::getenv("NCCLSCOPE_SCHEDULES");
  const int begin = first != nullptr ? std::atoi(first) : 20'000;
  const int end = begin + (many != nullptr ? std::atoi(many) : 1000);
  std::map<std::string, std::array<int, 3>> by_dimension;  // right, unknown, wrong
  int wrong = 0;
  int all = 0;
  for (int seed = begin; seed < end; ++seed) {
    const Schedule schedule = ScheduleMaker(static_cast<std::uint64_t>(seed)).make();
    const auto guesses = inferred(schedule);
    for (std::size_t c = 0; c < guesses.size(); ++c) {
      const auto& communicator = schedule.communicators[c];
      if (communicator.nranks < 2) continue;
      ++all;
      auto& counts = by_dimension[communicator.dimension];
      if (guesses[c] == communicator.dimension) {
        ++counts[0];
      } else if (guesses[c].empty()) {
        ++counts[1];
      } else {
        ++counts[2];
        ++wrong;
        std::printf("seed %d, %s: %s taken for %s\n", seed, schedule.family.c_str(),
                    communicator.dimension.c_str(), std::string(guesses[c]).c_str());
      }
    }
  }
  for (const auto& [dimension, counts] : by_dimension) {
    std::printf("%-4s right %d, unknown %d, wrong %d\n",
                dimension.empty() ? "none" : dimension.c_str(), counts[0], counts[1], counts[2]);
  }
  std::printf("dimension without a name: wrong in %d of %d communicators\n", wrong, all);
  EXPECT_LE(wrong * 1000, all);
}

}  // namespace
}  // namespace ncclscope::agent
