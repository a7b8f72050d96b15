// SPDX-License-Identifier: Apache-2.0
#include "verdict/judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "verdict/statistics.h"

namespace ncclscope::verdict {
namespace {

/// Alerts about bandwidth stay pending for a window, those about links for two: they must hold in
/// one or two more.
constexpr std::size_t kTransferWindows = 2;

bool same_node(const Job& job, const std::vector<std::uint32_t>& gpus) {
  return std::all_of(gpus.begin(), gpus.end(), [&](std::uint32_t gpu) {
    return job.gpus[gpu].node == job.gpus[gpus.front()].node;
  });
}

/// The roll-up of several culprits, as far as they are all of one place.
void roll_up(const Job& job, Finding& finding) {
  if (finding.gpus.size() < 2) return;
  if (same_node(job, finding.gpus)) {
    finding.kind = Kind::kLateNode;
    return;
  }
  const std::vector<Role> roles = roles_of(job, finding.gpus);
  const auto of_kind = [&](RoleKind kind) {
    return std::find_if(roles.begin(), roles.end(), [&](const Role& r) { return r.kind == kind; });
  };
  if (const auto group = of_kind(RoleKind::kGroup); group != roles.end()) {
    finding.kind = Kind::kLateGroup;
    finding.communicator = group->communicator;
  } else if (const auto replica = of_kind(RoleKind::kReplica); replica != roles.end()) {
    finding.kind = Kind::kLateReplica;
    finding.replica = replica->rank;
  }
}

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::kHang:
      return "hang";
    case Kind::kWaiting:
      return "waiting";
    case Kind::kLateGpu:
      return "late_gpu";
    case Kind::kLateNode:
      return "late_node";
    case Kind::kLateGroup:
      return "late_group";
    case Kind::kLateReplica:
      return "late_replica";
    case Kind::kSlowTransfer:
      return "slow_transfer";
    case Kind::kSlowLink:
      return "slow_link";
    case Kind::kSlowNic:
      return "slow_nic";
    case Kind::kImbalance:
      return "imbalance";
    case Kind::kBlind:
      return "blind";
  }
  return "";
}

bool is_fault(Kind kind) {
  return kind != Kind::kWaiting && kind != Kind::kImbalance && kind != Kind::kBlind;
}

std::string_view name(Confidence confidence) {
  switch (confidence) {
    case Confidence::kLow:
      return "low";
    case Confidence::kMedium:
      return "medium";
    case Confidence::kHigh:
      return "high";
  }
  return "";
}

std::string_view name(Reason reason) {
  switch (reason) {
    case Reason::kUnknown:
      return "unknown";
    case Reason::kHost:
      return "host";
    case Reason::kGpu:
      return "gpu";
    case Reason::kEither:
      return "host or gpu";
  }
  return "";
}

Judge::Judge(const Job& job, JudgeOptions options) : job_(job), options_(options) {
  options_.windows = std::max(options_.windows, 1u);
}

// ---- windows
// -------------------------------------------------------------------------------------

void Judge::add(const Window& window) {
  WindowResult result = evaluate(job_, window, options_.window);
  renew_baselines();
  find_slow(result);
  results_.push_back(std::move(result));
  remember(results_.back());
  const std::size_t kept = std::max<std::size_t>(options_.windows, kTransferWindows);
  if (results_.size() <= kept) return;
  results_.pop_front();
  slow_.pop_front();
}

bool Judge::was_always_so(std::uint32_t gpu, double lag) const {
  const std::vector<double>& before = given_.lag.empty() ? own_.lag : given_.lag;
  return gpu < before.size() && !std::isnan(before[gpu]) &&
         lag < thresholds::kImbalanceShare * before[gpu];
}

