// SPDX-License-Identifier: Apache-2.0
//
// Seeded schedules of what one rank of a training job hands to NCCL: DDP, FSDP, ZeRO, Megatron with
// TP x PP x DP, mixture of experts; with gradient accumulation, evaluations, checkpoints, log
// lines, first steps in another order, variable sequence lengths. The truth is known: which
// operations make a step, how long steps are, what each communicator is for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "proto/model/operation.h"

namespace ncclscope::agent::testing {

struct ScheduledOperation {
  std::uint16_t communicator = 0;
  model::Function function{};
  model::DataType datatype = model::DataType::kBfloat16;
  std::uint64_t count = 0;
  std::int32_t peer = -1;
  std::uint16_t plan = 0;  // Sends and Receives of one launch
  bool side = false;       // on a stream of its own: completes late
  std::uint64_t call_ns = 0, start_ns = 0, stop_ns = 0;
};

struct ScheduledCommunicator {
  std::string dimension;  // the truth; empty: none
  std::uint32_t nranks = 1;
  std::uint32_t stride = 1;  // between the global ranks of neighbours
};

struct Schedule {
  std::string family;
  std::vector<ScheduledCommunicator> communicators;
  std::uint32_t world = 1;
  std::int32_t pipeline_rank = 0;  // in communicators of dimension pp; 0 in all others
  std::uint32_t period = 0;  // operations of a step; consecutive p2p of a communicator count once
  double step_seconds = 0;   // mean
  int steps = 0;
  std::vector<ScheduledOperation> operations;  // in order of completion
};

class ScheduleMaker {
 public:
  explicit ScheduleMaker(std::uint64_t seed) : random_(seed) {}

  Schedule make() {
    switch (pick(6)) {
      case 0:
        ddp();
        break;
      case 1:
        fsdp();
        break;
      case 2:
        zero();
        break;
      case 3:
      case 4:
        megatron(false);
        break;
      default:
        megatron(true);
    }
    schedule_.steps = static_cast<int>(std::clamp<std::size_t>(60'000 / step_.size(), 40, 400));
    play();
    return std::move(schedule_);
  }

 private:
  using F = model::Function;
  using Block = std::vector<ScheduledOperation>;

  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  bool chance(int percent) { return pick(100) < static_cast<std::uint64_t>(percent); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(values.size())];
  }

  std::uint16_t communicator(std::string dimension, std::uint32_t nranks, std::uint32_t stride) {
    schedule_.communicators.push_back({std::move(dimension), nranks, stride});
    return static_cast<std::uint16_t>(schedule_.communicators.size() - 1);
  }
  static ScheduledOperation op(std::uint16_t communicator, F function, std::uint64_t count,
                               bool side = false) {
    ScheduledOperation o;
    o.communicator = communicator;
    o.function = function;
    o.count = count;
    o.side = side;
    return o;
  }
  ScheduledOperation tiny(std::uint16_t communicator, std::uint64_t count = 1) {
    ScheduledOperation o = op(communicator, F::kAllReduce, count);
    o.datatype = model::DataType::kFloat32;
    return o;
  }
  std::vector<std::uint64_t> bucket_sizes(std::uint64_t buckets) {
    // Layers repeat, so sizes do; the last bucket takes what is left.
    std::vector<std::uint64_t> kinds(1 + pick(4));
    for (auto& kind : kinds) kind = 4'000'000 + pick(12'000'000);
    std::vector<std::uint64_t> sizes;
    for (std::uint64_t b = 0; b < buckets; ++b) sizes.push_back(kinds[b % kinds.size()]);
    sizes.front() = 524'288 + pick(100'000);
    if (buckets > 1) sizes.back() = 100'000 + pick(4'000'000);
    return sizes;
  }

