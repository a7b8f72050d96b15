// SPDX-License-Identifier: Apache-2.0
//
// Bounded ring of 56-byte records, many writers, one reader. A full ring overwrites the oldest
// record, so a missing agent never blocks a writer. It is also the store for resending: the reader
// may step back to any record still held.
//   Writers: any thread; lock-free; two compare-exchanges and seven stores; never allocate, never
//   call the system. Reader:  one thread. Indexes begin at 1 and have no holes: each is either read
//   once or known to be overwritten.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ncclscope::plugin {

inline constexpr std::size_t kRecordBytes = 56;

/// Seven words of a record, as the ring keeps them.
struct RecordWords {
  std::uint64_t word[kRecordBytes / 8];
};

/// A writer that loses the race for a cell this often gives its record up.
inline constexpr int kMaxPushAttempts = 1 << 12;

template <std::size_t kCapacity>
class RecordRing {
 public:
  RecordRing() noexcept {
    for (std::size_t i = 0; i < kCapacity; ++i) {
      // Cell i was last "written" one lap before its first index.
      cells_[i].sequence.store(written(first_index_of(i)) - lap(), std::memory_order_relaxed);
    }
  }

  [[nodiscard]] static constexpr std::size_t capacity() noexcept { return kCapacity; }

  /// Appends a record. Returns its index, or 0 when a writer that was interrupted a whole lap ago
  /// still holds the cell.
  template <typename Record>
  std::uint64_t push(const Record& record) noexcept {
    static_assert(sizeof(Record) == kRecordBytes && std::is_trivially_copyable_v<Record>);
    RecordWords words;
    std::memcpy(&words, &record, sizeof words);
    for (int attempt = 0; attempt < kMaxPushAttempts; ++attempt) {
      std::uint64_t index = next_.load(std::memory_order_relaxed);
      Cell& cell = cells_[index % kCapacity];
      std::uint64_t seen = cell.sequence.load(std::memory_order_acquire);
      if (seen == written(index) - lap()) {
        if (!cell.sequence.compare_exchange_strong(seen, writing(index), std::memory_order_acq_rel))
          continue;
        const std::uint64_t mine = index;
        next_.compare_exchange_strong(index, index + 1, std::memory_order_relaxed);
        for (std::size_t w = 0; w < kRecordBytes / 8; ++w) {
          // Release: no word becomes visible before the cell says "writing".
          cell.word[w].store(words.word[w], std::memory_order_release);
        }
        cell.sequence.store(written(mine), std::memory_order_release);
        return mine;
      }
      if (seen == writing(index) || seen == written(index)) {
        // Its writer has the cell but has not moved `next_` on yet: help.
        next_.compare_exchange_strong(index, index + 1, std::memory_order_relaxed);
        continue;
      }
      if (seen == writing(index) - lap()) return 0;
    }
    return 0;
  }

  /// The index that the next record will have.
  [[nodiscard]] std::uint64_t next_index() const noexcept {
    return next_.load(std::memory_order_acquire);
  }

  /// The oldest index that can still be held.
  [[nodiscard]] std::uint64_t oldest_index() const noexcept {
    const std::uint64_t next = next_index();
    return next > kCapacity ? next - kCapacity : 1;
  }

  enum class Read : std::uint8_t { kOk, kNotYet, kOverwritten };

  /// Copies record `index`.
  [[nodiscard]] Read read(std::uint64_t index, RecordWords& out) const noexcept {
    const Cell& cell = cells_[index % kCapacity];
    const std::uint64_t before = cell.sequence.load(std::memory_order_acquire);
    if (before < written(index)) return Read::kNotYet;
    if (before > written(index)) return Read::kOverwritten;
    for (std::size_t w = 0; w < kRecordBytes / 8; ++w)
      out.word[w] = cell.word[w].load(std::memory_order_acquire);
    return cell.sequence.load(std::memory_order_relaxed) == before ? Read::kOk : Read::kOverwritten;
  }

 private:
  struct alignas(64) Cell {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::uint64_t> word[kRecordBytes / 8];
  };
  static_assert(sizeof(Cell) == 64);

  static constexpr std::uint64_t lap() noexcept { return 2 * kCapacity; }
  // Offset by one lap so that the first lap's "one lap ago" is not negative.
  static constexpr std::uint64_t writing(std::uint64_t index) noexcept {
    return 2 * (index + kCapacity) + 1;
  }
  static constexpr std::uint64_t written(std::uint64_t index) noexcept {
    return 2 * (index + kCapacity) + 2;
  }
  static constexpr std::uint64_t first_index_of(std::size_t cell) noexcept {
    return cell == 0 ? kCapacity : cell;
  }

  alignas(64) std::atomic<std::uint64_t> next_{1};
  Cell cells_[kCapacity];
};

}  // namespace ncclscope::plugin