Judge::Late Judge::late_in(std::size_t windows) const {
  Late out;
  if (windows == 0 || results_.size() < windows) return out;
  const auto begin = std::prev(results_.end(), static_cast<std::ptrdiff_t>(windows));
  const auto mean = [&](const auto& value) {
    double sum = 0;
    for (auto result = begin; result != results_.end(); ++result) sum += value(*result);
    return sum / static_cast<double>(windows);
  };
  // One window's noise is an estimate from few GPUs.
  out.threshold = late_threshold(mean([](const WindowResult& r) { return r.noise; }),
                                 options_.window.late_seconds);
  std::vector<std::uint32_t> late;
  for (std::uint32_t g = 0; g < job_.gpus.size(); ++g) {
    if (std::all_of(begin, results_.end(), [&](const WindowResult& r) {
          return r.judged[g] != 0 && r.lag[g] >= out.threshold;
        }))
      late.push_back(g);
  }
  std::vector<std::pair<std::uint32_t, double>> lags;
  double largest = 0;
  for (const std::uint32_t g : late) {
    const double lag = mean([g](const WindowResult& r) { return r.lag[g]; });
    const bool loaded =
        std::any_of(begin, results_.end(), [g](const WindowResult& r) { return r.loaded[g] != 0; });
    if (loaded || was_always_so(g, lag)) {
      out.uneven.push_back(g);
      continue;
    }
    lags.emplace_back(g, lag);
    largest = std::max(largest, lag);
  }
  // Who lags far less than the worst is often its consequence, and waits for his turn.
  for (const auto& [g, lag] : lags) {
    if (lag >= thresholds::kDominance * largest) out.accused.push_back(g);
  }
  for (std::uint32_t g = 0; g < job_.gpus.size(); ++g) {
    if (std::all_of(begin, results_.end(), [g](const WindowResult& r) { return r.uneven[g] > 0; }))
      out.uneven.push_back(g);
  }
  std::sort(out.uneven.begin(), out.uneven.end());
  out.uneven.erase(std::unique(out.uneven.begin(), out.uneven.end()), out.uneven.end());
  return out;
}

Shape Judge::shape_of(const CommunicatorTiming& timing) const {
  const Communicator& c = job_.communicators[timing.communicator];
  return {timing.collective, timing.size, timing.algorithm, c.dimension, c.nranks, c.nnodes};
}

/// Means over the communicators of a shape.
std::map<Shape, ShapeSample> Judge::shapes_of(const WindowResult& result) const {
  std::map<Shape, ShapeSample> out;
  std::map<Shape, double> counts;
  for (const CommunicatorTiming& timing : result.timings) {
    if (timing.size.empty() || timing.transfer <= 0) continue;
    const Shape shape = shape_of(timing);
    out[shape].transfer += timing.transfer;
    out[shape].bytes += timing.bus_bytes_per_operation;
    ++counts[shape];
  }
  for (auto& [shape, sample] : out) {
    sample.transfer /= counts[shape];
    sample.bytes /= counts[shape];
  }
  return out;
}

/// Communicators whose transfer is slower than their job's was, with the same mix of messages.
void Judge::find_slow(const WindowResult& result) {
  std::map<std::size_t, double> slow;
  const std::map<Shape, ShapeSample>& baseline = shape_baseline();
  if (!baseline.empty() && !result.anybody_late()) {
    const std::map<Shape, ShapeSample> now = shapes_of(result);
    for (std::size_t i = 0; i < result.timings.size(); ++i) {
      const CommunicatorTiming& timing = result.timings[i];
      if (timing.size.empty() || timing.transfer <= 0) continue;
      const Shape shape = shape_of(timing);
      const auto before = baseline.find(shape);
      if (before == baseline.end()) continue;
      const double share = timing.transfer / before->second.transfer;
      const double bytes = now.at(shape).bytes / before->second.bytes;
      if (share < thresholds::kBandwidthShare && std::abs(bytes - 1) < thresholds::kBytesTolerance)
        slow[i] = share;
    }
  }
  slow_.push_back(std::move(slow));
}

