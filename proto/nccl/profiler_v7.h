// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin interface v7 as this project declares it itself: event descriptor, state
// arguments and table. Native from NCCL 2.31 on; adds user tags, kernel variants and KernelPhase.
// Every offset and size is pinned below; they are equal on x86-64 and aarch64. Plain data, no code;
// descriptors and state arguments are valid only during the call that carries them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/nccl/profiler_common.h"
#include "proto/nccl/profiler_v6.h"

namespace ncclscope::nccl {

/// What `startEvent` of interface v7 describes; `type` says which member of the union is meant.
struct DescrV7 {
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
    std::uint64_t user_tag;
  };
  struct P2pApi {
    const char* func;
    std::size_t count;
    const char* datatype;
    void* stream;
    bool graph_captured;
    std::uint64_t user_tag;
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
    void* parent_group;          ///< handle of the Group event
    const char* kernel_variant;  ///< null for ordinary kernels
    bool is_sym_coll;
    std::uint64_t user_tag;
  };
  struct P2p {
    const char* func;
    void* buff;
    const char* datatype;
    std::size_t count;
    std::int32_t peer;
    std::uint8_t n_channels;
    void* parent_group;
    std::uint64_t user_tag;
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
  struct CeColl {
    std::uint64_t seq_number;  ///< copy-engine synchronisation counter of the communicator
    const char* func;
    const void* send_buff;
    void* recv_buff;
    std::size_t count;
    std::int32_t root;
    const char* datatype;
    const char* sync_strategy;
    bool intra_batch_sync;
    std::uint32_t batch_size;
    std::uint32_t num_batches;
    std::uint32_t ce_seq_num;
    void* stream;
    std::uint64_t user_tag;
  };
  struct CeSync {
    bool is_complete;
    std::int32_t n_ranks;
  };
  struct CeBatch {
    std::int32_t num_ops;
    std::size_t total_bytes;
    bool use_intra_sync;
  };
  struct KernelPhase {
    std::uint8_t channel_id;
    std::uint8_t phase_id;  ///< 0 initial_sync, 1 compute, 2 final_sync
    const char* phase_name;
    std::uint64_t p_timer;
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
    CeColl ce_coll;
    CeSync ce_sync;
    CeBatch ce_batch;
    KernelPhase kernel_phase;
  };
};

using StateArgsV7 = StateArgsV4;
using InitV7 = InitV5;

/// Table that a plugin exports as the data symbol `ncclProfiler_v7`.
struct ProfilerV7 {
  const char* name;
  InitV7 init;
  Result (*start_event)(void* context, void** handle, DescrV7* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgsV7* args);
  Result (*finalize)(void* context);
};

NCCLSCOPE_NCCL_PIN(DescrV7, type, 0, 8);
NCCLSCOPE_NCCL_PIN(DescrV7, parent_obj, 8, 8);
NCCLSCOPE_NCCL_PIN(DescrV7, rank, 16, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, group_api, GroupApi, graph_captured, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, group_api, GroupApi, group_depth, 28, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, count, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, root, 48, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, stream, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, graph_captured, 64, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll_api, CollApi, user_tag, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, count, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, stream, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, graph_captured, 56, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p_api, P2pApi, user_tag, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_launch, KernelLaunch, stream, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, seq_number, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, func, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, send_buff, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, recv_buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, count, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, root, 64, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, datatype, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, n_channels, 80, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, n_warps, 81, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, algo, 88, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, proto, 96, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, parent_group, 104, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, kernel_variant, 112, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, is_sym_coll, 120, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, coll, Coll, user_tag, 128, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, func, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, buff, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, datatype, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, count, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, peer, 56, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, n_channels, 60, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, parent_group, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, p2p, P2p, user_tag, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, pid, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, channel_id, 28, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, peer, 32, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, n_steps, 36, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, chunk_size, 40, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_op, ProxyOp, is_send, 44, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, proxy_step, ProxyStep, step, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_ch, KernelCh, channel_id, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_ch, KernelCh, p_timer, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, net_plugin, NetPlugin, id, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, net_plugin, NetPlugin, data, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, seq_number, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, func, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, send_buff, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, recv_buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, count, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, root, 64, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, datatype, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, sync_strategy, 80, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, intra_batch_sync, 88, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, batch_size, 92, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, num_batches, 96, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, ce_seq_num, 100, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, stream, 104, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_coll, CeColl, user_tag, 112, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_sync, CeSync, is_complete, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_sync, CeSync, n_ranks, 28, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_batch, CeBatch, num_ops, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_batch, CeBatch, total_bytes, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, ce_batch, CeBatch, use_intra_sync, 40, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_phase, KernelPhase, channel_id, 24, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_phase, KernelPhase, phase_id, 25, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_phase, KernelPhase, phase_name, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV7, kernel_phase, KernelPhase, p_timer, 40, 8);
static_assert(sizeof(DescrV7) == 136);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV7, proxy_step, ProxyStep, trans_size, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV7, proxy_ctrl, ProxyCtrl, appended_proxy_ops, 0, 4);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV7, net_plugin, NetPlugin, data, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV7, kernel_ch, KernelCh, p_timer, 0, 8);
static_assert(sizeof(StateArgsV7) == 8);
static_assert(sizeof(ProfilerV7) == 48);
NCCLSCOPE_NCCL_PIN(ProfilerV7, name, 0, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV7, init, 8, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV7, start_event, 16, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV7, stop_event, 24, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV7, record_event_state, 32, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV7, finalize, 40, 8);

}  // namespace ncclscope::nccl
