// SPDX-License-Identifier: Apache-2.0
//
// Two ways of sorting millions of small records that take a fraction of the time of comparing all
// with all: by the bytes of a number, and by merging the pieces that are in order already. Both
// keep the order of equal ones and need room for a copy. Pure but for memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ncclscope::cli::report {

/// @param key_of  std::uint32_t(const T&)
template <typename T, typename KeyOf>
void radix_sort(std::vector<T>& records, KeyOf key_of) {
  const auto byte_of = [&](const T& record, std::size_t i) {
    return key_of(record) >> (8 * i) & 0xFFU;
  };
  std::array<std::array<std::size_t, 256>, sizeof(std::uint32_t)> counts{};
  for (const T& record : records) {
    for (std::size_t i = 0; i < counts.size(); ++i) ++counts[i][byte_of(record, i)];
  }
  std::vector<T> other(records.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (records.empty() || counts[i][byte_of(records.front(), i)] == records.size()) continue;
    std::size_t place = 0;
    for (std::size_t& count : counts[i]) place += std::exchange(count, place);
    for (const T& record : records) other[counts[i][byte_of(record, i)]++] = record;
    records.swap(other);
  }
}

/// Makes no two records into one.
struct KeepAll {
  template <typename T>
  bool operator()(T& /*into*/, const T& /*other*/) const {
    return false;
  }
};

/// Merges [a, a_end) and [b, b_end) into `out`, whose end is returned. Of equal ones those of `a`
/// come first; if `combine` takes one, it takes no place.
template <typename T, typename Less, typename Combine>
T* merge_pieces(const T* a, const T* a_end, const T* b, const T* b_end, T* out, Less less,
                Combine combine) {
  while (a != a_end && b != b_end) {
    if (less(*b, *a)) {
      *out++ = *b++;
      continue;
    }
    *out = *a;
    if (!less(*a++, *b) && combine(*out, *b)) ++b;
    ++out;
  }
  return std::copy(b, b_end, std::copy(a, a_end, out));
}

/// Sorts [first, end) of `records` and returns where they end now; `other` is as large, and what is
/// in it is lost. Takes one pass if they rise or fall, and one more for each doubling of the number
/// of pieces that do.
/// @param combine  bool(T& into, const T& equal): puts a record into an equal one; false if that
///                 cannot be. Not all equal ones are offered.
template <typename T, typename Less, typename Combine = KeepAll>
std::size_t merge_sort(std::vector<T>& records, std::vector<T>& other, std::size_t first,
                       std::size_t end, Less less, Combine combine = {}) {
  T* from = records.data();
  std::vector<std::size_t> ends;  // of the pieces
  for (std::size_t begin = first; begin < end; begin = ends.back()) {
    std::size_t i = begin + 1;
    if (i < end && less(from[i], from[begin])) {
      while (i < end && less(from[i], from[i - 1])) ++i;
      std::reverse(from + begin, from + i);
    } else {
      while (i < end && !less(from[i], from[i - 1])) ++i;
    }
    ends.push_back(i);
  }
  T* into = other.data();
  while (ends.size() > 1) {
    std::size_t begin = first, merged = 0;
    T* out = into + first;
    for (std::size_t piece = 0; piece < ends.size(); piece += 2) {
      const std::size_t middle = ends[piece], last = ends[std::min(piece + 1, ends.size() - 1)];
      out =
          merge_pieces(from + begin, from + middle, from + middle, from + last, out, less, combine);
      ends[merged++] = static_cast<std::size_t>(out - into);
      begin = last;
    }
    ends.resize(merged);
    std::swap(from, into);
  }
  const std::size_t sorted_end = ends.empty() ? first : ends.back();
  if (from != records.data()) std::copy(from + first, from + sorted_end, records.data() + first);
  return sorted_end;
}

}  // namespace ncclscope::cli::report
