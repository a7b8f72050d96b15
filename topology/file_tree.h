// SPDX-License-Identifier: Apache-2.0
//
// Small files below a root: /sys, /proc and /dev of this machine, or copies of them elsewhere.
//   May fail: everything that is missing, unreadable, too long or not a plain file reads as
//   "unknown"; links that lead out of the root are not followed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ncclscope::topology {

class FileTree {
 public:
  static constexpr std::size_t kMaxBytes = 64 * 1024;
  static constexpr std::size_t kMaxNames = 16'384;

  /// @param root  empty: the machine's own root directory
  explicit FileTree(std::string root = {});

  /// First kMaxBytes of a plain file without trailing white space; empty optional if there is none.
  [[nodiscard]] std::optional<std::string> text(const std::string& path) const;
  /// The same as it stands there: files that are not text.
  [[nodiscard]] std::optional<std::string> bytes(const std::string& path) const;
  /// Sorted names in a directory; none if it cannot be read.
  [[nodiscard]] std::vector<std::string> names(const std::string& path) const;
  /// Where a path leads when all links are followed, seen from the root.
  [[nodiscard]] std::optional<std::string> real(const std::string& path) const;
  [[nodiscard]] bool exists(const std::string& path) const;
  [[nodiscard]] std::string full(const std::string& path) const { return root_ + path; }

 private:
  std::string root_;       // without trailing slash
  std::string real_root_;  // its own links followed
};

}  // namespace ncclscope::topology
