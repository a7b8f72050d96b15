// SPDX-License-Identifier: Apache-2.0
//
// Finds the training step in the sequence of one process's operations, and times it.
//
// In a periodic sequence every window of one period holds the same operations, wherever it begins.
// So for each signature (communicator, function, datatype, count) the operations since it was last
// seen are compared with those of the time before: a signature that comes once per step always
// finds the same ones (a sum of hashes, so their order does not matter). Signatures that agree on
// such a window support a level. Training has several: a layer, a microbatch, the step, everything
// between two evaluations. The step is found by climbing from the shortest level:
//   * to a level that a bulk reduction supports: gradients are reduced at least once per step, and
//     evaluations, checkpoints and logs reduce no bulk of their own;
//   * to a level that a tiny reduction supports (gradient norm, overflow flag), if it holds at most
//     some hundred of the lower ones and these are sharded or pipelined: then they are
//     microbatches. A tiny reduction after a number of plain all-reduce steps is a log line;
//   * to a level of the same operations that explains much more of the sequence.
// Sends and Receives that follow each other on a communicator count as one operation without size,
// and windows are compared by communicator and function alone: uneven all-to-alls and variable
// sequence lengths do not disturb.
//   Thread: one.   Times: ns.   Memory: at most kMaxAnchors x 40 bytes and 10 KiB; released
//   with the process. Cost: one table lookup per operation; a choice is made now and then, O(1)
//   amortised.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/model/operation.h"

namespace ncclscope::verdict {

/// One operation as the step finder sees it.
struct StepOperation {
  std::uint64_t call_ns = 0;       // host clock
  std::uint64_t gpu_start_ns = 0;  // GPU clock, 0 = unknown
  std::uint64_t bytes = 0;
  std::uint32_t signature = 0;     // communicator, function, datatype, count: see step_signature
  std::uint16_t communicator = 0;  // in the process
  model::Function function{};
};

/// A step: from one operation to the same one of the next step.
struct Step {
  std::uint64_t start_ns = 0;
  std::uint64_t stop_ns = 0;
  bool on_gpu = false;  // GPU clock, else the host's
};

[[nodiscard]] std::uint32_t step_signature(std::uint16_t communicator, model::Function function,
                                           model::DataType datatype, std::uint64_t count) noexcept;

class StepPeriod {
 public:
  static constexpr std::size_t kMaxAnchors = 512;
  /// Signatures of one communicator; with more its sizes vary and are left out.
  static constexpr std::uint16_t kMaxSignatures = 160;
  static constexpr std::uint64_t kBulkBytes = 64 * 1024;
  static constexpr std::uint64_t kTinyBytes = 4 * 1024;
  /// Operations are put in order of call as far as they overtook each other by less than this.
  static constexpr std::size_t kHeld = 128;
  static constexpr std::uint64_t kHeldNs = 1'000'000'000;
  static constexpr std::size_t kProbationSteps = 64;
  static constexpr std::uint64_t kProbationNs = 60'000'000'000;
  static constexpr std::uint64_t kMaxProbationNs = 600'000'000'000;
  /// Operations after which anchors that are as old are dropped: their age must fit into 32 bits.
  static constexpr std::uint32_t kSweepInterval = 1u << 30;

  StepPeriod() : StepPeriod(0) {}
  /// @param operations_before  of the process, which the finder did not see
  explicit StepPeriod(std::uint64_t operations_before)
      : index_(operations_before), sweep_at_(operations_before + kSweepInterval) {}

  /// Takes the next operation. Steps that it ended wait in steps().
  void add(const StepOperation& operation);
  /// The process has ended: takes in what was held back, and the steps on probation are told.
  void finish();

  /// The steps that have ended and are beyond doubt. A new level is on probation first: its steps
  /// are kept back until there are kProbationSteps of them in at least kProbationNs and no
  /// signature has come too seldom to be judged, or until kMaxProbationNs have passed.
  [[nodiscard]] std::span<const Step> steps() const {
    return on_probation_ ? std::span<const Step>() : std::span<const Step>(steps_);
  }
  void clear_steps() {
    if (!on_probation_) steps_.clear();
  }
  /// Operations of a step (as counted here: see above), 0 = not known yet.
  [[nodiscard]] std::uint32_t period() const { return level_.length; }
  /// How many periods the operations so far would make, 0 = not known yet.
  [[nodiscard]] double periods() const {
    return level_.length == 0 ? 0.0
                              : static_cast<double>(index_) / static_cast<double>(level_.length);
  }
  /// Steps that were told, and windows left out as pauses.
  [[nodiscard]] std::uint64_t step_count() const { return step_count_; }
  [[nodiscard]] std::uint64_t pauses() const { return pauses_; }

