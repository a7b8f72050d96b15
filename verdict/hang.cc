// SPDX-License-Identifier: Apache-2.0
#include "verdict/hang.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace ncclscope::verdict {
namespace {

using Members = std::vector<std::uint32_t>;

/// What a communicator's members say together.
struct Stall {
  std::uint32_t communicator = kNone;
  Members members;
  double seconds = 0;  // of the oldest operation in flight
  bool stalled = false;
  std::uint64_t max_enqueued = 0, max_completed = 0;  // of those that are known to wait
  bool collective = false;       // a collective is in flight; else Send and Recv
  bool p2p_runs = false;         // a Send or Recv has begun and does not end
  bool waits_elsewhere = false;  // Send and Recv: the GPU of a member is held up by something else
  bool unobserved = false;       // some of it cannot be seen
  std::uint64_t calls = 0;       // unobserved ranks that called so often did not call the same
  std::uint32_t unreported = 0;
  Members gone, stopped, mismatched, behind, outside, unstarted, never_started;

  [[nodiscard]] bool unnamed_missing() const { return unreported > 0 && gone.empty(); }
};

class Hangs {
 public:
  Hangs(const Job& job, const Standing& standing, const HangOptions& options)
      : job_(job), standing_(standing), options_(options), stalls_(job.communicators.size()) {
    look_at_members();
    look_at_calls();
    for (std::uint32_t c = 0; c < stalls_.size(); ++c) {
      Stall& stall = stalls_[c];
      stall.communicator = c;
      const double coverage = c < standing.coverage.size() ? standing.coverage[c] : 1;
      stall.stalled = stall.seconds >= options.stalled_seconds && !(coverage < options.coverage);
      if (stall.stalled) classify(stall);
    }
    accuse_in_circles();
  }

  std::vector<Hang> found() const {
    std::vector<Hang> out;
    for (const Stall& stall : stalls_) {
      if (stall.stalled && !stall.waits_elsewhere) add(stall, out);
    }
    for (const Stall& stall : stalls_) {
      if (stall.stalled && stall.waits_elsewhere && out.empty()) add(stall, out);
    }
    if (out.empty()) add_unknown(out);
    std::stable_sort(out.begin(), out.end(),
                     [](const Hang& a, const Hang& b) { return a.seconds > b.seconds; });
    if (out.empty()) add_outside(out);
    return out;
  }

 private:
  const Progress& of(std::uint32_t member) const { return standing_.progress[member]; }
  static bool collective_in_flight(const Progress& p) { return p.enqueued > p.completed; }
  static bool p2p_runs(const Progress& p) { return p.p2p_started > p.p2p_completed; }
  /// Called, and not begun by the GPU. Of Sends and Receives that is known only where others' are
  /// seen to have begun.
  static bool is_unstarted(const Stall& stall, const Progress& p) {
    if (collective_in_flight(p)) return p.started <= p.completed;
    return stall.p2p_runs && p.p2p_enqueued > p.p2p_completed && !p2p_runs(p);
  }
  static bool runs(const Progress& p) { return p.state == MemberState::kRunning; }
  /// Nothing of it is known to be in flight, and its last operations may be.
  static bool unobserved(const Progress& p) {
    return runs(p) && p.inflight_seconds <= 0 && (p.collective_ends_unknown || p.p2p_ends_unknown);
  }
  /// A collective that the GPU has not started, behind others that may be running.
  static bool queued_unseen(const Progress& p) {
    return runs(p) && collective_in_flight(p) && p.started <= p.completed &&
           p.collective_ends_unknown;
  }

