// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/observation.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/text.h"
#include "verdict/text.h"

namespace ncclscope::cli {
namespace {

using verdict::kNone;

constexpr std::string_view kOther = "other";
/// A mean of fewer operations says nothing of who is late.
constexpr std::uint64_t kLeastOperations = 3;

/// A communicator's identity over nodes: its hash. Where NCCL told none, the name means something
/// on its node only.
std::string key_of(const v1::Communicator& c, const std::string& node) {
  return c.hash_known() ? c.comm() : c.comm() + "@" + node;
}

const v1::JobSnapshot* job_of(const Answer& answer, const std::string& job_id) {
  if (!answer.answered) return nullptr;
  for (const v1::JobSnapshot& job : answer.response.jobs()) {
    if (job.job().job_id() == job_id) return &job;
  }
  return nullptr;
}

std::int32_t gpu_of(const v1::Rank& rank) {
  return rank.gpu_known() ? static_cast<std::int32_t>(rank.gpu()) : -1;
}

verdict::MemberState state_of(const std::string& state) {
  if (state == "finalized") return verdict::MemberState::kFinalized;
  if (state == "vanished") return verdict::MemberState::kVanished;
  return verdict::MemberState::kRunning;
}

class Builder {
 public:
  Builder(Observation& out, double silent_seconds) : out_(out), silent_seconds_(silent_seconds) {}

  void add(const v1::JobSnapshot& job, const v1::GetSnapshotResponse& response) {
    const std::string node = printable(response.node());
    std::map<std::pair<std::string, std::int32_t>, const v1::RankProgress*> progress;
    for (const v1::RankProgress& p : job.progress()) {
      const v1::RankProgress*& best = progress[{p.comm(), p.rank()}];
      if (best == nullptr || p.state() == "running") best = &p;
    }
    if (job.progress().empty() && !job.communicators().empty())
      out_.missing.push_back({Missing::Kind::kBlind, "agent of " + node,
                              "its version does not tell how far ranks are; upgrade it"});
    for (const v1::Communicator& c : job.communicators()) {
      if (c.comm() == kOther) continue;
      const std::uint32_t index = communicator(c, node);
      for (const v1::Rank& rank : c.ranks()) {
        if (rank.rank() < 0) continue;
        const auto at = progress.find({c.comm(), rank.rank()});
        member(index, rank, node, at == progress.end() ? nullptr : at->second);
      }
    }
    for (const v1::GpuActivity& activity : job.gpus()) {
      const auto at = gpus_.find({node, activity.gpu()});
      if (at != gpus_.end() && activity.has_communication_ratio())
        out_.gpus[at->second].communication_ratio = activity.communication_ratio();
    }
  }

  /// What all answers together lack.
  void finish() {
    std::vector<std::set<std::int32_t>> ranks(out_.job.communicators.size());
    std::set<std::pair<std::string, std::int64_t>> told;
    for (std::uint32_t m = 0; m < out_.job.members.size(); ++m) {
      const verdict::Member& member = out_.job.members[m];
      ranks[member.communicator].insert(member.rank);
      const MemberFacts& facts = out_.members[m];
      if (!told.insert({facts.node, facts.pid}).second) continue;
      const verdict::Progress& p = out_.standing.progress[m];
      const std::string who = "pid " + std::to_string(facts.pid) + " on " + facts.node + ", " +
                              describe_gpu(out_.job, member.gpu);
      if (p.state == verdict::MemberState::kVanished) {
        out_.missing.push_back({Missing::Kind::kVanished, who,
                                "its connection ended without an end of its communicators"});
      } else if (p.state == verdict::MemberState::kRunning &&
                 p.sample_age_seconds >= silent_seconds_) {
        out_.missing.push_back({Missing::Kind::kSilent, who,
                                "told nothing for " +
                                    verdict::describe_seconds(p.sample_age_seconds) +
                                    ": stopped, frozen, or its node does not run it"});
      }
    }
    for (std::uint32_t c = 0; c < ranks.size(); ++c) {
      const std::uint32_t nranks = out_.job.communicators[c].nranks;
      if (nranks <= ranks[c].size()) continue;
      out_.missing.push_back(
          {Missing::Kind::kRanks,
           absent(nranks, ranks[c]) + " of " + describe_communicator(out_.job, c),
           "no agent that answered knows them"});
    }
  }

