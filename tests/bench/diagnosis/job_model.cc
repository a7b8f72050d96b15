// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/job_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ncclscope::bench {
namespace {

using F = model::Function;
constexpr double kCall = 10e-6;  // of the host, for one operation
constexpr double kForward = 1.0 / 3;
constexpr std::uint64_t kLayerBytes = 64u << 20;
constexpr std::uint64_t kActivationBytes = 8u << 20;
constexpr double kLaunchShare = 0.3;  // of a piece of compute's time, which its launch takes
/// Of the step's compute, in an evaluation or a checkpoint.
constexpr double kPauseSteps = 4;
constexpr int kPauseEvery = 40;

}  // namespace

JobModel::JobModel(const Scenario& scenario)
    : s_(scenario),
      random_(scenario.seed ^ 0x9E3779B97F4A7C15u),
      ranks_(static_cast<std::size_t>(scenario.ranks())),
      operations_(static_cast<std::size_t>(scenario.ranks())) {
  for (int d = 0; d < kDimensions; ++d) {
    group_at_[d].assign(ranks_.size(), -1);
    place_at_[d].assign(ranks_.size(), 0);
  }
  const int n = s_.ranks();
  add_groups(Dimension::kWorld, 1, n, &JobModel::world_member);
  add_groups(Dimension::kTensor, n / s_.tp, s_.tp, &JobModel::tensor_member);
  add_groups(Dimension::kData, n / s_.dp, s_.dp, &JobModel::data_member);
  add_groups(Dimension::kPipeline, n / s_.pp, s_.pp, &JobModel::pipeline_member);
  add_groups(Dimension::kExpert, n / s_.ep, s_.ep, &JobModel::expert_member);
  for (int r = 0; r < n; ++r) spread_.push_back(random_.uniform(1 - s_.spread, 1 + s_.spread));
}

int JobModel::tensor_member(int group, int place) const {
  return group * s_.tp + place;
}
int JobModel::data_member(int group, int place) const {
  const int stage = group / s_.tp;
  return (stage * s_.dp + place) * s_.tp + group % s_.tp;
}
int JobModel::pipeline_member(int group, int place) const {
  return place * s_.dp * s_.tp + group;
}
int JobModel::expert_member(int group, int place) const {
  return group * s_.ep + place;
}

void JobModel::add_groups(Dimension dimension, int count, int size,
                          int (JobModel::*member)(int, int) const) {
  if (size < 2) return;
  const auto d = static_cast<std::size_t>(dimension);
  for (int g = 0; g < count; ++g) {
    Group group;
    group.dimension = dimension;
    group.hash = (s_.seed + 1) * 0x9E3779B97F4A7C15u ^ (d << 40 | static_cast<unsigned>(g));
    for (int place = 0; place < size; ++place) {
      const int rank = (this->*member)(g, place);
      group.members.push_back(rank);
      group_at_[d][static_cast<std::size_t>(rank)] = static_cast<int>(groups_.size());
      place_at_[d][static_cast<std::size_t>(rank)] = place;
    }
    groups_.push_back(std::move(group));
  }
}

const Group* JobModel::group_of(int rank, Dimension dimension) const {
  const int at = group_at_[static_cast<std::size_t>(dimension)][static_cast<std::size_t>(rank)];
  return at < 0 ? nullptr : &groups_[static_cast<std::size_t>(at)];
}
int JobModel::rank_in(int rank, Dimension dimension) const {
  return place_at_[static_cast<std::size_t>(dimension)][static_cast<std::size_t>(rank)];
}

double JobModel::now() const {
  double last = 0;
  for (const RankState& r : ranks_) last = std::max(last, r.ready());
  return last;
}

// ---- pieces -------------------------------------------------------------------------------------

bool JobModel::stops_here(int rank) {
  if (s_.stop == Stop::kNone || rank != s_.culprit) return false;
  const int place = culprit_collectives_++;
  if (step_ != s_.stop_step || stopped_in_ != nullptr) return false;
  return place == static_cast<int>(s_.stop_place * last_culprit_collectives_);
}

void JobModel::begin_step() {
  last_culprit_collectives_ = std::exchange(culprit_collectives_, 0);
  for (int rank = 0; rank < s_.ranks(); ++rank) {
    RankState& r = ranks_[static_cast<std::size_t>(rank)];
    operations_[static_cast<std::size_t>(rank)].clear();
    r.pace =
        spread_[static_cast<std::size_t>(rank)] * std::max(0.5, 1 + s_.jitter * random_.normal());
    // The first steps compile, and fill caches.
    if (step_ < 2) r.pace *= random_.uniform(1.5, 3);
    r.starvation = 1;
    if (s_.uneven_stage > 0 && stage_of(rank) == s_.pp - 1) r.pace *= 1 + s_.uneven_stage;
    r.host = std::max(r.host, r.gpu);
    if (step_ < s_.onset || !s_.is_late(rank)) continue;
    switch (s_.fault) {
      case Fault::kDataLoader:
        r.host += s_.delay * s_.step_seconds;
        break;
      case Fault::kSlowHost:
        r.starvation = 1 + s_.delay;
        break;
      default:
        r.pace *= 1 + s_.delay;
    }
  }
}

