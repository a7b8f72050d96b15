// SPDX-License-Identifier: Apache-2.0
//
// The hot path is add() -> take() -> touch(): an insertion at the end of a sorted buffer and one
// table lookup. choose() looks at all anchors; it runs so seldom that this is O(1) per operation.
#include "verdict/step_period.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ncclscope::verdict {
namespace {

constexpr std::uint32_t kMinMatches = 3;  // equal windows before an anchor is believed
constexpr std::uint8_t kMaxCredit = 12;
constexpr std::size_t kMaxLevels = 32;
constexpr std::size_t kMaxSteps = 4096;  // waiting in steps_
constexpr std::uint32_t kMaxStepOperations = 1u << 20;
constexpr std::uint64_t kUndecidedOperations = 512;
constexpr std::uint64_t kRestFactor = 8;           // times the median step: a pause
constexpr std::uint32_t kRestsInARow = 3;          // no pauses any more
constexpr std::uint64_t kForgetInterval = 8192;    // operations between two times of forgetting
constexpr std::uint32_t kForgottenAfter = 65'536;  // operations without one
constexpr std::uint32_t kMaxMatched = 0xFFFF;
constexpr std::uint64_t kMaxBytes = (std::uint64_t{1} << 48) - 1;
constexpr std::uint64_t kLostWindows = 1000;  // a level that has not come for so long is over

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// What windows are compared by.
constexpr std::uint32_t kind_hash(const StepOperation& o) {
  const unsigned function =
      model::is_point_to_point(o.function) ? 0xFFu : static_cast<unsigned>(o.function);
  return static_cast<std::uint32_t>(mix(std::uint64_t{o.communicator} << 8 | function));
}

}  // namespace

std::uint32_t step_signature(std::uint16_t communicator, model::Function function,
                             model::DataType datatype, std::uint64_t count) noexcept {
  if (model::is_point_to_point(function)) {
    function = model::Function::kSend;
    datatype = {};
    count = 0;
  }
  const std::uint64_t x =
      mix(count) ^ (std::uint64_t{communicator} << 16 | static_cast<std::uint64_t>(function) << 8 |
                    static_cast<std::uint64_t>(datatype));
  return static_cast<std::uint32_t>((x * 0x9E3779B97F4A7C15u) >> 32);
}

// ---- order
// ---------------------------------------------------------------------------------------

void StepPeriod::add(const StepOperation& operation) {
  if (operation.call_ns < taken_call_ns_) {
    take(operation);  // too late to be put where it belongs
    return;
  }
  if (held_.size() == 2 * kHeld) {
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(held_begin_));
    held_begin_ = 0;
  }
  held_.push_back(operation);
  std::size_t at = held_.size() - 1;
  if (at > held_begin_ && held_[at - 1].call_ns > operation.call_ns) {
    for (; at > held_begin_ && held_[at - 1].call_ns > operation.call_ns; --at) {
      held_[at] = held_[at - 1];
    }
    held_[at] = operation;
  }
  const std::uint64_t newest = held_.back().call_ns;
  while (held_.size() - held_begin_ > kHeld || newest - held_[held_begin_].call_ns > kHeldNs) {
    const StepOperation& first = held_[held_begin_++];
    taken_call_ns_ = first.call_ns;
    take(first);
  }
}

void StepPeriod::finish() {
  for (; held_begin_ < held_.size(); ++held_begin_) {
    taken_call_ns_ = held_[held_begin_].call_ns;
    take(held_[held_begin_]);
  }
  held_.clear();
  held_begin_ = 0;
  on_probation_ = false;
}

// ---- the sequence
// --------------------------------------------------------------------------------

bool StepPeriod::is_pause(std::uint64_t call_ns) {
  const std::uint64_t gap = call_ns > last_call_ns_ ? call_ns - last_call_ns_ : 0;
  last_call_ns_ = call_ns;
  if (gap_count_ == 0) {  // there is none before the first call
    ++gap_count_;
    return false;
  }
  gaps_[(gap_count_ - 1) % gaps_.size()] = std::max<std::uint64_t>(gap, 1);
  if (++gap_count_ <= gaps_.size()) return false;
  const auto [low, high] = std::minmax_element(gaps_.begin(), gaps_.end());
  // Short and long gaps are told apart only where they differ clearly.
  if (*high / 4 < *low) return false;
  return gap / *low >= *high / std::max<std::uint64_t>(gap, 1);
}

