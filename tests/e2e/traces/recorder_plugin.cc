// SPDX-License-Identifier: Apache-2.0
//
// A profiler plugin for tests: writes every callback as a line in the format of
// tests/data/nccl-traces, so that a replayed recording can be compared with its source. Exports v1
// to v7. Output file: RECORDER_OUTPUT. RECORDER_MASK is the mask it sets (default: everything),
// RECORDER_NULL the types it answers with NULL.
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>

#include "proto/nccl/profiler.h"

namespace {

using namespace ncclscope::nccl;  // NOLINT(google-build-using-namespace)

std::mutex g_mutex;
std::FILE* g_out = nullptr;
std::uintptr_t g_next_handle = 1;
std::uintptr_t g_next_context = 1;
std::map<std::uintptr_t, std::uint32_t> g_types;  // by handle

std::uint32_t number_from_environment(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 0));
}

long long now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long long>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class Line {
 public:
  explicit Line(const char* callback) {
    add_number("t", now());
    add_number("tid", gettid());
    add("cb", std::string("\"") + callback + "\"");
  }
  ~Line() {
    if (g_out == nullptr) {
      const char* file = std::getenv("RECORDER_OUTPUT");
      g_out = std::fopen(file != nullptr ? file : "/dev/null", "a");
    }
    if (g_out == nullptr) return;
    std::fprintf(g_out, "{%s}\n", text_.c_str());
    std::fflush(g_out);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void add(const char* key, const std::string& value) {
    if (!text_.empty()) text_ += ',';
    text_ += '"';
    text_ += key;
    text_ += "\":";
    text_ += value;
  }
  void add_number(const char* key, long long v) { add(key, std::to_string(v)); }
  template <typename T>
  void field(const char* key, const T& v) {
    if constexpr (std::is_same_v<T, const char*>) {
      add(key, v == nullptr ? "null" : std::string("\"") + v + "\"");
    } else if constexpr (std::is_same_v<T, bool>) {
      add(key, v ? "true" : "false");
    } else if constexpr (std::is_pointer_v<T>) {
      add(key, std::to_string(reinterpret_cast<std::uintptr_t>(v)));
    } else {
      add(key, std::to_string(v));
    }
  }

 private:
  std::string text_;
};

/// Hands out handles 1, 2, 3 ... in order of the starts: the recorder's own numbering.
void give_handle(Line& line, void** handle, std::uint32_t type) {
  *handle = nullptr;
  if ((number_from_environment("RECORDER_NULL", 0) & type) == 0) {
    g_types[g_next_handle] = type;
    *handle = reinterpret_cast<void*>(g_next_handle++);
  }
  line.field("h", *handle);
}

template <typename D>
void describe_task(Line& line, std::uint32_t type, const D& d) {
  const auto common = [&line](const auto& t) {
    if constexpr (requires { t.comm_hash; }) {
      line.field("name", t.name);
      line.field("commHash", t.comm_hash);
    }
    line.field("func", t.func);
    line.field("count", t.count);
    line.field("datatype", t.datatype);
    if constexpr (requires { t.n_channels; }) line.field("nChannels", t.n_channels);
    if constexpr (requires { t.parent_group; }) line.field("parentGroup", t.parent_group);
  };
  if (type == kColl) {
    const auto& c = d.coll;
    common(c);
    line.field("seqNumber", c.seq_number);
    line.field("sendBuff", c.send_buff);
    line.field("recvBuff", c.recv_buff);
    line.field("root", c.root);
    if constexpr (requires { c.op; }) line.field("op", c.op);
    if constexpr (requires { c.traffic_bytes; }) line.field("trafficBytes", c.traffic_bytes);
    if constexpr (requires { c.n_max_channels; }) line.field("nMaxChannels", c.n_max_channels);
    line.field("nWarps", c.n_warps);
    line.field("algo", c.algo);
    line.field("proto", c.proto);
    if constexpr (requires { c.is_collnet; }) {
      line.field("isCollnet", c.is_collnet);
      line.field("isNvls", c.is_nvls);
    }
  } else {
    common(d.p2p);
    line.field("buff", d.p2p.buff);
    line.field("peer", d.p2p.peer);
  }
}

template <typename D>
void describe(Line& line, std::uint32_t type, const D& d) {
  switch (type) {
    case kColl:
    case kP2p:
      describe_task(line, type, d);
      return;
    case kProxyOp:
      line.field("pid", d.proxy_op.pid);
      line.field("channelId", d.proxy_op.channel_id);
      line.field("peer", d.proxy_op.peer);
      line.field("nSteps", d.proxy_op.n_steps);
      line.field("chunkSize", d.proxy_op.chunk_size);
      line.field("isSend", d.proxy_op.is_send);
      return;
    case kProxyStep:
      line.field("step", d.proxy_step.step);
      return;
    default:
      break;
  }
  if constexpr (requires { d.kernel_ch; }) {
    if (type == kKernelCh) {
      line.field("channelId", d.kernel_ch.channel_id);
      if constexpr (requires { d.kernel_ch.p_timer; }) line.field("pTimer", d.kernel_ch.p_timer);
    }
  }
  if constexpr (requires { d.group_api; }) {
    if (type == kGroupApi) {
      line.field("graphCaptured", d.group_api.graph_captured);
      line.field("groupDepth", d.group_api.group_depth);
    } else if (type == kCollApi) {
      line.field("func", d.coll_api.func);
      line.field("count", d.coll_api.count);
      line.field("datatype", d.coll_api.datatype);
      line.field("root", d.coll_api.root);
      line.field("stream", d.coll_api.stream);
      line.field("graphCaptured", d.coll_api.graph_captured);
    } else if (type == kP2pApi) {
      line.field("func", d.p2p_api.func);
      line.field("count", d.p2p_api.count);
      line.field("datatype", d.p2p_api.datatype);
      line.field("stream", d.p2p_api.stream);
      line.field("graphCaptured", d.p2p_api.graph_captured);
    } else if (type == kKernelLaunch) {
      line.field("stream", d.kernel_launch.stream);
    }
  }
  if constexpr (requires { d.ce_coll; }) {
    if (type == kCeColl) {
      const auto& c = d.ce_coll;
      line.field("seqNumber", c.seq_number);
      line.field("func", c.func);
      line.field("sendBuff", c.send_buff);
      line.field("recvBuff", c.recv_buff);
      line.field("count", c.count);
      line.field("root", c.root);
      line.field("datatype", c.datatype);
      line.field("syncStrategy", c.sync_strategy);
      line.field("intraBatchSync", c.intra_batch_sync);
      line.field("batchSize", c.batch_size);
      line.field("numBatches", c.num_batches);
      line.field("ceSeqNum", c.ce_seq_num);
      line.field("stream", c.stream);
    } else if (type == kCeSync) {
      line.field("isComplete", d.ce_sync.is_complete);
      line.field("nRanks", d.ce_sync.n_ranks);
    } else if (type == kCeBatch) {
      line.field("numOps", d.ce_batch.num_ops);
      line.field("totalBytes", d.ce_batch.total_bytes);
      line.field("useIntraSync", d.ce_batch.use_intra_sync);
    }
  }
}

void init_line(Line& line, void** context, int* mask) {
  *context = reinterpret_cast<void*>(g_next_context++);
  line.field("ctx", *context);
  line.field("maskFound", *mask);
  *mask = static_cast<int>(number_from_environment("RECORDER_MASK", 0x7fff));
  line.field("maskSet", *mask);
}

Result init_old(void** context, int* mask) {
  const std::lock_guard lock(g_mutex);
  Line line("init");
  init_line(line, context, mask);
  return kSuccess;
}

void identity(Line& line, const char* name, std::uint64_t id, int nodes, int ranks, int rank) {
  char hex[32];
  std::snprintf(hex, sizeof hex, "\"0x%016llx\"", static_cast<unsigned long long>(id));
  line.add("commId", hex);
  line.field("commName", name);
  line.field("nNodes", nodes);
  line.field("nranks", ranks);
  line.field("rank", rank);
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t id, int nodes, int ranks,
               int rank, DebugLogger) {
  const std::lock_guard lock(g_mutex);
  Line line("init");
  init_line(line, context, mask);
  identity(line, name, id, nodes, ranks, rank);
  return kSuccess;
}

Result init_v5(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int ranks,
               int rank, DebugLogger log) {
  return init_v4(context, mask, name, id, nodes, ranks, rank, log);
}

template <typename D>
Result start(void* context, void** handle, D* d) {
  const std::lock_guard lock(g_mutex);
  Line line("start");
  const auto type = static_cast<std::uint32_t>(d->type);
  line.field("ctx", context);
  give_handle(line, handle, type);
  line.field("bit", type);
  line.field("parent", d->parent_obj);
  line.field("rank", d->rank);
  describe(line, type, *d);
  return kSuccess;
}

Result stop(void* handle) {
  const std::lock_guard lock(g_mutex);
  Line line("stop");
  line.field("h", handle);
  return kSuccess;
}

template <typename A>
Result record(void* handle, EventState state, A* args) {
  const std::lock_guard lock(g_mutex);
  Line line("record");
  line.field("h", handle);
  line.add_number("num", state);
  line.field("argsNull", args == nullptr);
  if (args == nullptr) return kSuccess;
  if (state >= kProxyCtrlIdle && state <= kProxyCtrlAppendEnd) {
    line.field("appendedProxyOps", args->proxy_ctrl.appended_proxy_ops);
  }
  const bool step = (state >= kProxyStepSendGpuWait && state <= kProxyStepRecvGpuWait) ||
                    state == kProxyStepSendPeerWait;
  if constexpr (requires { args->proxy_step; }) {
    if (step) line.field("transSize", args->proxy_step.trans_size);
    if (state == kKernelChStop) line.field("pTimer", args->kernel_ch.p_timer);
    if (state == kProxyOpInProgress) line.field("raw", args->kernel_ch.p_timer);
  } else {
    if (step) {
      line.field("transSize", args->proxy_op.trans_size);
      line.field("steps", args->proxy_op.steps);
    }
  }
  return kSuccess;
}

Result finalize(void* context) {
  const std::lock_guard lock(g_mutex);
  Line line("finalize");
  line.field("ctx", context);
  return kSuccess;
}

}  // namespace

#define RECORDER_TABLE(version, init)                                                           \
  extern "C" __attribute__((visibility("default"))) ProfilerV##version ncclProfiler_v##version; \
  ProfilerV##version ncclProfiler_v##version = {                                                \
      "recorder", &init, &start<DescrV##version>, &stop, &record<StateArgsV##version>, &finalize};
RECORDER_TABLE(1, init_old)
RECORDER_TABLE(2, init_old)
RECORDER_TABLE(3, init_old)
RECORDER_TABLE(4, init_v4)
RECORDER_TABLE(5, init_v5)
RECORDER_TABLE(6, init_v5)
RECORDER_TABLE(7, init_v5)
