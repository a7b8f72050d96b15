// SPDX-License-Identifier: Apache-2.0
//
// NCCL's strings and codes -> model enums. Compared by content (addresses prove nothing), without
// allocation; every function accepts null. Called on NCCL's threads: a few nanoseconds each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/model/operation.h"

namespace ncclscope::plugin {

namespace detail {
/// Equal to a literal. Inlined character by character: a call into libc costs more than these few.
template <std::size_t N>
[[gnu::always_inline]] inline bool same(const char* s, const char (&literal)[N]) noexcept {
  for (std::size_t i = 0; i < N; ++i) {
    if (s[i] != literal[i]) return false;
  }
  return true;
}
}  // namespace detail

inline model::Function parse_function(const char* s) noexcept {
  using model::Function;
  if (s == nullptr) return Function::kUnknown;
  switch (s[0]) {
    case 'A':
      if (detail::same(s, "AllReduce")) return Function::kAllReduce;
      if (detail::same(s, "AllGather")) return Function::kAllGather;
      if (detail::same(s, "AlltoAll")) return Function::kAllToAll;
      if (detail::same(s, "AllGatherV")) return Function::kAllGatherV;
      break;
    case 'B':
      if (detail::same(s, "Broadcast")) return Function::kBroadcast;
      break;
    case 'G':
      if (detail::same(s, "Gather")) return Function::kGather;
      break;
    case 'P':
      if (detail::same(s, "PutSignal")) return Function::kPutSignal;
      break;
    case 'R':
      if (detail::same(s, "ReduceScatter")) return Function::kReduceScatter;
      if (detail::same(s, "Recv")) return Function::kRecv;
      if (detail::same(s, "Reduce")) return Function::kReduce;
      break;
    case 'S':
      if (detail::same(s, "Send")) return Function::kSend;
      if (detail::same(s, "Scatter")) return Function::kScatter;
      if (detail::same(s, "SendRecv")) return Function::kSendRecv;
      if (detail::same(s, "Signal")) return Function::kSignal;
      break;
    case 'W':
      if (detail::same(s, "WaitSignal")) return Function::kWaitSignal;
      break;
    default:
      break;
  }
  return Function::kUnknown;
}

/// "Unknown" is how NCCL spells ncclUint8.
inline model::DataType parse_datatype(const char* s) noexcept {
  using model::DataType;
  if (s == nullptr) return DataType::kUnknown;
  if (s[0] == 'U') return detail::same(s, "Unknown") ? DataType::kUint8 : DataType::kUnknown;
  if (s[0] != 'n' || s[1] != 'c' || s[2] != 'c' || s[3] != 'l') return DataType::kUnknown;
  switch (s[4]) {
    case 'F':
      if (detail::same(s, "ncclFloat32")) return DataType::kFloat32;
      if (detail::same(s, "ncclFloat16")) return DataType::kFloat16;
      if (detail::same(s, "ncclFloat64")) return DataType::kFloat64;
      if (detail::same(s, "ncclFloat8e4m3")) return DataType::kFloat8e4m3;
      if (detail::same(s, "ncclFloat8e5m2")) return DataType::kFloat8e5m2;
      break;
    case 'B':
      if (detail::same(s, "ncclBfloat16")) return DataType::kBfloat16;
      break;
    case 'I':
      if (detail::same(s, "ncclInt8")) return DataType::kInt8;
      if (detail::same(s, "ncclInt32")) return DataType::kInt32;
      if (detail::same(s, "ncclInt64")) return DataType::kInt64;
      break;
    case 'U':
      if (detail::same(s, "ncclUint8")) return DataType::kUint8;
      if (detail::same(s, "ncclUint32")) return DataType::kUint32;
      if (detail::same(s, "ncclUint64")) return DataType::kUint64;
      break;
    default:
      break;
  }
  return DataType::kUnknown;
}

inline model::Algorithm parse_algorithm(const char* s) noexcept {
  using model::Algorithm;
  if (s == nullptr) return Algorithm::kUnknown;
  switch (s[0]) {
    case 'R':
      return detail::same(s, "RING") ? Algorithm::kRing : Algorithm::kUnknown;
    case 'T':
      return detail::same(s, "TREE") ? Algorithm::kTree : Algorithm::kUnknown;
    case 'N':
      if (detail::same(s, "NVLS")) return Algorithm::kNvls;
      return detail::same(s, "NVLS_TREE") ? Algorithm::kNvlsTree : Algorithm::kUnknown;
    case 'C':
      if (detail::same(s, "COLLNET_DIRECT")) return Algorithm::kCollnetDirect;
      return detail::same(s, "COLLNET_CHAIN") ? Algorithm::kCollnetChain : Algorithm::kUnknown;
    case 'P':
      return detail::same(s, "PAT") ? Algorithm::kPat : Algorithm::kUnknown;
    default:
      return Algorithm::kUnknown;
  }
}

inline model::Protocol parse_protocol(const char* s) noexcept {
  using model::Protocol;
  if (s == nullptr) return Protocol::kUnknown;
  if (s[0] == 'S') return detail::same(s, "SIMPLE") ? Protocol::kSimple : Protocol::kUnknown;
  if (detail::same(s, "LL128")) return Protocol::kLl128;
  return detail::same(s, "LL") ? Protocol::kLl : Protocol::kUnknown;
}

// ---- numeric codes of interface v1 ----
inline model::Function function_from_code(std::uint8_t code) noexcept {
  using model::Function;
  constexpr Function kCodes[] = {
      Function::kBroadcast, Function::kReduce,   Function::kAllGather, Function::kReduceScatter,
      Function::kAllReduce, Function::kSendRecv, Function::kSend,      Function::kRecv};
  return code < sizeof kCodes / sizeof kCodes[0] ? kCodes[code] : Function::kUnknown;
}

inline model::DataType datatype_from_code(std::uint8_t code) noexcept {
  using model::DataType;
  constexpr DataType kCodes[] = {DataType::kInt8,     DataType::kUint8,      DataType::kInt32,
                                 DataType::kUint32,   DataType::kInt64,      DataType::kUint64,
                                 DataType::kFloat16,  DataType::kFloat32,    DataType::kFloat64,
                                 DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2};
  return code < sizeof kCodes / sizeof kCodes[0] ? kCodes[code] : DataType::kUnknown;
}

inline model::Algorithm algorithm_from_code(std::uint8_t code) noexcept {
  return code < 7 ? static_cast<model::Algorithm>(code + 1) : model::Algorithm::kUnknown;
}

inline model::Protocol protocol_from_code(std::uint8_t code) noexcept {
  return code < 3 ? static_cast<model::Protocol>(code + 1) : model::Protocol::kUnknown;
}

}  // namespace ncclscope::plugin
