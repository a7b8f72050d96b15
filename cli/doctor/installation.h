// SPDX-License-Identifier: Apache-2.0
//
// Whether ncclscope itself and NCCL are installed so that jobs are observed: the socket's directory
// and who listens, the plugin, NCCL's release. Libraries are loaded in a child process, so that one
// that is broken costs nothing but that.
//   Thread: one (it forks).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/finding.h"

namespace ncclscope::cli {

/// The plugins' door: directory, its mode and owner, the socket and its listener.
[[nodiscard]] topology::Findings check_socket(const std::string& socket);

struct LoadedLibrary {
  std::string error;                 // why it cannot be loaded; empty: it was loaded
  std::string path;                  // where the loader found it
  std::vector<std::string> symbols;  // which of those asked for it has
  int nccl_version = 0;              // what its ncclGetVersion says, 0 = it has none
};
/// Loads `library` (a name for the loader, or a path) in a child.
[[nodiscard]] LoadedLibrary load_in_child(const std::string& library,
                                          const std::vector<std::string>& symbols);

/// @param named  NCCL_PROFILER_PLUGIN; empty if it is not set
[[nodiscard]] topology::Findings check_plugin(const std::string& named);
[[nodiscard]] topology::Findings check_nccl(const std::string& library);

/// "2.28.9" from 22809.
[[nodiscard]] std::string nccl_release(int version);
/// The newest interface for profilers that a release speaks, 0 = none.
[[nodiscard]] int profiler_interface(int version);

}  // namespace ncclscope::cli