  void look_at_members() {
    gpu_seconds_.assign(job_.gpus.size(), 0);
    gpu_runs_.assign(job_.gpus.size(), 0);
    gpu_unseen_.assign(job_.gpus.size(), 0);
    for (std::uint32_t m = 0; m < job_.members.size(); ++m) {
      const Member& member = job_.members[m];
      const Progress& p = of(m);
      Stall& stall = stalls_[member.communicator];
      stall.members.push_back(m);
      stall.seconds = std::max(stall.seconds, p.inflight_seconds);
      stall.unobserved |= unobserved(p) || queued_unseen(p);
      if (!unobserved(p)) {
        stall.max_enqueued = std::max(stall.max_enqueued, p.enqueued);
        stall.max_completed = std::max(stall.max_completed, p.completed);
      } else {
        gpu_unseen_[member.gpu] = 1;
      }
      if (queued_unseen(p)) gpu_unseen_[member.gpu] = 1;
      stall.collective |= runs(p) && collective_in_flight(p);
      stall.p2p_runs |= runs(p) && p2p_runs(p);
      gpu_seconds_[member.gpu] = std::max(gpu_seconds_[member.gpu], p.inflight_seconds);
      if (p.started > p.completed) gpu_runs_[member.gpu] = 1;
    }
  }

  /// Who waits is known of unobserved ranks as well, where somebody has not called what they
  /// called, or calls something else: it cannot have ended.
  void look_at_calls() {
    for (Stall& stall : stalls_) {
      std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
      std::uint64_t most = 0;
      double behind_seconds = 0;
      for (const std::uint32_t m : stall.members) {
        const Progress& p = of(m);
        if (p.state == MemberState::kFinalized) continue;
        if (p.enqueued < least) behind_seconds = 0;
        least = std::min(least, p.enqueued);
        if (p.enqueued == least) behind_seconds = std::max(behind_seconds, p.idle_seconds);
        if (unobserved(p)) most = std::max(most, p.enqueued);
      }
      std::set<std::uint64_t> signatures;
      for (const std::uint32_t m : stall.members) {
        const Progress& p = of(m);
        if (unobserved(p) && p.enqueued == most && p.calls_signature != 0)
          signatures.insert(p.calls_signature);
      }
      for (const std::uint32_t m : stall.members) {
        const Progress& p = of(m);
        if (!unobserved(p) || !p.collective_ends_unknown) continue;
        const bool ahead = p.last_waits_for_all && p.enqueued > least;
        const bool differs = signatures.size() > 1 && p.enqueued == most;
        if (!ahead && !differs) continue;
        const double seconds = differs ? p.idle_seconds : std::min(p.idle_seconds, behind_seconds);
        stall.seconds = std::max(stall.seconds, seconds);
        stall.max_enqueued = std::max(stall.max_enqueued, p.enqueued);
        stall.collective = true;
        double& gpu = gpu_seconds_[job_.members[m].gpu];
        gpu = std::max(gpu, seconds);
      }
      if (signatures.size() > 1) stall.calls = most;
    }
  }

  bool gpu_is_outside(std::uint32_t member) const {
    return gpu_seconds_[job_.members[member].gpu] <= 0;
  }

  void classify(Stall& stall) {
    std::set<std::int32_t> ranks;
    for (const std::uint32_t m : stall.members) {
      const Progress& p = of(m);
      ranks.insert(job_.members[m].rank);
      if (p.state == MemberState::kVanished || p.state == MemberState::kLost)
        stall.gone.push_back(m);
      else if (runs(p) && p.sample_age_seconds >= options_.silent_seconds)
        stall.stopped.push_back(m);
    }
    const std::uint32_t nranks = job_.communicators[stall.communicator].nranks;
    if (nranks > ranks.size()) stall.unreported = nranks - static_cast<std::uint32_t>(ranks.size());
    if (!stall.gone.empty() || (stall.unreported > 0 && !standing_.agents_missing)) return;
    // What a process said before it was stopped says nothing about now.
    if (!stall.stopped.empty()) return;
    find_mismatch(stall);
    if (!stall.mismatched.empty()) return;
    find_behind(stall);
    if (!stall.behind.empty()) return;
    for (const std::uint32_t m : stall.members) {
      const Progress& p = of(m);
      // Hosts run ahead: what is queued behind something older cannot start.
      const bool queued = gpu_runs_[job_.members[m].gpu] != 0 ||
                          gpu_unseen_[job_.members[m].gpu] != 0 ||
                          gpu_seconds_[job_.members[m].gpu] > p.inflight_seconds;
      stall.waits_elsewhere |= !stall.collective && queued;
      if (!is_unstarted(stall, p) || p.inflight_seconds < options_.stalled_seconds) continue;
      stall.unstarted.push_back(m);
      if (!queued) stall.never_started.push_back(m);
    }
  }

