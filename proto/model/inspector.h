// SPDX-License-Identifier: Apache-2.0
//
// What NCCL Inspector calls things, and its ranges of message sizes: for those outputs that its
// users' dashboards, exporters and scripts read. Sizes here are of one rank (elements as NCCL
// reports them, times their size), not the S of bandwidth.h. No allocation; usable in the plugin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "proto/model/operation.h"

namespace ncclscope::model::inspector {

/// Operations of fewer bytes are left out unless somebody asks for them.
inline constexpr std::uint64_t kMinBytes = 8192;

/// The version of the textfile format that the label `version` tells: interface 5, minor 1.
inline constexpr std::string_view kPrometheusVersion = "v5.1";

inline constexpr std::string_view kBusBandwidth = "nccl_bus_bandwidth_gbs";
inline constexpr std::string_view kExecutionTime = "nccl_collective_exec_time_microseconds";
inline constexpr std::string_view kP2pBusBandwidth = "nccl_p2p_bus_bandwidth_gbs";
inline constexpr std::string_view kP2pExecutionTime = "nccl_p2p_exec_time_microseconds";

inline constexpr std::string_view kBusBandwidthHelp =
    "Geometric mean of the bus bandwidth of the operations of the last complete window, in "
    "10^9 bytes per second.";
inline constexpr std::string_view kExecutionTimeHelp =
    "Mean time of the operations of the last complete window on the GPU, from the first channel's "
    "start to the last one's end, in microseconds.";

/// What stands for a cluster, a job, or a communicator's name that is not known.
inline constexpr std::string_view kUnknown = "unknown";

[[nodiscard]] constexpr std::string_view name(Function f) noexcept {
  switch (f) {
    case Function::kAllReduce:
    case Function::kAllGather:
    case Function::kReduceScatter:
    case Function::kBroadcast:
    case Function::kReduce:
    case Function::kSend:
    case Function::kRecv:
    case Function::kSendRecv:
    case Function::kAllGatherV:
      return model::name(f);
    case Function::kAllToAll:
      return "All2All";
    default:
      return "Invalid";
  }
}

/// Bytes of one rank.
[[nodiscard]] constexpr std::uint64_t rank_bytes(std::uint64_t count, DataType type) noexcept {
  return count * element_bytes(type);
}

/// A range of message sizes: [k, k + 1) units of 1024^unit bytes.
struct SizeRange {
  std::uint16_t k = 0;    // 0..1023; more only above 1024 TB
  std::uint8_t unit = 0;  // 0 B, 1 KB, 2 MB, 3 GB, 4 TB

  bool operator==(const SizeRange&) const = default;
};

[[nodiscard]] constexpr SizeRange size_range(std::uint64_t bytes) noexcept {
  SizeRange out;
  while (bytes >= 1024 && out.unit < 4) {
    bytes /= 1024;
    ++out.unit;
  }
  out.k = static_cast<std::uint16_t>(bytes > 0xFFFE ? 0xFFFE : bytes);
  return out;
}

/// "8-9KB", "0B": at most 14 bytes. Returns their number; not terminated.
struct SizeText {
  char text[16] = {};
  std::uint8_t length = 0;

  [[nodiscard]] constexpr std::string_view view() const noexcept { return {text, length}; }
};

[[nodiscard]] constexpr SizeText size_text(SizeRange range) noexcept {
  constexpr std::string_view kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  SizeText out;
  const auto put = [&out](char c) { out.text[out.length++] = c; };
  const auto number = [&put](std::uint32_t n) {
    char digits[8] = {};
    std::size_t count = 0;
    do {
      digits[count++] = static_cast<char>('0' + n % 10);
      n /= 10;
    } while (n != 0);
    while (count > 0) put(digits[--count]);
  };
  number(range.k);
  if (range.k != 0 || range.unit != 0) {
    put('-');
    number(range.k + 1u);
  }
  for (const char c : kUnits[range.unit < 5 ? range.unit : 4]) put(c);
  return out;
}

}  // namespace ncclscope::model::inspector
