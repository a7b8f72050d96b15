// SPDX-License-Identifier: Apache-2.0
// Layouts and steps: see workload.h. Sizes are those of a model of a few billion parameters, scaled
// by StepModel::message_scale.
#include "sim/workload.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

namespace ncclscope::sim {
namespace {

constexpr int kBuckets = 4;
constexpr int kLayers = 4;
constexpr int kMicrobatches = 4;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 29;
  return x;
}

bool read_sizes(const std::string& text, Layout* layout, std::string* error) {
  std::istringstream rest(text);
  for (std::string pair; std::getline(rest, pair, ',');) {
    const std::size_t equal = pair.find('=');
    const std::string key = pair.substr(0, equal);
    int value = 0;
    try {
      std::size_t used = 0;
      value = equal == std::string::npos ? 0 : std::stoi(pair.substr(equal + 1), &used);
      if (equal != std::string::npos && used != pair.size() - equal - 1) value = 0;
    } catch (const std::exception&) {
      value = 0;
    }
    if (value < 1) {
      *error = "layout size \"" + pair + "\" is not key=number with a number of at least 1";
      return false;
    }
    if (key == "tp") {
      layout->tp = value;
    } else if (key == "pp") {
      layout->pp = value;
    } else if (key == "dp") {
      layout->dp = value;
    } else if (key == "ep") {
      layout->ep = value;
    } else if (key == "buffers") {
      layout->buffers = value;
    } else if (key == "hot") {
      layout->hot = value;
    } else if (key == "copy") {
      layout->copy = value;
    } else {
      *error = "layout size \"" + key + "\" is not one of tp, pp, dp, ep, buffers, hot, copy";
      return false;
    }
  }
  return true;
}

}  // namespace

Layout parse_layout(const std::string& text, std::string* error) {
  error->clear();
  Layout layout;
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  if (kind == "ddp") {
    layout.kind = LayoutKind::kDdp;
  } else if (kind == "fsdp") {
    layout.kind = LayoutKind::kFsdp;
  } else if (kind == "megatron") {
    layout.kind = LayoutKind::kMegatron;
  } else if (kind == "moe") {
    layout.kind = LayoutKind::kMoe;
  } else {
    *error = "layout \"" + text +
             "\" is not ddp, fsdp, megatron:tp=T,pp=P,dp=D or moe:ep=E,hot=PERCENT,copy=1";
    return {};
  }
  if (colon != std::string::npos && !read_sizes(text.substr(colon + 1), &layout, error)) return {};
  const bool split = layout.tp > 1 || layout.pp > 1;
  if (split && layout.kind != LayoutKind::kMegatron) {
    *error = "layout \"" + text + "\": tp and pp belong to megatron";
    return {};
  }
  if (layout.buffers > 0 && layout.kind != LayoutKind::kDdp) {
    *error = "layout \"" + text + "\": buffers belong to ddp";
    return {};
  }
  if ((layout.ep > 0 || layout.hot > 0 || layout.copy > 0) && layout.kind != LayoutKind::kMoe) {
    *error = "layout \"" + text + "\": ep, hot and copy belong to moe";
    return {};
  }
  return layout;
}

namespace {

std::string moe_text(const Layout& layout) {
  std::string text;
  for (const auto& [key, value] :
       {std::pair("ep", layout.ep), {"hot", layout.hot}, {"copy", layout.copy}}) {
    if (value > 0)
      text += (text.empty() ? ":" : ",") + std::string(key) + "=" + std::to_string(value);
  }
  return text;
}

}  // namespace

std::string to_text(const Layout& layout) {
  switch (layout.kind) {
    case LayoutKind::kDdp:
      return layout.buffers > 0 ? "ddp:buffers=1" : "ddp";
    case LayoutKind::kFsdp:
      return "fsdp";
    case LayoutKind::kMoe:
      return "moe" + moe_text(layout);
    case LayoutKind::kMegatron:
      break;
  }
  std::string text =
      "megatron:tp=" + std::to_string(layout.tp) + ",pp=" + std::to_string(layout.pp);
  if (layout.dp > 0) text += ",dp=" + std::to_string(layout.dp);
  return text;
}

