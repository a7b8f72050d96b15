// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace ncclscope::cli {

/// Interrupt and termination. To be blocked before gRPC starts threads of its own, which would take
/// them otherwise.
inline sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace ncclscope::cli
