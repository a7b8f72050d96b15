// SPDX-License-Identifier: Apache-2.0
#include "topology/file_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace ncclscope::topology {

namespace {

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> text(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  return text ? text.get() : "";
}

}  // namespace

FileTree::FileTree(std::string root) : root_(std::move(root)) {
  while (!root_.empty() && root_.back() == '/') root_.pop_back();
  real_root_ = root_.empty() ? "" : resolved(root_);
}

std::optional<std::string> FileTree::bytes(const std::string& path) const {
  // Not blocking: somebody may have put a pipe or a terminal where a file is wanted.
  const int fd = ::open(full(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return {};
  std::string content;
  struct stat status {};
  bool good = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  while (good && content.size() < kMaxBytes) {
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, std::min(sizeof(buffer), kMaxBytes - content.size()));
    if (n < 0) good = false;
    if (n <= 0) break;
    content.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  if (!good) return {};
  return content;
}

std::optional<std::string> FileTree::text(const std::string& path) const {
  std::optional<std::string> content = bytes(path);
  if (content) content->resize(content->find_last_not_of(" \t\r\n\0") + 1);
  return content;
}

std::vector<std::string> FileTree::names(const std::string& path) const {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(full(path), error), end;
       !error && entry != end && found.size() < kMaxNames; entry.increment(error)) {
    found.push_back(entry->path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::string> FileTree::real(const std::string& path) const {
  const std::string where = resolved(full(path));
  if (where.empty()) return {};
  if (root_.empty()) return where;
  if (where.size() <= real_root_.size() || where.compare(0, real_root_.size(), real_root_) != 0 ||
      where[real_root_.size()] != '/')
    return {};
  return where.substr(real_root_.size());
}

bool FileTree::exists(const std::string& path) const {
  return ::access(full(path).c_str(), F_OK) == 0;
}

}  // namespace ncclscope::topology
