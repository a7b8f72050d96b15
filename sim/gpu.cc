// SPDX-License-Identifier: Apache-2.0
// Streams and kernels of an emulated process: see host_impl.h. Each stream is a thread that runs
// its items in order. A communication kernel meets its peers through the Meeting, computes when it
// ends, waits until then and writes the start and stop stamps that the proxy thread looks for.
#include <algorithm>
#include <cmath>

#include "sim/host_impl.h"

namespace ncclscope::sim {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccd;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53;
  x ^= x >> 33;
  return x;
}

/// Roughly normal, standard deviation 1, from a hash: the same on all ranks.
double noise_of(std::uint64_t key) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) {
    key = mix(key + 0x9e3779b97f4a7c15);
    sum += static_cast<double>(key >> 11) / 9007199254740992.0 - 0.5;
  }
  return sum * 1.7320508;
}

std::uint64_t signature_of(const std::vector<TaskPtr>& tasks) {
  std::uint64_t hash = 1469598103934665603u;
  for (const TaskPtr& task : tasks) {
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(task->func), static_cast<std::uint64_t>(task->count),
          static_cast<std::uint64_t>(task->datatype), static_cast<std::uint64_t>(task->root)}) {
      hash = mix(hash ^ value);
    }
  }
  return hash;
}

constexpr std::int64_t kStartStagger = 120;  // ns between the starts of neighbouring channels

}  // namespace

// ------------------------------------------------------------------------------------- Stream

Stream::Stream(Host::Impl* host, int gpu) : host_(host), gpu_(gpu), word_(host->world->new_word()) {
  thread_ = SimThread(host->options.world, host->options.owner,
                      gpu < 0 ? "cuda-EvtHandlr" : "gpu-stream", [this] { run(); });
}

Stream::~Stream() {
  close();
}

void Stream::begin_close() {
  closing_.store(true);
  host_->world->notify(word_);
}

void Stream::close() {
  begin_close();
  thread_.join();
}

void Stream::enqueue(std::function<void()> run) {
  // A stream holds only so many launches: the next one blocks the caller.
  const auto depth = static_cast<std::size_t>(host_->options.launch_queue_depth);
  host_->world->wait_for(word_, kNever, [&] {
    return pending_.load() < depth || closing_.load() || host_->exiting.load();
  });
  {
    std::lock_guard guard(mutex_);
    items_.push_back({std::move(run)});
    pending_.fetch_add(1);
    enqueued_.fetch_add(1);
  }
  host_->world->notify(word_);
}

bool Stream::wait_empty(std::int64_t deadline) {
  return wait_reached(enqueued_.load(), deadline);
}

bool Stream::wait_reached(std::uint64_t count, std::int64_t deadline) {
  return host_->world->wait_for(word_, deadline, [&] {
    return finished_.load() >= count || closing_.load();
  }) && finished_.load() >= count;
}

void Stream::run() {
  for (;;) {
    host_->world->wait_for(word_, kNever, [&] { return pending_.load() > 0 || closing_.load(); });
    Item item;
    {
      std::lock_guard guard(mutex_);
      if (closing_.load() && (items_.empty() || host_->exiting.load())) return;
      if (items_.empty()) continue;
      item = std::move(items_.front());
      items_.pop_front();
    }
    item.run();
    finished_.fetch_add(1);
    pending_.fetch_sub(1);
    host_->world->notify(word_);
  }
}

// ------------------------------------------------------------------------------------- timing

std::int64_t Host::Impl::gpu_time(int gpu, std::int64_t host_ns) const {
  const auto& clocks = options.gpu_clocks;
  const GpuClock& clock = clocks[static_cast<std::size_t>(gpu) % clocks.size()];
  const std::int64_t base =
      host_ns + world->epoch_offset() + clock.offset_ns +
      static_cast<std::int64_t>(static_cast<double>(host_ns) * clock.drift_ppm / 1e6);
  return clock.step_ns > 1 ? base - base % clock.step_ns : base;
}

