// SPDX-License-Identifier: Apache-2.0
// Turns the operations of one group into kernels as NCCL's planner does: order, channels, warps,
// chunks, network transfers. Pure computation; sizes in bytes, counts in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::sim {

enum class Func : std::uint8_t {
  kBroadcast = 0,  // the first eight are NCCL's own codes
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kSendRecv,
  kSend,
  kRecv,
  kAlltoAll,
  kGather,
  kScatter,
};
const char* func_name(Func func);

enum class Algo : std::uint8_t {
  kTree,
  kRing,
  kCollnetDirect,
  kCollnetChain,
  kNvls,
  kNvlsTree,
  kPat
};
enum class Proto : std::uint8_t { kLl, kLl128, kSimple };

/// What the planner may choose from; defaults stand for a well-connected node.
struct Tuning {
  int channels = 8;
  int p2p_channels = 8;
  int p2p_channels_per_peer = 2;
  int ring_threads = 512;  ///< most threads of a SIMPLE kernel; 256 where channels are slow
  int force_algo = -1;     ///< an Algo, or -1: by size
  int force_proto = -1;    ///< a Proto, or -1: by size
  bool nvls = false;       ///< NVLink multicast at hand (one node, large messages)
  bool collnet = false;    ///< in-network reduction at hand (several nodes)
  std::size_t buffer_bytes = std::size_t{4} << 20;
  std::size_t p2p_net_chunk = std::size_t{128} << 10;
  std::size_t least_channel_traffic = 16384;  ///< no channel gets less, in bytes of traffic
  bool p2p_net_parts_grow = true;             ///< a transfer above one chunk takes another channel
};

struct CommShape {
  int n_ranks = 1;
  int n_nodes = 1;
  int rank = 0;
  int max_local_ranks = 1;
  std::vector<int> node_of_rank;  ///< node of each rank
};

/// How data flows through an operation, for its timing.
enum class Flow : std::uint8_t { kRing, kChainFromRoot, kChainToRoot, kPair };

/// One network transfer series of one task on one channel.
struct NetOp {
  int channel = 0;
  int peer = 0;
  bool send = false;
  int chunk_bytes = 0;
  int slices_per_chunk = 1;
  int depth = 8;                     ///< transfers in flight at most
  std::vector<std::uint32_t> bytes;  ///< of each transfer
};

struct Task {
  // As called.
  Func func = Func::kAllReduce;
  std::size_t count = 0;  ///< as the API got it
  nccl::Datatype datatype = nccl::kFloat32;
  int root = 0;
  int peer = 0;
  const void* send_buffer = nullptr;
  void* recv_buffer = nullptr;
  void* stream = nullptr;
  std::uint64_t user_tag = 0;
  bool captured = false;
  bool symmetric = false;    ///< both buffers are registered windows
  bool copy_engine = false;  ///< goes over copy engines
  int mask = 0;              ///< activation mask when the API was called
  void* api_handle = nullptr;
  void* group_api_handle = nullptr;

  // As planned.
  bool is_p2p = false;
  std::size_t bytes = 0;    ///< count x size of the call
  std::size_t traffic = 0;  ///< bytes x traffic per byte
  Algo algo = Algo::kRing;
  Proto proto = Proto::kSimple;
  int n_warps = 0;
  int max_channels = 0;
  int channel_lo = 0;
  int n_channels = 0;
  std::vector<int> channels;  ///< ids in use, in order of posting
  std::vector<NetOp> net_ops;
  Flow flow = Flow::kRing;
  int batch = 0;  ///< which batch of the kernel runs it
  int p2p_round = 0;
  bool counted_by_host = true;  ///< host counts its work items too (not for a self copy)
  std::uint64_t pair_index = 0;
  std::weak_ptr<Task>
      partner;  ///< other half of a fused send/recv work item (each knows the other)

  // As reported.
  void* handle = nullptr;
  std::uint64_t sequence = 0;
};
using TaskPtr = std::shared_ptr<Task>;

/// Size of an element in bytes, and NCCL's amount of traffic per byte of `count`.
std::size_t element_bytes(nccl::Datatype datatype);
int traffic_per_byte(Func func, int n_ranks);

/// Orders the collectives of a group and fills in everything "as planned". Returns them in the
/// order in which NCCL schedules them.
std::vector<TaskPtr> plan_collectives(std::vector<TaskPtr> tasks, const CommShape& shape,
                                      const Tuning& tuning);

/// Same for sends and receives: rounds of the send/receive schedule, receive and send of a round
/// side by side. Self copies come out without network transfers and uncounted by the host.
std::vector<TaskPtr> plan_p2p(const std::vector<TaskPtr>& tasks, const CommShape& shape,
                              const Tuning& tuning);

}  // namespace ncclscope::sim
