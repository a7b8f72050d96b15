// SPDX-License-Identifier: Apache-2.0
//
// The plugin's own threads: detached, with a small stack, nice, and with all signals blocked, so
// that none of the application's is ever delivered to them.
#pragma once

namespace ncclscope::plugin {

/// False: there is no such thread.
bool start_background_thread(void* (*run)(void*), void* argument) noexcept;

/// To be called first in it. The name, as ps and top show it, has at most 15 characters.
void settle_background_thread(const char* name) noexcept;

}  // namespace ncclscope::plugin