std::int64_t Host::Impl::transfer_ns(const Comm& comm, const std::vector<TaskPtr>& tasks,
                                     std::uint64_t index, std::int64_t* network_ns) const {
  const HardwareModel& hw = options.hardware;
  const CommShape& shape = comm.config.shape;
  const auto n = static_cast<double>(shape.n_ranks);
  const bool net = shape.n_nodes > 1;
  const double ring_rate =
      net ? std::min(hw.intra_node_gbytes_per_s, hw.inter_node_gbytes_per_s * shape.max_local_ranks)
          : hw.intra_node_gbytes_per_s;
  const auto intra_hop = static_cast<double>(hw.intra_hop_ns);
  const auto inter_hop = static_cast<double>(hw.inter_hop_ns);
  double total = static_cast<double>(hw.kernel_base_ns);
  double network = 0;
  double pair_out[2] = {0, 0};
  for (const TaskPtr& task : tasks) {
    const auto bytes = static_cast<double>(task->bytes);
    if (task->is_p2p) {
      if (task->peer == shape.rank) continue;
      const bool cross = shape.node_of_rank[static_cast<std::size_t>(task->peer)] !=
                         shape.node_of_rank[static_cast<std::size_t>(shape.rank)];
      const double rate = cross ? hw.inter_node_gbytes_per_s : hw.intra_node_gbytes_per_s;
      const double time = bytes / rate + (cross ? inter_hop : intra_hop);
      pair_out[task->func == Func::kSend ? 0 : 1] += time;
      if (cross) network += bytes / rate;
      continue;
    }
    double bus = bytes;
    double rounds = n - 1;
    if (task->func == Func::kAllReduce) {
      bus = bytes * 2 * (n - 1) / n;
      rounds = 2 * (n - 1);
    } else if (task->func == Func::kAllGather || task->func == Func::kReduceScatter) {
      bus = bytes * (n - 1);
    }
    double latency = 0;
    if (task->algo == Algo::kTree) {
      latency = 2 * std::log2(static_cast<double>(std::max(2, shape.n_nodes))) * inter_hop +
                2.0 * shape.max_local_ranks * intra_hop;
      bus *= 1.1;
    } else if (task->algo == Algo::kNvls || task->algo == Algo::kCollnetChain) {
      latency = 4 * intra_hop + (net ? 2 * inter_hop : 0);
      bus /= 1.5;
    } else {
      const double share = net ? static_cast<double>(shape.n_nodes) / n : 0;
      latency = rounds * (intra_hop * (1 - share) + inter_hop * share);
    }
    double rate = ring_rate;
    if (task->proto == Proto::kLl) {
      rate *= 0.25;
      latency *= 0.5;
    } else if (task->proto == Proto::kLl128) {
      rate *= 0.8;
      latency *= 0.7;
    }
    total += latency + bus / rate;
    if (net) network += bus / rate;
  }
  total += std::max(pair_out[0], pair_out[1]);
  if (hw.fixed_kernel_ns > 0) total = static_cast<double>(hw.fixed_kernel_ns);
  const double factor =
      std::clamp(1 + hw.noise * noise_of(hw.seed ^ mix(comm.config.hash + index)), 0.5, 2.0);
  *network_ns = static_cast<std::int64_t>(network * factor);
  return std::max<std::int64_t>(500, static_cast<std::int64_t>(total * factor));
}

// ------------------------------------------------------------------------------------- kernel

namespace {

struct Item {
  const Task* task;
  int channel;
  std::uint64_t value;  // of the GPU's counter
};

void stamp(ChannelCounters* counters, bool start, std::uint64_t value, std::int64_t time) {
  auto& slot = (start ? counters->start : counters->stop)[value % kCounterSlots];
  slot.time.store(static_cast<std::uint64_t>(time), std::memory_order_relaxed);
  slot.counter.store(value, std::memory_order_release);
}

}  // namespace

void Host::Impl::wake_progress(Comm* comm) {
  Comm* owner = comm->resources_of != nullptr ? comm->resources_of : comm;
  std::shared_ptr<Progress> proxy;
  std::shared_ptr<Progress> kernels;
  {
    std::lock_guard guard(mutex);
    proxy = owner->proxy;
    kernels = owner->kernels;
  }
  if (proxy != nullptr) proxy->wake();
  if (kernels != nullptr) kernels->wake();
}

