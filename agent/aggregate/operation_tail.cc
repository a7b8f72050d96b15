// SPDX-License-Identifier: Apache-2.0
//
// The ring behind live tails. All state is guarded by one mutex; the writer takes it once per
// frame.
#include "agent/aggregate/operation_tail.h"

#include <algorithm>
#include <utility>

namespace ncclscope::agent {

OperationTail::OperationTail(std::size_t capacity) : capacity_(std::max<std::size_t>(capacity, 1)) {
  ring_.reserve(capacity_);  // address space only: pages come as they are written
}

std::uint64_t OperationTail::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::uint64_t OperationTail::begin() const {
  const std::lock_guard lock(mutex_);
  return end_ - ring_.size();
}

OperationTail::ReadResult OperationTail::read(std::uint64_t from, std::size_t max,
                                              std::vector<TailRecord>& out) const {
  const std::lock_guard lock(mutex_);
  ReadResult result{from, 0};
  const std::uint64_t oldest = end_ - ring_.size();
  if (from < oldest) {
    result.skipped = oldest - from;
    result.next = oldest;
  }
  for (; result.next < end_ && max > 0; ++result.next, --max) {
    const Entry& entry = ring_[result.next % capacity_];
    TailRecord& record = out.emplace_back();
    record.source = sources_[entry.source].value;
    record.record_index = entry.record_index;
    record.type = entry.type;
    std::copy(std::begin(entry.bytes), std::end(entry.bytes), std::begin(record.bytes));
  }
  return result;
}

bool OperationTail::wait(std::uint64_t from, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  ++waiters_;
  arrived_.wait_for(lock, timeout, [&] { return closed_ || end_ > from; });
  --waiters_;
  return end_ > from;
}

bool OperationTail::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

OperationTail::SourceId OperationTail::add_source(TailSource source) {
  auto value = std::make_shared<const TailSource>(std::move(source));
  const std::lock_guard lock(mutex_);
  if (free_sources_.empty()) {
    sources_.emplace_back();
    free_sources_.push_back(static_cast<SourceId>(sources_.size() - 1));
  }
  const SourceId id = free_sources_.back();
  free_sources_.pop_back();
  sources_[id] = Source{std::move(value), 0, false};
  return id;
}

void OperationTail::release(SourceId id) {
  sources_[id].value.reset();
  free_sources_.push_back(id);
}

void OperationTail::retire_source(SourceId id) {
  const std::lock_guard lock(mutex_);
  sources_[id].retired = true;
  if (sources_[id].entries == 0) release(id);
}

void OperationTail::append(std::span<const Entry> entries) {
  if (entries.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries) {
    if (ring_.size() < capacity_) {
      ring_.push_back(entry);
    } else {
      Entry& oldest = ring_[end_ % capacity_];
      Source& source = sources_[oldest.source];
      if (--source.entries == 0 && source.retired) release(oldest.source);
      oldest = entry;
    }
    ++sources_[entry.source].entries;
    ++end_;
  }
  if (waiters_ > 0) arrived_.notify_all();
}

void OperationTail::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_all();
}

}  // namespace ncclscope::agent
