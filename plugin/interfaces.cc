// SPDX-License-Identifier: Apache-2.0
//
// The tables ncclProfiler_v1 … v7: one thin adapter per interface version. They read a descriptor's
// fields and hand them to the recorder; they decide nothing. Called on NCCL's and the application's
// threads; every function returns success.
#include "plugin/names.h"
#include "plugin/own_time.h"
#include "plugin/recorder.h"
#include "proto/nccl/profiler.h"

namespace ncclscope::plugin {
namespace {

using nccl::Result;

// ---- what differs between versions ----

template <typename Descr>
struct Traits;
template <>
struct Traits<nccl::DescrV1> {
  static constexpr std::uint8_t kVersion = 1;
  using StateArgs = nccl::StateArgsV1;
};
template <>
struct Traits<nccl::DescrV2> {
  static constexpr std::uint8_t kVersion = 2;
  using StateArgs = nccl::StateArgsV2;
};
template <>
struct Traits<nccl::DescrV3> {
  static constexpr std::uint8_t kVersion = 3;
  using StateArgs = nccl::StateArgsV3;
};
template <>
struct Traits<nccl::DescrV4> {
  static constexpr std::uint8_t kVersion = 4;
  using StateArgs = nccl::StateArgsV4;
};
template <>
struct Traits<nccl::DescrV5> {
  static constexpr std::uint8_t kVersion = 5;
  using StateArgs = nccl::StateArgsV5;
};
template <>
struct Traits<nccl::DescrV6> {
  static constexpr std::uint8_t kVersion = 6;
  using StateArgs = nccl::StateArgsV6;
};
template <>
struct Traits<nccl::DescrV7> {
  static constexpr std::uint8_t kVersion = 7;
  using StateArgs = nccl::StateArgsV7;
};

template <typename Descr>
void* start_coll(void* context, const Descr& d) noexcept {
  constexpr auto v = Traits<Descr>::kVersion;
  Task t;
  if constexpr (v == 1) {
    t.function = function_from_code(d.coll.func);
    t.datatype = datatype_from_code(d.coll.datatype);
    t.algorithm = algorithm_from_code(d.coll.algo);
    t.protocol = protocol_from_code(d.coll.proto);
    t.ambiguous_type = t.datatype == model::DataType::kFloat64;
  } else {
    t.function_name = d.coll.func;
    t.datatype_name = d.coll.datatype;
    t.algorithm = parse_algorithm(d.coll.algo);
    t.protocol = parse_protocol(d.coll.proto);
  }
  if constexpr (v <= 3) {
    t.channels = d.coll.n_max_channels;
    t.describes_communicator = true;
    t.name = d.coll.name;
    t.hash = d.coll.comm_hash;
  } else {
    t.channels = d.coll.n_channels;
    t.channels_known = d.coll.n_channels != 0;
  }
  t.kernel_reports = v >= 3;
  t.sequence = d.coll.seq_number;
  t.sequence_known = true;
  t.count = d.coll.count;
  t.root_or_peer = d.coll.root;
  t.rank = d.rank;
  if constexpr (v >= 5) {
    t.parent = d.parent_obj;
    t.group = d.coll.parent_group;
  } else {
    t.group = d.parent_obj;
  }
  if constexpr (v >= 7) {
    t.symmetric = d.coll.is_sym_coll;
    if (t.symmetric) t.algorithm = model::Algorithm::kSymmetric;
  }
  return start_task(context, t);
}

template <typename Descr>
void* start_p2p(void* context, const Descr& d) noexcept {
  constexpr auto v = Traits<Descr>::kVersion;
  Task t;
  if constexpr (v == 1) {
    t.function = function_from_code(d.p2p.func);
    t.datatype = datatype_from_code(d.p2p.datatype);
    t.ambiguous_type = t.datatype == model::DataType::kFloat64;
  } else {
    t.function = parse_function(d.p2p.func);
    t.datatype_name = d.p2p.datatype;
  }
  if constexpr (v <= 3) {
    t.describes_communicator = true;
    t.name = d.p2p.name;
    t.hash = d.p2p.comm_hash;
  } else if (v > 4 || p2p_channels_native()) {
    // Through the adapter of 2.28 and later, v4's number of channels is not written at all.
    t.channels = d.p2p.n_channels;
    t.channels_known = d.p2p.n_channels != 0;
  }
  t.kernel_reports = v >= 3;
  t.count = d.p2p.count;
  t.root_or_peer = d.p2p.peer;
  t.rank = d.rank;
  if constexpr (v >= 5) {
    t.parent = d.parent_obj;
    t.group = d.p2p.parent_group;
  } else {
    t.group = d.parent_obj;
  }
  return start_task(context, t);
}

template <typename Descr>
void* start_coll_api(void* context, const Descr& d) noexcept {
  ApiCall call;
  call.function = parse_function(d.coll_api.func);
  call.datatype = parse_datatype(d.coll_api.datatype);
  call.count = d.coll_api.count;
  call.root = model::is_rooted(call.function) ? d.coll_api.root : -1;
  call.captured = d.coll_api.graph_captured;
  return start_api(context, d.parent_obj, call);
}

template <typename Descr>
void* start_p2p_api(void* context, const Descr& d) noexcept {
  ApiCall call;
  call.function = parse_function(d.p2p_api.func);
  call.datatype = parse_datatype(d.p2p_api.datatype);
  call.count = d.p2p_api.count;
  call.captured = d.p2p_api.graph_captured;
  return start_api(context, d.parent_obj, call);
}

template <typename Descr>
void* start_ce_coll(void* context, const Descr& d) noexcept {
  Task t;
  t.function = parse_function(d.ce_coll.func);
  t.datatype = parse_datatype(d.ce_coll.datatype);
  t.count = d.ce_coll.count;
  t.root_or_peer = d.ce_coll.root;
  t.rank = d.rank;
  // Its number is a synchronisation counter over all functions, not a sequence number.
  t.sequence = d.ce_coll.seq_number;
  t.copy_engine = true;
  t.parent = d.parent_obj;
  return start_task(context, t);
}

// ---- the five functions of a table ----

template <typename Descr>
[[gnu::always_inline]] inline Result start_any(void* context, void** handle, Descr* d) noexcept {
  constexpr auto v = Traits<Descr>::kVersion;
  if (handle == nullptr) return nccl::kSuccess;
  // First, on every path: a handle that stays unwritten would be stopped again later.
  *handle = nullptr;
  if (d == nullptr) return nccl::kSuccess;
  // Versions without an event leave its branch empty.
  switch (static_cast<std::uint64_t>(d->type)) {
    case nccl::kColl:
      *handle = start_coll(context, *d);
      break;
    case nccl::kP2p:
      *handle = start_p2p(context, *d);
      break;
    case nccl::kGroup:
      *handle = start_plan(context);
      break;
    case nccl::kProxyOp: {
      ProxyOpCall call;
      call.pid = d->proxy_op.pid;
      call.channel = d->proxy_op.channel_id;
      call.peer = d->proxy_op.peer;
      call.is_send = d->proxy_op.is_send != 0;
      call.parent = d->parent_obj;
      *handle = start_proxy_op(context, call);
      break;
    }
    case nccl::kProxyStep:
      *handle = start_proxy_step(d->parent_obj);
      break;
    case nccl::kKernelCh:
      if constexpr (v >= 4) {
        *handle = start_kernel(d->parent_obj, d->kernel_ch.channel_id, d->kernel_ch.p_timer);
      } else if constexpr (v == 3) {
        *handle = start_kernel(d->parent_obj, d->kernel_ch.channel_id, 0);
      }
      break;
    case nccl::kGroupApi:  // NOLINT(bugprone-branch-clone)
      if constexpr (v >= 5) *handle = start_group_api(context);
      break;
    case nccl::kCollApi:
      if constexpr (v >= 5) *handle = start_coll_api(context, *d);
      break;
    case nccl::kP2pApi:
      if constexpr (v >= 5) *handle = start_p2p_api(context, *d);
      break;
    case nccl::kCeColl:
      if constexpr (v >= 6) *handle = start_ce_coll(context, *d);
      break;
    default:
      break;
  }
  return nccl::kSuccess;
}

template <typename Descr>
Result start_event(void* context, void** handle, Descr* d) noexcept {
  return call_sampled(context, [&] { return start_any(context, handle, d); });
}

Result stop_event(void* handle) noexcept {
  return call_sampled(handle, [&] {
    if (handle != nullptr) stop(handle);
    return nccl::kSuccess;
  });
}

template <typename StateArgs>
[[gnu::always_inline]] inline Result record_any_state(void* handle, nccl::EventState state,
                                                      StateArgs* args) noexcept {
  if (handle == nullptr) return nccl::kSuccess;
  switch (state) {
    case nccl::kKernelChStop:
      if constexpr (requires { args->kernel_ch.p_timer; }) {
        record_state(handle, state, args != nullptr, args == nullptr ? 0 : args->kernel_ch.p_timer);
      }
      break;
    case nccl::kProxyStepSendGpuWait:
    case nccl::kProxyStepSendPeerWait:
    case nccl::kProxyStepSendWait:
    case nccl::kProxyStepRecvWait:
    case nccl::kProxyStepRecvFlushWait:
    case nccl::kProxyStepRecvGpuWait:
      if constexpr (requires { args->proxy_step.trans_size; }) {
        record_state(handle, state, args != nullptr,
                     args == nullptr ? 0 : args->proxy_step.trans_size);
      } else {
        record_state(handle, state, false, 0);
      }
      break;
    default:
      break;
  }
  return nccl::kSuccess;
}

template <typename StateArgs>
Result record_event_state(void* handle, nccl::EventState state, StateArgs* args) noexcept {
  return call_sampled(handle, [&] { return record_any_state(handle, state, args); });
}

Result finalize(void* context) noexcept {
  if (context != nullptr) finalize_communicator(context);
  return nccl::kSuccess;
}

template <std::uint8_t kVersion>
Result init_bare(void** context, int* mask) noexcept {
  InitArguments a;
  a.interface_version = kVersion;
  a.caller = __builtin_return_address(0);
  init_communicator(context, mask, a);
  return nccl::kSuccess;
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t hash, int nnodes,
               int nranks, int rank, nccl::DebugLogger log) noexcept {
  InitArguments a{4, true, hash, name, nnodes, nranks, rank, log, __builtin_return_address(0)};
  init_communicator(context, mask, a);
  return nccl::kSuccess;
}

template <std::uint8_t kVersion>
Result init_v5(void** context, std::uint64_t hash, int* mask, const char* name, int nnodes,
               int nranks, int rank, nccl::DebugLogger log) noexcept {
  InitArguments a{
      kVersion, true, hash, name, nnodes, nranks, rank, log, __builtin_return_address(0)};
  init_communicator(context, mask, a);
  return nccl::kSuccess;
}

constexpr const char* kName = "ncclscope";

}  // namespace
}  // namespace ncclscope::plugin

