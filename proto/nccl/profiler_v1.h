// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plugin interface v1 as this project declares it itself: event descriptor, state
// arguments and table. Native in NCCL 2.23; numeric codes instead of strings.
// Every offset and size is pinned below; they are equal on x86-64 and aarch64. Plain data, no code;
// descriptors and state arguments are valid only during the call that carries them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::nccl {

/// What `startEvent` of interface v1 describes; `type` says which member of the union is meant.
struct DescrV1 {
  struct Coll {
    const char* name;  ///< communicator name, application memory, may be null
    std::uint64_t comm_hash;
    std::uint64_t seq_number;
    std::uint8_t func;
    const void* send_buff;
    void* recv_buff;
    std::size_t count;
    std::int32_t root;
    std::uint8_t datatype;
    std::uint32_t op;
    std::size_t traffic_bytes;
    std::uint8_t n_max_channels;  ///< upper bound, not the number used
    std::uint8_t n_warps;
    std::uint8_t algo;
    std::uint8_t proto;
    std::int32_t is_collnet;
    std::int32_t is_nvls;
  };
  struct P2p {
    const char* name;
    std::uint64_t comm_hash;
    std::uint8_t func;
    void* buff;
    std::uint8_t datatype;
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

/// Arguments of `recordEventState` in v1-v3.
union StateArgsV1 {
  struct ProxyOp {
    std::size_t trans_size;  ///< bytes transferred so far
    std::int32_t steps;
  };
  struct ProxyCtrl {
    std::int32_t appended_proxy_ops;
  };

  ProxyOp proxy_op;
  ProxyCtrl proxy_ctrl;
};

using InitV1 = Result (*)(void** context, int* activation_mask);

/// Table that a plugin exports as the data symbol `ncclProfiler_v1`.
struct ProfilerV1 {
  const char* name;
  InitV1 init;
  Result (*start_event)(void* context, void** handle, DescrV1* descr);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, EventState state, StateArgsV1* args);
  Result (*finalize)(void* context);
};

NCCLSCOPE_NCCL_PIN(DescrV1, type, 0, 1);
NCCLSCOPE_NCCL_PIN(DescrV1, parent_obj, 8, 8);
NCCLSCOPE_NCCL_PIN(DescrV1, rank, 16, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, name, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, comm_hash, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, seq_number, 40, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, func, 48, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, send_buff, 56, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, recv_buff, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, count, 72, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, root, 80, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, datatype, 84, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, op, 88, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, traffic_bytes, 96, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, n_max_channels, 104, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, n_warps, 105, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, algo, 106, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, proto, 107, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, is_collnet, 108, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, coll, Coll, is_nvls, 112, 4);
NCCLSCOPE_NCCL_PIN(DescrV1, coll, 24, 96);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, name, 24, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, comm_hash, 32, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, func, 40, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, buff, 48, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, datatype, 56, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, count, 64, 8);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, p2p, P2p, peer, 72, 4);
NCCLSCOPE_NCCL_PIN(DescrV1, p2p, 24, 56);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, pid, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, channel_id, 28, 1);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, peer, 32, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, n_steps, 36, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, chunk_size, 40, 4);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_op, ProxyOp, is_send, 44, 4);
NCCLSCOPE_NCCL_PIN(DescrV1, proxy_op, 24, 24);
NCCLSCOPE_NCCL_PIN_IN(DescrV1, proxy_step, ProxyStep, step, 24, 4);
NCCLSCOPE_NCCL_PIN(DescrV1, proxy_step, 24, 4);
static_assert(sizeof(DescrV1) == 120);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV1, proxy_op, ProxyOp, trans_size, 0, 8);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV1, proxy_op, ProxyOp, steps, 8, 4);
NCCLSCOPE_NCCL_PIN_IN(StateArgsV1, proxy_ctrl, ProxyCtrl, appended_proxy_ops, 0, 4);
static_assert(sizeof(StateArgsV1) == 16);
NCCLSCOPE_NCCL_PIN(ProfilerV1, name, 0, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV1, init, 8, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV1, start_event, 16, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV1, stop_event, 24, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV1, record_event_state, 32, 8);
NCCLSCOPE_NCCL_PIN(ProfilerV1, finalize, 40, 8);
static_assert(sizeof(ProfilerV1) == 48);

}  // namespace ncclscope::nccl
