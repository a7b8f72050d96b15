// SPDX-License-Identifier: Apache-2.0
//
// Gives up root. The agent needs no privilege: it reads what everybody may read.
//   Thread: the only one there is, before anything is opened.
#pragma once

#include <span>
#include <string>

#include "agent/base/result.h"

namespace ncclscope::agent {

/// Becomes `user` (a name, or a number) with its groups and without any capability, for good.
/// Before that, makes the directories of `sockets` that are missing and gives them to the user:
/// plugins talk only to an agent that owns the directory of its socket. Directories that exist must
/// belong to the user already.
Status become_user(const std::string& user, std::span<const std::string> sockets);

}  // namespace ncclscope::agent
