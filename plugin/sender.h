// SPDX-License-Identifier: Apache-2.0
//
// The plugin's only thread: sweeps, drains the rings, speaks the wire protocol, keeps records until
// they are acknowledged.
//   Thread:  one per process, all signals blocked, named "ncclscope", nice 10, small stack, no
//   CUDA. Errors:  an agent that is missing, dead, slow, hostile or of another version is tried
//   again with back-off; the job
//            never notices.
#pragma once

namespace ncclscope::plugin {

/// Starts the thread (once per process; called in init). False: no thread could be made; records
/// stay in the rings.
bool start_sender() noexcept;

/// What exit can still do: closes open operations and sends what fits. Waits at most 0.1 s for a
/// starved sender and 0.1 s for an agent that is there; not at all for one that is not.
void flush_at_exit() noexcept;

/// In a fork's child: forgets the parent's thread and sockets.
void forget_sender_after_fork() noexcept;

}  // namespace ncclscope::plugin
