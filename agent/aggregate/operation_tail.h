// SPDX-License-Identifier: Apache-2.0
//
// The newest operation, network and channel records as they arrived, for live tails and `record`.
// A fixed ring: writing never waits for readers; a reader that is too slow skips and knows how
// many.
//   Thread: one writer (the reactor) that locks once per frame; any number of readers.
//   Memory: capacity x 72 bytes, plus one TailSource per communicator and rank that is still
//   referred to.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "proto/wire/frame.h"

namespace ncclscope::agent {

/// Whose record it is. Immutable; shared by all records of one communicator and rank.
struct TailSource {
  std::string job_id;
  std::string cluster;
  std::int64_t uid = -1;  // owner of the process as proved by the kernel, -1 = unknown
  std::string comm;       // as in CommunicatorSnapshot; empty for foreign (PXN) work
  bool hash_known = true;
  std::uint32_t nranks = 0;  // 0 = unknown
  std::int32_t rank = -1;
  std::int32_t gpu = -1;
  std::int64_t pid = 0;
  std::uint64_t session_id = 0;
  std::uint16_t communicator_id = 0;
  std::int64_t realtime_offset_ns =
      0;  // add to CLOCK_MONOTONIC times of the record: time since the epoch
};

/// One record as it came over the wire, and whose it is.
struct TailRecord {
  std::shared_ptr<const TailSource> source;
  std::uint64_t record_index = 0;
  wire::RecordType type{};              // kOperation, kNetworkPhases or kChannelDetail
  alignas(8) std::byte bytes[56] = {};  // the record of that type

  [[nodiscard]] wire::Operation operation() const noexcept { return as<wire::Operation>(); }
  [[nodiscard]] wire::NetworkPhases network() const noexcept { return as<wire::NetworkPhases>(); }
  [[nodiscard]] wire::ChannelDetail channel() const noexcept { return as<wire::ChannelDetail>(); }

 private:
  template <typename Record>
  [[nodiscard]] Record as() const noexcept {
    static_assert(sizeof(Record) == sizeof bytes && std::is_trivially_copyable_v<Record>);
    Record r;
    __builtin_memcpy(&r, bytes, sizeof r);
    return r;
  }
};

class OperationTail {
 public:
  using SourceId = std::uint32_t;
  static constexpr std::size_t kDefaultCapacity = 16'384;

  explicit OperationTail(std::size_t capacity = kDefaultCapacity);
  OperationTail(const OperationTail&) = delete;
  OperationTail& operator=(const OperationTail&) = delete;

  // ---- readers, any thread ----------------------------------------------------------------------
  /// Sequence number of the next record to be written. Sequence numbers begin at 0.
  [[nodiscard]] std::uint64_t end() const;
  /// Sequence number of the oldest record still held (== end() when none is).
  [[nodiscard]] std::uint64_t begin() const;

  struct ReadResult {
    std::uint64_t next = 0;  // where to read on
    std::uint64_t skipped =
        0;  // records between `from` and the first one delivered that were overwritten
  };
  /// Appends up to `max` records from sequence number `from` on to `out`. Does not wait.
  ReadResult read(std::uint64_t from, std::size_t max, std::vector<TailRecord>& out) const;
  /// Waits until a record with sequence number >= `from` exists, the tail is closed, or the time is
  /// over. True when such a record exists.
  bool wait(std::uint64_t from, std::chrono::milliseconds timeout) const;
  [[nodiscard]] bool closed() const;

  // ---- the writer, reactor thread ---------------------------------------------------------------
  struct Entry {
    SourceId source = 0;
    wire::RecordType type{};
    std::uint64_t record_index = 0;
    alignas(8) std::byte bytes[56];
  };
  SourceId add_source(TailSource source);
  /// The source gets no more records; it is freed when its last record is overwritten.
  void retire_source(SourceId id);
  /// Appends the records of one frame.
  void append(std::span<const Entry> entries);
  /// Wakes all readers for good (shutdown).
  void close();

 private:
  struct Source {
    std::shared_ptr<const TailSource> value;
    std::uint32_t entries = 0;
    bool retired = false;
  };
  void release(SourceId id);

  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  mutable std::uint32_t waiters_ = 0;
  bool closed_ = false;
  std::size_t capacity_;
  std::vector<Entry> ring_;  // grows to capacity_, then wraps
  std::uint64_t end_ = 0;
  std::vector<Source> sources_;
  std::vector<SourceId> free_sources_;
};

}  // namespace ncclscope::agent