 private:
  static std::string absent(std::uint32_t nranks, const std::set<std::int32_t>& have) {
    std::string text;
    std::uint32_t count = 0;
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(nranks); ++r) {
      if (have.contains(r)) continue;
      if (++count <= 16) text += (text.empty() ? "" : ", ") + std::to_string(r);
    }
    if (count > 16) text += ", ... (" + std::to_string(count) + ")";
    return (count == 1 ? "rank " : "ranks ") + text;
  }

  std::uint32_t communicator(const v1::Communicator& c, const std::string& node) {
    const auto [at, is_new] = communicators_.try_emplace(
        key_of(c, node), static_cast<std::uint32_t>(out_.job.communicators.size()));
    if (is_new) {
      verdict::Communicator& made = out_.job.communicators.emplace_back();
      made.comm = printable(c.comm());
      out_.standing.coverage.push_back(1);
    }
    verdict::Communicator& known = out_.job.communicators[at->second];
    if (known.name.empty()) known.name = printable(c.name());
    if (known.dimension.empty()) known.dimension = printable(c.dimension());
    known.nranks = std::max(known.nranks, c.nranks());
    known.nnodes = std::max(known.nnodes, c.nnodes());
    if (c.has_coverage()) {
      double& coverage = out_.standing.coverage[at->second];
      coverage = std::min(coverage, c.coverage());
    }
    return at->second;
  }

  std::uint32_t gpu(const v1::Rank& rank, const std::string& node) {
    const auto [at, is_new] =
        gpus_.try_emplace({node, gpu_of(rank)}, static_cast<std::uint32_t>(out_.job.gpus.size()));
    if (is_new) {
      out_.job.gpus.push_back({node, gpu_of(rank), printable(rank.global_rank())});
      out_.gpus.emplace_back();
    }
    return at->second;
  }

  void member(std::uint32_t communicator, const v1::Rank& rank, const std::string& node,
              const v1::RankProgress* progress) {
    const auto [at, is_new] = members_.try_emplace(
        {communicator, rank.rank()}, static_cast<std::uint32_t>(out_.job.members.size()));
    if (is_new) {
      out_.job.members.emplace_back();
      out_.members.emplace_back();
      out_.standing.progress.emplace_back();
    } else if (rank.state() != "running") {
      return;  // a process that had its place before
    }
    out_.job.members[at->second] = {communicator, gpu(rank, node), rank.rank()};
    MemberFacts& facts = out_.members[at->second];
    facts.node = node;
    facts.pid = rank.pid();
    verdict::Progress& p = out_.standing.progress[at->second];
    p = {};
    p.state = state_of(rank.state());
    if (progress == nullptr) return;
    facts.progress = *progress;
    p.enqueued = progress->collectives_enqueued();
    p.started = progress->collectives_started();
    p.completed = progress->collectives_completed();
    p.p2p_enqueued = progress->p2p_enqueued();
    p.p2p_started = progress->p2p_started();
    p.p2p_completed = progress->p2p_completed();
    p.inflight_seconds = progress->inflight_seconds();
    p.sample_age_seconds = progress->sample_age_seconds();
    p.signature = progress->oldest_is_p2p() ? 0 : progress->oldest_signature();
    p.idle_seconds = progress->idle_seconds();
    p.collective_ends_unknown = progress->collective_ends_unknown();
    p.p2p_ends_unknown = progress->p2p_ends_unknown();
    p.last_waits_for_all = progress->last_waits_for_all();
    p.calls_signature = progress->calls_signature();
  }