void JobModel::end_step() {
  wait_for_side();
  for (RankState& r : ranks_) {
    r.host = std::max(r.host, r.gpu);
    r.side = r.gpu;
  }
  ++step_;
}

void JobModel::compute(int rank, double seconds) {
  RankState& r = ranks_[static_cast<std::size_t>(rank)];
  // The launches of a piece go on while its first kernels run. A slow host launches each kernel
  // just when the GPU has run out of work.
  r.gpu = std::max(r.gpu, r.host) + seconds * r.pace * r.starvation;
  r.host = r.starvation > 1 ? r.gpu : r.host + kLaunchShare * seconds;
}

void JobModel::compute_all(double seconds) {
  for (int rank = 0; rank < s_.ranks(); ++rank) compute(rank, seconds);
}

void JobModel::collective(const Group& group, F function, std::uint64_t bytes, double seconds,
                          bool side) {
  double begin = 0;
  bool never_ends = false;
  for (const int m : group.members) {
    RankState& r = ranks_[static_cast<std::size_t>(m)];
    r.host += kCall;
    PlayedOperation o;
    const bool stops = stops_here(m);
    if (stops) {
      stopped_at_ = std::max(r.host, r.gpu);
      stopped_in_ = &group;
      if (s_.stop == Stop::kProcessGone || s_.stop == Stop::kNeverCalled) r.host = kNever;
      never_ends = true;
      o.other_arguments = s_.stop == Stop::kOtherArguments;
    }
    o.dimension = group.dimension;
    o.function = function;
    o.bytes = bytes;
    o.call = r.host;
    o.start = r.ready();
    if (stops && s_.stop == Stop::kGpuNeverStarted) o.start = kNever;
    begin = std::max(begin, o.start);
    operations_[static_cast<std::size_t>(m)].push_back(o);
  }
  const double stop = never_ends ? kNever : transferred(begin, seconds);
  for (const int m : group.members) {
    RankState& r = ranks_[static_cast<std::size_t>(m)];
    PlayedOperation& o = operations_[static_cast<std::size_t>(m)].back();
    o.stop = stop + 2e-6 * random_.uniform();
    r.side = o.stop;
    if (!side) r.gpu = o.stop;
  }
}

void JobModel::collective(Dimension dimension, F function, std::uint64_t bytes, double seconds,
                          bool side) {
  for (const Group& group : groups_) {
    if (group.dimension == dimension) collective(group, function, bytes, seconds, side);
  }
}

void JobModel::all_to_all(std::uint64_t bytes, double seconds, int hot, bool gathers) {
  ++plan_;
  if (plan_ == 0) ++plan_;
  for (const Group& group : groups_) {
    if (group.dimension != Dimension::kExpert) continue;
    double begin = 0;
    for (const int m : group.members) {
      RankState& r = ranks_[static_cast<std::size_t>(m)];
      r.host += kCall;
      begin = std::max(begin, r.ready());
    }
    const double stop = transferred(begin, seconds);
    for (const int m : group.members) {
      RankState& r = ranks_[static_cast<std::size_t>(m)];
      PlayedOperation o;
      o.dimension = Dimension::kExpert;
      o.plan = plan_;
      o.call = r.host;
      o.start = r.ready();
      o.stop = stop + 2e-6 * random_.uniform();
      for (std::size_t peer = 0; peer < group.members.size(); ++peer) {
        o.peer = static_cast<std::int32_t>(peer);
        for (const F f : {F::kSend, F::kRecv}) {
          o.function = f;
          // To the experts, or back: the hot one takes more tokens, and gives as many.
          const int expert =
              (f == F::kSend) != gathers ? static_cast<int>(peer) : rank_in(m, Dimension::kExpert);
          o.bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) /
                                               static_cast<double>(group.members.size()) *
                                               (expert == hot ? 1 + s_.hot_expert : 1));
          operations_[static_cast<std::size_t>(m)].push_back(o);
        }
      }
      r.gpu = r.side = o.stop;
    }
  }
}

double JobModel::transferred(double begin, double seconds) {
  return begin + seconds * std::max(0.5, 1 + s_.network_jitter * random_.normal()) + 5e-6;
}

