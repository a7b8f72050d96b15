// SPDX-License-Identifier: Apache-2.0
//
// The NCCL_* variables of the process, told to the agent so that settings which make NCCL slow, or
// which differ between ranks, can be named. Read once, in the first init, as the claims are: NCCL
// has read nccl.conf files into the environment by then. Nothing else of the environment leaves the
// process.
//   Thread: that of the first init, under its lock; then the sender's.
#pragma once

#include "proto/wire/encode.h"

namespace ncclscope::plugin {

/// Makes the records out of `variables` ("NAME=value", ended by null; may be null).
///   Names with TOKEN, SECRET, PASSW or CREDENTIAL in them, or with _KEY at their end, stay here.
/// @param tell  false: there are no records, the agent knows nothing
void read_environment(const char* const* variables, bool tell) noexcept;

/// Adds the records; they fit beside a Hello.
void add_environment(wire::FrameWriter& frame) noexcept;

}  // namespace ncclscope::plugin
