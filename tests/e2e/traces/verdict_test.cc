// SPDX-License-Identifier: Apache-2.0
//
// Recordings of NCCL through the plugin (in recorded time), an agent, and the verdict: what is a
// culprit's must be named, and nobody else. The window is the whole recording without its first
// operations; then the processes stand still for more than a minute, with what was in flight.
//   Where a rank has fewer operations than the others (expected.json), everything stops while these
//   wait for it, as it was before the program gave up; else just before the first process leaves.
#include <gmock/gmock.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/agents.h"
#include "cli/diagnose/collect.h"
#include "cli/diagnose/observation.h"
#include "cli/verify_trace/session.h"
#include "cli/verify_trace/trace.h"
#include "proto/nccl/profiler_common.h"
#include "verdict/judge.h"
#include "verdict/text.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using verdict::Finding;
using verdict::Kind;

/// What a replayed process does after its last line: 1 s, 10 s and 60 s pass.
constexpr std::int64_t kStandStillNs = 71'000'000'000;
constexpr std::int64_t kIntoTheWaitNs = 100'000'000;
/// First operations of a communicator, which no verdict looks at.
constexpr std::size_t kWarmup = 3;

/// Times are of one machine's monotonic clock: that of the recording.
struct Span {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::vector<std::int64_t> t0_ns;  // by file
};

bool is_task(const TraceLine& line) {
  return line.callback == Callback::kStart &&
         (line.type == nccl::kColl || line.type == nccl::kP2p || line.type == nccl::kCollApi ||
          line.type == nccl::kP2pApi);
}

/// By rank of the first communicator: how many operations the program issued.
std::vector<std::size_t> operations_of(const fs::path& folder) {
  std::ifstream in(folder / "expected.json");
  std::vector<std::size_t> out;
  const json expected = json::parse(in);
  for (const json& process : expected.at("processes"))
    out.push_back(process.at("communicators").at(0).at("ops").size());
  return out;
}

Span span_of(const fs::path& folder) {
  Span span;
  span.begin_ns = span.end_ns = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::size_t> operations = operations_of(folder);
  const std::size_t most = *std::max_element(operations.begin(), operations.end());
  const std::size_t least = *std::min_element(operations.begin(), operations.end());
  std::int64_t wait_begins = 0;
  const std::vector<fs::path> files = trace_files(folder);
  for (std::size_t f = 0; f < files.size(); ++f) {
    const Trace trace = load_trace(files[f]);
    const std::int64_t t0 = trace.header.t0_monotonic_ns;
    span.t0_ns.push_back(t0);
    std::int64_t last_task = t0;
    std::size_t collectives = 0;
    for (const TraceLine& line : trace.lines) {
      const std::int64_t at = t0 + line.t_ns;
      if (is_task(line)) last_task = at;
      if (line.callback == Callback::kStart && line.type == nccl::kColl &&
          ++collectives == kWarmup + 1)
        span.begin_ns = std::min(span.begin_ns, at);
      if (line.callback != Callback::kFinalize && line.callback != Callback::kUnload) continue;
      span.end_ns = std::min(span.end_ns, at - 1);
      break;
    }
    if (operations[f] == most) wait_begins = std::max(wait_begins, last_task);
  }
  if (least < most) span.end_ns = wait_begins + kIntoTheWaitNs;
  const std::int64_t first = *std::min_element(span.t0_ns.begin(), span.t0_ns.end());
  if (span.begin_ns >= span.end_ns) span.begin_ns = first;
  return span;
}

std::int64_t monotonic_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Where all counts began.
Round beginning_of(Round round, double seconds) {
  for (Answer& answer : round) {
    answer.response.set_time_ns(answer.response.time_ns() -
                                static_cast<std::int64_t>(seconds * 1e9));
    for (v1::JobSnapshot& job : *answer.response.mutable_jobs()) {
      for (v1::RankSums& sums : *job.mutable_rank_sums()) {
        sums.set_timed_operations(0);
        sums.set_seconds(0);
        sums.set_bus_bytes(0);
      }
      for (v1::OperationSums& sums : *job.mutable_sums()) sums.set_busy_seconds(0);
      for (v1::RankProgress& progress : *job.mutable_progress()) progress.set_queue_seconds(0);
      for (v1::NetworkSums& sums : *job.mutable_network()) {
        sums.set_bytes(0);
        for (double& phase : *sums.mutable_phase_seconds()) phase = 0;
      }
    }
  }
  return round;
}

std::uint64_t timed_operations(const Round& round) {
  std::uint64_t sum = 0;
  for (const v1::JobSnapshot& job : round.at(0).response.jobs()) {
    for (const v1::RankSums& sums : job.rank_sums()) sum += sums.timed_operations();
  }
  return sum;
}

/// The agent's sums once they do not grow any more; plans are settled half a second after their
/// last operation.
Round settled(const std::vector<Agent>& agents, const std::string& job) {
  Round round;
  std::uint64_t before = ~std::uint64_t{0};
  for (int i = 0; i < 20; ++i) {
    round = ask_all(agents, job, std::chrono::seconds(20));
    const std::uint64_t now = timed_operations(round);
    if (now == before) break;
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
  }
  return round;
}

struct Said {
  std::string rates;                // of the window
  std::vector<std::string> faults;  // headlines
  std::set<std::int32_t> ranks;     // accused
  Kind kind{};
  verdict::HangClass hang_class{};
};

