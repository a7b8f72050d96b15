// SPDX-License-Identifier: Apache-2.0
// The plugin inside the test program: see probe_plugin.h.
#include "tests/unit/sim/probe_plugin.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>

namespace ncclscope::sim {
namespace {

std::mutex g_mutex;
Probe g_probe;
std::vector<ProbeCall> g_calls;
std::map<void*, std::uint64_t> g_types;
std::uintptr_t g_next = 0x1000;
int g_inits = 0;
int* g_mask = nullptr;

std::string text(const char* value) {
  return value == nullptr ? "" : value;
}

ProbeCall make(const char* kind, int interface) {
  ProbeCall call;
  call.kind = kind;
  call.interface = interface;
  char name[16] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  call.thread = name;
  call.thread_id = ::syscall(SYS_gettid);
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  call.clock = std::int64_t{ts.tv_sec} * 1000000000 + ts.tv_nsec;
  return call;
}

void keep(ProbeCall call) {
  if (g_probe.hook) g_probe.hook(call);
  g_calls.push_back(std::move(call));
}

nccl::Result init_any(int interface, void** context, int* mask, const char* name,
                      std::uint64_t hash, int rank) {
  std::lock_guard guard(g_mutex);
  g_mask = mask;
  __atomic_store_n(mask, g_probe.mask, __ATOMIC_RELAXED);  // NCCL's threads read it all the time
  ProbeCall call = make("init", interface);
  const bool fail = ++g_inits == g_probe.fail_init;
  *context = fail ? nullptr : reinterpret_cast<void*>(++g_next);
  call.context = *context;
  call.comm_name = text(name);
  call.comm_hash = hash;
  call.rank = rank;
  keep(call);
  return fail ? nccl::kInternalError : nccl::kSuccess;
}

template <int N, typename Descr>
void read(const Descr& d, ProbeCall* call) {
  switch (call->type) {
    case nccl::kColl:
      if constexpr (N == 1) {
        call->func = nccl::kFuncCodesV1[d.coll.func];
        call->datatype = std::to_string(d.coll.datatype);
      } else {
        call->func = text(d.coll.func);
        call->datatype = text(d.coll.datatype);
        call->algo = text(d.coll.algo);
      }
      if constexpr (N <= 3) {
        call->comm_name = text(d.coll.name);
        call->comm_hash = d.coll.comm_hash;
        call->channels = d.coll.n_max_channels;
      } else {
        call->channels = d.coll.n_channels;
      }
      if constexpr (N >= 5) call->group = d.coll.parent_group;
      if constexpr (N >= 7) call->symmetric = d.coll.is_sym_coll;
      call->count = d.coll.count;
      call->sequence = d.coll.seq_number;
      break;
    case nccl::kP2p:
      if constexpr (N > 1) call->func = text(d.p2p.func);
      if constexpr (N >= 4) call->channels = d.p2p.n_channels;
      call->count = d.p2p.count;
      break;
    case nccl::kProxyOp:
      call->pid = d.proxy_op.pid;
      call->channel = d.proxy_op.channel_id;
      break;
    case nccl::kProxyStep:
      call->step = d.proxy_step.step;
      break;
    case nccl::kKernelCh:
      if constexpr (N >= 3) call->channel = d.kernel_ch.channel_id;
      if constexpr (N >= 4) call->timer = d.kernel_ch.p_timer;
      break;
    case nccl::kGroupApi:
      if constexpr (N >= 5) {
        call->captured = d.group_api.graph_captured;
        call->step = d.group_api.group_depth;
      }
      break;
    case nccl::kCollApi:
      if constexpr (N >= 5) {
        call->func = text(d.coll_api.func);
        call->count = d.coll_api.count;
        call->captured = d.coll_api.graph_captured;
      }
      break;
    case nccl::kCeColl:
      if constexpr (N >= 6) {
        call->func = text(d.ce_coll.func);
        call->sequence = d.ce_coll.seq_number;
      }
      break;
    default:
      break;
  }
}

template <int N, typename Descr>
nccl::Result start_any(void* context, void** handle, Descr* descr) {
  std::lock_guard guard(g_mutex);
  ProbeCall call = make("start", N);
  call.type = descr->type;
  call.context = context;
  call.parent = descr->parent_obj;
  call.rank = descr->rank;
  read<N>(*descr, &call);
  if ((g_probe.unwritten_types & call.type) == 0) {
    *handle = nullptr;
    if ((g_probe.null_types & call.type) == 0) {
      *handle = reinterpret_cast<void*>(++g_next);
      g_types[*handle] = call.type;
    }
  }
  call.handle = *handle;
  keep(std::move(call));
  return nccl::kSuccess;
}

template <int N>
nccl::Result stop_any(void* handle) {
  std::lock_guard guard(g_mutex);
  ProbeCall call = make("stop", N);
  call.handle = handle;
  const auto it = g_types.find(handle);
  call.type = it == g_types.end() ? 0 : it->second;
  keep(std::move(call));
  return nccl::kSuccess;
}

template <int N, typename Args>
nccl::Result record_any(void* handle, nccl::EventState state, Args* args) {
  std::lock_guard guard(g_mutex);
  ProbeCall call = make("record", N);
  call.handle = handle;
  const auto it = g_types.find(handle);
  call.type = it == g_types.end() ? 0 : it->second;
  call.state = static_cast<int>(state);
  call.null_args = args == nullptr;
  if constexpr (N >= 4) {
    if (args != nullptr) call.raw_args = args->kernel_ch.p_timer;
    if (args != nullptr && state == nccl::kKernelChStop) call.timer = args->kernel_ch.p_timer;
  }
  keep(std::move(call));
  return nccl::kSuccess;
}

template <int N>
nccl::Result finalize_any(void* context) {
  std::lock_guard guard(g_mutex);
  ProbeCall call = make("finalize", N);
  call.context = context;
  keep(std::move(call));
  return nccl::kSuccess;
}

template <int N>
nccl::Result init_old(void** context, int* mask) {
  return init_any(N, context, mask, nullptr, 0, 0);
}
nccl::Result init_v4(void** context, int* mask, const char* name, std::uint64_t hash, int, int,
                     int rank, nccl::DebugLogger) {
  return init_any(4, context, mask, name, hash, rank);
}
template <int N>
nccl::Result init_new(void** context, std::uint64_t id, int* mask, const char* name, int, int,
                      int rank, nccl::DebugLogger) {
  return init_any(N, context, mask, name, id, rank);
}

}  // namespace

void probe_reset(const Probe& probe) {
  std::lock_guard guard(g_mutex);
  g_probe = probe;
  g_calls.clear();
  g_types.clear();
  g_inits = 0;
}

void probe_mask(int mask) {
  std::lock_guard guard(g_mutex);
  g_probe.mask = mask;
  if (g_mask != nullptr) __atomic_store_n(g_mask, mask, __ATOMIC_RELAXED);
}

std::vector<ProbeCall> probe_calls() {
  std::lock_guard guard(g_mutex);
  return g_calls;
}

std::vector<ProbeCall> probe_calls(const std::string& kind, std::uint64_t type) {
  std::vector<ProbeCall> found;
  for (ProbeCall& call : probe_calls()) {
    if (call.kind == kind && call.type == type) found.push_back(std::move(call));
  }
  return found;
}

std::size_t probe_count(const std::string& kind, std::uint64_t type) {
  return probe_calls(kind, type).size();
}

}  // namespace ncclscope::sim

