// SPDX-License-Identifier: Apache-2.0
//
// What `ncclscope probe` runs: which collectives over which sizes, how often, and what is checked.
// Sizes, counts and bandwidths are those of nccl-tests (proto/model/bandwidth.h).
//   Thread: pure.   Units: bytes of the message, elements of float, seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/model/operation.h"

namespace ncclscope::cli::probe {

inline constexpr std::uint64_t kElementBytes = 4;  // float

struct Plan {
  /// Of AllReduce, AllGather, ReduceScatter, AlltoAll; run in this order.
  std::vector<model::Function> collectives;
  std::uint64_t min_bytes = 1024;
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  std::uint32_t factor = 4;  // from one size to the next
  std::uint32_t iterations = 20;
  std::uint32_t warmup = 5;
  /// Results of messages up to this size are compared with what they must be.
  std::uint64_t check_bytes = std::uint64_t{1} << 20;
};

/// One line of the table.
struct Row {
  model::Function collective{};
  std::uint64_t count = 0;  // as given to NCCL: elements per rank (AlltoAll: per pair of ranks)
  std::uint64_t bytes = 0;  // size of the message
  bool checked = false;
};

/// Why a plan cannot be run; empty if it can.
[[nodiscard]] std::string problem_of(const Plan& plan);
/// The lines of a plan for so many ranks. At least one element goes to each rank, and sizes that
/// come out equal are run once.
[[nodiscard]] std::vector<Row> rows_of(const Plan& plan, std::uint32_t ranks);
/// Bytes of the largest send or receive buffer.
[[nodiscard]] std::uint64_t buffer_bytes(const std::vector<Row>& rows);

/// GB/s (10^9 bytes); 0 without a time.
[[nodiscard]] double algorithm_gigabytes(const Row& row, double seconds) noexcept;
[[nodiscard]] double bus_gigabytes(const Row& row, std::uint32_t ranks, double seconds) noexcept;

/// "AllReduce" and so on, as the table and the agents name it.
[[nodiscard]] std::string_view collective_name(model::Function collective) noexcept;
/// Of a name in any case, "allreduce" or "all_reduce".
[[nodiscard]] std::optional<model::Function> collective_of(std::string_view name);
/// "8", "64K", "1M", "2G" (powers of 1024, with or without iB); empty if it is anything else.
[[nodiscard]] std::optional<std::uint64_t> parse_size(std::string_view text);

/// As one word, for workers; parse_plan() reads it.
[[nodiscard]] std::string plan_text(const Plan& plan);
[[nodiscard]] std::optional<Plan> parse_plan(std::string_view text);

// What buffers hold while results are checked: whole numbers, so that sums are exact in any order.

/// Element `i` of what rank `rank` contributes.
[[nodiscard]] constexpr float contribution(std::uint64_t rank, std::uint64_t i) noexcept {
  return static_cast<float>(i % 251 + rank % 127);
}
/// Sum of the contributions of `ranks` ranks; exact in float up to 44,000 of them.
[[nodiscard]] float contributions_sum(std::uint64_t ranks, std::uint64_t i) noexcept;
/// Elements that `rank` must have received in `row` differ in so many places from `received`.
[[nodiscard]] std::uint64_t count_wrong(const Row& row, std::uint64_t rank, std::uint64_t ranks,
                                        const std::vector<float>& received);
/// Elements in a rank's send and receive buffers.
[[nodiscard]] std::uint64_t sent_elements(const Row& row, std::uint64_t ranks) noexcept;
[[nodiscard]] std::uint64_t received_elements(const Row& row, std::uint64_t ranks) noexcept;

}  // namespace ncclscope::cli::probe
