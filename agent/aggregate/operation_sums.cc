// SPDX-License-Identifier: Apache-2.0
//
// A direct-mapped cache of 16 keys in front of a short linear table: a communicator has some tens
// of rows.
#include "agent/aggregate/operation_sums.h"

#include <algorithm>
#include <utility>

namespace ncclscope::agent {
namespace {

constexpr std::uint32_t make_key(model::Function function, std::uint8_t size_class,
                                 model::Algorithm algorithm, model::Protocol protocol) {
  return static_cast<std::uint32_t>(function) << 12 | std::uint32_t{size_class} << 8 |
         static_cast<std::uint32_t>(algorithm) << 4 | static_cast<std::uint32_t>(protocol);
}
/// What a key becomes when it is folded that far. Sends and receives stay apart from collectives:
/// they are other metrics.
constexpr std::uint32_t folded_key(std::uint32_t key, FoldStep step) {
  auto function = static_cast<model::Function>(key >> 12);
  auto size_class = static_cast<std::uint8_t>(key >> 8 & 0xFu);
  auto algorithm = static_cast<model::Algorithm>(key >> 4 & 0xFu);
  auto protocol = static_cast<model::Protocol>(key & 0xFu);
  if (step >= FoldStep::kAlgorithm) {
    algorithm = kOtherAlgorithm;
    protocol = kOtherProtocol;
  }
  if (step >= FoldStep::kSize) size_class = kOtherSize;
  if (step >= FoldStep::kOperation && !model::is_point_to_point(function)) {
    function = kOtherFunction;
  }
  return make_key(function, size_class, algorithm, protocol);
}
void add(OperationSumsRow& to, const OperationSumsRow& from) {
  for (std::size_t t = 0; t < to.operations_by_timing.size(); ++t) {
    to.operations_by_timing[t] += from.operations_by_timing[t];
    to.bytes_by_timing[t] += from.bytes_by_timing[t];
  }
  to.timed_operations += from.timed_operations;
  to.bus_bytes += from.bus_bytes;
  to.busy_seconds += from.busy_seconds;
}
constexpr std::size_t slot_of(std::uint32_t key, std::size_t slots) {
  return (key * 0x9E3779B1u >> 16) % slots;
}

}  // namespace

OperationSumsRow& OperationSums::find(model::Function function, std::uint8_t size_class,
                                      model::Algorithm algorithm, model::Protocol protocol,
                                      std::uint64_t& series) {
  const std::uint32_t key = make_key(function, size_class, algorithm, protocol);
  Slot& slot = cache_[slot_of(key, kCacheSlots)];
  if (slot.key() != key) slot = Slot(key, find_slow(key, series));
  return rows_[slot.row()];
}

OperationSums::RowIndex OperationSums::find_slow(std::uint32_t key, std::uint64_t& series) {
  key = folded_key(key, step_);
  const auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it != keys_.end()) return static_cast<RowIndex>(it - keys_.begin());
  series += kSeriesPerRow;
  keys_.push_back(key);
  OperationSumsRow& row = rows_.emplace_back();
  row.function = static_cast<model::Function>(key >> 12);
  row.size_class = static_cast<std::uint8_t>(key >> 8 & 0xFu);
  row.algorithm = static_cast<model::Algorithm>(key >> 4 & 0xFu);
  row.protocol = static_cast<model::Protocol>(key & 0xFu);
  return static_cast<RowIndex>(rows_.size() - 1);
}

void OperationSums::merge(const OperationSums& other) {
  std::uint64_t series = 0;
  for (const OperationSumsRow& from : other.rows_) {
    add(find(from.function, from.size_class, from.algorithm, from.protocol, series), from);
  }
}

std::size_t OperationSums::fold(FoldStep step) {
  OperationSums made;
  made.step_ = step;
  made.merge(*this);
  made.rows_.shrink_to_fit();
  made.keys_.shrink_to_fit();
  const std::size_t fewer = rows_.size() - made.rows_.size();
  *this = std::move(made);
  return fewer;
}

DurationRow& DurationTable::row_of(model::Function function, std::uint8_t size_class,
                                   std::uint64_t& series) {
  if (step_ >= FoldStep::kSize) size_class = kOtherSize;
  if (step_ >= FoldStep::kOperation && !model::is_point_to_point(function)) {
    function = kOtherFunction;
  }
  std::uint8_t& index = index_[static_cast<std::size_t>(function) * kSizes + size_class];
  if (index == 0) {
    series += kSeriesPerHistogram;
    DurationRow& made = rows_.emplace_back();
    made.function = function;
    made.size_class = size_class;
    index = static_cast<std::uint8_t>(rows_.size());
  }
  return rows_[index - 1u];
}

void DurationTable::observe(model::Function function, std::uint8_t size_class,
                            std::uint64_t duration_ns, std::uint64_t& series) {
  DurationRow& row = row_of(function, size_class, series);
  ++row.counts[duration_bucket(duration_ns)];
  row.sum_seconds += static_cast<double>(duration_ns) * 1e-9;
}

std::size_t DurationTable::fold(FoldStep step) {
  DurationTable made;
  made.step_ = step;
  std::uint64_t series = 0;
  for (const DurationRow& from : rows_) {
    DurationRow& to = made.row_of(from.function, from.size_class, series);
    for (std::size_t i = 0; i < to.counts.size(); ++i) to.counts[i] += from.counts[i];
    to.sum_seconds += from.sum_seconds;
  }
  made.rows_.shrink_to_fit();
  const std::size_t fewer = rows_.size() - made.rows_.size();
  *this = std::move(made);
  return fewer;
}

}  // namespace ncclscope::agent