  Observation& out_;
  double silent_seconds_;
  std::map<std::string, std::uint32_t> communicators_;
  std::map<std::pair<std::string, std::int32_t>, std::uint32_t> gpus_;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> members_;
};

// ---- rates
// ---------------------------------------------------------------------------------------

/// Finds things of an observation by what agents call them.
class Places {
 public:
  explicit Places(const verdict::Job& job) {
    for (std::uint32_t c = 0; c < job.communicators.size(); ++c)
      communicators_[job.communicators[c].comm] = c;
    for (std::uint32_t g = 0; g < job.gpus.size(); ++g)
      gpus_[{job.gpus[g].node, job.gpus[g].index}] = g;
    for (std::uint32_t m = 0; m < job.members.size(); ++m) {
      const verdict::Member& member = job.members[m];
      members_[{job.communicators[member.communicator].comm, job.gpus[member.gpu].node,
                member.rank}] = m;
    }
  }
  [[nodiscard]] std::uint32_t communicator(const std::string& comm) const {
    const auto at = communicators_.find(comm);
    return at == communicators_.end() ? kNone : at->second;
  }
  [[nodiscard]] std::uint32_t member(const std::string& comm, const std::string& node,
                                     std::int32_t rank) const {
    const auto at = members_.find({comm, node, rank});
    return at == members_.end() ? kNone : at->second;
  }
  [[nodiscard]] std::uint32_t gpu(const std::string& node, std::int32_t index) const {
    const auto at = gpus_.find({node, index});
    return at == gpus_.end() ? kNone : at->second;
  }

 private:
  std::map<std::string, std::uint32_t> communicators_;
  std::map<std::pair<std::string, std::int32_t>, std::uint32_t> gpus_;
  std::map<std::tuple<std::string, std::string, std::int32_t>, std::uint32_t> members_;
};

using RankKey = std::tuple<std::string, std::int32_t, std::string>;
using SumsKey = std::tuple<std::string, std::string, std::string, std::string, std::string>;

RankKey rank_key(const v1::RankSums& s) {
  return {s.comm(), s.rank(), s.collective()};
}
SumsKey sums_key(const v1::OperationSums& s) {
  return {s.comm(), s.collective(), s.size(), s.algorithm(), s.protocol()};
}

class Rates {
 public:
  Rates(const Observation& now, verdict::Window& out) : now_(now), places_(now.job), out_(out) {}

  void add(const v1::JobSnapshot& first, const v1::JobSnapshot& last, const std::string& node,
           double seconds) {
    node_ = &node;
    seconds_ = seconds;
    add_ranks(first, last);
    add_shapes(first, last);
    add_network(first, last);
    add_queues(first, last);
    if (first.has_steps() && last.has_steps() && last.steps().steps() > first.steps().steps()) {
      steps_ += static_cast<double>(last.steps().steps() - first.steps().steps());
      step_seconds_ += last.steps().seconds() - first.steps().seconds();
    }
  }

  void finish() {
    add_peers();
    for (const auto& [what, seen] : seen_) {
      if (seen.operations && !seen.timed) out_.untimed.push_back(what.first);
    }
    if (steps_ > 0) out_.step_seconds = step_seconds_ / steps_;
  }

 private:
  void add_ranks(const v1::JobSnapshot& first, const v1::JobSnapshot& last) {
    std::map<RankKey, const v1::RankSums*> before;
    for (const v1::RankSums& s : first.rank_sums()) before[rank_key(s)] = &s;
    for (const v1::RankSums& s : last.rank_sums()) {
      const auto at = before.find(rank_key(s));
      const std::uint32_t member = places_.member(printable(s.comm()), *node_, s.rank());
      if (at == before.end() || member == kNone) continue;
      const v1::RankSums& b = *at->second;
      if (s.timed_operations() < b.timed_operations() || s.seconds() < b.seconds()) continue;
      const double spent = (s.seconds() - b.seconds()) / seconds_;
      const std::optional<verdict::Collective> collective = verdict::synchronising(s.collective());
      if (!collective && s.collective() != "Send")
        out_.gpus[now_.job.members[member].gpu].other_seconds += spent;
      if (!collective || s.timed_operations() - b.timed_operations() < kLeastOperations) continue;
      out_.collectives.push_back(
          {member, *collective,
           static_cast<double>(s.timed_operations() - b.timed_operations()) / seconds_, spent,
           (s.bus_bytes() - b.bus_bytes()) / seconds_});
    }
  }