  /// Ranks at the same index whose oldest operation differs: the smaller parties; all if none is.
  void find_mismatch(Stall& stall) const {
    std::map<std::uint64_t, Members> parties;
    for (const std::uint32_t m : stall.members) {
      const Progress& p = of(m);
      if (stall.calls != 0) {
        if (unobserved(p) && p.enqueued == stall.calls && p.calls_signature != 0)
          parties[p.calls_signature].push_back(m);
      } else if (p.signature != 0 && p.completed == stall.max_completed) {
        parties[p.signature].push_back(m);
      }
    }
    if (parties.size() < 2) return;
    std::size_t most = 0;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const auto& [signature, members] : parties) {
      most = std::max(most, members.size());
      least = std::min(least, members.size());
    }
    for (const auto& [signature, members] : parties) {
      if (members.size() < most || least == most)
        stall.mismatched.insert(stall.mismatched.end(), members.begin(), members.end());
    }
    std::sort(stall.mismatched.begin(), stall.mismatched.end());
  }

  /// Nothing of it is in flight here, and it is behind in calls. In Send and Recv nobody is ahead
  /// of anybody: who has nothing in flight anywhere is outside NCCL.
  void find_behind(Stall& stall) const {
    for (const std::uint32_t m : stall.members) {
      const Progress& p = of(m);
      if (p.inflight_seconds > 0) continue;
      const bool outside = gpu_is_outside(m);
      const bool behind =
          stall.collective ? p.enqueued < stall.max_enqueued : outside && !unobserved(p);
      if (!behind) continue;
      stall.behind.push_back(m);
      if (outside) stall.outside.push_back(m);
    }
  }

  /// One whose GPU waits elsewhere is a victim itself. Only if all are (a circle), those of the
  /// longest wait are accused.
  void accuse_in_circles() {
    double longest = 0;
    for (const Stall& stall : stalls_) {
      if (!stall.stalled) continue;
      longest = std::max(longest, stall.seconds);
      if (!stall.outside.empty() || !stall.gone.empty() || !stall.stopped.empty() ||
          !stall.mismatched.empty() || stall.unreported > 0)
        return;
    }
    for (Stall& stall : stalls_) {
      if (stall.stalled && stall.seconds >= longest) stall.outside = stall.behind;
    }
  }

  Hang base(const Stall& stall) const {
    Hang hang;
    hang.communicator = stall.communicator;
    hang.seconds = stall.seconds;
    hang.threshold_seconds = hang_threshold(standing_, options_);
    hang.unreported = stall.unreported;
    hang.point_to_point = !stall.collective;
    hang.sure = stall.unreported == 0 && (stall.collective || stall.members.size() <= 2);
    return hang;
  }

  /// Who has not called is a fact; whether it is outside NCCL or waits in an operation of its own
  /// is not known of one whose operations nobody sees end.
  bool all_seen(const Members& members) const {
    return std::none_of(members.begin(), members.end(),
                        [&](std::uint32_t m) { return gpu_unseen_[job_.members[m].gpu] != 0; });
  }

  void add(const Stall& stall, std::vector<Hang>& out) const {
    Hang hang = base(stall);
    const auto accuse = [&](HangClass hang_class, const Members& members) {
      hang.hang_class = hang_class;
      hang.members = members;
      out.push_back(hang);
    };
    if (!stall.gone.empty()) {
      hang.sure = true;
      accuse(HangClass::kProcessGone, stall.gone);
    } else if (stall.unnamed_missing() && !standing_.agents_missing) {
      hang.sure = false;
      accuse(HangClass::kProcessGone, {});
    } else if (!stall.stopped.empty()) {
      accuse(HangClass::kProcessStopped, stall.stopped);
    } else if (!stall.mismatched.empty()) {
      accuse(HangClass::kArgumentMismatch, stall.mismatched);
    } else if (!stall.behind.empty()) {
      hang.unobserved = !all_seen(stall.outside);
      hang.sure = hang.sure && !hang.unobserved;
      if (!stall.outside.empty()) accuse(HangClass::kRankNeverCalled, stall.outside);
    } else if (stall.unnamed_missing()) {
      accuse(HangClass::kProcessGone, {});
    } else if (!stall.unstarted.empty()) {
      if (!stall.never_started.empty()) accuse(HangClass::kGpuNeverStarted, stall.never_started);
    } else if (network_is_stuck(stall)) {
      accuse(HangClass::kNetworkStuck, {});
    }
  }

