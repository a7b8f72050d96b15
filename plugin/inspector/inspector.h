// SPDX-License-Identifier: Apache-2.0
//
// The plugin's second thread, there only where NCCL_INSPECTOR_DUMP_DIR is set: writes the files
// that NCCL Inspector would have written. Files that hang lose lines, and hold up nothing else.
//   Threads: start() in init; read() and what follows it on the sender, or on the exiting thread
//   while it holds the sender's lock; the rest as said. None of them waits for a file.
#pragma once

#include <cstdint>

#include "plugin/process.h"
#include "plugin/tables.h"

namespace ncclscope::plugin::inspector {

/// Starts the thread if files are asked for; once per process. False: they are not, or no thread or
/// memory could be had.
bool start(Process& p) noexcept;

/// Hands on what has come into the lane's ring.
void read(Process& p, Lane& lane) noexcept;
/// True while the record of this index is still to be read.
[[nodiscard]] bool waits_for(const Lane& lane, std::uint64_t index) noexcept;
/// The communicator's entry is about to be used for another one.
void forget(const Communicator& c) noexcept;

/// Exit: lets the thread write what there is. Waits five seconds at most, since on a busy machine a
/// thread at nice 10 gets little; half a second where the file system does not answer it.
void finish_at_exit() noexcept;
/// In a fork's child: thread and files are the parent's.
void forget_after_fork() noexcept;

/// Lines since the start; all 0 without the thread.
struct Totals {
  std::uint64_t written = 0;
  std::uint64_t queue_full = 0;   // lost: the files took too long
  std::uint64_t overwritten = 0;  // records lost in the ring before they were read
  std::uint64_t failed = 0;       // lost: the file system refused them
};
[[nodiscard]] Totals totals() noexcept;

}  // namespace ncclscope::plugin::inspector