Layout resolve_layout(Layout layout, int world, int gpus_per_node, std::string* error) {
  error->clear();
  const int model = layout.tp * layout.pp;
  if (layout.dp == 0) layout.dp = world / model;
  if (layout.kind == LayoutKind::kMoe && layout.ep == 0) layout.ep = std::min(world, gpus_per_node);
  if (layout.dp < 1 || model * layout.dp != world) {
    *error = "layout " + to_text(layout) +
             " needs tp*pp*dp = " + std::to_string(model * layout.dp) + " GPUs, the job has " +
             std::to_string(world);
  } else if (layout.kind == LayoutKind::kMoe && layout.dp % layout.ep != 0) {
    *error = "ep=" + std::to_string(layout.ep) + " does not divide the " +
             std::to_string(layout.dp) + " data-parallel ranks";
  }
  return layout;
}

std::vector<GroupPlan> groups_of(const JobShape& job, int rank) {
  const Layout& layout = job.layout;
  const int world = job.world();
  std::vector<GroupPlan> groups;
  std::uint64_t kind = 0;
  const auto add = [&](const std::string& name, std::uint64_t index, std::vector<int> members) {
    groups.push_back({name, mix(mix(job.seed, ++kind), index), std::move(members)});
  };
  std::vector<int> everybody(static_cast<std::size_t>(world));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto collect = [&](auto same) {
    std::vector<int> members;
    for (const int other : everybody) {
      if (same(other)) members.push_back(other);
    }
    return members;
  };
  if (layout.kind != LayoutKind::kMegatron) {
    add(layout.kind == LayoutKind::kFsdp ? "fsdp_group" : "dp_group", 0, everybody);
    if (layout.kind == LayoutKind::kMoe) {
      add("ep_group", static_cast<std::uint64_t>(rank / layout.ep),
          collect([&](int other) { return other / layout.ep == rank / layout.ep; }));
    }
    return groups;
  }
  // rank = tp index + tp * (dp index + dp * stage)
  const auto tp_of = [&](int r) { return r % layout.tp; };
  const auto dp_of = [&](int r) { return r / layout.tp % layout.dp; };
  const auto pp_of = [&](int r) { return r / layout.tp / layout.dp; };
  add("default_pg", 0, everybody);
  if (layout.tp > 1) {
    add("tp_group", static_cast<std::uint64_t>(rank / layout.tp),
        collect([&](int o) { return o / layout.tp == rank / layout.tp; }));
  }
  if (layout.pp > 1) {
    add("pp_group", static_cast<std::uint64_t>(rank % (layout.tp * layout.dp)),
        collect([&](int o) { return tp_of(o) == tp_of(rank) && dp_of(o) == dp_of(rank); }));
  }
  if (layout.dp > 1) {
    const int replicas = pp_of(rank) * layout.tp + tp_of(rank);
    add("dp_group", static_cast<std::uint64_t>(replicas),
        collect([&](int o) { return tp_of(o) == tp_of(rank) && pp_of(o) == pp_of(rank); }));
  }
  return groups;
}

namespace {

class RankPlayer {
 public:
  RankPlayer(Host* host, const RankRun& run)
      : host_(*host),
        run_(run),
        random_(mix(run.job.seed, static_cast<std::uint64_t>(run.rank) + 77)) {}