// NCCL looks for data symbols of these names, newest first.
#define NCCLSCOPE_TABLE(version, init)                                             \
  extern "C" __attribute__((visibility("default")))                                \
  ncclscope::nccl::ProfilerV##version ncclProfiler_v##version;                     \
  ncclscope::nccl::ProfilerV##version ncclProfiler_v##version = {                  \
      ncclscope::plugin::kName,                                                    \
      init,                                                                        \
      ncclscope::plugin::start_event<ncclscope::nccl::DescrV##version>,            \
      ncclscope::plugin::stop_event,                                               \
      ncclscope::plugin::record_event_state<ncclscope::nccl::StateArgsV##version>, \
      ncclscope::plugin::finalize}

NCCLSCOPE_TABLE(1, ncclscope::plugin::init_bare<1>);
NCCLSCOPE_TABLE(2, ncclscope::plugin::init_bare<2>);
NCCLSCOPE_TABLE(3, ncclscope::plugin::init_bare<3>);
NCCLSCOPE_TABLE(4, ncclscope::plugin::init_v4);
NCCLSCOPE_TABLE(5, ncclscope::plugin::init_v5<5>);
NCCLSCOPE_TABLE(6, ncclscope::plugin::init_v5<6>);
NCCLSCOPE_TABLE(7, ncclscope::plugin::init_v5<7>);
