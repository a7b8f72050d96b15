// SPDX-License-Identifier: Apache-2.0
// A profiler plugin that writes every callback down, one JSON line each, in the format of the
// recordings in tests/data/nccl-traces (plus "role": the name of the calling thread). Built once
// per interface version: RECORDER_INTERFACE says which one it exports. Any thread; one mutex; lines
// are written at once, so that a killed process loses nothing.
//
//   NCCLSCOPE_SIM_RECORD       file to append to; without it nothing is recorded
//   NCCLSCOPE_SIM_RECORD_MASK  activation mask, default 0xffff
//   NCCLSCOPE_SIM_RECORD_NULL  "1": NULL handles for GroupApi, CollApi, P2pApi, Group, KernelLaunch
//   NCCLSCOPE_SIM_RECORD_FAIL  "k": the k-th init of the process fails
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proto/nccl/profiler.h"

#ifndef RECORDER_INTERFACE
#error "RECORDER_INTERFACE must be 1 to 7"
#endif

namespace {

using namespace ncclscope::nccl;  // NOLINT(google-build-using-namespace): one interface's names

#define NCCLSCOPE_RECORDER_JOIN(a, b) a##b
#define NCCLSCOPE_RECORDER_PASTE(a, b) NCCLSCOPE_RECORDER_JOIN(a, b)
using Descr = NCCLSCOPE_RECORDER_PASTE(DescrV, RECORDER_INTERFACE);
using Args = NCCLSCOPE_RECORDER_PASTE(StateArgsV, RECORDER_INTERFACE);
using Table = NCCLSCOPE_RECORDER_PASTE(ProfilerV, RECORDER_INTERFACE);

// Plain data only: the library must be able to be unloaded and to start afresh.
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
FILE* g_file = nullptr;
long g_contexts = 0;
long g_handles = 0;
long g_inits = 0;
int g_mask = 0xffff;
bool g_null = false;
long g_fail = 0;
constexpr int kMaxThreads = 256;
pid_t g_threads[kMaxThreads];
int g_thread_count = 0;
unsigned char g_types[1 << 20];  // bit index of each handle's type, for reading state arguments

constexpr std::uintptr_t kHandleBase = 0x100000000;

std::int64_t now_ns() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return std::int64_t{ts.tv_sec} * 1000000000 + ts.tv_nsec;
}

/// Begins a line; the caller holds the mutex.
void begin(const char* callback) {
  // Kernel ids: pthread ids of short-lived threads are used again.
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  int index = 0;
  while (index < g_thread_count && g_threads[index] != self) ++index;
  if (index == g_thread_count && g_thread_count < kMaxThreads) g_threads[g_thread_count++] = self;
  char name[16] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  std::fprintf(g_file, "{\"t\":%lld,\"thread\":%d,\"role\":\"%s\",\"cb\":\"%s\"",
               static_cast<long long>(now_ns()), index, name, callback);
}
void end() {
  std::fputs("}\n", g_file);
}

[[maybe_unused]] void text(const char* key, const char* value) {
  if (value == nullptr) {
    std::fprintf(g_file, ",\"%s\":null", key);
  } else {
    std::fprintf(g_file, ",\"%s\":\"%s\"", key, value);
  }
}
void number(const char* key, long long value) {
  std::fprintf(g_file, ",\"%s\":%lld", key, value);
}
[[maybe_unused]] void flag(const char* key, bool value) {
  std::fprintf(g_file, ",\"%s\":%s", key, value ? "true" : "false");
}
void handle_field(const char* key, const void* handle) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value == 0) {
    std::fprintf(g_file, ",\"%s\":null", key);
  } else if (value > kHandleBase && value <= kHandleBase + static_cast<std::uintptr_t>(g_handles)) {
    std::fprintf(g_file, ",\"%s\":%llu", key, static_cast<unsigned long long>(value - kHandleBase));
  } else {
    std::fprintf(g_file, ",\"%s\":\"foreign\"", key);
  }
}