/// For baselines: windows in which nobody is accused, so that a fault does not become normal.
void Judge::remember(const WindowResult& result) {
  Past past;
  past.unaccused = running() < options_.windows;
  past.lag = result.lag;
  past.step_seconds = result.step_seconds;
  past.shapes = shapes_of(result);
  past_.push_back(std::move(past));
  if (past_.size() > options_.baseline_range_windows + options_.windows) past_.pop_front();
}

/// From the windows before the last `windows`.
void Judge::renew_baselines() {
  own_ = {};
  if (past_.size() < options_.baseline_windows + options_.windows) return;
  const auto end = std::prev(past_.end(), static_cast<std::ptrdiff_t>(options_.windows));
  std::vector<double> lag(job_.gpus.size(), 0);
  std::size_t unaccused = 0;
  std::vector<double> steps;
  std::map<Shape, std::pair<std::vector<double>, std::vector<double>>> shapes;
  for (auto past = past_.begin(); past != end; ++past) {
    if (past->unaccused) {
      ++unaccused;
      for (std::size_t g = 0; g < lag.size(); ++g) lag[g] += past->lag[g];
    }
    if (past->step_seconds && past->unaccused) steps.push_back(*past->step_seconds);
    for (const auto& [shape, sample] : past->shapes) {
      shapes[shape].first.push_back(sample.transfer);
      shapes[shape].second.push_back(sample.bytes);
    }
  }
  if (unaccused >= options_.baseline_windows) {
    for (double& value : lag) value /= static_cast<double>(unaccused);
    own_.lag = std::move(lag);
  }
  if (steps.size() >= options_.baseline_windows) own_.step_seconds = median(std::move(steps));
  for (auto& [shape, samples] : shapes) {
    if (samples.first.size() < options_.baseline_windows) continue;
    own_.shapes[shape] = {median(std::move(samples.first)), median(std::move(samples.second))};
  }
}

// ---- findings
// ------------------------------------------------------------------------------------

/// In how many of the last windows somebody is to be accused; at most `windows`.
std::size_t Judge::running() const {
  std::size_t count = std::min<std::size_t>(options_.windows, results_.size());
  while (count > 0 && late_in(count).accused.empty()) --count;
  return count;
}

Confidence Judge::confidence_of(std::size_t windows) const {
  if (windows >= options_.windows) return Confidence::kHigh;
  return windows > 1 ? Confidence::kMedium : Confidence::kLow;
}

Finding Judge::late_finding(const std::vector<std::uint32_t>& gpus, double threshold) const {
  const WindowResult& last = results_.back();
  Finding finding;
  finding.kind = Kind::kLateGpu;
  finding.gpus = gpus;
  finding.threshold_seconds = threshold;
  for (const std::uint32_t gpu : gpus) {
    finding.seconds = std::max(finding.seconds, last.lag[gpu]);
    finding.wait_seconds += last.wait[gpu];
    finding.queue_seconds += last.queue[gpu];
  }
  const CommunicatorTiming* worst = last.worst(job_, gpus.front());
  if (worst != nullptr) {
    finding.communicator = worst->communicator;
    finding.collective = worst->collective;
  }
  if (const std::optional<double> excess = last.queue_excess[gpus.front()]; excess) {
    const double least = thresholds::kQueueShare * last.lag[gpus.front()];
    finding.queue_excess = *excess;
    finding.reason = *excess < -least  ? Reason::kHost
                     : *excess > least ? Reason::kGpu
                                       : Reason::kEither;
  }
  return finding;
}

