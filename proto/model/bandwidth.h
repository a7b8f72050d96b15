// SPDX-License-Identifier: Apache-2.0
//
// Message size and bus bandwidth, defined once for everybody. The definitions are those of
// nccl-tests (doc/PERFORMANCE.md there): algbw = S / t, busbw = algbw * factor(collective, ranks).
#pragma once

#include <cstdint>

#include "proto/model/operation.h"

namespace ncclscope::model {

/// S in bytes: what the operation moves in nccl-tests' sense.
/// @param count  elements as NCCL reports them (AllGather: send count per rank; ReduceScatter:
/// receive count
///               per rank; AlltoAll, Gather, Scatter: count per peer). Where NCCL reports bytes,
///               type is kInt8.
/// @param nranks ranks of the communicator; 0 = unknown, then the user's own count * size is
/// returned.
[[nodiscard]] constexpr std::uint64_t message_bytes(Function f, std::uint64_t count, DataType t,
                                                    std::uint32_t nranks) noexcept {
  const std::uint64_t own = count * element_bytes(t);
  switch (f) {
    case Function::kAllGather:
    case Function::kReduceScatter:
    case Function::kAllToAll:
    case Function::kGather:
    case Function::kScatter:
      return nranks == 0 ? own : own * nranks;
    default:
      return own;
  }
}

/// True where S needs the number of ranks (so that it is only a lower bound when they are unknown).
[[nodiscard]] constexpr bool size_needs_ranks(Function f) noexcept {
  return f == Function::kAllGather || f == Function::kReduceScatter || f == Function::kAllToAll ||
         f == Function::kGather || f == Function::kScatter;
}

/// busbw / algbw. nranks == 0 (unknown) gives 0: no bandwidth rather than a wrong one, except where
/// the factor does not depend on the number of ranks.
[[nodiscard]] constexpr double bus_factor(Function f, std::uint32_t nranks) noexcept {
  const double n = static_cast<double>(nranks);
  switch (f) {
    case Function::kAllReduce:
      return nranks == 0 ? 0.0 : 2.0 * (n - 1.0) / n;
    case Function::kAllGather:
    case Function::kReduceScatter:
    case Function::kAllToAll:
    case Function::kGather:
    case Function::kScatter:
      return nranks == 0 ? 0.0 : (n - 1.0) / n;
    case Function::kBroadcast:
    case Function::kReduce:
    case Function::kSend:
    case Function::kRecv:
    case Function::kSendRecv:
      return 1.0;
    default:
      return 0.0;
  }
}

/// Bus bandwidth in bytes per second; 0 where it is not defined.
[[nodiscard]] constexpr double bus_bandwidth(Function f, std::uint64_t bytes, std::uint32_t nranks,
                                             std::uint64_t duration_ns) noexcept {
  if (duration_ns == 0) return 0.0;
  return static_cast<double>(bytes) / (static_cast<double>(duration_ns) * 1e-9) *
         bus_factor(f, nranks);
}

/// Operations in which every rank waits for every other: only these say who is late.
[[nodiscard]] constexpr bool is_synchronising(Function f) noexcept {
  return f == Function::kAllReduce || f == Function::kAllGather || f == Function::kReduceScatter ||
         f == Function::kAllToAll;
}

}  // namespace ncclscope::model
