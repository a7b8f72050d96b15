// SPDX-License-Identifier: Apache-2.0
//
// Distinct measures of operations, and how many operations have them: a hash table whose memory can
// be asked for. Measures are compared bit by bit, so that NaN, which means NULL, is a value like
// others. Pure but for memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ncclscope::cli::report {

/// Of an operation, in the order of kMeasures; NaN for NULL.
using Measures = std::array<double, 3>;

template <std::size_t kWords>
[[nodiscard]] std::size_t hash_of(const std::array<std::uint64_t, kWords>& words) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 / the golden ratio
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) hash = std::rotl(hash ^ word, 29) * kOdd;
  return hash ^ hash >> 32U;
}

/// Equal; without a call, as std::array compares.
template <std::size_t kWords>
[[nodiscard]] bool same_words(const std::array<std::uint64_t, kWords>& a,
                              const std::array<std::uint64_t, kWords>& b) {
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < kWords; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

/// Open addressing; the number of slots is a power of two.
class ValueTable {
 public:
  void add(const Measures& measures, std::int64_t occurrences) {
    if ((used_ + 1) * 3 > slots_.size() * 2) grow();
    Slot& slot = slot_of(bits_of(measures));
    used_ += slot.occurrences == 0 ? 1 : 0;
    slot.occurrences += occurrences;
  }

  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

  /// visit(measures, occurrences)
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.occurrences != 0) visit(measures_of(slot.bits), slot.occurrences);
    }
  }

  /// As new, but for its memory.
  void clear() {
    slots_.assign(slots_.size(), {});
    used_ = 0;
  }

 private:
  using Bits = std::array<std::uint64_t, std::tuple_size_v<Measures>>;
  static constexpr std::size_t kFirstSlots = 16;
  struct Slot {
    Bits bits{};
    std::int64_t occurrences = 0;  // 0: nothing is here
  };

  static Bits bits_of(const Measures& measures) {
    Bits bits{};
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = std::bit_cast<std::uint64_t>(measures[i]);
    return bits;
  }
  static Measures measures_of(const Bits& bits) {
    Measures measures{};
    for (std::size_t i = 0; i < bits.size(); ++i) measures[i] = std::bit_cast<double>(bits[i]);
    return measures;
  }

  Slot& slot_of(const Bits& bits) {
    const std::size_t last = slots_.size() - 1;
    std::size_t at = hash_of(bits) & last;
    while (slots_[at].occurrences != 0 && !same_words(slots_[at].bits, bits)) at = (at + 1) & last;
    if (slots_[at].occurrences == 0) slots_[at].bits = bits;
    return slots_[at];
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? kFirstSlots : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.occurrences != 0) slot_of(slot.bits) = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace ncclscope::cli::report
