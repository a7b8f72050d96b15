// SPDX-License-Identifier: Apache-2.0
//
// What an NCCL operation is: functions, data types, algorithms, protocols, and how NCCL spells
// them. Numbers are ours and go over the wire: values are only appended, never changed or reused.
// Header-only, no allocation, no exceptions; usable on NCCL's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ncclscope::model {

enum class Function : std::uint8_t {
  kUnknown = 0,
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kReduce = 5,
  kSend = 6,
  kRecv = 7,
  kAllToAll = 8,  // by name only from copy-engine collectives; else seen as Send and Recv
  kGather = 9,
  kScatter = 10,
  kSendRecv = 11,
  kPutSignal = 12,
  kSignal = 13,
  kWaitSignal = 14,
  kAllGatherV = 15,
};
inline constexpr std::size_t kFunctionCount = 16;

/// ncclDataType_t by name. kUint8 is what NCCL's profiler interface calls "Unknown".
enum class DataType : std::uint8_t {
  kUnknown = 0,  // the interface gave no type
  kInt8 = 1,
  kUint8 = 2,
  kInt32 = 3,
  kUint32 = 4,
  kInt64 = 5,
  kUint64 = 6,
  kFloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kBfloat16 = 10,
  kFloat8e4m3 = 11,
  kFloat8e5m2 = 12,
};
inline constexpr std::size_t kDataTypeCount = 13;

enum class Algorithm : std::uint8_t {
  kUnknown = 0,
  kTree = 1,
  kRing = 2,
  kCollnetDirect = 3,
  kCollnetChain = 4,
  kNvls = 5,
  kNvlsTree = 6,
  kPat = 7,
  kSymmetric = 8,
};
inline constexpr std::size_t kAlgorithmCount = 9;

enum class Protocol : std::uint8_t { kUnknown = 0, kLl = 1, kLl128 = 2, kSimple = 3 };
inline constexpr std::size_t kProtocolCount = 4;

/// Point-to-point operations have a peer, no sequence number, and indexes of their own.
[[nodiscard]] constexpr bool is_point_to_point(Function f) noexcept {
  return f == Function::kSend || f == Function::kRecv;
}

/// Collectives with a root.
[[nodiscard]] constexpr bool is_rooted(Function f) noexcept {
  return f == Function::kBroadcast || f == Function::kReduce || f == Function::kGather ||
         f == Function::kScatter;
}

/// What must be equal on all ranks of a collective, in 48 bits: FNV-1a over function, count,
/// datatype and root (-1 for Send and Recv). Never 0.
[[nodiscard]] constexpr std::uint64_t operation_signature(Function function, std::uint64_t count,
                                                          DataType datatype,
                                                          std::int32_t root) noexcept {
  const std::uint64_t parts[4] = {
      static_cast<std::uint64_t>(function), count, static_cast<std::uint64_t>(datatype),
      static_cast<std::uint32_t>(is_point_to_point(function) ? -1 : root)};
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::uint64_t part : parts) {
    for (unsigned byte = 0; byte < 8; ++byte)
      hash = (hash ^ ((part >> (8 * byte)) & 0xFFu)) * 0x100000001B3u;
  }
  hash &= 0xFFFFFFFFFFFFu;
  return hash == 0 ? 1 : hash;
}

/// Element size in bytes. Unknown types count 1, as ncclUint8 does.
[[nodiscard]] constexpr std::uint32_t element_bytes(DataType t) noexcept {
  switch (t) {
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 8;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    default:
      return 1;
  }
}

/// Names as users know them (label values `collective`, `algorithm`, `protocol`).
[[nodiscard]] constexpr std::string_view name(Function f) noexcept {
  constexpr std::string_view kNames[kFunctionCount] = {
      "Unknown",   "AllReduce", "AllGather",  "ReduceScatter", "Broadcast", "Reduce",
      "Send",      "Recv",      "AlltoAll",   "Gather",        "Scatter",   "SendRecv",
      "PutSignal", "Signal",    "WaitSignal", "AllGatherV"};
  const auto i = static_cast<std::size_t>(f);
  return i < kFunctionCount ? kNames[i] : kNames[0];
}
[[nodiscard]] constexpr std::string_view name(DataType t) noexcept {
  constexpr std::string_view kNames[kDataTypeCount] = {
      "Unknown",      "ncclInt8",       "ncclUint8",     "ncclInt32",   "ncclUint32",
      "ncclInt64",    "ncclUint64",     "ncclFloat16",   "ncclFloat32", "ncclFloat64",
      "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  const auto i = static_cast<std::size_t>(t);
  return i < kDataTypeCount ? kNames[i] : kNames[0];
}
[[nodiscard]] constexpr std::string_view name(Algorithm a) noexcept {
  constexpr std::string_view kNames[kAlgorithmCount] = {
      "Unknown", "TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN",
      "NVLS",    "NVLS_TREE", "PAT",  "SYMMETRIC"};
  const auto i = static_cast<std::size_t>(a);
  return i < kAlgorithmCount ? kNames[i] : kNames[0];
}
[[nodiscard]] constexpr std::string_view name(Protocol p) noexcept {
  constexpr std::string_view kNames[kProtocolCount] = {"Unknown", "LL", "LL128", "SIMPLE"};
  const auto i = static_cast<std::size_t>(p);
  return i < kProtocolCount ? kNames[i] : kNames[0];
}

}  // namespace ncclscope::model
