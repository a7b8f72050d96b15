// SPDX-License-Identifier: Apache-2.0
//
// Reads the small files of procfs that tell whether a pid still means the same process, and whether
// uids are whole.   Thread: any (pure).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ncclscope::agent {

/// Of /proc/<pid>/stat.
struct ProcessStart {
  char state = '?';               // 'Z' and 'X': has ended
  std::uint64_t start_ticks = 0;  // since boot (CLOCK_BOOTTIME), 1/sysconf(_SC_CLK_TCK) s
  bool operator==(const ProcessStart&) const = default;
};
/// The program's name, which may hold anything, is passed over. nullopt: not such a file.
[[nodiscard]] std::optional<ProcessStart> parse_proc_stat(std::string_view text);

/// Whether the user namespace with this /proc/self/uid_map has `uid`. Where it has not, the kernel
/// shows the overflow uid (65534) for every uid that it cannot express.
[[nodiscard]] bool maps_uid(std::string_view uid_map, std::uint32_t uid);

}  // namespace ncclscope::agent