Said judge(const std::vector<Agent>& agents, const std::string& job, double seconds) {
  const Round last = settled(agents, job);
  const Observation now =
      observe(last, job, 1e9);  // since recorded time stands still, all are silent
  verdict::JudgeOptions options;
  options.windows = 1;
  options.hang.silent_seconds = 1e9;
  verdict::Judge judge(now.job, options);
  judge.add(window_between(beginning_of(last, seconds), last, now));
  Said said;
  const verdict::WindowResult& window = judge.results().back();
  said.rates = std::to_string(timed_operations(last)) + " timed operations; " +
               std::to_string(seconds) + " s, threshold " + std::to_string(window.threshold);
  for (std::size_t c = 0; c < now.job.communicators.size(); ++c) {
    said.rates += "; " + now.job.communicators[c].comm + " of " +
                  std::to_string(now.job.communicators[c].nranks) + " ranks, coverage " +
                  std::to_string(now.standing.coverage[c]);
  }
  for (std::size_t g = 0; g < window.lag.size(); ++g) {
    said.rates += "; GPU " + std::to_string(g) + (window.judged[g] != 0 ? "" : " not judged") +
                  " communicates " + std::to_string(window.communication[g]) + " lags " +
                  std::to_string(window.lag[g]);
  }
  for (const Finding& finding : judge.findings(now.standing)) {
    if (!is_fault(finding.kind)) continue;
    if (said.faults.empty()) {
      said.kind = finding.kind;
      said.hang_class = finding.hang_class;
    }
    said.faults.push_back(headline(now.job, finding) + ". " + explanation(now.job, finding));
    for (const verdict::Member& member : now.job.members) {
      if (std::find(finding.gpus.begin(), finding.gpus.end(), member.gpu) != finding.gpus.end())
        said.ranks.insert(member.rank);
    }
  }
  return said;
}

Said verdict_on(ReplaySession& session, const std::vector<Agent>& agents, const fs::path& folder) {
  const Span span = span_of(folder);
  ReplayPlan plan;
  for (const std::int64_t t0 : span.t0_ns) plan.until_ns.push_back(span.end_ns - t0);
  plan.shift_ns = monotonic_now_ns() - (span.end_ns + kStandStillNs);
  Said said;
  plan.look = [&](const std::string& job) {
    said = judge(agents, job, static_cast<double>(span.end_ns - span.begin_ns) * 1e-9);
  };
  // The mask that asks for GPU times, also where the default one of a release does not.
  (void)session.replay(folder, useful_mask_modes(folder, "both").back(), plan);
  return said;
}

/// What a recording's scenario must show.
struct Truth {
  const char* scenario;
  std::set<std::int32_t> ranks;
  Kind kind = Kind::kLateGpu;
};
const std::array kTruths = {
    Truth{"late3-", {1}},     Truth{"late4-", {3}},         Truth{"slow3-", {}},
    Truth{"broadcast3-", {}}, Truth{"reduce2-", {}},        Truth{"sendrecv3-", {}},
    Truth{"pingpong2-", {}},  Truth{"gatherscatter3-", {}}, Truth{"abort2-", {1}, Kind::kHang},
};

std::vector<std::pair<fs::path, const Truth*>> recordings() {
  std::vector<std::pair<fs::path, const Truth*>> out;
  for (const auto& entry : fs::directory_iterator(NCCLSCOPE_TRACES)) {
    const std::string name = entry.path().filename().string();
    for (const Truth& truth : kTruths) {
      if (name.starts_with(truth.scenario)) out.emplace_back(entry.path(), &truth);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

void expect_truth(const std::string& name, const Truth& truth, const Said& said) {
  std::string all = said.rates + "\n";
  for (const std::string& fault : said.faults) all += fault + "\n";
  EXPECT_EQ(said.ranks, truth.ranks) << name << ": " << all;
  if (truth.ranks.empty()) {
    EXPECT_TRUE(said.faults.empty()) << name << ": " << all;
    return;
  }
  if (said.faults.empty()) return;
  EXPECT_EQ(said.kind, truth.kind) << name << ": " << all;
  if (truth.kind == Kind::kHang) {
    EXPECT_EQ(said.hang_class, verdict::HangClass::kRankNeverCalled) << name << ": " << all;
  }
}

TEST(Recordings, NameTheirCulpritAndNobodyElse) {
  ReplaySession session({NCCLSCOPE_PLUGIN, NCCLSCOPE_AGENT, NCCLSCOPE_REPLAY});
  AgentOptions options;
  options.addresses = {session.address()};
  const std::vector<Agent> agents = connect(options);
  const auto all = recordings();
  ASSERT_GE(all.size(), 40u) << "recordings in " << NCCLSCOPE_TRACES;
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&] {
    for (;;) {
      std::unique_lock lock(mutex);
      if (next >= all.size()) return;
      const auto& [folder, truth] = all[next++];
      lock.unlock();
      Said said;
      std::string error;
      try {
        said = verdict_on(session, agents, folder);
      } catch (const std::exception& e) {
        error = e.what();
      }
      lock.lock();
      EXPECT_EQ(error, "") << folder;
      if (error.empty()) expect_truth(folder.filename().string(), *truth, said);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ncclscope::cli