  void add_shapes(const v1::JobSnapshot& first, const v1::JobSnapshot& last) {
    std::map<SumsKey, const v1::OperationSums*> before;
    for (const v1::OperationSums& s : first.sums()) before[sums_key(s)] = &s;
    for (const v1::OperationSums& s : last.sums()) {
      const std::optional<verdict::Collective> collective = verdict::synchronising(s.collective());
      const std::uint32_t communicator = places_.communicator(printable(s.comm()));
      if (!collective || communicator == kNone) continue;
      const auto was = before.find(sums_key(s));
      const v1::OperationSums none;
      const v1::OperationSums& b = was == before.end() ? none : *was->second;
      auto& [operations, timed] = seen_[{communicator, *collective}];
      operations |= s.operations() > b.operations();
      timed |= s.timed_operations() > b.timed_operations();
      const double busy = s.busy_seconds() - b.busy_seconds();
      if (busy <= 0) continue;
      const auto [at, is_new] = shapes_.try_emplace(
          {communicator, *collective, s.size(), s.algorithm()}, out_.shapes.size());
      if (is_new) out_.shapes.push_back({communicator, *collective, s.size(), s.algorithm(), 0});
      out_.shapes[at->second].busy_seconds += busy / seconds_;
    }
  }

  void add_network(const v1::JobSnapshot& first, const v1::JobSnapshot& last) {
    for (const v1::NetworkSums& s : last.network()) {
      const std::uint32_t gpu = places_.gpu(*node_, s.gpu());
      if (gpu == kNone) continue;
      const auto before = std::find_if(first.network().begin(), first.network().end(),
                                       [&](const v1::NetworkSums& b) {
                                         return b.gpu() == s.gpu() && b.is_send() == s.is_send();
                                       });
      // send: gpu_wait, peer_wait, wire; receive: data_wait, flush, gpu_wait
      constexpr int kPhases = 3;
      if (before == first.network().end() || s.phase_seconds_size() < kPhases ||
          before->phase_seconds_size() < kPhases || s.bytes() < before->bytes() ||
          s.operations() < before->operations())
        continue;
      const auto spent = [&](int phase) {
        return (s.phase_seconds(phase) - before->phase_seconds(phase)) / seconds_;
      };
      verdict::NetworkRates& rates = s.is_send() ? out_.gpus[gpu].send : out_.gpus[gpu].receive;
      rates.seconds += spent(s.is_send() ? 2 : 0);
      rates.blocked_seconds += spent(s.is_send() ? 1 : 2);
      rates.bytes += static_cast<double>(s.bytes() - before->bytes()) / seconds_;
      rates.operations += static_cast<double>(s.operations() - before->operations()) / seconds_;
    }
  }

  /// Who sends to whom over the network.
  void add_peers() {
    std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> gpus;
    for (const verdict::Member& m : now_.job.members) gpus[{m.communicator, m.rank}] = m.gpu;
    for (std::size_t i = 0; i < now_.job.members.size(); ++i) {
      const verdict::Member& m = now_.job.members[i];
      for (const v1::Neighbour& n : now_.members[i].progress.neighbours()) {
        const auto to = gpus.find({m.communicator, n.peer()});
        if (n.is_send() && to != gpus.end()) out_.peers.push_back({m.gpu, to->second});
      }
    }
  }

  void add_queues(const v1::JobSnapshot& first, const v1::JobSnapshot& last) {
    std::map<std::pair<std::string, std::int32_t>, const v1::RankProgress*> before;
    for (const v1::RankProgress& p : first.progress()) before[{p.comm(), p.rank()}] = &p;
    for (const v1::RankProgress& p : last.progress()) {
      const std::uint32_t member = places_.member(printable(p.comm()), *node_, p.rank());
      const auto at = before.find({p.comm(), p.rank()});
      if (member == kNone || at == before.end()) continue;
      const v1::RankProgress& old = *at->second;
      const auto per_second = [&](auto from, auto to) {
        return to < from ? 0.0 : static_cast<double>(to - from) / seconds_;
      };
      verdict::GpuRates& gpu = out_.gpus[now_.job.members[member].gpu];
      gpu.queue_seconds += per_second(old.queue_seconds(), p.queue_seconds());
      gpu.queue_operations += per_second(old.queue_operations(), p.queue_operations());
      gpu.calls += per_second(old.collectives_enqueued(), p.collectives_enqueued());
    }
  }

