// SPDX-License-Identifier: Apache-2.0
//
// A cost model of a training job: when each rank calls each operation, when its GPU starts it, when
// it ends. Hosts run ahead of their GPUs and wait at the end of a step; collectives end together;
// data-parallel ones overlap the backward pass; a pipeline runs one forward, one backward.
//   Times: seconds since the job's start, on a clock that all nodes share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "proto/model/operation.h"
#include "tests/bench/diagnosis/random.h"
#include "tests/bench/diagnosis/scenario.h"

namespace ncclscope::bench {

/// What a communicator is for: each rank is in at most one of each kind.
enum class Dimension : std::uint8_t { kWorld, kTensor, kData, kPipeline, kExpert };
inline constexpr int kDimensions = 5;
inline constexpr const char* kDimensionNames[kDimensions] = {"world", "tp", "dp", "pp", "ep"};

struct Group {
  Dimension dimension{};
  std::uint64_t hash = 0;
  std::vector<int> members;  // global ranks, in the order of their rank in it
};

struct PlayedOperation {
  Dimension dimension{};
  model::Function function{};
  std::int32_t peer = -1;
  std::uint16_t plan = 0;  // Sends and Receives of one launch
  std::uint64_t bytes = 0;
  bool other_arguments = false;  // than the rest of its communicator
  double call = 0, start = 0, stop = 0;
};

/// When what never happens does.
inline constexpr double kNever = 1e9;

class JobModel {
 public:
  explicit JobModel(const Scenario& scenario);

  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  /// The group of that kind which a rank is in; null: none, or it is alone in it.
  [[nodiscard]] const Group* group_of(int rank, Dimension dimension) const;
  [[nodiscard]] int rank_in(int rank, Dimension dimension) const;

  /// Plays the next step. operations()[rank] is what the rank did in it, in the order of its calls.
  void play_step();
  [[nodiscard]] const std::vector<std::vector<PlayedOperation>>& operations() const {
    return operations_;
  }
  [[nodiscard]] int steps_played() const { return step_; }
  /// When the last rank ended its last step.
  [[nodiscard]] double now() const;
  /// When the job stopped for good, and in which group; kNever, null: it has not.
  [[nodiscard]] double stopped_at() const { return stopped_at_; }
  [[nodiscard]] const Group* stopped_in() const { return stopped_in_; }

 private:
  struct RankState {
    double gpu = 0;         // its compute stream is free
    double side = 0;        // and the stream of operations that overlap
    double host = 0;        // the host's next call
    double pace = 1;        // of its GPU in this step: time is multiplied by it
    double starvation = 1;  // compute takes so many times longer because its host is slow

    /// The earliest start of an operation that waits for both streams.
    [[nodiscard]] double ready() const { return std::max({gpu, side, host}); }
  };

  void add_groups(Dimension dimension, int count, int size,
                  int (JobModel::*member)(int, int) const);
  [[nodiscard]] int tensor_member(int group, int place) const;
  [[nodiscard]] int data_member(int group, int place) const;
  [[nodiscard]] int pipeline_member(int group, int place) const;
  [[nodiscard]] int expert_member(int group, int place) const;
  [[nodiscard]] int world_member(int, int place) const { return place; }
  [[nodiscard]] int stage_of(int rank) const { return rank / (s_.dp * s_.tp); }

  void begin_step();
  /// True for the collective at which the job is to stop.
  [[nodiscard]] bool stops_here(int rank);
  void end_step();
  void compute(int rank, double seconds);
  void compute_all(double seconds);
  /// All groups of that kind, each on its own.
  void collective(Dimension dimension, model::Function function, std::uint64_t bytes,
                  double seconds, bool side);
  void collective(const Group& group, model::Function function, std::uint64_t bytes, double seconds,
                  bool side);
  /// To the experts, or (`gathers`) back from them. `hot`: the one that takes more tokens.
  void all_to_all(std::uint64_t bytes, double seconds, int hot, bool gathers);
  /// When data are there that begin to move then and take so long.
  [[nodiscard]] double transferred(double begin, double seconds);
  void wait_for_side();

  void play_ddp();
  void play_fsdp();
  void play_tensor_data();
  void play_pipeline();
  void play_experts();
  void play_cell(int stage, int replica, bool backward);
  void receive(int from, int to, double sent);

  Scenario s_;
  Random random_;
  std::vector<Group> groups_;
  std::vector<int> group_at_[kDimensions];  // by rank, -1 = none
  std::vector<int> place_at_[kDimensions];  // rank in it
  std::vector<RankState> ranks_;
  std::vector<double> spread_;  // of GPUs
  std::vector<std::vector<PlayedOperation>> operations_;
  int step_ = 0;
  std::uint16_t plan_ = 0;
  int culprit_collectives_ = 0, last_culprit_collectives_ = 0;  // of this step, of the last one
  double stopped_at_ = kNever;
  const Group* stopped_in_ = nullptr;
};

}  // namespace ncclscope::bench
