// SPDX-License-Identifier: Apache-2.0
//
// What the kernel lets this process have: descriptors and memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ncclscope::agent {

/// Descriptors that are not for plugins: sockets of scrapes and of the API, timers, files.
inline constexpr std::size_t kReservedDescriptors = 256;

/// Raises the soft limit on open descriptors to the hard one. Returns the limit in force.
std::size_t raise_descriptor_limit();

/// How many connections of plugins to allow where `wanted` are asked for and `descriptors` may be
/// open. Leaves the agent its own, and never less than half of all.
[[nodiscard]] std::size_t connections_within(std::size_t wanted, std::size_t descriptors);

/// Resident memory of this process in bytes, 0 if it cannot be read.
[[nodiscard]] std::uint64_t resident_bytes();

/// Decides from the resident memory whether the agent is at its limit. It counts as full until it
/// is a tenth below the limit again, so that it does not flutter.
class MemoryGuard {
 public:
  /// @param limit_bytes 0 = no limit
  bool update(std::uint64_t resident, std::uint64_t limit_bytes) {
    const std::uint64_t until = full_ ? limit_bytes - limit_bytes / 10 : limit_bytes;
    full_ = limit_bytes != 0 && (full_ ? resident >= until : resident > until);
    return full_;
  }
  [[nodiscard]] bool full() const { return full_; }

 private:
  bool full_ = false;
};

}  // namespace ncclscope::agent