  // ---- families ---------------------------------------------------------------------------------
  void ddp() {
    schedule_.family = "ddp";
    const auto world = one_of<std::uint32_t>({2, 4, 8, 16, 64, 512});
    schedule_.world = world;
    const auto dp = communicator("dp", world, 1);
    const int batch_norms = chance(15) ? 5 + static_cast<int>(pick(40)) : 0;
    for (int i = 0; i < batch_norms; ++i)
      step_.push_back(tiny(dp, 128 + 2 * static_cast<unsigned>(i % 4)));
    for (int i = 0; i < batch_norms; ++i)
      step_.push_back(tiny(dp, 256 + 2 * static_cast<unsigned>(i % 4)));
    const auto sizes = bucket_sizes(1 + pick(40));
    for (const auto size : sizes) step_.push_back(op(dp, F::kAllReduce, size, true));
    if (chance(25)) step_.push_back(tiny(dp, 200));  // which parameters were used
    if (chance(30)) step_.push_back(tiny(dp));
    if (chance(70)) {
      // Before the buckets are built anew in the order of the gradients.
      first_ = step_;
      std::reverse(first_.begin(), first_.end());
      for (auto& o : first_) o.count += o.count > 1000 ? 333 : 0;
    }
    evaluation_kinds(dp, F::kAllGather, 1 + pick(60), 200'000);
    log_line_.push_back(tiny(dp));
    setup_.assign(10 + pick(30), op(dp, F::kBroadcast, 1'000'000));
  }

  void fsdp() {
    schedule_.family = "fsdp";
    const auto world = one_of<std::uint32_t>({4, 8, 16, 64, 256});
    schedule_.world = world;
    const bool hybrid = world > 8 && chance(25);
    const auto shard = communicator("dp", hybrid ? 8 : world, 1);
    const auto replicate = hybrid ? communicator("dp", world / 8, 8) : shard;
    const int layers = 4 + static_cast<int>(pick(77));
    const std::uint64_t layer = 1'000'000 + pick(20'000'000);
    const std::uint64_t root = chance(85) ? layer * 2 + 12'345 : 0;
    const bool reshard = chance(75);
    const bool clips = chance(92);
    const int accumulation = clips && chance(45) ? one_of({2, 3, 4, 8, 16, 32}) : 1;
    const bool no_sync = accumulation > 1 && chance(25);
    Block forward;
    if (root != 0) forward.push_back(op(shard, F::kAllGather, root, true));
    for (int i = 0; i < layers; ++i) forward.push_back(op(shard, F::kAllGather, layer, true));
    for (int m = 0; m < accumulation; ++m) {
      append(step_, forward);
      const bool reduce = !no_sync || m == accumulation - 1;
      for (int i = 0; i < layers; ++i) {
        if (reshard) step_.push_back(op(shard, F::kAllGather, layer, true));
        if (reduce) step_.push_back(op(shard, F::kReduceScatter, layer, true));
        if (reduce && hybrid) step_.push_back(op(replicate, F::kAllReduce, layer, true));
      }
      if (root != 0 && reduce) step_.push_back(op(shard, F::kReduceScatter, root, true));
    }
    if (clips) step_.push_back(tiny(shard));
    if (chance(20)) step_.push_back(tiny(shard));
    const std::uint64_t batches = 1 + pick(40);
    for (std::uint64_t b = 0; b < batches; ++b) append(evaluation_, forward);
    evaluation_.push_back(tiny(shard, 2));
    log_line_.push_back(tiny(shard));
  }

  void zero() {
    schedule_.family = "zero";
    const auto world = one_of<std::uint32_t>({4, 8, 16, 64});
    schedule_.world = world;
    const auto dp = communicator("dp", world, 1);
    const int accumulation = chance(40) ? one_of({2, 4, 8, 16}) : 1;
    const bool every_time = chance(50);  // stage 2 reduces in every microbatch
    auto sizes = bucket_sizes(2 + pick(30));
    if (chance(30)) std::fill(sizes.begin(), sizes.end(), sizes.front() * 8);
    const F reduce = one_of({F::kReduceScatter, F::kAllReduce, F::kReduce});
    for (int m = 0; m < accumulation; ++m) {
      if (!every_time && m < accumulation - 1) continue;
      for (const auto size : sizes) step_.push_back(op(dp, reduce, size, true));
    }
    step_.push_back(tiny(dp));  // overflow
    step_.push_back(tiny(dp));  // norm
    const auto gathers = 1 + pick(10);
    for (std::uint64_t i = 0; i < gathers; ++i) {
      step_.push_back(op(dp, F::kAllGather, i + 1 < gathers ? 30'000'000u : 7'000'000u, false));
    }
    evaluation_kinds(dp, F::kAllReduce, 1 + pick(30), 2);
    log_line_.push_back(tiny(dp, 3));
  }

  void tensor_layer(Block& block, std::uint16_t tp, std::uint64_t size, bool sequence,
                    bool backward) {
    if (schedule_.communicators[tp].nranks < 2) return;
    for (int half = 0; half < 2; ++half) {
      if (sequence) {
        block.push_back(op(tp, F::kAllGather, size / 8));
        if (backward) block.push_back(op(tp, F::kAllGather, size / 8));
        block.push_back(op(tp, F::kReduceScatter, size / 8));
      } else {
        block.push_back(op(tp, F::kAllReduce, size));
      }
    }
  }
  void all_to_all(Block& block, std::uint16_t ep) {
    const auto n = schedule_.communicators[ep].nranks;
    ++plan_;
    for (std::uint32_t peer = 0; peer < n; ++peer) {
      for (const F f : {F::kSend, F::kRecv}) {
        ScheduledOperation o = op(ep, f, 0);  // counts are drawn when played: they are uneven
        o.peer = static_cast<std::int32_t>(peer);
        o.plan = plan_;
        block.push_back(o);
      }
    }
  }
  void pipeline(Block& block, std::uint16_t pp, std::uint64_t size, bool send, bool receive,
                int stage) {
    ++plan_;
    if (send) {
      ScheduledOperation o = op(pp, F::kSend, size);
      o.peer = stage + 1;
      o.plan = plan_;
      block.push_back(o);
    }
    if (receive) {
      ScheduledOperation o = op(pp, F::kRecv, size);
      o.peer = stage - 1;
      o.plan = plan_;
      block.push_back(o);
    }
  }

  void megatron(bool experts) {
    schedule_.family = experts ? "moe" : "megatron";
    const auto tp_size = one_of<std::uint32_t>({1, 2, 4, 8});
    const auto pp_size = one_of<std::uint32_t>({1, 2, 4, 8});
    const auto dp_size = one_of<std::uint32_t>({1, 2, 4, 8, 16});
    const bool alone = tp_size == 1 && pp_size == 1 && dp_size == 1;
    const auto ep_size =
        experts ? std::max<std::uint32_t>(2, std::min<std::uint32_t>(8, dp_size)) : 1;
    const auto dp_ranks = experts ? std::max(dp_size, ep_size) : alone ? 2 : dp_size;
    schedule_.world = tp_size * pp_size * dp_ranks;
    const auto world = communicator("", std::max(2u, schedule_.world), 1);
    const auto tp = communicator("tp", tp_size, 1);
    const auto dp = communicator("dp", dp_ranks, tp_size);
    const auto pp = communicator("pp", pp_size, tp_size * dp_ranks);
    const auto ep = communicator("ep", ep_size, tp_size);
    const bool ring = !experts && chance(20);
    const auto cp = communicator("cp", ring ? one_of<std::uint32_t>({2, 4}) : 1, tp_size);
    const int stage = static_cast<int>(pick(pp_size));
    schedule_.pipeline_rank = stage;
    const int layers = 1 + static_cast<int>(pick(16));
    const bool sequence = chance(50);
    const std::uint64_t size = 4'000'000 + pick(8'000'000);
    const int micro = std::max(static_cast<int>(pp_size), one_of({1, 2, 4, 8, 16, 24, 32, 64}));
    varying_ = chance(12);
    varying_communicator_ = tp;

    const bool first = stage == 0;
    const bool last = stage == static_cast<int>(pp_size) - 1;
    const auto pass = [&](Block& block, bool backward) {
      if (backward ? !last : !first)
        pipeline(block, pp, size, false, true, backward ? stage + 2 : stage);
      for (int l = 0; l < layers; ++l) {
        tensor_layer(block, tp, size, sequence, backward);
        if (ring) {
          ++plan_;
          const auto n = static_cast<int>(schedule_.communicators[cp].nranks);
          ScheduledOperation o = op(cp, F::kSend, size / 4);
          o.plan = plan_;
          o.peer = 1 % n;
          block.push_back(o);
          o.function = F::kRecv;
          o.peer = n - 1;
          block.push_back(o);
        }
        if (experts && l % 2 == 0) {
          all_to_all(block, ep);
          all_to_all(block, ep);
        }
      }
      if (backward ? !first : !last)
        pipeline(block, pp, size, true, false, backward ? stage - 2 : stage);
    };
    const int warmup = std::min(micro, static_cast<int>(pp_size) - 1 - stage);
    for (int m = 0; m < warmup; ++m) pass(step_, false);
    for (int m = 0; m < micro - warmup; ++m) {
      pass(step_, false);
      pass(step_, true);
    }
    for (int m = 0; m < warmup; ++m) pass(step_, true);
    const auto sizes = bucket_sizes(1 + pick(8));
    const bool distributed = chance(60);
    if (dp_ranks > 1) {
      for (const auto s : sizes) {
        step_.push_back(op(dp, distributed ? F::kReduceScatter : F::kAllReduce, s, true));
      }
    }
    if (pp_size > 1 && (first || last)) {
      const auto embedding = communicator("", 2, tp_size * dp_ranks * (pp_size - 1));
      step_.push_back(op(embedding, F::kAllReduce, 30'000'000));
    }
    if (chance(60)) step_.push_back(tiny(world));  // found_inf
    step_.push_back(tiny(world));                  // norm
    if (distributed && dp_ranks > 1) {
      for (const auto s : sizes) step_.push_back(op(dp, F::kAllGather, s, true));
    }
    if (last && dp_ranks > 1) step_.push_back(tiny(dp));  // loss
    const std::uint64_t batches = 1 + pick(20);
    for (std::uint64_t b = 0; b < batches; ++b) pass(evaluation_, false);
    evaluation_.push_back(tiny(world, 2));
    log_line_.push_back(tiny(world, 4));
  }

  void evaluation_kinds(std::uint16_t communicator, F function, std::uint64_t n,
                        std::uint64_t count) {
    switch (pick(3)) {
      case 0:
        break;  // a pause
      case 1:
        evaluation_.push_back(tiny(communicator, 2));
        break;
      default:
        evaluation_.assign(n, op(communicator, function, count));
        evaluation_.push_back(tiny(communicator, 2));
    }
  }

  // ---- time -------------------------------------------------------------------------------------
  static void append(Block& to, const Block& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  /// Lets a block take `ns`; operations are called early and run in order on two streams.
  void run(const Block& block, double ns, std::uint64_t varying) {
    const double each = ns / static_cast<double>(block.size() + 2);
    double call = static_cast<double>(now_);
    double gpu = call + 2 * each;
    for (ScheduledOperation o : block) {
      if (varying != 0 && o.communicator == varying_communicator_) o.count += varying;
      if (o.count == 0) o.count = 1000 + pick(100'000);
      call += each * 0.9;
      gpu += each * 0.9;
      double& free = free_[o.side ? 1 : 0];
      const double start = std::max(gpu, free);
      free = start + each * (o.side ? 0.85 : 0.3);
      o.call_ns = static_cast<std::uint64_t>(call);
      o.start_ns = static_cast<std::uint64_t>(start) + 7'000'000'000'000;
      o.stop_ns = static_cast<std::uint64_t>(free) + 7'000'000'000'000;
      schedule_.operations.push_back(o);
    }
    now_ += static_cast<std::uint64_t>(ns);
  }

  void play() {
    schedule_.step_seconds = std::exp(std::uniform_real_distribution<double>(-3, 2.5)(random_));
    const double step_ns = schedule_.step_seconds * 1e9;
    std::normal_distribution<double> noise(1, 0.01);
    const int evaluate = chance(50) ? one_of({20, 30, 50, 100, 150}) : 0;
    const int checkpoint = chance(40) ? one_of({40, 50, 100, 200}) : 0;
    const int log = chance(50) ? one_of({5, 10, 10, 20, 50, 100}) : 0;
    // With a log line every few steps of sharded steps that end without a reduction, nobody could
    // tell steps from microbatches: let such jobs log by ten.
    const int logs = log == 5 ? 10 : log;
    now_ = 1'000'000'000;
    if (!setup_.empty()) run(setup_, step_ns, 0);
    for (int s = 0; s < schedule_.steps; ++s) {
      const bool start = s < 1 + static_cast<int>(schedule_.communicators.size() % 2);
      const Block& block = start && !first_.empty() ? first_ : step_;
      run(block, step_ns * (start ? 5 : 1) * noise(random_), varying_ ? 1 + pick(2000) * 8 : 0);
      if (logs != 0 && s % logs == logs - 1) run(log_line_, step_ns * 0.02, 0);
      if (evaluate != 0 && s % evaluate == evaluate - 1) {
        if (evaluation_.empty()) {
          now_ += static_cast<std::uint64_t>(step_ns * static_cast<double>(12 + pick(10)));
        } else {
          run(evaluation_, step_ns * (2 + static_cast<double>(pick(20))), 0);
        }
      }
      if (checkpoint != 0 && s % checkpoint == checkpoint - 1) {
        now_ += static_cast<std::uint64_t>(step_ns * static_cast<double>(10 + pick(60)));
        run({log_line_.front()}, step_ns * 0.02, 0);
      }
    }
    schedule_.period = count_period();
    std::stable_sort(schedule_.operations.begin(), schedule_.operations.end(),
                     [](const auto& a, const auto& b) { return a.stop_ns < b.stop_ns; });
  }

  std::uint32_t count_period() const {
    std::uint32_t operations = 0;
    for (std::size_t i = 0; i < step_.size(); ++i) {
      const ScheduledOperation& before = step_[i == 0 ? step_.size() - 1 : i - 1];
      const bool merged = model::is_point_to_point(step_[i].function) &&
                          model::is_point_to_point(before.function) &&
                          before.communicator == step_[i].communicator;
      if (!merged) ++operations;
    }
    return operations;
  }

  std::mt19937_64 random_;
  Schedule schedule_;
  Block step_, first_, evaluation_, log_line_, setup_;
  std::uint16_t plan_ = 0;
  bool varying_ = false;
  std::uint16_t varying_communicator_ = 0;
  std::uint64_t now_ = 0;
  double free_[2] = {0, 0};
};

}  // namespace ncclscope::agent::testing
