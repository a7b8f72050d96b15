// SPDX-License-Identifier: Apache-2.0
//
// Calls the real plugin through its table as NCCL 2.28 would (interface v5): loads the shared
// object, builds descriptors. For tests that need exact control over single callbacks; sim/ is the
// emulator that behaves like a whole NCCL.
#pragma once

#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "proto/nccl/profiler.h"

namespace ncclscope::tests {

template <typename Table>
const Table* load_table(const char* path, int version) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto* table = static_cast<const Table*>(dlsym(library, nccl::kProfilerSymbols[version - 1]));
  if (table == nullptr)
    throw std::runtime_error("no table " + std::to_string(version) + " in " + path);
  return table;
}

/// One communicator rank driven by hand.
class DrivenCommunicator {
 public:
  DrivenCommunicator(const nccl::ProfilerV5* table, std::uint64_t hash, int nranks, int rank,
                     const char* name = "dp", int nnodes = 2)
      : table_(table), rank_(rank) {
    table_->init(&context_, hash, &mask(), name, nnodes, nranks, rank, nullptr);
  }

  /// NCCL's process-wide mask.
  static int& mask() {
    static int value = 0;
    return value;
  }
  void* context() const { return context_; }
  const nccl::ProfilerV5* table() const { return table_; }

  void* start(nccl::DescrV5 d) const {
    void* handle = reinterpret_cast<void*>(0x1234);
    table_->start_event(context_, &handle, &d);
    return handle;
  }
  static nccl::DescrV5 blank(nccl::EventType type, void* parent, int rank = 0) {
    nccl::DescrV5 d;
    std::memset(&d, 0, sizeof d);
    d.type = type;
    d.parent_obj = parent;
    d.rank = rank;
    return d;
  }
  void* start_group_api() const {
    auto d = blank(nccl::kGroupApi, nullptr);
    d.group_api.group_depth = 1;
    void* h = start(d);
    record(h, nccl::kGroupStartApiStop, nullptr);
    return h;
  }
  void* start_coll_api(void* group, const char* func, std::size_t count, const char* type,
                       int root = 0, bool captured = false) const {
    auto d = blank(nccl::kCollApi, group);
    d.coll_api.func = func;
    d.coll_api.count = count;
    d.coll_api.datatype = type;
    d.coll_api.root = root;
    d.coll_api.graph_captured = captured;
    return start(d);
  }
  void* start_p2p_api(void* group, const char* func, std::size_t count, const char* type) const {
    auto d = blank(nccl::kP2pApi, group);
    d.p2p_api.func = func;
    d.p2p_api.count = count;
    d.p2p_api.datatype = type;
    return start(d);
  }
  void* start_plan() const { return start(blank(nccl::kGroup, nullptr)); }
  void* start_coll(void* api, void* plan, const char* func, std::size_t count, const char* type,
                   std::uint8_t channels, std::uint64_t seq = 0, const char* algo = "RING",
                   const char* proto = "SIMPLE", int root = 0) const {
    auto d = blank(nccl::kColl, api, rank_);
    d.coll.seq_number = seq;
    d.coll.func = func;
    d.coll.count = count;
    d.coll.root = root;
    d.coll.datatype = type;
    d.coll.n_channels = channels;
    d.coll.n_warps = 8;
    d.coll.algo = algo;
    d.coll.proto = proto;
    d.coll.parent_group = plan;
    return start(d);
  }
  void* start_p2p(void* api, void* plan, const char* func, std::size_t count, const char* type,
                  int peer, std::uint8_t channels) const {
    auto d = blank(nccl::kP2p, api, rank_);
    d.p2p.func = func;
    d.p2p.count = count;
    d.p2p.datatype = type;
    d.p2p.peer = peer;
    d.p2p.n_channels = channels;
    d.p2p.parent_group = plan;
    return start(d);
  }
  void* start_kernel(void* task, std::uint8_t channel, std::uint64_t gpu_ns) const {
    auto d = blank(nccl::kKernelCh, task);
    d.kernel_ch.channel_id = channel;
    d.kernel_ch.p_timer = gpu_ns;
    return start(d);
  }
  void stop_kernel(void* kernel, std::uint64_t gpu_ns) const {
    if (kernel == nullptr) return;
    nccl::StateArgsV5 args;
    args.kernel_ch.p_timer = gpu_ns;
    record(kernel, nccl::kKernelChStop, &args);
    stop(kernel);
  }
  void* start_proxy_op(void* task, int pid, std::uint8_t channel, int peer, bool is_send) const {
    auto d = blank(nccl::kProxyOp, task, rank_);
    d.proxy_op.pid = pid;
    d.proxy_op.channel_id = channel;
    d.proxy_op.peer = peer;
    d.proxy_op.n_steps = 4;
    d.proxy_op.is_send = is_send ? 1 : 0;
    return start(d);
  }
  void* start_proxy_step(void* op, int step) const {
    auto d = blank(nccl::kProxyStep, op, rank_);
    d.proxy_step.step = step;
    return start(d);
  }
  void record(void* handle, nccl::EventState state, nccl::StateArgsV5* args) const {
    if (handle != nullptr) table_->record_event_state(handle, state, args);
  }
  void record_bytes(void* handle, nccl::EventState state, std::size_t bytes) const {
    nccl::StateArgsV5 args;
    args.proxy_step.trans_size = bytes;
    record(handle, state, &args);
  }
  void stop(void* handle) const {
    if (handle != nullptr) table_->stop_event(handle);
  }

  /// The launch side of one blocking collective: API calls, plan, task. Returns the task's handle,
  /// stopped.
  void* launch(const char* func, std::size_t count, const char* type, std::uint8_t channels,
               std::uint64_t seq = 0) const {
    void* group = start_group_api();
    void* api = start_coll_api(group, func, count, type);
    stop(api);
    record(group, nccl::kGroupEndApiStart, nullptr);
    void* plan = start_plan();
    void* task = start_coll(api, plan, func, count, type, channels, seq);
    stop(task);
    stop(plan);
    stop(group);
    return task;
  }
  /// All channels report `start` … `end`.
  void complete(void* task, unsigned channels, std::uint64_t start, std::uint64_t end,
                unsigned first_channel = 0) const {
    void* kernels[64] = {};
    for (unsigned i = 0; i < channels; ++i) {
      kernels[i] = start_kernel(task, static_cast<std::uint8_t>(first_channel + i), start);
    }
    for (unsigned i = 0; i < channels; ++i) stop_kernel(kernels[i], end);
  }
  /// The 58 calls of a 16-channel collective on one node when channels == 16.
  void all_reduce(std::size_t count, unsigned channels, std::uint64_t gpu_start,
                  std::uint64_t gpu_end, std::uint64_t seq = 0) const {
    complete(launch("AllReduce", count, "ncclFloat32", static_cast<std::uint8_t>(channels), seq),
             channels, gpu_start, gpu_end);
  }
  void finalize() { table_->finalize(context_); }

 private:
  const nccl::ProfilerV5* table_;
  void* context_ = nullptr;
  int rank_;
};

/// The host's realtime clock: what a GPU clock on a sane driver shows.
inline std::uint64_t gpu_now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace ncclscope::tests