void StepPeriod::take(const StepOperation& operation) {
  const bool point_to_point = model::is_point_to_point(operation.function);
  const bool same = run_length_ > 0 && operation.signature == run_.signature;
  if (same && point_to_point) return;
  // Where all bulk is alike, the rhythm of the calls is all there is.
  const bool pause =
      same && operations_ <= 2 && operation.bytes >= kBulkBytes && is_pause(operation.call_ns);
  if (run_length_ > 0 && (!same || pause)) {
    if (run_length_ > 1 || pause) end_run(run_, pause);
    run_length_ = 0;
  }
  run_ = operation;
  ++run_length_;
  ++index_;
  sum_ += kind_hash(operation);
  if (Anchor* anchor = find(operation.signature, operation, AnchorKind::kOperation)) {
    touch(*anchor, operation);
  }
  if (index_ >= choose_at_) choose();
}

void StepPeriod::end_run(const StepOperation& last, bool pause) {
  StepOperation run = last;
  run.signature = static_cast<std::uint32_t>(
      mix(std::uint64_t{last.signature} << 32 | run_length_ << 1 | (pause ? 1u : 0u)));
  if (Anchor* anchor = find(run.signature, run, pause ? AnchorKind::kBurst : AnchorKind::kRun)) {
    touch(*anchor, run);
  }
}

StepPeriod::Anchor* StepPeriod::find(std::uint32_t signature, const StepOperation& operation,
                                     AnchorKind kind) {
  if (anchors_.empty()) anchors_.resize(64);
  for (int attempt = 0;; ++attempt) {
    const std::size_t mask = anchors_.size() - 1;
    std::size_t at = signature & mask;
    while (anchors_[at].count != 0) {
      if (anchors_[at].signature == signature) return &anchors_[at];
      at = (at + 1) & mask;
    }
    if (attempt == 0) {
      // New. A communicator with too many is known by its functions alone.
      if (operation.communicator >= signatures_.size()) {
        signatures_.resize(operation.communicator + 1u);
      }
      if (signatures_[operation.communicator] >= kMaxSignatures) {
        if (kind != AnchorKind::kOperation) return nullptr;
        signature = static_cast<std::uint32_t>(kind_hash(operation));
        continue;
      }
      ++signatures_[operation.communicator];
    }
    if ((used_ + 1) * 4 > anchors_.size() * 3) {
      if (anchors_.size() < kMaxAnchors) {
        rebuild(anchors_.size() * 2, kSweepInterval);
      } else if (index_ < forget_at_) {
        return nullptr;
      } else {
        // Communicators come and go: what has not come for long gives way.
        forget_at_ = index_ + kForgetInterval;
        rebuild(anchors_.size(), kForgottenAfter);
      }
      ++attempt;
      continue;
    }
    ++used_;
    if (kind == AnchorKind::kOperation) ++operations_;
    Anchor& made = anchors_[at];
    made.signature = signature;
    made.communicator = operation.communicator;
    made.function = operation.function;
    made.kind = kind;
    made.bytes = std::min(operation.bytes, kMaxBytes) & kMaxBytes;
    return &made;
  }
}

void StepPeriod::rebuild(std::size_t size, std::uint32_t max_age) {
  std::vector<Anchor> old(size);
  old.swap(anchors_);
  used_ = 0;
  operations_ = 0;
  const std::size_t mask = anchors_.size() - 1;
  for (Anchor& anchor : old) {
    if (anchor.count == 0 || age(anchor.last_index) > max_age) continue;
    if (age(anchor.since_index) > kSweepInterval)
      anchor.since_index = static_cast<std::uint32_t>(index_) - kSweepInterval;
    ++used_;
    if (anchor.kind == AnchorKind::kOperation) ++operations_;
    std::size_t at = anchor.signature & mask;
    while (anchors_[at].count != 0) at = (at + 1) & mask;
    anchors_[at] = anchor;
  }
}

void StepPeriod::touch(Anchor& anchor, const StepOperation& operation) {
  const auto index = static_cast<std::uint32_t>(index_);
  bool usual = false;
  if (anchor.count > 0) {
    const std::uint32_t window = sum_ - anchor.last_sum;
    if (window == anchor.window && anchor.length != 0) {
      if (anchor.matched < kMaxMatched) ++anchor.matched;
      if (anchor.credit < kMaxCredit) ++anchor.credit;
      usual = window == level_.window;
    } else if (anchor.credit > 0) {
      --anchor.credit;
    } else {
      anchor.window = window;
      anchor.length = std::min(age(anchor.last_index), kMaxStepOperations);
      anchor.matched = 1;
      anchor.credit = 1;
      anchor.since_index = anchor.last_index;
    }
  }
  if (anchor.count < std::numeric_limits<std::uint32_t>::max()) ++anchor.count;
  anchor.last_index = index;
  anchor.last_sum = sum_;
  if (level_.length != 0 && anchor.signature == emitter_signature_) time_step(operation, usual);
}