  RankOutcome play() {
    const int node = run_.job.node_of(run_.rank);
    for (const Fault& fault : run_.faults) {
      if (fault.concerns(run_.rank, node)) faults_.push_back(fault);
    }
    if (!create_communicators()) {
      outcome_.hung = true;
      return outcome_;
    }
    compute_ = host_.stream_create(0);
    comm_stream_ = host_.stream_create(0);
    const auto parent = ::getppid();
    for (std::int64_t step = 0; host_.world().begin_step(step, run_.end_time, run_.steps); ++step) {
      if (::getppid() != parent) break;  // nobody waits for this rank any more
      if (!begin(step)) break;
      switch (run_.job.layout.kind) {
        case LayoutKind::kDdp:
          ddp();
          break;
        case LayoutKind::kFsdp:
          fsdp();
          break;
        case LayoutKind::kMegatron:
          megatron();
          break;
        case LayoutKind::kMoe:
          moe();
          break;
      }
      if (abort_now_) {
        host_.world().sleep_until(host_.world().now() + run_.model.compute_ns / 4);
        for (auto& [name, comm] : comms_) host_.comm_abort(comm);
        outcome_.aborted = true;
        return outcome_;
      }
      if ((step + 1) % run_.model.sync_every == 0 && !synchronize()) break;
      ++outcome_.steps;
    }
    if (outcome_.hung || host_.world().stop_requested()) return outcome_;
    if (!synchronize()) return outcome_;
    if (run_.destroy) {
      for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
        if (!host_.comm_destroy(*it, left())) {
          outcome_.hung = true;
          break;
        }
      }
    }
    return outcome_;
  }

 private:
  std::int64_t left() const {
    return run_.hard_end == kNever ? kNever
                                   : std::max<std::int64_t>(0, run_.hard_end - host_.world().now());
  }

  bool create_communicators() {
    for (const GroupPlan& group : groups_of(run_.job, run_.rank)) {
      CommConfig config;
      config.hash = group.hash;
      config.name = group.name;
      config.shape.n_ranks = static_cast<int>(group.members.size());
      std::map<int, int> nodes;
      for (const int member : group.members) {
        auto [it, fresh] = nodes.emplace(run_.job.node_of(member), 0);
        config.shape.max_local_ranks = std::max(config.shape.max_local_ranks, ++it->second);
        config.shape.node_of_rank.push_back(
            static_cast<int>(std::distance(nodes.begin(), nodes.find(run_.job.node_of(member)))));
      }
      config.shape.n_nodes = static_cast<int>(nodes.size());
      const auto self = std::find(group.members.begin(), group.members.end(), run_.rank);
      config.shape.rank = static_cast<int>(self - group.members.begin());
      Comm* comm = host_.comm_init_rank(config, left());
      if (comm == nullptr) return false;
      comms_[group.name] = comm;
      order_.push_back(comm);
      sizes_[comm] = config.shape;
      members_[comm] = group.members;
    }
    return true;
  }

  /// Puts the faults of this step into force; false: this rank goes no further.
  bool begin(std::int64_t step) {
    Conditions conditions;
    compute_factor_ = 1;
    mismatch_ = false;
    abort_now_ = false;
    std::int64_t delay = 0;
    for (const Fault& fault : faults_) {
      if (!fault.active(step)) continue;
      switch (fault.kind) {
        case FaultKind::kLate:
        case FaultKind::kPause:
          delay += fault.delay_ns;
          break;
        case FaultKind::kSlowGpu:
          compute_factor_ *= fault.factor;
          break;
        case FaultKind::kSlowKernel:
          conditions.kernel_extra_ns += fault.delay_ns;
          break;
        case FaultKind::kSlowLink:
        case FaultKind::kSlowNic:
          conditions.link_factor *= fault.factor;
          break;
        case FaultKind::kStuck:
          conditions.network_stuck = true;
          break;
        case FaultKind::kMismatch:
          mismatch_ = true;
          break;
        case FaultKind::kAbort:
          abort_now_ = true;
          break;
        case FaultKind::kCrash:
          ::kill(::getpid(), SIGKILL);
          break;
        case FaultKind::kMissing:
          // Alive, and never calls again.
          while (host_.world().now() < run_.hard_end && !host_.world().stop_requested()) {
            host_.world().sleep_until(std::min(run_.hard_end, host_.world().now() + 50000000));
          }
          outcome_.hung = true;
          return false;
      }
    }
    add_slow_receivers(step, &conditions);
    host_.conditions() = conditions;
    if (delay > 0) host_.world().sleep_until(host_.world().now() + delay);
    std::normal_distribution<double> noise(1, run_.model.compute_noise);
    step_compute_ns_ =
        static_cast<std::int64_t>(static_cast<double>(run_.model.compute_ns) * compute_factor_ *
                                  std::clamp(noise(random_), 0.5, 2.0));
    return true;
  }