  /// One signature of the process and how often it came (a sample: rare ones may be missing).
  struct SignatureCount {
    std::uint16_t communicator = 0;
    model::Function function{};
    std::uint64_t bytes = 0;
    std::uint64_t count = 0;
  };
  template <typename Visit>
  void for_each_signature(Visit&& visit) const {
    for (const Anchor& a : anchors_) {
      if (a.count > 0 && a.kind == AnchorKind::kOperation) {
        visit(SignatureCount{a.communicator, a.function, std::uint64_t{a.bytes}, a.count});
      }
    }
  }

 private:
  enum class AnchorKind : std::uint8_t {
    kOperation,
    kRun,    // the end of a run of equal operations
    kBurst,  // the same, ended by a pause
  };
  /// A signature, and what came between its occurrences. There are many of them: indexes are kept
  /// modulo 2^32, see age().
  struct Anchor {
    std::uint32_t signature = 0;
    std::uint32_t count = 0;        // occurrences; 0 = the slot is free
    std::uint32_t last_index = 0;   // of the process's operations
    std::uint32_t last_sum = 0;     // of hashes up to there
    std::uint32_t window = 0;       // sum of hashes of the usual window
    std::uint32_t since_index = 0;  // since when `matched` counts
    std::uint32_t length = 0;       // operations of the usual window
    std::uint16_t communicator = 0;
    model::Function function{};
    AnchorKind kind : 2 {};
    std::uint8_t credit : 6 = 0;  // majority vote: 0 takes a new usual window
    std::uint64_t bytes : 48 = 0;
    std::uint64_t matched : 16 = 0;  // windows that were the usual one
  };
  static_assert(sizeof(Anchor) == 40);
  struct Level {
    std::uint32_t window = 0;
    std::uint32_t length = 0;  // 0 = none
    double coverage = 0;       // share of the operations in its windows
    std::size_t emitter = 0;   // anchor that times it
    std::uint64_t emitter_rank = 0;
    bool bulk_reduction = false, tiny_reduction = false;  // that support it
    bool bulk = false, bulk_run = false, reduction_run = false;
    bool sharded = false, pipelined = false, burst = false;
    std::uint64_t bulk_in = 0, tiny_in = 0;  // communicators (modulo 64) of those that support it
  };

  void take(const StepOperation& operation);
  void end_run(const StepOperation& last, bool pause);
  /// True if the gap before a call is one of the long ones of its kind.
  bool is_pause(std::uint64_t call_ns);
  Anchor* find(std::uint32_t signature, const StepOperation& operation, AnchorKind kind);
  /// Makes a table of `size` with the anchors that were seen within so many operations.
  void rebuild(std::size_t size, std::uint32_t max_age);
  /// Operations since the one with that index.
  [[nodiscard]] std::uint32_t age(std::uint32_t index) const {
    return static_cast<std::uint32_t>(index_) - index;
  }
  void touch(Anchor& anchor, const StepOperation& operation);
  void time_step(const StepOperation& operation, bool usual);
  void end_step(const StepOperation& operation);
  /// True if a step of that length is rather a pause.
  bool is_rest(std::uint64_t length_ns);
  void choose();
  void collect_levels(std::vector<Level>& levels);
  [[nodiscard]] bool undecided(const Level& level) const;
  static bool climbs(const Level& from, const Level& to);
  [[nodiscard]] static bool is_reduction(model::Function f) {
    return f == model::Function::kAllReduce || f == model::Function::kReduceScatter ||
           f == model::Function::kReduce;
  }

  std::vector<StepOperation> held_;  // ascending by call_ns
  std::size_t held_begin_ = 0;
  std::uint64_t taken_call_ns_ = 0;

  std::vector<Anchor> anchors_;  // open addressing; a power of two of them
  std::size_t used_ = 0;
  std::size_t operations_ = 0;             // anchors that are operations
  std::vector<std::uint16_t> signatures_;  // per communicator
  std::uint64_t index_;
  std::uint32_t sum_ = 0;
  StepOperation run_;  // the last operation
  std::uint32_t run_length_ = 0;
  std::uint64_t last_call_ns_ = 0;
  std::array<std::uint64_t, 32> gaps_{};  // between calls, the last ones
  std::uint32_t gap_count_ = 0;

  std::uint64_t forget_at_ = 0;
  std::uint64_t sweep_at_;
  std::uint64_t choose_at_ = 16;
  Level level_;      // the one in force
  Level candidate_;  // chosen once, in force when chosen again
  std::uint32_t emitter_signature_ = 0;
  bool emitter_came_ = false;  // since it is the emitter; then:
  std::uint64_t emitter_call_ns_ = 0;
  std::uint64_t emitter_gpu_ns_ = 0;
  std::uint64_t emitter_index_ = 0;            // when it was last seen to end a step
  std::array<std::uint64_t, 15> recent_ns_{};  // the last steps' lengths
  std::uint32_t recent_count_ = 0;
  std::uint32_t long_steps_ = 0;  // in a row, taken for pauses
  std::vector<Step> steps_;
  bool on_probation_ = true;
  std::uint64_t level_since_ns_ = 0;
  std::uint64_t step_count_ = 0;
  std::uint64_t pauses_ = 0;
};

}  // namespace ncclscope::verdict
