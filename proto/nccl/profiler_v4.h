// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin interface v4 as this project declares it itself: event descriptor, state
// arguments and table. Native in NCCL 2.27; identity moves to init, GPU times come with KernelCh.
// Every offset and size is pinned below; they are equal on x86-64 and aarch64. Plain data, no code;
// descriptors and state arguments are valid only during the call that carries them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::nccl {

/// What `startEvent` of interface v4 describes; `type` says which member of the union is meant.
struct DescrV4 {
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
  };
  struct P2p {
    const char* func;
    void* buff;
    const char* datatype;
    std::size_t count;
    std::int32_t peer;
    std::uint8_t n_channels;
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

  std::uint8_t type;  ///< one EventType bit; the 7 bytes behind it may be garbage
  void* parent_obj;   ///< handle that the plugin returned for the parent, or null
  std::int32_t rank;
  union {
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};

/// Arguments of `recordEventState` from v4 on; the state says which member is meant.
union StateArgsV4 {
  struct ProxyStep {
    std::size_t trans_size;  ///< bytes of this transfer
  };
  struct ProxyCtrl {
    std::int32_t appended_proxy_ops;
  };
  struct NetPlugin {
    void* data;
  };
  struct KernelCh {
    std::uint64_t p_timer;  ///< GPU stop, ns of the GPU's global timer
  };

  ProxyStep proxy_step;
  ProxyCtrl proxy_ctrl;
  NetPlugin net_plugin;
  KernelCh kernel_ch;
};

using InitV4 = Result (*)(void** context, int* activation_mask, const char* comm_name,
                          std::uint64_t comm_hash, int n_nodes, int n_ranks, int rank,
                          DebugLogger log);

/// Table that a plugin exports as the data symbol `ncclProfiler_v4`.
struct ProfilerV4 {
  const char* name;
  InitV4 init;
  Result (*start_event)(void* context, void** handle, DescrV4* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgsV4* args);
  Result (*finalize)(void* context);
};

NCCLSCOPE_NCCL_PIN(DescrV4, type, 0, 1);
NCCLSCOPE_NCCL_PIN(DescrV4, parent_obj, 8, 8);
NCCLSCOPE_NCCL_PIN(DescrV4, rank, 16, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, seq_number, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, func, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, send_buff, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, recv_buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, count, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, root, 64, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, datatype, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, n_channels, 80, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, n_warps, 81, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, algo, 88, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, coll, Coll, proto, 96, 8);
NCCLSCOPE_NCCL_PIN(DescrV4, coll, 24, 80);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, buff, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, count, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, peer, 56, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, p2p, P2p, n_channels, 60, 1);
NCCLSCOPE_NCCL_PIN(DescrV4, p2p, 24, 40);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, pid, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, channel_id, 28, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, peer, 32, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, n_steps, 36, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, chunk_size, 40, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_op, ProxyOp, is_send, 44, 4);
NCCLSCOPE_NCCL_PIN(DescrV4, proxy_op, 24, 24);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, proxy_step, ProxyStep, step, 24, 4);
NCCLSCOPE_NCCL_PIN(DescrV4, proxy_step, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, kernel_ch, KernelCh, channel_id, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, kernel_ch, KernelCh, p_timer, 32, 8);
NCCLSCOPE_NCCL_PIN(DescrV4, kernel_ch, 24, 16);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, net_plugin, NetPlugin, id, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV4, net_plugin, NetPlugin, data, 32, 8);
NCCLSCOPE_NCCL_PIN(DescrV4, net_plugin, 24, 16);
static_assert(sizeof(DescrV4) == 104);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV4, proxy_step, ProxyStep, trans_size, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV4, proxy_ctrl, ProxyCtrl, appended_proxy_ops, 0, 4);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV4, net_plugin, NetPlugin, data, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV4, kernel_ch, KernelCh, p_timer, 0, 8);
static_assert(sizeof(StateArgsV4) == 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, name, 0, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, init, 8, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, start_event, 16, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, stop_event, 24, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, record_event_state, 32, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV4, finalize, 40, 8);
static_assert(sizeof(ProfilerV4) == 48);

}  // namespace ncclscope::nccl