  /// Whose NIC is slow receives slowly, which is seen where it is sent.
  void add_slow_receivers(std::int64_t step, Conditions* conditions) const {
    for (const Fault& fault : run_.faults) {
      if (fault.kind != FaultKind::kSlowNic || !fault.active(step)) continue;
      for (const auto& [comm, members] : members_) {
        std::vector<double>& factors = conditions->receiver_factors[comm];
        factors.resize(members.size(), 1);
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (fault.concerns(members[i], run_.job.node_of(members[i]))) factors[i] *= fault.factor;
        }
      }
    }
  }

  bool synchronize() {
    for (Stream* stream : {compute_, comm_stream_}) {
      if (host_.stream_synchronize(stream, left()) != Wait::kDone ||
          host_.world().stop_requested()) {
        outcome_.hung = true;
        return false;
      }
    }
    return true;
  }

  void work(double share) {
    host_.compute(compute_,
                  static_cast<std::int64_t>(static_cast<double>(step_compute_ns_) * share));
  }
  std::size_t elements(double millions) const {
    return std::max<std::size_t>(
        1, static_cast<std::size_t>(millions * 1e6 * run_.model.message_scale));
  }

  void collective(const char* name, Func func, std::size_t count, Stream* stream,
                  nccl::Datatype datatype = nccl::kBfloat16, int root = 0) {
    const auto it = comms_.find(name);
    if (it == comms_.end()) return;
    Call call;
    call.func = func;
    call.count = mismatch_ ? count + 1000 : count;
    mismatch_ = false;
    call.datatype = datatype;
    call.root = root;
    call.send_buffer = &call;
    host_.call(it->second, stream, call);
  }
  /// A collective on the communication stream that needs what is computed so far.
  void overlapped(const char* name, Func func, std::size_t count) {
    host_.stream_wait(comm_stream_, compute_);
    collective(name, func, count, comm_stream_);
  }

  void ddp() {
    if (run_.job.layout.buffers > 0)
      collective("dp_group", Func::kBroadcast, elements(0.001), comm_stream_);
    work(0.33);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      work(0.6 / kBuckets);
      overlapped("dp_group", Func::kAllReduce, elements(12.5));
    }
    host_.stream_wait(compute_, comm_stream_);
    work(0.07);
  }

  void fsdp() {
    const int n = sizes_.at(comms_.at("fsdp_group")).n_ranks;
    const std::size_t shard = elements(50.0 / n);
    // Forward: the next layer's parameters are gathered while this layer computes.
    for (int layer = 0; layer < kLayers; ++layer) {
      collective("fsdp_group", Func::kAllGather, shard, comm_stream_);
      host_.stream_wait(compute_, comm_stream_);
      work(0.33 / kLayers);
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      collective("fsdp_group", Func::kAllGather, shard, comm_stream_);
      host_.stream_wait(compute_, comm_stream_);
      work(0.6 / kLayers);
      overlapped("fsdp_group", Func::kReduceScatter, shard);
    }
    host_.stream_wait(compute_, comm_stream_);
    work(0.07);
  }

  void pair(Func func, int peer, std::size_t count) {
    Call call;
    call.func = func;
    call.count = count;
    call.datatype = nccl::kBfloat16;
    call.peer = peer;
    call.send_buffer = &call;
    host_.call(comms_.at("pp_group"), compute_, call);
  }

  void tensor_layer(double share) {
    work(share / 2);
    collective("tp_group", Func::kAllReduce, elements(8), compute_);
    work(share / 2);
    collective("tp_group", Func::kAllReduce, elements(8), compute_);
  }

  void megatron() {
    const Layout& layout = run_.job.layout;
    const int stage = run_.rank / layout.tp / layout.dp;
    const bool first = stage == 0;
    const bool last = stage == layout.pp - 1;
    const std::size_t activations = elements(8);
    for (int m = 0; m < kMicrobatches; ++m) {
      if (!first) pair(Func::kRecv, stage - 1, activations);
      tensor_layer(0.3 / kMicrobatches);
      if (!last) pair(Func::kSend, stage + 1, activations);
    }
    for (int m = 0; m < kMicrobatches; ++m) {
      if (!last) pair(Func::kRecv, stage + 1, activations);
      tensor_layer(0.6 / kMicrobatches);
      if (!first) pair(Func::kSend, stage - 1, activations);
    }
    host_.stream_wait(comm_stream_, compute_);
    collective("dp_group", Func::kReduceScatter, elements(40.0 / layout.dp), comm_stream_);
    host_.stream_wait(compute_, comm_stream_);
    work(0.1);
    host_.stream_wait(comm_stream_, compute_);
    collective("dp_group", Func::kAllGather, elements(40.0 / layout.dp), comm_stream_);
    collective("default_pg", Func::kAllReduce, 1, comm_stream_,
               nccl::kFloat32);  // loss, gradient norm
    host_.stream_wait(compute_, comm_stream_);
  }

  /// The first expert takes more tokens.
  double share_of_expert(int expert) const {
    return expert == 0 ? 1 + run_.job.layout.hot / 100.0 : 1;
  }

  /// Tokens to their experts, or (`gathers`) back from them.
  void all_to_all(std::size_t count, bool gathers) {
    Comm* comm = comms_.at("ep_group");
    const CommShape& shape = sizes_.at(comm);
    const auto tokens_of = [&](int expert) {
      return static_cast<std::size_t>(static_cast<double>(count) * share_of_expert(expert));
    };
    host_.group_start();
    for (int peer = 0; peer < shape.n_ranks; ++peer) {
      if (peer == shape.rank && run_.job.layout.copy > 0) continue;
      Call call;
      call.datatype = nccl::kBfloat16;
      call.peer = peer;
      call.func = Func::kSend;
      call.count = tokens_of(gathers ? shape.rank : peer);
      call.send_buffer = &call;
      host_.call(comm, compute_, call);
      call.func = Func::kRecv;
      call.count = tokens_of(gathers ? peer : shape.rank);
      host_.call(comm, compute_, call);
    }
    host_.group_end();
  }

  void moe() {
    const std::size_t tokens = elements(4.0 / std::max(1, run_.job.layout.ep));
    const double expert = share_of_expert(sizes_.at(comms_.at("ep_group")).rank);
    for (int layer = 0; layer < 2 * kLayers; ++layer) {
      work(0.45 / kLayers / 2);
      all_to_all(tokens, false);
      work(0.45 / kLayers / 2 * expert);
      all_to_all(tokens, true);
    }
    overlapped("dp_group", Func::kAllReduce, elements(25));
    host_.stream_wait(compute_, comm_stream_);
    work(0.1);
  }

  Host& host_;
  const RankRun& run_;
  std::mt19937_64 random_;
  std::vector<Fault> faults_;
  std::map<std::string, Comm*> comms_;
  std::vector<Comm*> order_;
  std::map<const Comm*, CommShape> sizes_;
  std::map<const Comm*, std::vector<int>> members_;  // global ranks
  Stream* compute_ = nullptr;
  Stream* comm_stream_ = nullptr;
  double compute_factor_ = 1;
  std::int64_t step_compute_ns_ = 0;
  bool mismatch_ = false;
  bool abort_now_ = false;
  RankOutcome outcome_;
};

}  // namespace

RankOutcome run_rank(Host* host, const RankRun& run) {
  return RankPlayer(host, run).play();
}

}  // namespace ncclscope::sim
