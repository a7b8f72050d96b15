// SPDX-License-Identifier: Apache-2.0
//
// Which dimension of parallelism a communicator serves: tp, pp, dp, ep, cp, mp (tp and pp
// together). Its name decides where it says something: the process groups of PyTorch's device
// meshes, Megatron, DeepSpeed, torchtitan and vLLM are named for it. Else what its process does on
// it beside its other communicators decides; every rule asks for what no other dimension shows, and
// what fits none stays empty: a wrong guess is worse than none.
//   Thread: any.   Cost: some microseconds per process; once a second is often enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "proto/model/operation.h"

namespace ncclscope::agent {

struct NamedDimension {
  bool decided = false;        // else the name says nothing
  std::string_view dimension;  // empty: decided to be none (embedding groups, several at once)
};
[[nodiscard]] NamedDimension dimension_of_name(std::string_view name);

/// Whom a rank sent to and received from, in Sends and Receives that are no all-to-all.
struct PeerPattern {
  bool to_next = false, to_previous = false, from_next = false, from_previous = false;
  bool other = false;
  std::uint64_t launches = 0;
  std::uint64_t one_way = 0;  // of them, with only Sends or only Receives

  /// Takes one launch (plan).
  void add(bool sends, bool receives) {
    ++launches;
    if (sends != receives) ++one_way;
  }
  void add_peer(std::int32_t rank, std::uint32_t nranks, std::int32_t peer, bool is_send);
};

/// What one process did on one of its communicators.
struct CommunicatorUse {
  std::uint32_t nranks = 0, nnodes = 0;  // 0 = unknown
  std::uint64_t bulk_all_reduces = 0, bulk_reduce_scatters = 0, bulk_all_gathers = 0;
  std::uint64_t tiny = 0;
  std::uint64_t all_to_alls = 0, uneven_all_to_alls = 0;
  PeerPattern peers;
  /// Bulk collectives by (function, size).
  struct Size {
    model::Function function{};
    std::uint64_t bytes = 0;
    std::uint64_t count = 0;
  };
  std::vector<Size> sizes;

  [[nodiscard]] std::uint64_t bulk() const {
    return bulk_all_reduces + bulk_reduce_scatters + bulk_all_gathers;
  }
};

/// Adds `count` collectives of a size.
void add_collectives(CommunicatorUse& use, model::Function function, std::uint64_t bytes,
                     std::uint64_t count);

/// The dimension of each communicator of one process, empty where it cannot be told.
/// @param steps  how many steps `uses` cover; below kMinSteps nothing is inferred
[[nodiscard]] std::vector<std::string_view> infer_dimensions(std::span<const CommunicatorUse> uses,
                                                             double steps);
inline constexpr double kMinSteps = 10;

}  // namespace ncclscope::agent
