// SPDX-License-Identifier: Apache-2.0
//
// Finds a session's ranks by communicator id. Plugins count ids up to 65,534 and begin again, so
// the ids in use are few and anywhere: an open-addressing table whose size follows the number in
// use.
//   Thread: reactor.   Cost: one probe for consecutive ids.   Memory: 16 bytes x 2..4 per id in
//   use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ncclscope::agent {

struct CommRank;

class SlotTable {
 public:
  struct Entry {
    CommRank* rank = nullptr;  // null: no such id
    std::uint32_t nranks = 0;  // of the communicator as this process knows it, 0 = unknown
    std::uint16_t id = 0;
    std::uint16_t gpu = 0;  // one of the process's GPUs + 1, 0 = unknown
  };
  [[nodiscard]] Entry entry(std::uint16_t id) const {
    if (entries_.empty()) return {};
    for (std::size_t i = id & mask(); entries_[i].rank != nullptr; i = (i + 1) & mask()) {
      if (entries_[i].id == id) return entries_[i];
    }
    return {};
  }
  [[nodiscard]] CommRank* find(std::uint16_t id) const { return entry(id).rank; }
  /// Adds or replaces. `rank` is not null.
  void set(std::uint16_t id, CommRank* rank, std::uint32_t nranks = 0, std::uint16_t gpu = 0) {
    if ((used_ + 1) * 2 > entries_.size()) resize(entries_.empty() ? 8 : entries_.size() * 2);
    std::size_t i = id & mask();
    while (entries_[i].rank != nullptr && entries_[i].id != id) i = (i + 1) & mask();
    if (entries_[i].rank == nullptr) ++used_;
    entries_[i] = {rank, nranks, id, gpu};
  }
  void erase(std::uint16_t id) {
    if (entries_.empty()) return;
    std::size_t hole = id & mask();
    while (entries_[hole].id != id || entries_[hole].rank == nullptr) {
      if (entries_[hole].rank == nullptr) return;
      hole = (hole + 1) & mask();
    }
    --used_;
    // Moves up what would no longer be found behind the hole.
    for (std::size_t i = (hole + 1) & mask(); entries_[i].rank != nullptr; i = (i + 1) & mask()) {
      const std::size_t home = entries_[i].id & mask();
      if (((i - home) & mask()) >= ((i - hole) & mask())) {
        entries_[hole] = entries_[i];
        hole = i;
      }
    }
    entries_[hole] = {};
  }
  [[nodiscard]] std::size_t size() const { return used_; }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.rank != nullptr) visit(*entry.rank);
    }
  }

 private:
  [[nodiscard]] std::size_t mask() const { return entries_.size() - 1; }
  void resize(std::size_t size) {
    std::vector<Entry> old(size);
    old.swap(entries_);
    used_ = 0;
    for (const Entry& entry : old) {
      if (entry.rank != nullptr) set(entry.id, entry.rank, entry.nranks, entry.gpu);
    }
  }

  std::vector<Entry> entries_;  // a power of two of them, at most half used
  std::size_t used_ = 0;
};

}  // namespace ncclscope::agent
