// SPDX-License-Identifier: Apache-2.0
// Proxy thread (network transfers, and KernelCh up to release 2.30) and profiler thread (KernelCh
// from 2.31 on): see host_impl.h. The thread sleeps until the next thing is due instead of polling.
#include <unistd.h>

#include <algorithm>

#include "sim/host_impl.h"

namespace ncclscope::sim {
namespace {

constexpr std::int64_t kPurgeGraceNs = 10000000;
constexpr std::int64_t kFirstSliceNs = 1500;  // from kernel start to the first slice in the buffer

const char* const kPhaseNames[3] = {"initial_sync", "compute", "final_sync"};

std::int64_t plus(std::int64_t a, std::int64_t b) {
  return a == kNever || b == kNever || a > kNever - b ? kNever : a + b;
}

}  // namespace

struct Progress::Kernel {
  ProxyWork work;
  void* handle = nullptr;
  bool started = false;
  bool done = false;
};

struct Progress::Net {
  ProxyWork work;
  const NetOp* op = nullptr;
  void* handle = nullptr;
  bool in_progress = false;
  std::size_t posted = 0;
  std::size_t moved = 0;  // sends: transmitted; receives: received
  std::size_t flushed = 0;
  std::size_t done = 0;
  std::size_t last_bytes = 0;
  std::vector<void*> steps;
  void* context = nullptr;
  std::int64_t last_done = 0;

  std::size_t count() const { return op->bytes.size(); }

