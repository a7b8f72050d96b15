// SPDX-License-Identifier: Apache-2.0
//
// Records of one plain type that may be more than the memory holds. Two containers, both with a
// part in memory and what does not fit in a file of the scratch folder, which has no name and is
// gone with them: Spool keeps the order in which records came, ExternalSort gives them sorted.
// Written by one thread; then read by any number of Readers, each of one thread. What the disk does
// not take is thrown as std::runtime_error that names the folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/report/sorting.h"

namespace ncclscope::cli::report {

/// A file without a name, made when the first bytes are written.
class ScratchFile {
 public:
  explicit ScratchFile(std::string folder) : folder_(std::move(folder)) {}
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&& other) noexcept;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  /// At the end; one thread.
  void append(const void* data, std::size_t bytes);
  /// Any thread, while nobody writes.
  void read(std::uint64_t offset, void* into, std::size_t bytes) const;
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  void create();

  std::string folder_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
};

/// Records of a part of a file, through a buffer.
template <typename T>
class ScratchReader {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// @param first, count   records
  /// @param buffer_records  at a time, at least one
  ScratchReader(const ScratchFile& file, std::uint64_t first, std::uint64_t count,
                std::size_t buffer_records)
      : file_(&file), next_(first), left_(count), buffer_records_(buffer_records) {}

  /// Null at the end; valid until the next call.
  const T* next() {
    if (at_ == buffer_.size() && !fill()) return nullptr;
    return &buffer_[at_++];
  }

 private:
  bool fill() {
    buffer_.resize(std::min<std::uint64_t>(buffer_records_, left_));
    at_ = 0;
    if (buffer_.empty()) return false;
    file_->read(next_ * sizeof(T), buffer_.data(), buffer_.size() * sizeof(T));
    next_ += buffer_.size();
    left_ -= buffer_.size();
    return true;
  }

  const ScratchFile* file_;
  std::uint64_t next_, left_;
  std::size_t buffer_records_;
  std::vector<T> buffer_;
  std::size_t at_ = 0;
};

/// Puts a record in; the vector's room grows up to `limit` records and no further.
template <typename T>
void push_within(std::vector<T>& records, const T& record, std::size_t limit) {
  constexpr std::size_t kFewest = 64;
  if (records.size() == records.capacity())
    records.reserve(std::min(limit, std::max(kFewest, records.size() * 2)));
  records.push_back(record);
}

/// How many records fit into so much memory, at least one.
template <typename T>
[[nodiscard]] std::size_t records_within(std::uint64_t memory_bytes) {
  return std::max<std::size_t>(1, memory_bytes / sizeof(T));
}

inline constexpr std::size_t kReadBytes = std::size_t{64} << 10U;  // at a time

template <typename T>
class Spool {
 public:
  /// @param folder        exists
  /// @param memory_bytes  that records may take in memory
  Spool(std::string folder, std::uint64_t memory_bytes)
      : file_(std::move(folder)), limit_(records_within<T>(memory_bytes)) {}

  void add(const T& record) {
    if (memory_.size() == limit_) spill();
    push_within(memory_, record, limit_);
  }
  void clear() { *this = Spool(file_.folder(), limit_ * sizeof(T)); }
  [[nodiscard]] std::uint64_t size() const { return in_file() + memory_.size(); }
  /// All records, if none is in the file; else null.
  [[nodiscard]] const std::vector<T>* all_in_memory() const {
    return in_file() == 0 ? &memory_ : nullptr;
  }

  class Reader {
   public:
    explicit Reader(const Spool& spool)
        : memory_(spool.memory_),
          file_(spool.file_, 0, spool.in_file(), records_within<T>(kReadBytes)) {}

    /// Null at the end; valid until the next call.
    const T* next() {
      if (const T* record = file_.next()) return record;
      return at_ < memory_.size() ? &memory_[at_++] : nullptr;
    }

   private:
    const std::vector<T>& memory_;
    ScratchReader<T> file_;
    std::size_t at_ = 0;
  };

  template <typename Visit>
  void for_each(Visit&& visit) const {
    Reader reader(*this);
    while (const T* record = reader.next()) visit(*record);
  }

 private:
  [[nodiscard]] std::uint64_t in_file() const { return file_.bytes() / sizeof(T); }

  void spill() {
    file_.append(memory_.data(), memory_.size() * sizeof(T));
    memory_.clear();
  }

  ScratchFile file_;
  std::size_t limit_;
  std::vector<T> memory_;
};

/// Sorts runs that fit into memory, and merges them while they are read.
/// @tparam Less     bool(const T&, const T&); if it has a static sort(std::vector<T>&), which may
///                  take as much memory again and combine equal ones, that sorts the runs
/// @tparam Combine  bool(T& into, const T& equal): puts a record into an equal one, so that there
///                  is less to write; false if that cannot be. Not all equal ones are offered.
template <typename T, typename Less, typename Combine = KeepAll>
class ExternalSort {
 public:
  ExternalSort(std::string folder, std::uint64_t memory_bytes, Less less = {})
      : file_(std::move(folder)), limit_(records_within<T>(memory_bytes)), less_(less) {}