const char* const kTypeNames[16] = {"Group",     "Coll",      "P2p",      "ProxyOp",
                                    "ProxyStep", "ProxyCtrl", "KernelCh", "NetPlugin",
                                    "GroupApi",  "CollApi",   "P2pApi",   "KernelLaunch",
                                    "CeColl",    "CeSync",    "CeBatch",  "KernelPhase"};
const char* const kStateNames[32] = {"ProxyOpSendPosted",      "ProxyOpSendRemFifoWait",
                                     "ProxyOpSendTransmitted", "ProxyOpSendDone",
                                     "ProxyOpRecvPosted",      "ProxyOpRecvReceived",
                                     "ProxyOpRecvTransmitted", "ProxyOpRecvDone",
                                     "ProxyStepSendGPUWait",   "ProxyStepSendWait",
                                     "ProxyStepRecvWait",      "ProxyStepRecvFlushWait",
                                     "ProxyStepRecvGPUWait",   "ProxyCtrlIdle",
                                     "ProxyCtrlActive",        "ProxyCtrlSleep",
                                     "ProxyCtrlWakeup",        "ProxyCtrlAppend",
                                     "ProxyCtrlAppendEnd",     "ProxyOpInProgress",
                                     "ProxyStepSendPeerWait",  "NetPluginUpdate",
                                     "KernelChStop",           "GroupStartApiStop",
                                     "GroupEndApiStart",       "CeCollStart",
                                     "CeCollComplete",         "CeSyncStart",
                                     "CeSyncComplete",         "CeBatchStart",
                                     "CeBatchComplete",        "KernelPhaseStop"};

int bit_index(std::uint64_t type) {
  for (int i = 0; i < 16; ++i) {
    if (type == std::uint64_t{1} << i) return i;
  }
  return 15;
}

void coll_fields(const Descr& d) {
#if RECORDER_INTERFACE <= 3
  text("name", d.coll.name);
  std::fprintf(g_file, ",\"commHash\":\"0x%016llx\"",
               static_cast<unsigned long long>(d.coll.comm_hash));
#endif
  number("seqNumber", static_cast<long long>(d.coll.seq_number));
#if RECORDER_INTERFACE == 1
  number("func", d.coll.func);
#else
  text("func", d.coll.func);
#endif
  number("sendBuff", static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.coll.send_buff)));
  number("recvBuff", static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.coll.recv_buff)));
  number("count", static_cast<long long>(d.coll.count));
  number("root", d.coll.root);
#if RECORDER_INTERFACE == 1
  number("datatype", d.coll.datatype);
  number("op", d.coll.op);
#else
  text("datatype", d.coll.datatype);
#endif
#if RECORDER_INTERFACE <= 2
  number("trafficBytes", static_cast<long long>(d.coll.traffic_bytes));
#endif
#if RECORDER_INTERFACE <= 3
  number("nMaxChannels", d.coll.n_max_channels);
#else
  number("nChannels", d.coll.n_channels);
#endif
  number("nWarps", d.coll.n_warps);
#if RECORDER_INTERFACE == 1
  number("algo", d.coll.algo);
  number("proto", d.coll.proto);
  number("isCollnet", d.coll.is_collnet);
  number("isNvls", d.coll.is_nvls);
#else
  text("algo", d.coll.algo);
  text("proto", d.coll.proto);
#endif
#if RECORDER_INTERFACE >= 5
  handle_field("parentGroup", d.coll.parent_group);
#endif
#if RECORDER_INTERFACE >= 7
  text("kernelVariant", d.coll.kernel_variant);
  flag("isSymColl", d.coll.is_sym_coll);
  number("userTag", static_cast<long long>(d.coll.user_tag));
#endif
}

void p2p_fields(const Descr& d) {
#if RECORDER_INTERFACE <= 3
  text("name", d.p2p.name);
  std::fprintf(g_file, ",\"commHash\":\"0x%016llx\"",
               static_cast<unsigned long long>(d.p2p.comm_hash));
#endif
#if RECORDER_INTERFACE == 1
  number("func", d.p2p.func);
#else
  text("func", d.p2p.func);
#endif
  number("buff", static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.p2p.buff)));
