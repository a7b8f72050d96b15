// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin interface v2 as this project declares it itself: event descriptor, state
// arguments and table. Native in NCCL 2.24 and 2.25; strings instead of codes.
// Every offset and size is pinned below; they are equal on x86-64 and aarch64. Plain data, no code;
// descriptors and state arguments are valid only during the call that carries them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/nccl/profiler_common.h"
#include "proto/nccl/profiler_v1.h"

namespace ncclscope::nccl {

/// What `startEvent` of interface v2 describes; `type` says which member of the union is meant.
struct DescrV2 {
  struct Coll {
    const char* name;  ///< communicator name, application memory, may be null
    std::uint64_t comm_hash;
    std::uint64_t seq_number;
    const char* func;
    const void* send_buff;
    void* recv_buff;
    std::size_t count;
    std::int32_t root;
    const char* datatype;
    std::size_t traffic_bytes;
    std::uint8_t n_max_channels;  ///< upper bound, not the number used
    std::uint8_t n_warps;
    const char* algo;
    const char* proto;
  };
  struct P2p {
    const char* name;
    std::uint64_t comm_hash;
    const char* func;
    void* buff;
    const char* datatype;
    std::size_t count;
    std::int32_t peer;
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

  std::uint8_t type;  ///< one EventType bit; the 7 bytes behind it may be garbage
  void* parent_obj;   ///< handle that the plugin returned for the parent, or null
  std::int32_t rank;
  union {
    Coll coll;
    P2p p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
  };
};

using StateArgsV2 = StateArgsV1;
using InitV2 = InitV1;

/// Table that a plugin exports as the data symbol `ncclProfiler_v2`.
struct ProfilerV2 {
  const char* name;
  InitV2 init;
  Result (*start_event)(void* context, void** handle, DescrV2* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgsV2* args);
  Result (*finalize)(void* context);
};

NCCLSCOPE_NCCL_PIN(DescrV2, type, 0, 1);
NCCLSCOPE_NCCL_PIN(DescrV2, parent_obj, 8, 8);
NCCLSCOPE_NCCL_PIN(DescrV2, rank, 16, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, name, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, comm_hash, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, seq_number, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, func, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, send_buff, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, recv_buff, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, count, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, root, 80, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, datatype, 88, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, traffic_bytes, 96, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, n_max_channels, 104, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, n_warps, 105, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, algo, 112, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, coll, Coll, proto, 120, 8);
NCCLSCOPE_NCCL_PIN(DescrV2, coll, 24, 104);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, name, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, comm_hash, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, func, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, datatype, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, count, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, p2p, P2p, peer, 72, 4);
NCCLSCOPE_NCCL_PIN(DescrV2, p2p, 24, 56);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, pid, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, channel_id, 28, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, peer, 32, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, n_steps, 36, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, chunk_size, 40, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_op, ProxyOp, is_send, 44, 4);
NCCLSCOPE_NCCL_PIN(DescrV2, proxy_op, 24, 24);
NCCLSCOPE_NCCL_PIN_IN(DescrV2, proxy_step, ProxyStep, step, 24, 4);
NCCLSCOPE_NCCL_PIN(DescrV2, proxy_step, 24, 4);
static_assert(sizeof(DescrV2) == 128);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV2, proxy_op, ProxyOp, trans_size, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV2, proxy_op, ProxyOp, steps, 8, 4);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV2, proxy_ctrl, ProxyCtrl, appended_proxy_ops, 0, 4);
static_assert(sizeof(StateArgsV2) == 16);
NCCLSCOPE_NCCL_PIN(ProfilerV2, name, 0, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV2, init, 8, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV2, start_event, 16, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV2, stop_event, 24, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV2, record_event_state, 32, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV2, finalize, 40, 8);
static_assert(sizeof(ProfilerV2) == 48);

}  // namespace ncclscope::nccl