void Judge::add_late(std::vector<Finding>& out) const {
  const std::size_t windows = running();
  if (windows == 0 || (windows < options_.windows && !options_.provisional)) return;
  const Late late = late_in(windows);
  const std::vector<std::uint32_t>& culprits = late.accused;
  Finding rolled = late_finding(culprits, late.threshold);
  roll_up(job_, rolled);
  std::vector<Finding> found;
  if (rolled.kind != Kind::kLateGpu || culprits.size() == 1) {
    found.push_back(std::move(rolled));
  } else {
    for (const std::uint32_t gpu : culprits) found.push_back(late_finding({gpu}, late.threshold));
    std::stable_sort(found.begin(), found.end(),
                     [](const Finding& a, const Finding& b) { return a.seconds > b.seconds; });
  }
  const WindowResult& last = results_.back();
  const std::optional<double>& step = given_.step_seconds ? given_.step_seconds : own_.step_seconds;
  for (Finding& finding : found) {
    finding.confidence = confidence_of(windows);
    finding.hidden =
        step && last.step_seconds && *last.step_seconds <= thresholds::kUnharmedShare * *step;
    for (std::size_t i = results_.size() - windows; i < results_.size(); ++i)
      finding.observed_seconds += results_[i].seconds;
    out.push_back(std::move(finding));
  }
}

void Judge::add_imbalance(std::vector<Finding>& out) const {
  std::size_t windows = std::min<std::size_t>(options_.windows, results_.size());
  if (windows < options_.windows && !options_.provisional) return;
  while (windows > 0 && late_in(windows).uneven.empty()) --windows;
  if (windows == 0 || (windows < options_.windows && !options_.provisional)) return;
  const Late late = late_in(windows);
  Finding finding = late_finding(late.uneven, late.threshold);
  finding.kind = Kind::kImbalance;
  finding.confidence = confidence_of(windows);
  for (const std::uint32_t gpu : finding.gpus)
    finding.seconds = std::max(finding.seconds, results_.back().uneven[gpu]);
  out.push_back(std::move(finding));
}

void Judge::add_links(std::vector<Finding>& out) const {
  const std::size_t windows = std::min<std::size_t>(options_.windows, results_.size());
  if (windows == 0 || (windows < options_.windows && !options_.provisional)) return;
  for (std::uint32_t g = 0; g < job_.gpus.size(); ++g) {
    bool all = true;
    double observed = 0;
    for (std::size_t i = results_.size() - windows; i < results_.size(); ++i) {
      all = all && results_[i].slow_send[g] > 0 && results_[i].explained[g] == 0;
      observed += results_[i].seconds;
    }
    if (!all) continue;
    Finding finding;
    const bool both = results_.back().slow_nic[g] != 0 || results_.back().slow_receive[g] > 0;
    finding.kind = both ? Kind::kSlowNic : Kind::kSlowLink;
    finding.confidence = confidence_of(windows);
    finding.gpus = {g};
    finding.share = results_.back().slow_send[g];
    finding.observed_seconds = observed;
    out.push_back(std::move(finding));
  }
}

/// Of the suspects of a slow transfer those whose GPUs take slowly what has come, if there are any:
/// then it is the GPU, and no NIC.
void Judge::narrow_to_slow_taking(Finding& finding) const {
  std::vector<std::uint32_t> taking;
  for (const std::uint32_t g : finding.gpus) {
    const auto slow = [g](const WindowResult& r) { return r.slow_taking[g] > 0; };
    if (std::all_of(results_.end() - kTransferWindows, results_.end(), slow)) taking.push_back(g);
  }
  if (taking.empty()) return;
  finding.gpus = std::move(taking);
  finding.reason = Reason::kGpu;
}

