// SPDX-License-Identifier: Apache-2.0
//
// Sums of a communicator's operations by (function, size class, algorithm, protocol), and duration
// histograms.
//   Thread: reactor.   Cost: one table lookup per operation; memory grows with distinct keys only,
//   and is bounded.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "agent/aggregate/series.h"
#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

[[nodiscard]] constexpr std::uint8_t size_class_of(std::uint64_t bytes) noexcept {
  unsigned size = 0;
  for (const std::uint64_t bound : kSizeClassBounds) size += bytes > bound ? 1u : 0u;
  return static_cast<std::uint8_t>(size);
}

/// Smallest i with duration <= 10 us * 4^i; kDurationBounds for longer ones.
[[nodiscard]] constexpr std::size_t duration_bucket(std::uint64_t duration_ns) noexcept {
  const std::uint64_t tens = (duration_ns + 9'999) / 10'000;
  if (tens <= 1) return 0;
  const auto i = static_cast<std::size_t>((std::bit_width(tens - 1) + 1) / 2);
  return i < kDurationBounds ? i : kDurationBounds;
}

class OperationSums {
 public:
  static constexpr std::uint64_t kSeriesPerRow = 2;  // at least: operations and bytes

  /// The row of this key, made if new; then `series` grows by kSeriesPerRow.
  OperationSumsRow& find(model::Function function, std::uint8_t size_class,
                         model::Algorithm algorithm, model::Protocol protocol,
                         std::uint64_t& series);
  [[nodiscard]] const std::vector<OperationSumsRow>& rows() const { return rows_; }
  /// Adds the sums of another table.
  void merge(const OperationSums& other);
  /// Adds up rows whose keys are the same at this step, now and from now on.
  /// Returns how many rows there are less.
  std::size_t fold(FoldStep step);

 private:
  using RowIndex = std::uint16_t;
  static constexpr std::size_t kCacheSlots = 16;
  RowIndex find_slow(std::uint32_t key, std::uint64_t& series);

  std::vector<OperationSumsRow> rows_;
  std::vector<std::uint32_t> keys_;  // of rows_
  /// A key and its row in four bytes: there are thousands of communicators with sixteen each.
  class Slot {
   public:
    Slot() = default;
    Slot(std::uint32_t key, RowIndex row) : key_and_row_(key << kRowBits | row) {}
    [[nodiscard]] std::uint32_t key() const { return key_and_row_ >> kRowBits; }
    [[nodiscard]] std::uint32_t row() const { return key_and_row_ & ((1U << kRowBits) - 1); }

   private:
    static constexpr unsigned kRowBits = 15;
    // All keys, "other" included, and the highest key.
    static_assert((model::kFunctionCount + 1) * (kSizeClasses + 1) * (model::kAlgorithmCount + 1) *
                      (model::kProtocolCount + 1) <=
                  1U << kRowBits);
    static_assert((model::kFunctionCount + 1) << 12U < 1U << (32 - kRowBits));
    std::uint32_t key_and_row_ = ~std::uint32_t{0};  // of no row: there is no such function
  };
  std::array<Slot, kCacheSlots> cache_{};
  FoldStep step_ = FoldStep::kNothing;
};

/// Duration histograms of a job by (function, size class).
class DurationTable {
 public:
  /// When that makes a new row, `series` grows by those of a histogram.
  void observe(model::Function function, std::uint8_t size_class, std::uint64_t duration_ns,
               std::uint64_t& series);
  std::size_t fold(FoldStep step);  // as of OperationSums
  [[nodiscard]] const std::vector<DurationRow>& rows() const { return rows_; }

 private:
  DurationRow& row_of(model::Function function, std::uint8_t size_class, std::uint64_t& series);

  static constexpr std::size_t kSizes = kSizeClasses + 1;  // "other" included
  static constexpr std::size_t kKeys = (model::kFunctionCount + 1) * kSizes;
  static_assert(kKeys < 256);
  std::array<std::uint8_t, kKeys> index_{};  // row + 1, 0 = none
  FoldStep step_ = FoldStep::kNothing;
  std::vector<DurationRow> rows_;
};

}  // namespace ncclscope::agent
