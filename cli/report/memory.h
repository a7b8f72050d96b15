// SPDX-License-Identifier: Apache-2.0
//
// The process's memory as the kernel counts it. Any thread.
#pragma once

#include <cstdint>

namespace ncclscope::cli::report {

/// Pages that are in memory; 0 if the kernel does not tell.
[[nodiscard]] std::uint64_t resident_bytes();

/// Gives the kernel what the allocator keeps for later, which phases with memory of other sizes
/// cannot use. Takes some ms where there is much.
void give_back_freed_memory();

}  // namespace ncclscope::cli::report