#define NCCLSCOPE_PROBE_TABLE(n, init)                               \
  extern "C" __attribute__((visibility("default")))                  \
  ncclscope::nccl::ProfilerV##n ncclProfiler_v##n;                   \
  ncclscope::nccl::ProfilerV##n ncclProfiler_v##n = {                \
      "probe",                                                       \
      init,                                                          \
      ncclscope::sim::start_any<n, ncclscope::nccl::DescrV##n>,      \
      ncclscope::sim::stop_any<n>,                                   \
      ncclscope::sim::record_any<n, ncclscope::nccl::StateArgsV##n>, \
      ncclscope::sim::finalize_any<n>}

NCCLSCOPE_PROBE_TABLE(1, ncclscope::sim::init_old<1>);
NCCLSCOPE_PROBE_TABLE(2, ncclscope::sim::init_old<2>);
NCCLSCOPE_PROBE_TABLE(3, ncclscope::sim::init_old<3>);
NCCLSCOPE_PROBE_TABLE(4, ncclscope::sim::init_v4);
NCCLSCOPE_PROBE_TABLE(5, ncclscope::sim::init_new<5>);
NCCLSCOPE_PROBE_TABLE(6, ncclscope::sim::init_new<6>);
NCCLSCOPE_PROBE_TABLE(7, ncclscope::sim::init_new<7>);