void StepPeriod::time_step(const StepOperation& operation, bool usual) {
  if (usual && emitter_came_) end_step(operation);
  emitter_came_ = true;
  emitter_call_ns_ = operation.call_ns;
  emitter_gpu_ns_ = operation.gpu_start_ns;
}

void StepPeriod::end_step(const StepOperation& operation) {
  Step step;
  step.on_gpu = emitter_gpu_ns_ != 0 && operation.gpu_start_ns > emitter_gpu_ns_;
  step.start_ns = step.on_gpu ? emitter_gpu_ns_ : emitter_call_ns_;
  step.stop_ns = step.on_gpu ? operation.gpu_start_ns : operation.call_ns;
  if (step.stop_ns <= step.start_ns) return;
  const std::uint64_t length = step.stop_ns - step.start_ns;

  emitter_index_ = index_;
  if (is_rest(length)) {
    ++pauses_;
    return;
  }
  recent_ns_[recent_count_++ % recent_ns_.size()] = length;
  ++step_count_;
  if (steps_.size() < kMaxSteps) steps_.push_back(step);
  if (operation.call_ns - level_since_ns_ >= kMaxProbationNs) on_probation_ = false;
}

bool StepPeriod::is_rest(std::uint64_t length_ns) {
  // An evaluation without collectives, or a checkpoint, between two operations: no step, unless it
  // stays so.
  const std::size_t known = std::min<std::size_t>(recent_count_, recent_ns_.size());
  if (known < 3) return false;
  std::array<std::uint64_t, 15> sorted = recent_ns_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(known / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  if (length_ns / kRestFactor < *middle) {
    long_steps_ = 0;
    return false;
  }
  if (++long_steps_ < kRestsInARow) return true;
  long_steps_ = 0;
  recent_count_ = 0;
  return false;
}

// ---- which level is the step
// ---------------------------------------------------------------------

void StepPeriod::collect_levels(std::vector<Level>& levels) {
  for (std::size_t i = 0; i < anchors_.size(); ++i) {
    Anchor& a = anchors_[i];
    if (a.count == 0 || a.matched < kMinMatches || a.credit < kMinMatches) continue;
    // What has not come for several of its windows belongs to something that is over.
    if (age(a.last_index) > 64ull + 8ull * a.length) continue;
    const std::uint32_t span = age(a.since_index);
    const double coverage =
        std::min(1.0, static_cast<double>(a.matched) * a.length / static_cast<double>(span));
    if (span > 64ull * a.length && a.matched > 32) {
      // The past counts half.
      a.since_index += span / 2;
      a.matched /= 2;
    }
    auto level = std::find_if(levels.begin(), levels.end(),
                              [&](const Level& l) { return l.window == a.window; });
    if (level == levels.end()) {
      if (levels.size() >= kMaxLevels) continue;
      level = levels.insert(levels.end(), Level{});
      level->window = a.window;
      level->length = a.length;
    }
    const bool operation = a.kind == AnchorKind::kOperation;
    const bool bulk = a.bytes >= kBulkBytes;
    level->coverage = std::max(level->coverage, coverage);
    level->bulk_reduction |= operation && bulk && is_reduction(a.function);
    level->tiny_reduction |=
        a.kind != AnchorKind::kBurst && a.bytes <= kTinyBytes && is_reduction(a.function);
    level->bulk |= bulk && operation;
    level->bulk_run |= bulk && a.kind == AnchorKind::kRun;
    level->reduction_run |= bulk && a.kind == AnchorKind::kRun && is_reduction(a.function);
    const std::uint64_t in = std::uint64_t{1} << (a.communicator % 64);
    if (bulk) level->bulk_in |= in;
    if (a.bytes <= kTinyBytes && is_reduction(a.function)) level->tiny_in |= in;
    level->pipelined |= model::is_point_to_point(a.function);
    level->sharded |= level->pipelined || (bulk && a.function != model::Function::kAllReduce);
    level->burst |= a.kind == AnchorKind::kBurst;
    // The steadiest signature times the level; among equals a bulk reduction, then any operation.
    const std::uint64_t rank =
        std::uint64_t{a.credit} << 8 | (operation && bulk && is_reduction(a.function) ? 4u : 0u) |
        (operation ? 2u : 0u) | (a.signature == emitter_signature_ ? 1u : 0u);
    if (rank > level->emitter_rank) {
      level->emitter_rank = rank;
      level->emitter = i;
    }
  }
  std::sort(levels.begin(), levels.end(),
            [](const Level& a, const Level& b) { return a.length < b.length; });
}

bool StepPeriod::climbs(const Level& from, const Level& to) {
  const std::uint64_t times = to.length / std::max<std::uint32_t>(1, from.length);
  if (to.bulk_reduction) return times <= 16384;
  // One operation alone is a step only where there is no rhythm in which it comes.
  if (from.length == 1 && to.bulk && times <= 16384) return true;
  if (from.length == 1 && (to.tiny_in & ~from.bulk_in) != 0 && times <= 16384) return true;
  if (from.length == 1 && to.burst) return times <= 32 && to.coverage > 0.8;
  if (from.tiny_reduction) return false;
  if (to.tiny_reduction) {
    // Layers of tensor parallelism: two or three operations, many times over.
    if (from.sharded && from.length <= 3 && times > 100) return times <= 16384;
    // People log every 10, 25 or 100 steps, and accumulate over 2, 4, 8 or 12 microbatches.
    const std::uint64_t rest = to.length % from.length;
    const bool round = (times % 10 == 0 || times % 25 == 0) && rest <= 3;
    // Microbatches fill the step but for a few operations; a pipeline has its ends besides.
    const bool filled = from.pipelined || to.bulk || rest <= 8;
    if (!round && filled && times <= (from.sharded ? 512 : to.sharded ? 16 : 0)) return true;
  }
  // Equal layers, that nothing but their number tells from each other.
  return (to.reduction_run || (to.bulk_run && from.sharded)) && to.length <= 512 &&
         from.coverage < 0.8 * to.coverage;
}

bool StepPeriod::undecided(const Level& level) const {
  // A signature that has come too seldom to be judged may belong to a longer level. It is waited
  // for until the sequence is several times as long as when it came.
  return std::any_of(anchors_.begin(), anchors_.end(), [&](const Anchor& a) {
    if (a.count == 0 || a.matched >= kMinMatches || a.kind == AnchorKind::kBurst) return false;
    const bool bulk = a.bytes >= kBulkBytes;
    const bool tiny = a.bytes <= kTinyBytes && is_reduction(a.function) && level.sharded;
    return (bulk || tiny) && a.count < 2 + kMinMatches &&
           index_ <
               std::max<std::uint64_t>(kUndecidedOperations, 4 * (index_ - age(a.last_index) + 1));
  });
}

void StepPeriod::choose() {
  choose_at_ = index_ + std::max({std::uint64_t{16}, std::uint64_t{4} * used_,
                                  std::min<std::uint64_t>(index_ / 8, 4096)});
  if (index_ >= sweep_at_) {
    sweep_at_ = index_ + kSweepInterval;
    rebuild(anchors_.size(), kSweepInterval);
  }
  std::vector<Level> levels;
  collect_levels(levels);
  const Level* chosen = nullptr;
  bool alive = false;
  for (const Level& level : levels) {
    if (chosen == nullptr || climbs(*chosen, level)) chosen = &level;
    alive = alive || level.window == level_.window;
  }
  if (chosen == nullptr) return;
  if (level_.length != 0 && chosen->window != level_.window) {
    // An evaluation has a rhythm of its own: the step is not forgotten for it.
    const bool climbs_up = chosen->length > level_.length && chosen->bulk_reduction;
    if (!alive && !climbs_up && index_ - emitter_index_ < kLostWindows * level_.length) return;
    const bool again = chosen->length > level_.length || candidate_.window == chosen->window;
    candidate_ = *chosen;
    if (!again) return;
  }
  if (chosen->window != level_.window) {
    recent_count_ = 0;
    emitter_index_ = index_;
    on_probation_ = true;
    level_since_ns_ = run_.call_ns;
    steps_.clear();
  }
  level_ = *chosen;
  candidate_ = *chosen;
  const std::uint32_t emitter = anchors_[chosen->emitter].signature;
  if (emitter != std::exchange(emitter_signature_, emitter)) emitter_came_ = false;
  if (steps_.size() >= kProbationSteps && run_.call_ns - level_since_ns_ >= kProbationNs &&
      !undecided(*chosen)) {
    on_probation_ = false;
  }
}

}  // namespace ncclscope::verdict