void JobModel::wait_for_side() {
  for (RankState& r : ranks_) r.gpu = std::max(r.gpu, r.side);
}

// ---- families -----------------------------------------------------------------------------------

void JobModel::play_step() {
  begin_step();
  switch (s_.family) {
    case Family::kDdp:
      play_ddp();
      break;
    case Family::kFsdp:
      play_fsdp();
      break;
    case Family::kTensorData:
      play_tensor_data();
      break;
    case Family::kTensorPipelineData:
      play_pipeline();
      break;
    case Family::kExperts:
      play_experts();
      break;
  }
  if (s_.pauses && step_ % kPauseEvery == kPauseEvery / 2) {
    // An evaluation: forward passes whose length is the same for all. Then rank 0 writes a
    // checkpoint, and all wait for it.
    compute_all(s_.step_seconds * kPauseSteps / 2);
    collective(Dimension::kWorld, F::kAllReduce, 4, 50e-6, false);
    ranks_[0].host = std::max(ranks_[0].host, ranks_[0].gpu) + s_.step_seconds * kPauseSteps / 2;
    collective(Dimension::kWorld, F::kAllReduce, 4, 50e-6, false);
  }
  end_step();
}

void JobModel::play_ddp() {
  compute_all(s_.step_seconds * kForward);
  for (int l = 0; l < s_.layers; ++l) {
    compute_all(s_.step_seconds * (1 - kForward) / s_.layers);
    collective(Dimension::kData, F::kAllReduce, kLayerBytes,
               s_.step_seconds * s_.communication / s_.layers, true);
  }
  wait_for_side();
  compute_all(s_.step_seconds * 0.02);
}

void JobModel::play_fsdp() {
  const double transfer = s_.step_seconds * s_.communication / (3 * s_.layers);
  const auto gather = [&] {
    collective(Dimension::kData, F::kAllGather, kLayerBytes, transfer, true);
  };
  // Computes with what has been gathered, while the next layer's is.
  const auto compute_layer = [&](int layer, double seconds) {
    std::vector<double> arrived;
    for (const RankState& r : ranks_) arrived.push_back(r.side);
    if (layer + 1 < s_.layers) gather();
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      ranks_[i].gpu = std::max(ranks_[i].gpu, arrived[i]);
    compute_all(seconds);
  };
  gather();
  for (int l = 0; l < s_.layers; ++l) compute_layer(l, s_.step_seconds * kForward / s_.layers);
  gather();
  for (int l = 0; l < s_.layers; ++l) {
    compute_layer(l, s_.step_seconds * (1 - kForward) / s_.layers);
    collective(Dimension::kData, F::kReduceScatter, kLayerBytes, transfer, true);
  }
  wait_for_side();
  collective(Dimension::kData, F::kAllReduce, 4, 30e-6, false);
}

void JobModel::play_tensor_data() {
  const double tensor = s_.step_seconds * s_.communication * 0.6 / (4 * s_.layers);
  const double data = s_.step_seconds * s_.communication * 0.4 / s_.layers;
  for (const double share : {kForward, 1 - kForward}) {
    for (int half = 0; half < 2 * s_.layers; ++half) {
      compute_all(s_.step_seconds * share / s_.layers / 2);
      collective(Dimension::kTensor, F::kAllReduce, kActivationBytes, tensor, false);
    }
  }
  // One gradient bucket a layer, at the end: those that overlapped would order the two streams.
  for (int l = 0; l < s_.layers; ++l)
    collective(Dimension::kData, F::kAllReduce, kLayerBytes, data, true);
  wait_for_side();
  collective(Dimension::kWorld, F::kAllReduce, 4, 30e-6, false);
}

void JobModel::play_cell(int stage, int replica, bool backward) {
  const double piece = s_.step_seconds * (backward ? 1 - kForward : kForward) / s_.microbatches;
  const double tensor =
      s_.step_seconds * s_.communication * 0.5 / (4 * s_.layers * s_.microbatches);
  const int first = (stage * s_.dp + replica) * s_.tp;
  for (int l = 0; l < 2 * s_.layers; ++l) {
    for (int t = 0; t < s_.tp; ++t) compute(first + t, piece / (2 * s_.layers));
    if (s_.tp > 1)
      collective(*group_of(first, Dimension::kTensor), F::kAllReduce, kActivationBytes, tensor,
                 false);
  }
}