#if RECORDER_INTERFACE == 1
  number("datatype", d.p2p.datatype);
#else
  text("datatype", d.p2p.datatype);
#endif
  number("count", static_cast<long long>(d.p2p.count));
  number("peer", d.p2p.peer);
#if RECORDER_INTERFACE >= 4
  number("nChannels", d.p2p.n_channels);
#endif
#if RECORDER_INTERFACE >= 5
  handle_field("parentGroup", d.p2p.parent_group);
#endif
}

void fields(const Descr& d) {
  switch (static_cast<std::uint64_t>(d.type)) {
    case kColl:
      coll_fields(d);
      break;
    case kP2p:
      p2p_fields(d);
      break;
    case kProxyOp:
      number("pid", d.proxy_op.pid);
      number("channelId", d.proxy_op.channel_id);
      number("peer", d.proxy_op.peer);
      number("nSteps", d.proxy_op.n_steps);
      number("chunkSize", d.proxy_op.chunk_size);
      number("isSend", d.proxy_op.is_send);
      break;
    case kProxyStep:
      number("step", d.proxy_step.step);
      break;
#if RECORDER_INTERFACE >= 3
    case kKernelCh:
      number("channelId", d.kernel_ch.channel_id);
#if RECORDER_INTERFACE >= 4
      number("pTimer", static_cast<long long>(d.kernel_ch.p_timer));
#endif
      break;
    case kNetPlugin:
      number("id", d.net_plugin.id);
      break;
#endif
#if RECORDER_INTERFACE >= 5
    case kGroupApi:
      flag("graphCaptured", d.group_api.graph_captured);
      number("groupDepth", d.group_api.group_depth);
      break;
    case kCollApi:
      text("func", d.coll_api.func);
      number("count", static_cast<long long>(d.coll_api.count));
      text("datatype", d.coll_api.datatype);
      number("root", d.coll_api.root);
      number("stream", static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.coll_api.stream)));
      flag("graphCaptured", d.coll_api.graph_captured);
      break;
    case kP2pApi:
      text("func", d.p2p_api.func);
      number("count", static_cast<long long>(d.p2p_api.count));
      text("datatype", d.p2p_api.datatype);
      number("stream", static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.p2p_api.stream)));
      flag("graphCaptured", d.p2p_api.graph_captured);
      break;
    case kKernelLaunch:
      number("stream",
             static_cast<long long>(reinterpret_cast<std::uintptr_t>(d.kernel_launch.stream)));
      break;
#endif
#if RECORDER_INTERFACE >= 6
    case kCeColl:
      number("seqNumber", static_cast<long long>(d.ce_coll.seq_number));
      text("func", d.ce_coll.func);
      number("count", static_cast<long long>(d.ce_coll.count));
      number("root", d.ce_coll.root);
      text("datatype", d.ce_coll.datatype);
      text("syncStrategy", d.ce_coll.sync_strategy);
      flag("intraBatchSync", d.ce_coll.intra_batch_sync);
      number("batchSize", d.ce_coll.batch_size);
      number("numBatches", d.ce_coll.num_batches);
      number("ceSeqNum", d.ce_coll.ce_seq_num);
      break;
    case kCeSync:
      flag("isComplete", d.ce_sync.is_complete);
      number("nRanks", d.ce_sync.n_ranks);
      break;
    case kCeBatch:
      number("numOps", d.ce_batch.num_ops);
      number("totalBytes", static_cast<long long>(d.ce_batch.total_bytes));
      flag("useIntraSync", d.ce_batch.use_intra_sync);
      break;
#endif
#if RECORDER_INTERFACE >= 7
    case kKernelPhase:
      number("channelId", d.kernel_phase.channel_id);
      number("phaseId", d.kernel_phase.phase_id);
      text("phaseName", d.kernel_phase.phase_name);
      number("pTimer", static_cast<long long>(d.kernel_phase.p_timer));
      break;
#endif
    default:
      break;
  }
}

