// SPDX-License-Identifier: Apache-2.0
//
// The subcommands that keep operations and play them again.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ncclscope::cli {

void register_record(CLI::App& app);
void register_replay(CLI::App& app);

}  // namespace ncclscope::cli