void Judge::add_slow_transfer(std::vector<Finding>& out) const {
  if (slow_.size() < kTransferWindows) return;
  const WindowResult& last = results_.back();
  const std::map<std::size_t, double>& now = slow_.back();
  // The places of timings may differ between windows: who was slow before, by name.
  std::set<std::pair<std::uint32_t, Collective>> before;
  const WindowResult& previous = results_[results_.size() - kTransferWindows];
  for (const auto& [place, share] : slow_[slow_.size() - kTransferWindows]) {
    const CommunicatorTiming& timing = previous.timings[place];
    before.insert({timing.communicator, timing.collective});
  }
  std::set<std::uint32_t> slow;
  std::set<std::uint32_t> normal;
  std::set<std::uint32_t> sizes;
  const CommunicatorTiming* worst = nullptr;
  double least = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < last.timings.size(); ++i) {
    const CommunicatorTiming& timing = last.timings[i];
    const auto at = now.find(i);
    if (at == now.end()) continue;
    slow.insert(timing.communicator);
    sizes.insert(job_.communicators[timing.communicator].nranks);
    if (at->second >= least || !before.contains({timing.communicator, timing.collective})) continue;
    least = at->second;
    worst = &timing;
  }
  if (worst == nullptr) return;
  for (const CommunicatorTiming& timing : last.timings) {
    const std::uint32_t c = timing.communicator;
    if (!timing.size.empty() && !slow.contains(c) && sizes.contains(job_.communicators[c].nranks))
      normal.insert(c);
  }
  std::vector<std::size_t> memberships(job_.gpus.size(), 0);
  std::vector<char> well(job_.gpus.size(), 0);
  for (const Member& member : job_.members) {
    if (slow.contains(member.communicator)) ++memberships[member.gpu];
    if (normal.contains(member.communicator)) well[member.gpu] = 1;
  }
  Finding finding;
  finding.kind = Kind::kSlowTransfer;
  finding.communicator = worst->communicator;
  finding.collective = worst->collective;
  finding.share = least;
  finding.observed_seconds = last.seconds + previous.seconds;
  for (std::uint32_t g = 0; g < job_.gpus.size(); ++g) {
    if (memberships[g] == slow.size() && well[g] == 0) finding.gpus.push_back(g);
  }
  narrow_to_slow_taking(finding);
  out.push_back(std::move(finding));
}

std::vector<Finding> Judge::findings() const {
  std::vector<Finding> out;
  if (results_.empty()) return out;
  add_late(out);
  add_links(out);
  add_slow_transfer(out);
  add_imbalance(out);
  return out;
}

std::vector<Finding> Judge::findings(const Standing& standing) const {
  std::vector<Finding> out;
  bool hangs = false;
  for (const Hang& hang : find_hangs(job_, standing, options_.hang)) {
    const bool rule = hang.is_hang();
    // Below the threshold only waiting for somebody outside NCCL is worth a word, and that nobody
    // knows.
    if (!rule && hang.hang_class != HangClass::kRankNeverCalled &&
        hang.hang_class != HangClass::kUnknown)
      continue;
    Finding finding;
    finding.kind = rule ? Kind::kHang : Kind::kWaiting;
    finding.hang_class = hang.hang_class;
    finding.members = hang.members;
    for (const std::uint32_t member : hang.members)
      finding.gpus.push_back(job_.members[member].gpu);
    std::sort(finding.gpus.begin(), finding.gpus.end());
    finding.gpus.erase(std::unique(finding.gpus.begin(), finding.gpus.end()), finding.gpus.end());
    finding.communicator = hang.communicator;
    finding.seconds = hang.seconds;
    finding.threshold_seconds = hang.threshold_seconds;
    finding.unreported = hang.unreported;
    finding.point_to_point = hang.point_to_point;
    finding.unobserved = hang.unobserved;
    finding.confidence = hang.sure ? Confidence::kHigh : Confidence::kLow;
    hangs |= rule;
    out.push_back(std::move(finding));
  }
  // A job that stands still has no bandwidth to speak of.
  if (!hangs) {
    std::vector<Finding> of_windows = findings();
    std::move(of_windows.begin(), of_windows.end(), std::back_inserter(out));
  }
  for (std::uint32_t c = 0; c < standing.coverage.size(); ++c) {
    if (standing.coverage[c] >= options_.hang.coverage) continue;
    Finding finding;
    finding.kind = Kind::kBlind;
    finding.communicator = c;
    finding.share = standing.coverage[c];
    out.push_back(std::move(finding));
  }
  std::stable_partition(out.begin(), out.end(),
                        [](const Finding& finding) { return is_fault(finding.kind); });
  return out;
}

}  // namespace ncclscope::verdict