  /// All have called and started. Somebody who came only now may be the one they wait for; in Send
  /// and Recv, also somebody who did not come.
  bool network_is_stuck(const Stall& stall) const {
    bool started = false;
    for (const std::uint32_t m : stall.members) {
      const Progress& p = of(m);
      if (p.inflight_seconds > 0 && p.inflight_seconds < options_.stalled_seconds) return false;
      if (p.inflight_seconds <= 0 && !stall.collective) return false;
      if (unobserved(p) || queued_unseen(p)) return false;
      started |= p.started > p.completed || p.p2p_started > p.p2p_completed;
    }
    return started;
  }

  /// What stands still while nobody can be named, because some of it cannot be seen.
  void add_unknown(std::vector<Hang>& out) const {
    for (const Stall& stall : stalls_) {
      if (!stall.stalled || !stall.unobserved) continue;
      Hang hang = base(stall);
      hang.hang_class = HangClass::kUnknown;
      hang.sure = false;
      out.push_back(hang);
    }
  }

  /// Nothing is known to be in flight, and nobody has called anything for long.
  void add_outside(std::vector<Hang>& out) const {
    double idle = std::numeric_limits<double>::max();
    bool called = false;
    bool running = false;
    bool unseen = false;
    for (std::uint32_t m = 0; m < job_.members.size(); ++m) {
      const Progress& p = of(m);
      if (p.inflight_seconds > 0) return;
      called |= p.enqueued + p.p2p_enqueued > 0;
      if (!runs(p)) continue;
      running = true;
      unseen |= unobserved(p);
      idle = std::min(idle, p.idle_seconds);
    }
    const double told_from = unseen ? std::min(options_.stalled_seconds, options_.outside_seconds)
                                    : options_.outside_seconds;
    if (!running || !called || idle < told_from) return;
    Hang hang;
    hang.hang_class = unseen ? HangClass::kUnknown : HangClass::kOutsideNccl;
    hang.seconds = idle;
    hang.threshold_seconds = options_.outside_seconds;
    hang.sure = !unseen && !standing_.agents_missing;
    out.push_back(hang);
  }

  const Job& job_;
  const Standing& standing_;
  const HangOptions& options_;
  std::vector<Stall> stalls_;
  std::vector<double> gpu_seconds_;  // oldest in flight in any communicator
  std::vector<char> gpu_runs_;       // a collective has started and not ended
  std::vector<char> gpu_unseen_;     // may run something that nobody sees
};

}  // namespace

std::string_view name(HangClass hang_class) {
  switch (hang_class) {
    case HangClass::kProcessGone:
      return "process_gone";
    case HangClass::kProcessStopped:
      return "process_stopped";
    case HangClass::kArgumentMismatch:
      return "argument_mismatch";
    case HangClass::kRankNeverCalled:
      return "rank_never_called";
    case HangClass::kGpuNeverStarted:
      return "gpu_never_started";
    case HangClass::kNetworkStuck:
      return "network_stuck";
    case HangClass::kOutsideNccl:
      return "outside_nccl";
    case HangClass::kUnknown:
      return "unknown";
  }
  return "";
}

double hang_threshold(const Standing& standing, const HangOptions& options) {
  return std::max(options.hang_seconds, thresholds::kHangMultiple * standing.longest_ended_seconds);
}

std::vector<Hang> find_hangs(const Job& job, const Standing& standing, const HangOptions& options) {
  return Hangs(job, standing, options).found();
}

}  // namespace ncclscope::verdict