void Host::Impl::run_kernel(const PlanPtr& plan, const Conditions& state) {
  Comm& comm = *plan->comm;
  const auto gone = [&comm] { return comm.stopping(); };
  const CommShape& shape = comm.config.shape;
  const int n = shape.n_ranks;
  const int rank = shape.rank;
  if (gone()) return;

  const auto begin_items = [&](const std::vector<TaskPtr>& tasks, std::int64_t start) {
    std::vector<Item> items;
    for (const TaskPtr& task : tasks) {
      // A send and a receive that share a round are one work item per channel.
      const std::shared_ptr<const Task> partner = task->partner.lock();
      for (const int channel : task->channels) {
        if (partner != nullptr && task->is_p2p && task->func == Func::kRecv) {
          const auto same = std::find_if(items.begin(), items.end(), [&](const Item& item) {
            return item.task == partner.get() && item.channel == channel;
          });
          if (same != items.end()) {
            items.push_back({task.get(), channel, same->value});
            continue;
          }
        }
        ChannelCounters& counters = comm.counters[static_cast<std::size_t>(channel)];
        items.push_back({task.get(), channel, ++counters.gpu});
      }
    }
    for (const Item& item : items) {
      stamp(&comm.counters[static_cast<std::size_t>(item.channel)], true, item.value,
            gpu_time(comm.config.gpu, start + item.channel * kStartStagger));
    }
    return items;
  };
  const auto end_items = [&](const std::vector<Item>& items, int channel, std::int64_t end) {
    for (const Item& item : items) {
      if (channel >= 0 && item.channel != channel) continue;
      stamp(&comm.counters[static_cast<std::size_t>(item.channel)], false, item.value,
            gpu_time(comm.config.gpu, end));
    }
  };
  const auto timing = [&](const TaskPtr& task) { return plan->timing.at(task.get()); };
  std::vector<double> wire_factors;
  if (const auto slow = state.receiver_factors.find(&comm); slow != state.receiver_factors.end()) {
    for (const double factor : slow->second)
      wire_factors.push_back(std::max(1.0, factor / state.link_factor));
  }
  // A kernel that can never end waits for the communicator's end.
  const auto hang = [&] { world->wait_for(comm.meeting->word(), kNever, gone); };

  std::map<int, std::vector<TaskPtr>> batches;
  for (const TaskPtr& task : plan->colls) batches[task->batch].push_back(task);
  for (const auto& [id, tasks] : batches) {
    const std::uint64_t index = comm.batch_index++;
    std::int64_t network = 0;
    std::int64_t duration = transfer_ns(comm, tasks, index, &network);
    if (comm.first_operation) duration += options.hardware.first_operation_ns;
    comm.first_operation = false;
    const std::int64_t start = world->now();
    Meeting::Arrival mine;
    mine.start = start;
    mine.signature = signature_of(tasks);
    mine.extra = state.kernel_extra_ns +
                 static_cast<std::int64_t>(static_cast<double>(network) * (state.link_factor - 1));
    if (state.network_stuck && shape.n_nodes > 1) mine.extra = kNever;
    const std::vector<Item> items = begin_items(tasks, start);
    for (const TaskPtr& task : tasks) {
      auto t = timing(task);
      t->duration.store(duration);
      t->wire.store(mine.extra == kNever ? kNever : network + mine.extra - state.kernel_extra_ns);
      t->consume = state.kernel_extra_ns;
      t->wire_factors = wire_factors;
      t->upstream[0].store(start);
      t->own_start.store(start);
    }
    wake_progress(&comm);
    if (!comm.meeting->post(index, mine, gone)) return;
    // Whom this rank waits for, nearest upstream first.
    const Task& first = *tasks.front();
    int reach = n - 1;
    bool wait_downstream = false;
    if (first.flow == Flow::kChainFromRoot) {
      reach = (rank - first.root + n) % n;
      wait_downstream = first.bytes > options.tuning.buffer_bytes && reach + 1 < n;
    } else if (first.flow == Flow::kChainToRoot) {
      reach = (rank - first.root - 1 + n) % n;
      wait_downstream = first.bytes > options.tuning.buffer_bytes && rank != first.root;
    }
    std::int64_t flow = start;
    std::int64_t extra = mine.extra;
    bool mismatch = false;
    for (int d = 1; d <= reach; ++d) {
      Meeting::Arrival other;
      if (!comm.meeting->await((rank - d + n) % n, index, &other, gone)) return;
      mismatch = mismatch || other.signature != mine.signature;
      flow = std::max(flow, other.start);
      extra = std::max(extra, other.extra);
      for (const TaskPtr& task : tasks) {
        auto t = timing(task);
        if (static_cast<std::size_t>(d) < t->upstream.size()) {
          t->upstream[static_cast<std::size_t>(d)].store(flow);
        }
      }
      if (d < reach) wake_progress(&comm);
    }
    if (wait_downstream) {
      Meeting::Arrival other;
      if (!comm.meeting->await((rank + 1) % n, index, &other, gone)) return;
      flow = std::max(flow, other.start);
    }
    if (mismatch || extra == kNever) {
      for (const TaskPtr& task : tasks) timing(task)->duration.store(kNever);
      wake_progress(&comm);
      hang();
      return;
    }
    duration += extra;
    const std::int64_t end = flow + duration;
    for (const TaskPtr& task : tasks) {
      timing(task)->duration.store(duration);
      timing(task)->end.store(end);
    }
    wake_progress(&comm);
    world->sleep_until(end);
    if (gone()) return;
    end_items(items, -1, end);
    world->completed_operations().fetch_add(tasks.size());
    wake_progress(&comm);
  }

  for (const TaskPtr& task : plan->gathered) {
    // Counted on every channel, stamped on none.
    for (const int channel : task->channels) ++comm.counters[static_cast<std::size_t>(channel)].gpu;
  }
  if (!plan->gathered.empty()) {
    std::int64_t network = 0;
    const std::uint64_t index = comm.batch_index++;
    const std::int64_t duration = transfer_ns(comm, plan->gathered, index, &network);
    Meeting::Arrival mine;
    mine.start = world->now();
    mine.signature = signature_of(plan->gathered);
    if (!comm.meeting->post(index, mine, gone)) return;
    std::int64_t flow = mine.start;
    for (int d = 1; d < n; ++d) {
      Meeting::Arrival other;
      if (!comm.meeting->await((rank - d + n) % n, index, &other, gone)) return;
      flow = std::max(flow, other.start);
    }
    world->sleep_until(flow + duration);
  }

  if (!plan->p2ps.empty()) {
    const std::int64_t start = world->now();
    std::int64_t network = 0;
    const std::uint64_t noise_index =
        mix(static_cast<std::uint64_t>(rank) << 32 | comm.pair_counts.size());
    const std::int64_t duration =
        transfer_ns(comm, plan->p2ps, noise_index, &network) + state.kernel_extra_ns +
        static_cast<std::int64_t>(static_cast<double>(network) * (state.link_factor - 1));
    comm.first_operation = false;
    const std::vector<Item> items = begin_items(plan->p2ps, start);
    for (const TaskPtr& task : plan->p2ps) {
      auto t = timing(task);
      t->duration.store(duration);
      t->wire.store(state.network_stuck ? kNever
                                        : static_cast<std::int64_t>(static_cast<double>(network) *
                                                                    state.link_factor));
      t->consume = state.kernel_extra_ns;
      t->wire_factors = wire_factors;
      t->upstream[0].store(start);
      t->own_start.store(start);
      if (task->peer == rank) continue;
      const bool send = task->func == Func::kSend;
      const bool stuck =
          state.network_stuck && shape.node_of_rank[static_cast<std::size_t>(task->peer)] !=
                                     shape.node_of_rank[static_cast<std::size_t>(rank)];
      if (stuck) continue;  // the other side never hears of it
      if (!comm.meeting->post_pair(send ? rank : task->peer, send ? task->peer : rank,
                                   task->pair_index, send, start, gone)) {
        return;
      }
    }
    wake_progress(&comm);
    std::vector<std::pair<std::int64_t, const Task*>> ends;
    for (const TaskPtr& task : plan->p2ps) {
      auto t = timing(task);
      const bool send = task->func == Func::kSend;
      std::int64_t end = start + duration / 2;
      // A send is buffered; only a large one waits for its receiver.
      if (task->peer != rank && (!send || task->bytes > options.tuning.buffer_bytes)) {
        std::int64_t other = 0;
        if (!comm.meeting->await_pair(send ? rank : task->peer, send ? task->peer : rank,
                                      task->pair_index, !send, &other, gone)) {
          return;
        }
        end = std::max(start, other) + duration;
        t->upstream[1].store(std::max(start, other));
      } else {
        t->upstream[1].store(start);
      }
      t->end.store(end);
      wake_progress(&comm);
      ends.emplace_back(end, task.get());
    }
    if (state.network_stuck && shape.n_nodes > 1) {
      hang();
      return;
    }
    // A channel's items stop together, with its slowest.
    std::map<int, std::int64_t> channel_end;
    for (const auto& [end, task] : ends) {
      for (const int channel : task->channels) {
        channel_end[channel] = std::max(channel_end[channel], end);
      }
    }
    std::vector<std::pair<std::int64_t, int>> order;
    for (const auto& [channel, end] : channel_end) order.emplace_back(end, channel);
    std::sort(order.begin(), order.end());
    for (const auto& [end, channel] : order) {
      world->sleep_until(end);
      if (gone()) return;
      end_items(items, channel, end);
      wake_progress(&comm);
    }
    world->completed_operations().fetch_add(plan->p2ps.size());
  }
}

}  // namespace ncclscope::sim