Result start_event(void* context, void** handle, Descr* descr) {
  *handle = nullptr;
  if (context == nullptr && g_file == nullptr) return kSuccess;
  ::pthread_mutex_lock(&g_mutex);
  const int bit = bit_index(descr->type);
  constexpr std::uint64_t kNullTypes = kGroupApi | kCollApi | kP2pApi | kGroup | kKernelLaunch;
  const bool null_answer = g_null && (kNullTypes >> bit & 1) != 0;
  if (!null_answer) {
    ++g_handles;
    g_types[static_cast<std::size_t>(g_handles) % sizeof(g_types)] =
        static_cast<unsigned char>(bit);
    *handle = reinterpret_cast<void*>(kHandleBase + static_cast<std::uintptr_t>(g_handles));
  }
  if (g_file != nullptr) {
    begin("start");
    const auto ctx = reinterpret_cast<std::uintptr_t>(context);
    if (ctx <= static_cast<std::uintptr_t>(g_contexts)) {
      number("ctx", static_cast<long long>(ctx));
    } else {
      text("ctx", "foreign");
    }
    handle_field("h", *handle);
    text("type", kTypeNames[bit]);
    number("bit", 1LL << bit);
    handle_field("parent", descr->parent_obj);
    number("rank", descr->rank);
    fields(*descr);
    end();
  }
  ::pthread_mutex_unlock(&g_mutex);
  return kSuccess;
}

Result stop_event(void* handle) {
  ::pthread_mutex_lock(&g_mutex);
  if (g_file != nullptr) {
    begin("stop");
    handle_field("h", handle);
    end();
  }
  ::pthread_mutex_unlock(&g_mutex);
  return kSuccess;
}

Result record_event_state(void* handle, EventState state, Args* args) {
  ::pthread_mutex_lock(&g_mutex);
  if (g_file != nullptr) {
    begin("record");
    handle_field("h", handle);
    text("state", state < 32 ? kStateNames[state] : "?");
    number("num", state);
    if (args == nullptr) {
      std::fputs(",\"args\":null", g_file);
    } else {
      std::fputs(",\"args\":{", g_file);
      [[maybe_unused]] const bool control = state >= kProxyCtrlIdle && state <= kProxyCtrlAppendEnd;
#if RECORDER_INTERFACE <= 3
      if (control) {
        std::fprintf(g_file, "\"appendedProxyOps\":%d", args->proxy_ctrl.appended_proxy_ops);
      } else {
        std::fprintf(g_file, "\"transSize\":%zu,\"steps\":%d", args->proxy_op.trans_size,
                     args->proxy_op.steps);
      }
#else
      if (control) {
        std::fprintf(g_file, "\"appendedProxyOps\":%d", args->proxy_ctrl.appended_proxy_ops);
      } else if (state == kKernelChStop || state == kKernelPhaseStop) {
        std::fprintf(g_file, "\"pTimer\":%llu",
                     static_cast<unsigned long long>(args->kernel_ch.p_timer));
      } else if ((state >= kProxyStepSendGpuWait && state <= kProxyStepRecvGpuWait) ||
                 state == kProxyStepSendPeerWait) {
        std::fprintf(g_file, "\"transSize\":%zu", args->proxy_step.trans_size);
      } else {
        std::fprintf(g_file, "\"raw\":%llu",
                     static_cast<unsigned long long>(args->kernel_ch.p_timer));
      }
#endif
      std::fputc('}', g_file);
    }
    end();
  }
  ::pthread_mutex_unlock(&g_mutex);
  return kSuccess;
}

Result finalize(void* context) {
  ::pthread_mutex_lock(&g_mutex);
  if (g_file != nullptr) {
    begin("finalize");
    number("ctx", static_cast<long long>(reinterpret_cast<std::uintptr_t>(context)));
    end();
  }
  ::pthread_mutex_unlock(&g_mutex);
  return kSuccess;
}

