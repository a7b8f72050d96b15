// SPDX-License-Identifier: Apache-2.0
//
// The process's memory as the kernel counts it and gives it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ncclscope::cli::report {

/// Pages that are in memory; 0 if the kernel does not tell.
[[nodiscard]] std::uint64_t resident_bytes();

/// Gives the kernel what the allocator keeps for later, which phases with memory of other sizes
/// cannot use. Takes some ms where there is much.
void give_back_freed_memory();

/// Memory of zeros for what is filled from begin to end: in large pages (2 MiB) if the system has
/// them for who asks, since a page of 4 KiB at a time takes as long to get as to fill.
class LargeMemory {
 public:
  /// Throws std::bad_alloc.
  explicit LargeMemory(std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Unmap> memory_;
};

}  // namespace ncclscope::cli::report
