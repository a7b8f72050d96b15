// SPDX-License-Identifier: Apache-2.0
// Loading and adapters: see plugin_loader.h. An adapter's "garbage" is a fixed odd pattern, so that
// a plugin which reads it goes wrong visibly and the same way each time.
#include "sim/plugin_loader.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "sim/virtual_clock.h"

namespace ncclscope::sim {
namespace {

using nccl::EventState;
using nccl::Result;

constexpr unsigned char kGarbage = 0xa7;
constexpr std::size_t kLongestName = 254;
constexpr std::uint64_t kCopyEngineBits = nccl::kCeColl | nccl::kCeSync | nccl::kCeBatch;

/// NCCL matches the *value* as a prefix of the keyword, without regard to case.
bool means_static_plugin(const std::string& value) {
  constexpr char kKeyword[] = "STATIC_PLUGIN";
  return !value.empty() && value.size() < sizeof(kKeyword) &&
         ::strncasecmp(value.c_str(), kKeyword, value.size()) == 0;
}

std::string with_affixes(const std::string& value) {
  return "libnccl-profiler-" + value + ".so";
}

void discard_log(nccl::LogLevel, unsigned long, const char*, int, const char*, ...) {}

__attribute__((format(printf, 5, 6))) void stderr_log(nccl::LogLevel level, unsigned long,
                                                      const char* file, int line,
                                                      const char* format, ...) {
  if (level > nccl::kLogInfo) return;
  std::fprintf(stderr, "NCCL %s:%d ", file == nullptr ? "?" : file, line);
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
}

std::uint64_t known_types(int interface) {
  switch (interface) {
    case 1:
    case 2:
      return 0x3f;
    case 3:
    case 4:
      return 0xff;
    case 5:
      return 0xfff;
    case 6:
      return 0x7fff;
    default:
      return 0xffff;
  }
}

/// v1's codes through the adapters: names that v1 does not know become Send and Float64.
std::uint8_t adapter_func_code(const char* func) {
  for (std::size_t code = 0; code < std::size(nccl::kFuncCodesV1); ++code) {
    if (func != nullptr && std::strcmp(func, nccl::kFuncCodesV1[code]) == 0) {
      return static_cast<std::uint8_t>(code);
    }
  }
  return 6;
}
std::uint8_t adapter_datatype_code(const char* datatype) {
  for (std::uint8_t code = 0; code < 10; ++code) {
    if (code == nccl::kUint8) continue;
    if (datatype != nullptr && std::strcmp(datatype, nccl::kDatatypes[code].profiler_name) == 0) {
      return code;
    }
  }
  return nccl::kFloat64;
}
template <std::size_t N>
std::uint8_t name_code(const char* const (&names)[N], const char* name) {
  for (std::size_t code = 0; code < N; ++code) {
    if (name != nullptr && std::strcmp(name, names[code]) == 0) {
      return static_cast<std::uint8_t>(code);
    }
  }
  return static_cast<std::uint8_t>(N);
}

struct Conversion {
  const Event& event;
  bool native;
  bool identity;  // v1-v3: name and hash are filled
};

template <typename Descr>
void prepare(Descr* descr, bool native) {
  // Natively the descriptor is zeroed; adapters build it on the stack as it is.
  std::memset(static_cast<void*>(descr), native ? 0 : kGarbage, sizeof(*descr));
}

template <typename Descr>
void header(Descr* descr, const Event& event) {
  descr->type = static_cast<decltype(descr->type)>(event.descr.type);
  descr->parent_obj = event.descr.parent_obj;
  descr->rank = event.descr.rank;
}

/// v1-v3 carry who the communicator is in every task. Adapters know none of that.
template <typename Task>
void identify(Task& task, const Conversion& c) {
  task.name = c.identity ? c.event.comm_name : nullptr;
  task.comm_hash = c.identity ? c.event.comm_hash : 0;
}

// The members of Coll and P2p that all versions have, ...
template <typename Coll>
void copy_numbers(Coll& to, const decltype(nccl::DescrV7::coll)& from) {
  to.seq_number = from.seq_number;
  to.send_buff = from.send_buff;
  to.recv_buff = from.recv_buff;
  to.count = from.count;
  to.root = from.root;
  to.n_warps = from.n_warps;
}
template <typename P2p>
void copy_numbers(P2p& to, const decltype(nccl::DescrV7::p2p)& from) {
  to.buff = from.buff;
  to.count = from.count;
  to.peer = from.peer;
}

// ... and with what v1 has as codes, and later ones as names.
template <typename Coll>
void copy_task(Coll& to, const decltype(nccl::DescrV7::coll)& from) {
  copy_numbers(to, from);
  to.func = from.func;
  to.datatype = from.datatype;
  to.algo = from.algo;
  to.proto = from.proto;
}
template <typename P2p>
void copy_task(P2p& to, const decltype(nccl::DescrV7::p2p)& from) {
  copy_numbers(to, from);
  to.func = from.func;
  to.datatype = from.datatype;
}

/// What belongs to tasks, from ProxyOp to NetPlugin, as far as the version has it.
template <typename Descr>
void copy_parts(Descr* d, const nccl::DescrV7& from) {
  switch (from.type) {
    case nccl::kProxyOp:
      d->proxy_op.pid = from.proxy_op.pid;
      d->proxy_op.channel_id = from.proxy_op.channel_id;
      d->proxy_op.peer = from.proxy_op.peer;
      d->proxy_op.n_steps = from.proxy_op.n_steps;
      d->proxy_op.chunk_size = from.proxy_op.chunk_size;
      d->proxy_op.is_send = from.proxy_op.is_send;
      break;
    case nccl::kProxyStep:
      d->proxy_step.step = from.proxy_step.step;
      break;
    case nccl::kKernelCh:
      if constexpr (requires { d->kernel_ch; }) d->kernel_ch.channel_id = from.kernel_ch.channel_id;
      if constexpr (requires { d->kernel_ch.p_timer; })
        d->kernel_ch.p_timer = from.kernel_ch.p_timer;
      break;
    case nccl::kNetPlugin:
      if constexpr (requires { d->net_plugin; }) {
        d->net_plugin.id = from.net_plugin.id;
        d->net_plugin.data = from.net_plugin.data;
      }
      break;
    default:
      break;
  }
}

nccl::DescrV1 to_v1(const Conversion& c) {
  nccl::DescrV1 d;
  prepare(&d, c.native);
  header(&d, c.event);
  const auto& from = c.event.descr;
  if (from.type == nccl::kColl) {
    if (!c.native) d.parent_obj = from.coll.parent_group;
    identify(d.coll, c);
    copy_numbers(d.coll, from.coll);
    d.coll.func = c.native ? c.event.func_code : adapter_func_code(from.coll.func);
    d.coll.datatype = c.native ? c.event.datatype_code : adapter_datatype_code(from.coll.datatype);
    d.coll.op = c.native ? c.event.op : 0;
    d.coll.traffic_bytes = c.identity ? c.event.traffic_bytes : 0;
    d.coll.n_max_channels = c.identity ? c.event.n_max_channels : from.coll.n_channels;
    d.coll.algo = name_code(nccl::kAlgoNames, from.coll.algo);
    d.coll.proto = name_code(nccl::kProtoNames, from.coll.proto);
    d.coll.is_collnet = c.native && (d.coll.algo == 2 || d.coll.algo == 3) ? 1 : 0;
    d.coll.is_nvls = c.native && (d.coll.algo == 4 || d.coll.algo == 5) ? 1 : 0;
  } else if (from.type == nccl::kP2p) {
    if (!c.native) d.parent_obj = from.p2p.parent_group;
    identify(d.p2p, c);
    copy_numbers(d.p2p, from.p2p);
    d.p2p.func = c.native ? c.event.func_code : adapter_func_code(from.p2p.func);
    d.p2p.datatype = c.native ? c.event.datatype_code : adapter_datatype_code(from.p2p.datatype);
  }
  copy_parts(&d, from);
  return d;
}

template <typename Descr>
Descr to_v23(const Conversion& c) {
  Descr d;
  prepare(&d, c.native);
  header(&d, c.event);
  const auto& from = c.event.descr;
  if (from.type == nccl::kColl) {
    if (!c.native) d.parent_obj = from.coll.parent_group;
    identify(d.coll, c);
    copy_task(d.coll, from.coll);
    d.coll.n_max_channels = c.identity ? c.event.n_max_channels : from.coll.n_channels;
    if constexpr (requires { d.coll.traffic_bytes; })
      d.coll.traffic_bytes = c.native ? c.event.traffic_bytes : 0;
  } else if (from.type == nccl::kP2p) {
    if (!c.native) d.parent_obj = from.p2p.parent_group;
    identify(d.p2p, c);
    copy_task(d.p2p, from.p2p);
  }
  copy_parts(&d, from);
  return d;
}

/// The members that v4 and later share, from Coll to NetPlugin.
template <typename Descr>
void tasks_v4(Descr* d, const Event& event) {
  const auto& from = event.descr;
  if (from.type == nccl::kColl) {
    copy_task(d->coll, from.coll);
    d->coll.n_channels = from.coll.n_channels;
  } else if (from.type == nccl::kP2p) {
    copy_task(d->p2p, from.p2p);
  }
  copy_parts(d, from);
}

nccl::DescrV4 to_v4(const Conversion& c) {
  nccl::DescrV4 d;
  prepare(&d, c.native);
  header(&d, c.event);
  const auto& from = c.event.descr;
  tasks_v4(&d, c.event);
  if (from.type == nccl::kColl && !c.native) d.parent_obj = from.coll.parent_group;
  if (from.type == nccl::kP2p) {
    if (!c.native) d.parent_obj = from.p2p.parent_group;
    // The adapter forgets the number of channels: what lies on the stack stays.
    if (c.native) d.p2p.n_channels = from.p2p.n_channels;
  }
  return d;
}

template <typename Descr>
void api_v5(Descr* d, const Event& event) {
  const auto& from = event.descr;
  switch (from.type) {
    case nccl::kGroupApi:
      d->group_api.graph_captured = from.group_api.graph_captured;
      d->group_api.group_depth = from.group_api.group_depth;
      break;
    case nccl::kCollApi:
      d->coll_api.func = from.coll_api.func;
      d->coll_api.count = from.coll_api.count;
      d->coll_api.datatype = from.coll_api.datatype;
      d->coll_api.root = from.coll_api.root;
      d->coll_api.stream = from.coll_api.stream;
      d->coll_api.graph_captured = from.coll_api.graph_captured;
      break;
    case nccl::kP2pApi:
      d->p2p_api.func = from.p2p_api.func;
      d->p2p_api.count = from.p2p_api.count;
      d->p2p_api.datatype = from.p2p_api.datatype;
      d->p2p_api.stream = from.p2p_api.stream;
      d->p2p_api.graph_captured = from.p2p_api.graph_captured;
      break;
    case nccl::kKernelLaunch:
      d->kernel_launch.stream = from.kernel_launch.stream;
      break;
    case nccl::kColl:
      d->coll.parent_group = from.coll.parent_group;
      break;
    case nccl::kP2p:
      d->p2p.n_channels = from.p2p.n_channels;
      d->p2p.parent_group = from.p2p.parent_group;
      break;
    default:
      break;
  }
}

nccl::DescrV5 to_v5(const Conversion& c) {
  nccl::DescrV5 d;
  prepare(&d, c.native);
  header(&d, c.event);
  tasks_v4(&d, c.event);
  api_v5(&d, c.event);
  return d;
}

nccl::DescrV6 to_v6(const Conversion& c) {
  nccl::DescrV6 d;
  prepare(&d, c.native);
  header(&d, c.event);
  tasks_v4(&d, c.event);
  api_v5(&d, c.event);
  const auto& from = c.event.descr;
  if (from.type == nccl::kCeColl) {
    d.ce_coll.seq_number = from.ce_coll.seq_number;
    d.ce_coll.func = from.ce_coll.func;
    d.ce_coll.send_buff = from.ce_coll.send_buff;
    d.ce_coll.recv_buff = from.ce_coll.recv_buff;
    d.ce_coll.count = from.ce_coll.count;
    d.ce_coll.root = from.ce_coll.root;
    d.ce_coll.datatype = from.ce_coll.datatype;
    d.ce_coll.sync_strategy = from.ce_coll.sync_strategy;
    d.ce_coll.intra_batch_sync = from.ce_coll.intra_batch_sync;
    d.ce_coll.batch_size = from.ce_coll.batch_size;
    d.ce_coll.num_batches = from.ce_coll.num_batches;
    d.ce_coll.ce_seq_num = from.ce_coll.ce_seq_num;
    d.ce_coll.stream = from.ce_coll.stream;
  } else if (from.type == nccl::kCeSync) {
    d.ce_sync.is_complete = from.ce_sync.is_complete;
    d.ce_sync.n_ranks = from.ce_sync.n_ranks;
  } else if (from.type == nccl::kCeBatch) {
    d.ce_batch.num_ops = from.ce_batch.num_ops;
    d.ce_batch.total_bytes = from.ce_batch.total_bytes;
    d.ce_batch.use_intra_sync = from.ce_batch.use_intra_sync;
  }
  return d;
}

}  // namespace

PluginCandidates plugin_candidates(const std::optional<std::string>& given, Release release) {
  PluginCandidates result;
  if (!given.has_value() || given->empty()) {
    result.names = {"libnccl-profiler.so"};
    result.try_net_library = release.at_least(28);
    return result;
  }
  std::string value = *given;
  if (release.at_least(26) && value.size() > kLongestName) value.resize(kLongestName);
  const bool library_form = value.size() > 6 && value.rfind("lib", 0) == 0 &&
                            value.compare(value.size() - 3, 3, ".so") == 0;
  if (release.at_least(28) && ::strcasecmp(value.c_str(), "none") == 0) {
    result.disabled = true;
    return result;
  }
  if (!release.at_least(26)) {
    if (means_static_plugin(value)) {
      result.names = {""};
    } else {
      result.names = {value, value};  // the attempt with affixes repeats the plain name
    }
    return result;
  }
  if (!release.at_least(27)) {
    if (means_static_plugin(value)) {
      result.names = {""};
    } else {
      result.names = {value, with_affixes(value)};
    }
    return result;
  }
  if (!release.at_least(27, 5)) {
    // A path becomes "libnccl-profiler-/a/path.so.so" here, which cannot exist.
    result.names = {library_form ? value : with_affixes(value)};
    return result;
  }
  if (means_static_plugin(value)) {
    result.names = {""};
  } else if (library_form || value.find('/') != std::string::npos) {
    result.names = {value};
  } else {
    result.names = {value, with_affixes(value)};
  }
  return result;
}

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {}

// A process that ends does not unload its plugin; the loader does at exit.
Profiler::~Profiler() = default;

std::vector<std::string> Profiler::log() const {
  std::lock_guard guard(mutex_);
  return log_;
}

void Profiler::note(std::string line) {
  if (options_.log_to_stderr) std::fprintf(stderr, "NCCL INFO %s\n", line.c_str());
  log_.push_back(std::move(line));
}

bool Profiler::search_symbols(void* library, const std::string& name) {
  for (int v = options_.release.native_interface(); v >= 1; --v) {
    void* symbol = ::dlsym(library, nccl::kProfilerSymbols[v - 1]);
    if (symbol == nullptr) continue;
    interface_ = v;
    library_ = name;
    use_virtual_clock_for(symbol);
    adapter_ready_.store(v == options_.release.native_interface());
    table_.store(symbol, std::memory_order_release);
    note("PROFILER/Plugin: Loaded " +
         std::string(static_cast<const nccl::ProfilerV1*>(symbol)->name) + " (v" +
         std::to_string(v) + ") from " + (name.empty() ? "the main program" : name));
    return true;
  }
  note("PROFILER/Plugin: Failed to find a table of version " +
       std::to_string(options_.release.native_interface()) + " or older in " + name);
  return false;
}

void Profiler::open_library() {
  const PluginCandidates candidates = plugin_candidates(options_.plugin, options_.release);
  if (candidates.disabled) {
    state_ = State::kFailed;
    note("PROFILER/Plugin: disabled by NCCL_PROFILER_PLUGIN=none");
    return;
  }
  std::vector<std::string> names = candidates.names;
  if (candidates.try_net_library && !options_.net_library.empty()) {
    names.push_back(options_.net_library);
  }
  for (const std::string& name : names) {
    void* library = ::dlopen(name.empty() ? nullptr : name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      note("PROFILER/Plugin: Could not find: " + name + " (" + (reason ? reason : "") + ")");
      continue;
    }
    if (search_symbols(library, name)) {
      library_handle_ = library;
      state_ = State::kLoaded;
      return;
    }
    ::dlclose(library);
  }
  state_ = State::kFailed;  // never tried again in this process
}

void Profiler::close_library() {
  table_.store(nullptr, std::memory_order_release);
  note("PROFILER/Plugin: Closing profiler plugin " + library_);
  if (library_handle_ != nullptr) ::dlclose(library_handle_);
  library_handle_ = nullptr;
  state_ = State::kReady;
}

void Profiler::load() {
  std::lock_guard guard(mutex_);
  if (state_ == State::kReady) open_library();
  if (state_ == State::kLoaded) ++references_;
}

void Profiler::unload() {
  std::lock_guard guard(mutex_);
  if (state_ == State::kFailed) return;
  if (--references_ == 0 && state_ == State::kLoaded) {
    if (table_.load() == nullptr) {
      // 2.27 and older read the name through the pointer that a failed init cleared.
      would_have_crashed_ = true;
      if (options_.crash_like_nccl) {
        std::signal(SIGSEGV, SIG_DFL);
        std::raise(SIGSEGV);
      }
      state_ = State::kReady;
      return;
    }
    close_library();
  }
}

nccl::Result Profiler::init(const CommIdentity& id, void** context) {
  const void* table = table_.load(std::memory_order_acquire);
  if (table == nullptr) return nccl::kSuccess;
  const nccl::DebugLogger logger = options_.log_to_stderr ? stderr_log : discard_log;
  // NCCL hands out a pointer to one int of the process, which the plugin may keep.
  static_assert(sizeof(std::atomic<int>) == sizeof(int));
  int* mask = reinterpret_cast<int*>(&mask_);
  Result result = nccl::kSuccess;
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (interface_ <= 3) {
    result = static_cast<const nccl::ProfilerV1*>(table)->init(context, mask);
  } else if (interface_ == 4) {
    result = static_cast<const nccl::ProfilerV4*>(table)->init(
        context, mask, id.name, id.hash, id.n_nodes, id.n_ranks, id.rank, logger);
  } else {
    result = static_cast<const nccl::ProfilerV5*>(table)->init(
        context, id.hash, mask, id.name, id.n_nodes, id.n_ranks, id.rank, logger);
  }
  if (result == nccl::kSuccess) {
    adapter_ready_.store(true);
    if (interface_ == 5 && options_.release.has_copy_engine_events()) {
      mask_.fetch_and(~static_cast<int>(kCopyEngineBits));
    }
    return result;
  }
  std::unique_lock guard(mutex_);
  note("PROFILER/Plugin: Profiler init failed with error " + std::to_string(result));
  if (!options_.release.at_least(28)) {
    table_.store(nullptr);  // off for every communicator of the process
  } else if (options_.release.at_least(30, 3)) {
    guard.unlock();
    unload();  // and again when the communicator is destroyed
  }
  return result;
}

void Profiler::finalize(void* context) {
  const void* table = table_.load(std::memory_order_acquire);
  if (table == nullptr || context == nullptr || !adapter_ready_.load()) return;
  calls_.fetch_add(1, std::memory_order_relaxed);
  static_cast<const nccl::ProfilerV1*>(table)->finalize(context);
}

void Profiler::start(void* context, void** handle, const Event& event) {
  const void* table = table_.load(std::memory_order_acquire);
  if (table == nullptr || !adapter_ready_.load(std::memory_order_relaxed)) return;
  const bool is_native = native();
  if ((event.descr.type & known_types(interface_)) == 0) {
    if (interface_ <= 4) *handle = nullptr;  // the v5 and v6 adapters leave it as it is
    return;
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  // From 2.27 on NCCL itself has dropped name and hash from events.
  const Conversion conversion{event, is_native, !options_.release.at_least(27)};
  switch (interface_) {
    case 1: {
      auto d = to_v1(conversion);
      static_cast<const nccl::ProfilerV1*>(table)->start_event(context, handle, &d);
      return;
    }
    case 2: {
      auto d = to_v23<nccl::DescrV2>(conversion);
      static_cast<const nccl::ProfilerV2*>(table)->start_event(context, handle, &d);
      return;
    }
    case 3: {
      auto d = to_v23<nccl::DescrV3>(conversion);
      static_cast<const nccl::ProfilerV3*>(table)->start_event(context, handle, &d);
      return;
    }
    case 4: {
      auto d = to_v4(conversion);
      static_cast<const nccl::ProfilerV4*>(table)->start_event(context, handle, &d);
      return;
    }
    case 5: {
      auto d = to_v5(conversion);
      static_cast<const nccl::ProfilerV5*>(table)->start_event(context, handle, &d);
      return;
    }
    case 6: {
      auto d = to_v6(conversion);
      static_cast<const nccl::ProfilerV6*>(table)->start_event(context, handle, &d);
      return;
    }
    default: {
      nccl::DescrV7 d = event.descr;
      static_cast<const nccl::ProfilerV7*>(table)->start_event(context, handle, &d);
      return;
    }
  }
}

void Profiler::stop(void* handle) {
  const void* table = table_.load(std::memory_order_acquire);
  if (table == nullptr || handle == nullptr || !adapter_ready_.load(std::memory_order_relaxed))
    return;
  calls_.fetch_add(1, std::memory_order_relaxed);
  static_cast<const nccl::ProfilerV1*>(table)->stop_event(handle);
}

void Profiler::record(void* handle, EventState state, const StateArgs* args) {
  const void* table = table_.load(std::memory_order_acquire);
  if (table == nullptr || handle == nullptr || !adapter_ready_.load(std::memory_order_relaxed))
    return;
  const bool is_native = native();
  const bool step =
      (state >= nccl::kProxyStepSendGpuWait && state <= nccl::kProxyStepRecvGpuWait) ||
      state == nccl::kProxyStepSendPeerWait;
  const bool control = state >= nccl::kProxyCtrlIdle && state <= nccl::kProxyCtrlAppendEnd;
  if (interface_ <= 3) {
    if (state > nccl::kProxyCtrlAppendEnd) return;  // v1-v3 know no later state
    nccl::StateArgsV1 out{};
    if (state <= nccl::kProxyOpRecvDone && args != nullptr) {
      out.proxy_op.trans_size = args->trans_size;
      out.proxy_op.steps = args->steps;
    } else if (control && args != nullptr) {
      out.proxy_ctrl.appended_proxy_ops = args->appended_proxy_ops;
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
    static_cast<const nccl::ProfilerV1*>(table)->record_event_state(handle, state, &out);
    return;
  }
  if (state <= nccl::kProxyOpRecvDone) return;
  const bool group_api = state == nccl::kGroupStartApiStop || state == nccl::kGroupEndApiStart;
  if (group_api && interface_ == 4) return;
  nccl::StateArgsV4 out;
  std::memset(static_cast<void*>(&out), is_native ? 0 : kGarbage, sizeof(out));
  if (args != nullptr) {
    if (step) out.proxy_step.trans_size = args->trans_size;
    if (control) out.proxy_ctrl.appended_proxy_ops = args->appended_proxy_ops;
    if (state == nccl::kNetPluginUpdate) out.net_plugin.data = args->data;
    if (state == nccl::kKernelChStop || state == nccl::kKernelPhaseStop) {
      out.kernel_ch.p_timer = args->p_timer;
    }
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  static_cast<const nccl::ProfilerV4*>(table)->record_event_state(
      handle, state, group_api && is_native ? nullptr : &out);
}

}  // namespace ncclscope::sim