Result init_common(void** context, int* mask, [[maybe_unused]] const char* name,
                   [[maybe_unused]] std::uint64_t id, [[maybe_unused]] int n_nodes,
                   [[maybe_unused]] int n_ranks, [[maybe_unused]] int rank) {
  ::pthread_mutex_lock(&g_mutex);
  ++g_inits;
  const int found = *mask;
  *mask = g_mask;
  const bool fail = g_inits == g_fail;
  *context = nullptr;
  if (!fail) *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(++g_contexts));
  if (g_file != nullptr) {
    begin("init");
    number("ctx", static_cast<long long>(reinterpret_cast<std::uintptr_t>(*context)));
#if RECORDER_INTERFACE >= 4
    std::fprintf(g_file, ",\"commId\":\"0x%016llx\"", static_cast<unsigned long long>(id));
    text("commName", name);
    number("nNodes", n_nodes);
    number("nranks", n_ranks);
    number("rank", rank);
#endif
    number("maskFound", found);
    number("maskSet", g_mask);
    end();
  }
  ::pthread_mutex_unlock(&g_mutex);
  return fail ? kInternalError : kSuccess;
}

#if RECORDER_INTERFACE <= 3
Result init(void** context, int* mask) {
  return init_common(context, mask, nullptr, 0, 0, 0, 0);
}
#elif RECORDER_INTERFACE == 4
Result init(void** context, int* mask, const char* name, std::uint64_t hash, int n_nodes,
            int n_ranks, int rank, DebugLogger) {
  return init_common(context, mask, name, hash, n_nodes, n_ranks, rank);
}
#else
Result init(void** context, std::uint64_t id, int* mask, const char* name, int n_nodes, int n_ranks,
            int rank, DebugLogger) {
  return init_common(context, mask, name, id, n_nodes, n_ranks, rank);
}
#endif

__attribute__((constructor)) void loaded() {
  const char* path = std::getenv("NCCLSCOPE_SIM_RECORD");
  const char* mask = std::getenv("NCCLSCOPE_SIM_RECORD_MASK");
  const char* null_answer = std::getenv("NCCLSCOPE_SIM_RECORD_NULL");
  const char* fail = std::getenv("NCCLSCOPE_SIM_RECORD_FAIL");
  if (mask != nullptr) g_mask = static_cast<int>(std::strtol(mask, nullptr, 0));
  g_null = null_answer != nullptr && null_answer[0] == '1';
  if (fail != nullptr) g_fail = std::strtol(fail, nullptr, 0);
  // Numbers go on after the library was unloaded and loaded again.
  if (const char* state = std::getenv("NCCLSCOPE_SIM_RECORD_STATE")) {
    char* rest = nullptr;
    g_contexts = std::strtol(state, &rest, 10);
    if (*rest == ',') g_handles = std::strtol(rest + 1, &rest, 10);
    while (*rest == ',' && g_thread_count < kMaxThreads) {
      g_threads[g_thread_count++] = static_cast<pid_t>(std::strtol(rest + 1, &rest, 10));
    }
  }
  if (path == nullptr) return;
  g_file = std::fopen(path, "ae");
  if (g_file == nullptr) return;
  ::setvbuf(g_file, nullptr, _IOLBF, 0);
  begin("load");
  end();
}

__attribute__((destructor)) void unloaded() {
  if (g_file == nullptr) return;
  begin("unload");
  end();
  std::fclose(g_file);
  g_file = nullptr;
  char state[4096];
  std::size_t used = static_cast<std::size_t>(
      std::snprintf(state, sizeof(state), "%ld,%ld", g_contexts, g_handles));
  for (int i = 0; i < g_thread_count && used + 16 < sizeof(state); ++i) {
    used += static_cast<std::size_t>(
        std::snprintf(state + used, sizeof(state) - used, ",%d", g_threads[i]));
  }
  ::setenv("NCCLSCOPE_SIM_RECORD_STATE", state, 1);
}

}  // namespace

extern "C" __attribute__((visibility("default")))
Table NCCLSCOPE_RECORDER_PASTE(ncclProfiler_v, RECORDER_INTERFACE);
Table NCCLSCOPE_RECORDER_PASTE(ncclProfiler_v, RECORDER_INTERFACE) = {
    "recorder", init, start_event, stop_event, record_event_state, finalize};