  const Observation& now_;
  Places places_;
  verdict::Window& out_;
  const std::string* node_ = nullptr;
  double seconds_ = 0;
  double steps_ = 0, step_seconds_ = 0;
  struct Seen {
    bool operations = false, timed = false;
  };
  std::map<std::pair<std::uint32_t, verdict::Collective>, Seen> seen_;
  std::map<std::tuple<std::uint32_t, verdict::Collective, std::string, std::string>, std::size_t>
      shapes_;
};

}  // namespace

const char* name(Missing::Kind kind) {
  switch (kind) {
    case Missing::Kind::kAgent:
      return "agent";
    case Missing::Kind::kRanks:
      return "ranks";
    case Missing::Kind::kSilent:
      return "silent_process";
    case Missing::Kind::kVanished:
      return "vanished_process";
    case Missing::Kind::kBlind:
      return "old_agent";
    case Missing::Kind::kNotRecorded:
      return "not_recorded";
  }
  return "";
}

bool Observation::same_places(const Observation& other) const {
  const auto equal_gpu = [](const verdict::Gpu& a, const verdict::Gpu& b) {
    return a.node == b.node && a.index == b.index;
  };
  const auto equal_communicator = [](const verdict::Communicator& a,
                                     const verdict::Communicator& b) {
    return a.comm == b.comm && a.nranks == b.nranks && a.dimension == b.dimension;
  };
  const auto equal_member = [](const verdict::Member& a, const verdict::Member& b) {
    return a.communicator == b.communicator && a.gpu == b.gpu && a.rank == b.rank;
  };
  return std::equal(job.gpus.begin(), job.gpus.end(), other.job.gpus.begin(), other.job.gpus.end(),
                    equal_gpu) &&
         std::equal(job.communicators.begin(), job.communicators.end(),
                    other.job.communicators.begin(), other.job.communicators.end(),
                    equal_communicator) &&
         std::equal(job.members.begin(), job.members.end(), other.job.members.begin(),
                    other.job.members.end(), equal_member);
}

Observation observe(const Round& round, const std::string& job_id, double silent_seconds) {
  Observation out;
  out.job.job_id = job_id;
  Builder builder(out, silent_seconds);
  ConfigurationCollector configuration;
  for (const Answer& answer : round) {
    ++out.asked;
    if (!answer.answered) {
      out.missing.push_back({Missing::Kind::kAgent, answer.address, answer.problem});
      continue;
    }
    ++out.answered;
    out.time_ns = std::max(out.time_ns, answer.response.time_ns());
    const v1::JobSnapshot* job = job_of(answer, job_id);
    if (job == nullptr) continue;
    ++out.knowing;
    builder.add(*job, answer.response);
    configuration.add(*job, printable(answer.response.node()));
  }
  builder.finish();
  out.configuration = configuration.finish();
  out.standing.agents_missing = out.answered < out.asked;
  return out;
}

verdict::Window window_between(const Round& first, const Round& last, const Observation& now) {
  verdict::Window window;
  window.gpus.resize(now.job.gpus.size());
  window.coverage = now.standing.coverage;
  Rates rates(now, window);
  for (std::size_t i = 0; i < last.size() && i < first.size(); ++i) {
    const v1::JobSnapshot* before = job_of(first[i], now.job.job_id);
    const v1::JobSnapshot* after = job_of(last[i], now.job.job_id);
    const double seconds =
        static_cast<double>(last[i].response.time_ns() - first[i].response.time_ns()) * 1e-9;
    if (before == nullptr || after == nullptr || seconds <= 0) continue;
    window.seconds = std::max(window.seconds, seconds);
    rates.add(*before, *after, printable(last[i].response.node()), seconds);
  }
  rates.finish();
  return window;
}

void WaitMemory::add(const Observation& now) {
  std::map<std::string, double> waits;
  for (std::size_t m = 0; m < now.job.members.size(); ++m) {
    double& wait = waits[now.job.communicators[now.job.members[m].communicator].comm];
    wait = std::max(wait, now.standing.progress[m].inflight_seconds);
  }
  for (const auto& [comm, before] : before_) {
    const auto at = waits.find(comm);
    if (at != waits.end() && at->second < before) longest_ = std::max(longest_, before);
  }
  before_ = std::move(waits);
}

}  // namespace ncclscope::cli