  /// When the receive of transfer `k` is complete on this rank; kNever: not known yet.
  std::int64_t arrival(std::size_t k) const {
    const WorkTiming& t = *work.timing;
    const std::int64_t duration = t.duration.load();
    if (duration == 0 || duration == kNever) return kNever;
    const auto chunk = k / static_cast<std::size_t>(op->slices_per_chunk);
    std::size_t distance = t.upstream.size() - 1;
    if (work.task->flow == Flow::kRing) distance = std::min(distance, chunk + 1);
    const std::int64_t base = t.upstream[distance].load();
    if (base == 0) return kNever;
    const std::int64_t hop = duration / static_cast<std::int64_t>(count() + 1);
    return base + hop * static_cast<std::int64_t>(k + 1);
  }
  std::int64_t ready(std::size_t k) const {
    const WorkTiming& t = *work.timing;
    const std::int64_t start = t.own_start.load();
    if (start == 0) return kNever;
    const auto slices = static_cast<std::size_t>(op->slices_per_chunk);
    const Task& task = *work.task;
    const bool source = task.flow == Flow::kPair ||
                        (task.flow == Flow::kChainFromRoot && t.upstream.size() == 1) ||
                        (task.flow == Flow::kChainToRoot && t.upstream.size() == 1);
    if (source || (task.flow == Flow::kRing && k < slices)) {
      return start + kFirstSliceNs * static_cast<std::int64_t>(k + 1);
    }
    return std::max(start, task.flow == Flow::kRing ? arrival(k - slices) : arrival(k));
  }
  std::int64_t wire(std::size_t) const {
    const std::int64_t total = work.timing->wire.load();
    if (total == kNever) return kNever;
    const std::vector<double>& factors = work.timing->wire_factors;
    const auto peer = static_cast<std::size_t>(op->peer);
    const double factor = peer < factors.size() ? factors[peer] : 1;
    return std::max<std::int64_t>(1000,
                                  static_cast<std::int64_t>(static_cast<double>(total) * factor) /
                                      static_cast<std::int64_t>(count() + 1));
  }
  /// From the arrival of a transfer to when the GPU has taken it.
  std::int64_t consume() const {
    return kFirstSliceNs + work.timing->consume / static_cast<std::int64_t>(count() + 1);
  }
};

Progress::Progress(Host::Impl* host, Comm* owner, std::string name, bool kernels, bool network)
    : host_(host),
      name_(std::move(name)),
      kernels_(kernels),
      network_(network),
      word_(host->world->new_word()),
      owner_comm_(owner) {
  thread_ = SimThread(host->options.world, host->options.owner, name_.c_str(), [this] { run(); });
}

Progress::~Progress() {
  abandoned_.store(true);
  wake();
  thread_.join();
}

void Progress::post(std::vector<ProxyWork> work) {
  if (work.empty()) return;
  outstanding_.fetch_add(work.size());
  {
    std::lock_guard guard(mutex_);
    for (ProxyWork& item : work) inbox_.push_back(std::move(item));
  }
  wake();
}

void Progress::wake() {
  host_->world->notify(word_);
}

bool Progress::drain_and_join(std::int64_t deadline) {
  closing_.store(true);
  wake();
  if (!host_->world->wait_for(word_, deadline, [this] { return done_.load(); })) return false;
  thread_.join();
  return true;
}

void Progress::abandon() {
  abandoned_.store(true);
  wake();
  thread_.join();
}

void Progress::forget(Comm* comm) {
  // What has ended on the GPU is still reported; what has not is dropped.
  World& world = *host_->world;
  world.wait_for(word_, world.now() + kPurgeGraceNs, [this] { return outstanding_.load() == 0; });
  {
    std::lock_guard guard(mutex_);
    forgotten_.push_back(comm);
  }
  wake();
  host_->world->wait_for(word_, kNever, [this] {
    std::lock_guard guard(mutex_);
    return forgotten_.empty() || done_.load();
  });
}

void Progress::control(nccl::EventState state, int appended, bool begin, bool end, void** handle) {
  Profiler& profiler = host_->profiler;
  if (begin) {
    *handle = nullptr;
    if (!mask_emits(nccl::kProxyCtrl, profiler.mask(), profiler.release())) return;
    Event event;
    event.descr.type = nccl::kProxyCtrl;
    profiler.start(owner_comm_->context, handle, event);
  }
  StateArgs args;
  args.appended_proxy_ops = appended;
  profiler.record(*handle, state, &args);
  if (end) profiler.stop(*handle);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a sink
void Progress::append(std::vector<ProxyWork> work) {
  Profiler& profiler = host_->profiler;
  void* control_handle = nullptr;
  if (network_) control(nccl::kProxyCtrlAppend, 0, true, false, &control_handle);
  for (ProxyWork& item : work) {
    const Task& task = *item.task;
    if (item.kernel) {
      auto& fifo = kernel_fifos_[{item.comm, item.channel}];
      Kernel kernel;
      kernel.work = item;
      // Sends and receives of one plan and channel stand side by side, collectives in line.
      if (task.is_p2p && !fifo.empty() && fifo.back().front().work.task->is_p2p &&
          fifo.back().front().work.plan == item.plan) {
        fifo.back().push_back(std::move(kernel));
      } else {
        fifo.emplace_back();
        fifo.back().push_back(std::move(kernel));
      }
      continue;
    }
    auto net = std::make_unique<Net>();
    net->op = &task.net_ops[item.net_op];
    net->work = item;
    net->steps.assign(net->count(), nullptr);
    net->context = item.foreign ? reinterpret_cast<void*>(0x7f0000badbad) : item.comm->context;
    if (mask_emits(nccl::kProxyOp, task.mask, profiler.release())) {
      Event event;
      event.descr.type = nccl::kProxyOp;
      event.descr.parent_obj = item.foreign ? reinterpret_cast<void*>(0x7f0000deadbe) : task.handle;
      event.descr.rank = item.foreign ? net->op->peer : item.comm->config.shape.rank;
      event.descr.proxy_op.pid = item.foreign ? host_->pid() + 1 : host_->pid();
      event.descr.proxy_op.channel_id = static_cast<std::uint8_t>(net->op->channel);
      event.descr.proxy_op.peer = net->op->peer;
      event.descr.proxy_op.n_steps = static_cast<std::int32_t>(net->count());
      event.descr.proxy_op.chunk_size = net->op->chunk_bytes;
      event.descr.proxy_op.is_send = net->op->send ? 1 : 0;
      profiler.start(net->context, &net->handle, event);
    }
    net_fifos_[{item.comm, net->op->channel, net->op->peer, net->op->send}].push_back(
        std::move(net));
  }
  if (network_) {
    control(nccl::kProxyCtrlAppendEnd, static_cast<int>(work.size()), false, true, &control_handle);
  }
}

bool Progress::progress_kernels() {
  Profiler& profiler = host_->profiler;
  bool moved = false;
  for (auto& [key, fifo] : kernel_fifos_) {
    auto& [comm, channel] = key;
    while (!fifo.empty()) {
      auto& group = fifo.front();
      for (Kernel& kernel : group) {
        if (kernel.done) continue;
        const std::uint64_t target = kernel.work.target;
        ChannelCounters& counters = comm->counters[static_cast<std::size_t>(channel)];
        const auto& start = counters.start[target % kCounterSlots];
        const auto& stop = counters.stop[target % kCounterSlots];
        if (!kernel.started && start.counter.load(std::memory_order_acquire) < target) continue;
        if (!kernel.started) {
          kernel.started = true;
          moved = true;
          const int every = host_->options.hazards.stale_kernel_stop_every;
          if (every > 0 && !host_->options.profiler.release.has_profiler_thread() &&
              ++kernel_count_ % static_cast<std::uint64_t>(every) == 0 &&
              stop.counter.load(std::memory_order_acquire) >= target) {
            // Both counters passed between two looks: the start is never sent and the stop goes to
            // the handle that an earlier operation left in the slot.
            kernel.handle = stale_kernel_handle_;
          } else {
            Event event;
            event.descr.type = nccl::kKernelCh;
            event.descr.parent_obj = kernel.work.task->handle;
            event.descr.kernel_ch.channel_id = static_cast<std::uint8_t>(channel);
            event.descr.kernel_ch.p_timer = start.time.load(std::memory_order_relaxed);
            // The slot of the pool is reused without a reset: an unwritten handle stays the old
            // one.
            kernel.handle = stale_kernel_handle_;
            profiler.start(comm->context, &kernel.handle, event);
            stale_kernel_handle_ = kernel.handle;
          }
        }
        if (stop.counter.load(std::memory_order_acquire) < target) continue;
        kernel.done = true;
        moved = true;
        StateArgs args;
        args.p_timer = stop.time.load(std::memory_order_relaxed);
        if (mask_emits(nccl::kKernelPhase, kernel.work.task->mask, profiler.release()) &&
            profiler.release().has_profiler_thread()) {
          const std::uint64_t begin = start.time.load(std::memory_order_relaxed);
          const std::uint64_t span = args.p_timer > begin ? args.p_timer - begin : 0;
          for (std::uint8_t phase = 0; phase < 3; ++phase) {
            const std::uint64_t marks[4] = {begin, begin + span / 20, args.p_timer - span / 20,
                                            args.p_timer};
            Event event;
            event.descr.type = nccl::kKernelPhase;
            event.descr.parent_obj = kernel.handle;
            event.descr.kernel_phase.channel_id = static_cast<std::uint8_t>(channel);
            event.descr.kernel_phase.phase_id = phase;
            event.descr.kernel_phase.phase_name = kPhaseNames[phase];
            event.descr.kernel_phase.p_timer = marks[phase];
            void* handle = nullptr;
            profiler.start(comm->context, &handle, event);
            StateArgs phase_args;
            phase_args.p_timer = marks[phase + 1];
            profiler.record(handle, nccl::kKernelPhaseStop, &phase_args);
            profiler.stop(handle);
          }
        }
        profiler.record(kernel.handle, nccl::kKernelChStop, &args);
        profiler.stop(kernel.handle);
        outstanding_.fetch_sub(1);
      }
      if (!std::all_of(group.begin(), group.end(), [](const Kernel& k) { return k.done; })) break;
      fifo.pop_front();
    }
  }
  return moved;
}

std::int64_t Progress::progress_net(Net* net, bool* moved) {
  Profiler& profiler = host_->profiler;
  const Release release = profiler.release();
  const bool old_states = release.has_old_proxy_states();
  const bool steps_wanted =
      net->handle != nullptr && mask_emits(nccl::kProxyStep, net->work.task->mask, release);
  const Hazards& hazards = host_->options.hazards;
  const std::int64_t now = host_->world->now();
  const bool send = net->op->send;
  StateArgs args;
  const auto op_state = [&](nccl::EventState state, std::size_t steps) {
    if (!old_states) return;
    StateArgs op_args;
    op_args.trans_size = net->last_bytes;
    op_args.steps = static_cast<int>(steps);
    profiler.record(net->handle, state, &op_args);
  };
  const auto step_state = [&](std::size_t k, nccl::EventState state) {
    if (state == nccl::kProxyStepSendPeerWait && old_states) return;
    args.trans_size = net->last_bytes;
    profiler.record(net->steps[k], state, &args);
  };
  if (!net->in_progress) {
    net->in_progress = true;
    *moved = true;
    if (!old_states) profiler.record(net->handle, nccl::kProxyOpInProgress, &args);
  }
  std::int64_t next = kNever;
  for (bool again = true; again;) {
    again = false;
    if (net->posted < net->count() &&
        net->posted - net->done < static_cast<std::size_t>(net->op->depth)) {
      const std::size_t k = net->posted++;
      for (int i = 0; i <= (send ? 0 : hazards.repeat_step_start) && steps_wanted; ++i) {
        Event event;
        event.descr.type = nccl::kProxyStep;
        event.descr.parent_obj = net->handle;
        event.descr.rank = net->work.foreign ? net->op->peer : net->work.comm->config.shape.rank;
        event.descr.proxy_step.step = static_cast<std::int32_t>(k);
        profiler.start(net->context, &net->steps[k], event);
      }
      step_state(k, send ? nccl::kProxyStepSendGpuWait : nccl::kProxyStepRecvWait);
      op_state(send ? nccl::kProxyOpSendPosted : nccl::kProxyOpRecvPosted, net->posted);
      again = *moved = true;
    }
    if (send) {
      if (net->moved < net->posted) {
        const std::int64_t when = net->ready(net->moved);
        if (when <= now) {
          const std::size_t k = net->moved++;
          for (int i = 0; i <= hazards.repeat_peer_wait; ++i) {
            step_state(k, nccl::kProxyStepSendPeerWait);
          }
          op_state(nccl::kProxyOpSendRemFifoWait, net->moved);
          net->last_bytes = net->op->bytes[k];
          step_state(k, nccl::kProxyStepSendWait);
          if (hazards.net_plugin && mask_emits(nccl::kNetPlugin, net->work.task->mask, release)) {
            nccl::NetIbDescrV1 payload{};
            payload.type = 1;
            payload.qp.length = net->last_bytes;
            payload.qp.wr_id = k;
            Event event;
            event.descr.type = nccl::kNetPlugin;
            event.descr.parent_obj = net->steps[k];
            event.descr.rank = net->work.comm->config.shape.rank;
            event.descr.net_plugin.id = nccl::kNetIbV1;
            event.descr.net_plugin.data = &payload;
            void* handle = nullptr;
            profiler.start(net->context, &handle, event);
            profiler.stop(handle);
          }
          op_state(nccl::kProxyOpSendTransmitted, net->moved);
          net->last_done = std::max(net->last_done, when);
          again = *moved = true;
        } else {
          next = std::min(next, when);
        }
      }
      if (net->done < net->moved) {
        const std::int64_t when =
            plus(std::max(net->last_done, net->ready(net->done)), net->wire(net->done));
        if (when <= now) {
          const std::size_t k = net->done++;
          net->last_done = when;
          profiler.stop(net->steps[k]);
          net->steps[k] = nullptr;
          op_state(nccl::kProxyOpSendDone, net->done);
          again = *moved = true;
        } else {
          next = std::min(next, when);
        }
      }
    } else {
      if (net->moved < net->posted) {
        const std::int64_t when = net->arrival(net->moved);
        if (when <= now) {
          const std::size_t k = net->moved++;
          net->last_bytes = net->op->bytes[k];
          step_state(k, nccl::kProxyStepRecvFlushWait);
          op_state(nccl::kProxyOpRecvReceived, net->moved);
          step_state(k, nccl::kProxyStepRecvGpuWait);
          op_state(nccl::kProxyOpRecvTransmitted, net->moved);
          again = *moved = true;
        } else {
          next = std::min(next, when);
        }
      }
      if (net->done < net->moved) {
        const std::int64_t start = net->work.timing->own_start.load();
        const std::int64_t when =
            start == 0 ? kNever : std::max(start, net->arrival(net->done)) + net->consume();
        if (when <= now) {
          const std::size_t k = net->done++;
          profiler.stop(net->steps[k]);
          net->steps[k] = nullptr;
          op_state(nccl::kProxyOpRecvDone, net->done);
          again = *moved = true;
        } else {
          next = std::min(next, when);
        }
      }
    }
  }
  return next;
}

void Progress::run() {
  World& world = *host_->world;
  void* sleep_handle = nullptr;
  bool active = true;
  while (!abandoned_.load()) {
    const std::uint32_t seen = world.version(word_);
    std::vector<ProxyWork> arrived;
    bool closing = false;
    bool forgot = false;
    {
      std::lock_guard guard(mutex_);
      arrived.swap(inbox_);
      for (Comm* comm : forgotten_) {
        std::erase_if(kernel_fifos_, [&](const auto& entry) {
          if (entry.first.first != comm) return false;
          for (const auto& group : entry.second) {
            for (const Kernel& kernel : group) {
              if (!kernel.done) outstanding_.fetch_sub(1);
            }
          }
          return true;
        });
        std::erase_if(arrived, [&](const ProxyWork& work) {
          if (work.comm == comm) outstanding_.fetch_sub(1);
          return work.comm == comm;
        });
        forgot = true;
      }
      forgotten_.clear();
      closing = closing_.load();
    }
    if (forgot) world.notify(word_);
    if (!arrived.empty()) {
      if (sleep_handle != nullptr) control(nccl::kProxyCtrlWakeup, 0, false, true, &sleep_handle);
      sleep_handle = nullptr;
      append(std::move(arrived));
      if (network_ && !active) {
        void* handle = nullptr;
        control(nccl::kProxyCtrlActive, 0, true, true, &handle);
        active = true;
      }
    }
    if (host_->options.hazards.proxy_delay_ns > 0 && outstanding_.load() > 0) {
      world.sleep_until(world.now() + host_->options.hazards.proxy_delay_ns);
    }
    bool moved = false;
    if (kernels_) moved = progress_kernels() || moved;
    std::int64_t next = kNever;
    for (auto& [key, fifo] : net_fifos_) {
      while (!fifo.empty()) {
        Net* net = fifo.front().get();
        next = std::min(next, progress_net(net, &moved));
        if (net->done < net->count()) break;
        host_->profiler.stop(net->handle);
        fifo.pop_front();
        outstanding_.fetch_sub(1);
      }
    }
    if (abandoned_.load()) break;
    if (moved) {
      if (outstanding_.load() == 0) world.notify(word_);  // somebody may wait for that
      continue;                                           // something may have become due meanwhile
    }
    if (outstanding_.load() == 0) {
      if (closing) break;
      if (network_ && active) {
        void* handle = nullptr;
        control(nccl::kProxyCtrlIdle, 0, true, true, &handle);
        active = false;
        control(nccl::kProxyCtrlSleep, 0, true, false, &sleep_handle);
      }
    }
    if (next != kNever) next = std::max(next, world.now() + 1);
    world.wait(word_, seen, next);
  }
  if (sleep_handle != nullptr && !abandoned_.load()) {
    control(nccl::kProxyCtrlWakeup, 0, false, true, &sleep_handle);
  }
  done_.store(true);
  world.notify(word_);
}

}  // namespace ncclscope::sim
