// SPDX-License-Identifier: Apache-2.0
//
// What goes from the reactor to the archive's writer: chunks of records that bring along whose they
// are, so that a chunk that is dropped leaves nothing dangling.
//   Thread: a chunk has one owner at a time; descriptions are immutable and shared.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "archive/context.h"
#include "proto/wire/frame.h"

namespace ncclscope::agent {

/// A process, and the job it belongs to, as known at some time. `serial` is unique in this agent.
struct ArchivedProcess {
  std::uint64_t serial = 0;
  std::shared_ptr<const archive::Job> job;
  archive::Process process;
};
/// The same of a communicator.
struct ArchivedSource {
  std::uint64_t serial = 0;
  std::shared_ptr<const ArchivedProcess> process;
  archive::Communicator communicator;
};

struct ArchiveChunk {
  static constexpr std::size_t kRecords = 1024;

  struct Record {
    std::uint32_t source = 0;  // place in `sources`
    wire::RecordType type{};
    std::uint64_t index = 0;
    std::uint64_t sent_ns = 0;
    alignas(8) std::byte bytes[56];
  };
  std::uint64_t serial = 0;    // unique in this agent
  std::uint64_t begun_ns = 0;  // CLOCK_MONOTONIC of the first record
  std::vector<std::shared_ptr<const ArchivedSource>> sources;
  std::vector<Record> records;
  std::vector<std::pair<std::uint32_t, wire::Progress>> progress;
  std::vector<std::pair<std::uint32_t, wire::Books>> books;

  [[nodiscard]] bool empty() const { return records.empty() && progress.empty() && books.empty(); }
  [[nodiscard]] std::uint64_t operations() const {
    std::uint64_t count = 0;
    for (const Record& record : records) count += record.type == wire::RecordType::kOperation;
    return count;
  }
  void clear() {
    sources.clear();
    records.clear();
    progress.clear();
    books.clear();
  }
};

/// Bounded, so that a disk that hangs costs records and never memory.
class ArchiveQueue {
 public:
  explicit ArchiveQueue(std::size_t most_chunks) : most_chunks_(most_chunks) {}

  /// False: full, and the chunk is still the caller's. Never waits.
  bool push(std::unique_ptr<ArchiveChunk>& chunk) {
    {
      const std::lock_guard lock(mutex_);
      if (chunks_.size() >= most_chunks_ || closed_) return false;
      chunks_.push_back(std::move(chunk));
    }
    arrived_.notify_one();
    return true;
  }
  /// An empty chunk, one that was used before if there is.
  std::unique_ptr<ArchiveChunk> make() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return std::make_unique<ArchiveChunk>();
    std::unique_ptr<ArchiveChunk> chunk = std::move(spare_.back());
    spare_.pop_back();
    return chunk;
  }
  /// Waits at most `timeout` for a chunk. Null: none came.
  template <typename Duration>
  std::unique_ptr<ArchiveChunk> pop(Duration timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [this] { return closed_ || !chunks_.empty(); });
    if (chunks_.empty()) return nullptr;
    std::unique_ptr<ArchiveChunk> chunk = std::move(chunks_.front());
    chunks_.pop_front();
    return chunk;
  }
  void give_back(std::unique_ptr<ArchiveChunk> chunk) {
    constexpr std::size_t kSpare = 2;
    chunk->clear();
    const std::lock_guard lock(mutex_);
    if (spare_.size() < kSpare) spare_.push_back(std::move(chunk));
  }
  /// Nothing more is taken; what is there can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    arrived_.notify_all();
  }
  [[nodiscard]] bool done() const {
    const std::lock_guard lock(mutex_);
    return closed_ && chunks_.empty();
  }

 private:
  const std::size_t most_chunks_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::unique_ptr<ArchiveChunk>> chunks_;
  std::vector<std::unique_ptr<ArchiveChunk>> spare_;
  bool closed_ = false;
};

}  // namespace ncclscope::agent