  void add(const T& record) {
    if (memory_.size() == limit_) make_room();
    push_within(memory_, record, limit_);
  }

  /// As new, with the room that it has.
  void clear() {
    memory_.clear();
    if (runs_.empty()) return;
    runs_.clear();
    file_ = ScratchFile(file_.folder());
  }
  /// No more records come. Before it is read.
  void finish() {
    sort();
    if (runs_.empty()) return;
    combine();
    spill();
    memory_ = {};
    while (runs_.size() > kMostRuns) merge_runs();
  }

  class Reader {
   public:
    explicit Reader(const ExternalSort& sorted) : Reader(sorted, 0, sorted.runs_.size()) {}
    Reader(const Reader&) = delete;  // heads_ points into runs_
    Reader& operator=(const Reader&) = delete;

    /// Null at the end; valid until pop().
    [[nodiscard]] const T* peek() const {
      if (!heads_.empty()) return heads_.front().record;
      return at_ < memory_->size() ? &(*memory_)[at_] : nullptr;
    }
    void pop() {
      if (heads_.empty()) {
        ++at_;
        return;
      }
      std::pop_heap(heads_.begin(), heads_.end(), later_);
      Head& head = heads_.back();
      head.record = runs_[head.run].next();
      if (head.record == nullptr)
        heads_.pop_back();
      else
        std::push_heap(heads_.begin(), heads_.end(), later_);
    }

   private:
    friend class ExternalSort;
    struct Head {
      const T* record;
      std::size_t run;
    };
    struct Later {
      Less less;
      bool operator()(const Head& a, const Head& b) const { return less(*b.record, *a.record); }
    };

    Reader(const ExternalSort& sorted, std::size_t first, std::size_t end)
        : memory_(&sorted.memory_), later_{sorted.less_} {
      const std::uint64_t share =
          std::min<std::uint64_t>(kReadBytes, sorted.limit_ * sizeof(T) / (end - first + 1));
      for (std::size_t i = first; i < end; ++i)
        runs_.emplace_back(sorted.file_, sorted.runs_[i].first, sorted.runs_[i].count,
                           records_within<T>(share));
      for (std::size_t i = 0; i < runs_.size(); ++i) heads_.push_back({runs_[i].next(), i});
      std::make_heap(heads_.begin(), heads_.end(), later_);
    }

    const std::vector<T>* memory_;  // read if there are no runs
    std::size_t at_ = 0;
    std::vector<ScratchReader<T>> runs_;
    std::vector<Head> heads_;  // a heap; the first is the next
    Later later_;
  };

 private:
  static constexpr std::size_t kMostRuns = 128;
  struct Run {
    std::uint64_t first, count;
  };

  static constexpr bool kSortsItself = requires(std::vector<T> & records) { Less::sort(records); };

  void sort() {
    if constexpr (kSortsItself)
      Less::sort(memory_);
    else
      std::sort(memory_.begin(), memory_.end(), less_);
  }

  void combine() {
    if (memory_.empty()) return;
    std::size_t last = 0;
    for (std::size_t i = 1; i < memory_.size(); ++i) {
      const bool equal = !less_(memory_[last], memory_[i]);
      if (!equal || !combine_(memory_[last], memory_[i])) memory_[++last] = memory_[i];
    }
    memory_.resize(last + 1);
  }

  void make_room() {
    sort();
    combine();
    if (memory_.size() > limit_ / 2) spill();
  }

  void spill() {
    runs_.push_back({file_.bytes() / sizeof(T), memory_.size()});
    file_.append(memory_.data(), memory_.size() * sizeof(T));
    memory_.clear();
  }

  /// As many runs into one as can be read at once, all over the file.
  void merge_runs() {
    ScratchFile file(file_.folder());
    std::vector<Run> runs;
    std::vector<T> buffer;
    const std::size_t buffer_records = records_within<T>(kReadBytes);
    for (std::size_t first = 0; first < runs_.size(); first += kMostRuns) {
      runs.push_back({file.bytes() / sizeof(T), 0});
      Reader reader(*this, first, std::min(runs_.size(), first + kMostRuns));
      for (const T* record = reader.peek(); record != nullptr;
           reader.pop(), record = reader.peek()) {
        buffer.push_back(*record);
        ++runs.back().count;
        if (buffer.size() < buffer_records) continue;
        file.append(buffer.data(), buffer.size() * sizeof(T));
        buffer.clear();
      }
      file.append(buffer.data(), buffer.size() * sizeof(T));
      buffer.clear();
    }
    file_ = std::move(file);
    runs_ = std::move(runs);
  }

  ScratchFile file_;
  std::size_t limit_;
  Less less_;
  Combine combine_;
  std::vector<T> memory_;
  std::vector<Run> runs_;
};

}  // namespace ncclscope::cli::report
