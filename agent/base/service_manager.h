// SPDX-License-Identifier: Apache-2.0
//
// What systemd and the agent tell each other (sd_notify(3), sd_listen_fds(3)): readiness, signs of
// life, and descriptors that outlive a restart. Without systemd nothing of it does anything.
// Spoken here, not through libsystemd: that would be more resident memory than the agent's tables.
//   Thread: the reactor's, or before there are others (take_passed_descriptors).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

/// Whether there is a service manager that listens.
[[nodiscard]] bool is_managed();

/// Tells systemd "READY=1", "STOPPING=1", ... through $NOTIFY_SOCKET.
void notify_service_manager(const std::string& state);

/// How often systemd wants a sign of life ("WATCHDOG=1"); 0: not at all.
[[nodiscard]] std::chrono::microseconds watchdog_period();

struct PassedDescriptor {
  std::string name;  // FileDescriptorName= of a socket unit, or what it was stored as
  ScopedFd fd;       // close-on-exec, non-blocking
};
/// What systemd has opened for us, or kept over a restart. Once: the environment says it no more
/// afterwards.
[[nodiscard]] std::vector<PassedDescriptor> take_passed_descriptors();

/// Asks systemd to keep `fd` until it hangs up or is forgotten, and to pass it on at the next
/// start (as many as FileDescriptorStoreMax= says). `name`: no colon, at most 255 characters.
void store_descriptor(int fd, const std::string& name);
void forget_descriptor(const std::string& name);

}  // namespace ncclscope::agent