void JobModel::receive(int from, int to, double sent) {
  RankState& r = ranks_[static_cast<std::size_t>(to)];
  const double transfer = s_.step_seconds * s_.communication * 0.1 / s_.microbatches;
  r.host += kCall;
  PlayedOperation o;
  o.dimension = Dimension::kPipeline;
  o.bytes = kActivationBytes;
  o.function = F::kRecv;
  o.peer = rank_in(from, Dimension::kPipeline);
  o.call = r.host;
  o.start = std::max(r.gpu, r.host);
  o.stop = transferred(std::max(o.start, sent), transfer);
  r.gpu = o.stop;
  operations_[static_cast<std::size_t>(to)].push_back(o);
  // A send waits for its receiver, on a stream of its own.
  PlayedOperation send = o;
  send.function = F::kSend;
  send.peer = rank_in(to, Dimension::kPipeline);
  send.call = send.start = sent;
  operations_[static_cast<std::size_t>(from)].push_back(send);
}

void JobModel::play_pipeline() {
  const int m = s_.microbatches;
  for (int replica = 0; replica < s_.dp; ++replica) {
    // When a stage's output of a microbatch was ready, by place in the tensor group.
    std::vector<std::vector<std::vector<double>>> forward(
        static_cast<std::size_t>(s_.pp),
        std::vector<std::vector<double>>(static_cast<std::size_t>(m)));
    auto backward = forward;
    struct Turn {
      bool backward;
      int microbatch;
    };
    std::vector<std::vector<Turn>> turns(static_cast<std::size_t>(s_.pp));
    for (int stage = 0; stage < s_.pp; ++stage) {
      auto& mine = turns[static_cast<std::size_t>(stage)];
      const int ahead = std::min(s_.pp - 1 - stage, m);
      for (int i = 0; i < ahead; ++i) mine.push_back({false, i});
      for (int i = 0; i + ahead < m; ++i) {
        mine.push_back({false, i + ahead});
        mine.push_back({true, i});
      }
      for (int i = m - ahead; i < m; ++i) mine.push_back({true, i});
    }
    std::vector<std::size_t> next(static_cast<std::size_t>(s_.pp), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < s_.pp; ++stage) {
        auto& at = next[static_cast<std::size_t>(stage)];
        auto& mine = turns[static_cast<std::size_t>(stage)];
        while (at < mine.size()) {
          const Turn turn = mine[at];
          const int other = turn.backward ? stage + 1 : stage - 1;
          const bool has_input = other >= 0 && other < s_.pp;
          auto& table = turn.backward ? backward : forward;
          const auto i = static_cast<std::size_t>(turn.microbatch);
          if (has_input && table[static_cast<std::size_t>(other)][i].empty()) break;
          const int first = (stage * s_.dp + replica) * s_.tp;
          for (int t = 0; has_input && t < s_.tp; ++t) {
            receive((other * s_.dp + replica) * s_.tp + t, first + t,
                    table[static_cast<std::size_t>(other)][i][static_cast<std::size_t>(t)]);
          }
          play_cell(stage, replica, turn.backward);
          for (int t = 0; t < s_.tp; ++t)
            table[static_cast<std::size_t>(stage)][i].push_back(
                ranks_[static_cast<std::size_t>(first + t)].gpu);
          ++at;
          moved = true;
        }
      }
    }
  }
  if (s_.dp > 1) {
    const double data = s_.step_seconds * s_.communication * 0.2;
    collective(Dimension::kData, F::kReduceScatter, kLayerBytes, data, false);
    collective(Dimension::kWorld, F::kAllReduce, 4, 30e-6, false);
    collective(Dimension::kData, F::kAllGather, kLayerBytes, data, false);
  } else {
    collective(Dimension::kWorld, F::kAllReduce, 4, 30e-6, false);
  }
}

void JobModel::play_experts() {
  const double exchange = s_.step_seconds * s_.communication * 0.7 / (4 * s_.layers);
  const int hot = static_cast<int>(s_.seed % static_cast<std::uint64_t>(s_.ep));
  for (const double share : {kForward, 1 - kForward}) {
    for (int l = 0; l < s_.layers; ++l) {
      compute_all(s_.step_seconds * share / s_.layers * 0.4);
      all_to_all(kActivationBytes, exchange, hot, false);
      for (int rank = 0; rank < s_.ranks(); ++rank) {
        const bool is_hot = rank_in(rank, Dimension::kExpert) == hot;
        compute(rank, s_.step_seconds * share / s_.layers * 0.6 * (is_hot ? 1 + s_.hot_expert : 1));
      }
      all_to_all(kActivationBytes, exchange, hot, true);
    }
  }
  for (int l = 0; l < s_.layers; ++l)
    collective(Dimension::kData, F::kAllReduce, kLayerBytes,
               s_.step_seconds * s_.communication * 0.3 / s_.layers, true);
  wait_for_side();
}

}  // namespace ncclscope::bench
