// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin interface v5 as this project declares it itself: event descriptor, state
// arguments and table. Native in NCCL 2.28; 64-bit type, API events, init argument order changes.
// Every offset and size is pinned below; they are equal on x86-64 and aarch64. Plain data, no code;
// descriptors and state arguments are valid only during the call that carries them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/nccl/profiler_common.h"
#include "proto/nccl/profiler_v4.h"

namespace ncclscope::nccl {

/// What `startEvent` of interface v5 describes; `type` says which member of the union is meant.
struct DescrV5 {
  struct GroupApi {
    bool graph_captured;
    std::int32_t group_depth;  ///< 1: the implicit group around one call
  };
  struct CollApi {
    const char* func;
    std::size_t count;
    const char* datatype;
    std::int32_t root;
    void* stream;
    bool graph_captured;
  };
  struct P2pApi {
    const char* func;
    std::size_t count;
    const char* datatype;
    void* stream;
    bool graph_captured;
  };
  struct KernelLaunch {
    void* stream;
  };
  struct Coll {
    std::uint64_t seq_number;  ///< per communicator and function
    const char* func;
    const void* send_buff;
    void* recv_buff;
    std::size_t count;  ///< bytes for AllGather and Broadcast, else elements
    std::int32_t root;
    const char* datatype;
    std::uint8_t n_channels;  ///< channels used; 0 under CollNet
    std::uint8_t n_warps;
    const char* algo;
    const char* proto;
    void* parent_group;  ///< handle of the Group event
  };
  struct P2p {
    const char* func;
    void* buff;
    const char* datatype;
    std::size_t count;
    std::int32_t peer;
    std::uint8_t n_channels;
    void* parent_group;
  };
  struct ProxyOp {
    std::int32_t pid;  ///< creator of the operation; another process under PXN
    std::uint8_t channel_id;
    std::int32_t peer;
    std::int32_t n_steps;
    std::int32_t chunk_size;  ///< bytes of one full transfer
    std::int32_t is_send;
  };
  struct ProxyStep {
    std::int32_t step;
  };
  struct KernelCh {
    std::uint8_t channel_id;
    std::uint64_t p_timer;  ///< GPU start, ns of the GPU's global timer
  };
  struct NetPlugin {
    std::int64_t id;  ///< transport << 16 | version of the payload
    void* data;
  };

  std::uint64_t type;  ///< one EventType bit
  void* parent_obj;    ///< handle that the plugin returned for the parent, or null
  std::int32_t rank;
  union {
    GroupApi group_api;
    CollApi coll_api;
    P2pApi p2p_api;
    KernelLaunch kernel_launch;
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};

using StateArgsV5 = StateArgsV4;

/// The id moved to the second place compared with v4.
using InitV5 = Result (*)(void** context, std::uint64_t comm_id, int* activation_mask,
                          const char* comm_name, int n_nodes, int n_ranks, int rank,
                          DebugLogger log);

/// Table that a plugin exports as the data symbol `ncclProfiler_v5`.
struct ProfilerV5 {
  const char* name;
  InitV5 init;
  Result (*start_event)(void* context, void** handle, DescrV5* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgsV5* args);
  Result (*finalize)(void* context);
};

NCCLSCOPE_NCCL_PIN(DescrV5, type, 0, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, parent_obj, 8, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, rank, 16, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, group_api, GroupApi, graph_captured, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, group_api, GroupApi, group_depth, 28, 4);
NCCLSCOPE_NCCL_PIN(DescrV5, group_api, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, count, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, root, 48, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, stream, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll_api, CollApi, graph_captured, 64, 1);
NCCLSCOPE_NCCL_PIN(DescrV5, coll_api, 24, 48);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p_api, P2pApi, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p_api, P2pApi, count, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p_api, P2pApi, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p_api, P2pApi, stream, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p_api, P2pApi, graph_captured, 56, 1);
NCCLSCOPE_NCCL_PIN(DescrV5, p2p_api, 24, 40);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, kernel_launch, KernelLaunch, stream, 24, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, kernel_launch, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, seq_number, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, func, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, send_buff, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, recv_buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, count, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, root, 64, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, datatype, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, n_channels, 80, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, n_warps, 81, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, algo, 88, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, proto, 96, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, coll, Coll, parent_group, 104, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, coll, 24, 88);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, buff, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, count, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, peer, 56, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, n_channels, 60, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, p2p, P2p, parent_group, 64, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, p2p, 24, 48);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, pid, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, channel_id, 28, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, peer, 32, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, n_steps, 36, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, chunk_size, 40, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_op, ProxyOp, is_send, 44, 4);
NCCLSCOPE_NCCL_PIN(DescrV5, proxy_op, 24, 24);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, proxy_step, ProxyStep, step, 24, 4);
NCCLSCOPE_NCCL_PIN(DescrV5, proxy_step, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, kernel_ch, KernelCh, channel_id, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, kernel_ch, KernelCh, p_timer, 32, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, kernel_ch, 24, 16);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, net_plugin, NetPlugin, id, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV5, net_plugin, NetPlugin, data, 32, 8);
NCCLSCOPE_NCCL_PIN(DescrV5, net_plugin, 24, 16);
static_assert(sizeof(DescrV5) == 112);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV5, proxy_step, ProxyStep, trans_size, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV5, proxy_ctrl, ProxyCtrl, appended_proxy_ops, 0, 4);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV5, net_plugin, NetPlugin, data, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV5, kernel_ch, KernelCh, p_timer, 0, 8);
static_assert(sizeof(StateArgsV5) == 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, name, 0, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, init, 8, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, start_event, 16, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, stop_event, 24, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, record_event_state, 32, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV5, finalize, 40, 8);
static_assert(sizeof(ProfilerV5) == 48);

}  // namespace ncclscope::nccl
