// SPDX-License-Identifier: Apache-2.0
//
// The files of one process below directories that its user named. With the process's rights and
// umask, nothing executable, never through a symbolic link, never into anything but a regular file.
//   Thread: the writer's; everything here may wait for a file system for ever.
//   Errors: told to the caller; the next call tries again from the beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "plugin/inspector/options.h"

namespace ncclscope::plugin::inspector {

inline constexpr std::size_t kMaxFileNameBytes = 256;

/// Lines at the end of `<directory>/<name>`; the directory is made if only it is missing. What a
/// process of that name has left there stays, and a line that was cut short is ended first.
class LineFile {
 public:
  void set_path(const char* directory, std::string_view name) noexcept;
  /// Returns how many bytes have been written; fewer than all after an error. Then the file is
  /// closed, and opened anew by the next call.
  std::size_t append(std::string_view lines) noexcept;

 private:
  bool open() noexcept;
  void close() noexcept;

  const char* directory_ = "";
  char path_[kMaxPathBytes + kMaxFileNameBytes] = {};
  int fd_ = -1;
};

/// Puts `text` in place of `<directory>/<name>` in one step, by way of a name that does not end as
/// `name` does.
bool replace_file(const char* directory, std::string_view name, std::int32_t pid,
                  std::string_view text) noexcept;
/// Nothing happens if it is not there.
void remove_file(const char* directory, std::string_view name) noexcept;

/// Place of the GPU among those of the node in the order of PCI bus ids; -1 if sysfs does not show
/// it. `pci_bus_id`: "0000:3b:00.0".
[[nodiscard]] std::int32_t index_on_node(const char* pci_bus_id) noexcept;

}  // namespace ncclscope::plugin::inspector
