// SPDX-License-Identifier: Apache-2.0
//
// A direct-mapped cache of 64 keys in front of a short linear table: a communicator has some tens
// of rows.
#include "agent/aggregate/operation_sums.h"

#include <algorithm>

namespace ncclscope::agent {
namespace {

constexpr std::uint32_t make_key(model::Function function, std::uint8_t size_class,
                                 model::Algorithm algorithm, model::Protocol protocol) {
  return static_cast<std::uint32_t>(function) << 12 | std::uint32_t{size_class} << 8 |
         static_cast<std::uint32_t>(algorithm) << 4 | static_cast<std::uint32_t>(protocol);
}
constexpr std::size_t slot_of(std::uint32_t key, std::size_t slots) {
  return (key * 0x9E3779B1u >> 16) % slots;
}

}  // namespace

OperationSums::RowIndex OperationSums::find(model::Function function, std::uint8_t size_class,
                                            model::Algorithm algorithm, model::Protocol protocol,
                                            std::uint64_t& folded) {
  const std::uint32_t key = make_key(function, size_class, algorithm, protocol);
  Slot& slot = cache_[slot_of(key, kCacheSlots)];
  if (slot.key != key) {
    slot.row = find_slow(key, folded);
    slot.key = key;
  }
  return slot.row;
}

OperationSums::RowIndex OperationSums::find_slow(std::uint32_t key, std::uint64_t& folded) {
  constexpr std::size_t kReserved = model::kFunctionCount * kSizeClasses;  // rows to fold into
  static_assert(kReserved * 2 < kMaxRows);
  auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it == keys_.end() && rows_.size() >= kMaxRows - kReserved && (key & 0xFFu) != 0) {
    ++folded;
    key &= ~std::uint32_t{0xFF};
    it = std::find(keys_.begin(), keys_.end(), key);
  }
  if (it != keys_.end()) return static_cast<RowIndex>(it - keys_.begin());
  keys_.push_back(key);
  OperationSumsRow& row = rows_.emplace_back();
  row.function = static_cast<model::Function>(key >> 12);
  row.size_class = static_cast<std::uint8_t>(key >> 8 & 0xFu);
  row.algorithm = static_cast<model::Algorithm>(key >> 4 & 0xFu);
  row.protocol = static_cast<model::Protocol>(key & 0xFu);
  return static_cast<RowIndex>(rows_.size() - 1);
}

void OperationSums::merge(const OperationSums& other, std::uint64_t& folded) {
  for (const OperationSumsRow& from : other.rows_) {
    OperationSumsRow& to =
        row(find(from.function, from.size_class, from.algorithm, from.protocol, folded));
    for (std::size_t t = 0; t < to.operations_by_timing.size(); ++t) {
      to.operations_by_timing[t] += from.operations_by_timing[t];
      to.bytes_by_timing[t] += from.bytes_by_timing[t];
    }
    to.timed_operations += from.timed_operations;
    to.bus_bytes += from.bus_bytes;
    to.busy_seconds += from.busy_seconds;
  }
}

void DurationTable::observe(model::Function function, std::uint8_t size_class,
                            std::uint64_t duration_ns) {
  std::uint8_t& index = index_[static_cast<std::size_t>(function) * kSizeClasses + size_class];
  if (index == 0) {
    DurationRow& made = rows_.emplace_back();
    made.function = function;
    made.size_class = size_class;
    index = static_cast<std::uint8_t>(rows_.size());
  }
  DurationRow& row = rows_[index - 1u];
  ++row.counts[duration_bucket(duration_ns)];
  row.sum_seconds += static_cast<double>(duration_ns) * 1e-9;
}

}  // namespace ncclscope::agent
