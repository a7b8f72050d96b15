// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ncclscope::plugin::inspector {
namespace {

// The user's umask takes away from these what the user wants taken away.
constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

/// Writes all of it; returns how many bytes were taken.
std::size_t write_all(int fd, std::string_view text) noexcept {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  return done;
}

/// Opens a regular file. O_NONBLOCK so that something else of that name cannot stop us: it means
/// nothing to a regular file.
int open_regular(const char* path, int flags) noexcept {
  const int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kFileMode);
  if (fd < 0) return -1;
  struct stat file {};
  if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) return fd;
  close(fd);
  return -1;
}

int open_in(const char* directory, const char* path, int flags) noexcept {
  int fd = open_regular(path, flags);
  if (fd >= 0 || errno != ENOENT) return fd;
  // Another rank may be making it at this very moment.
  if (mkdir(directory, kDirectoryMode) == 0 || errno == EEXIST) fd = open_regular(path, flags);
  return fd;
}

bool starts_with(const char* path, const char* wanted) noexcept {
  char text[32] = {};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  return n > 0 && std::strncmp(text, wanted, std::strlen(wanted)) == 0;
}

bool is_gpu(const char* device) noexcept {
  char path[320];
  std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%.128s/vendor", device);
  if (!starts_with(path, "0x10de")) return false;
  std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%.128s/class", device);
  return starts_with(path, "0x03");
}

}  // namespace

void LineFile::set_path(const char* directory, std::string_view name) noexcept {
  directory_ = directory;
  std::snprintf(path_, sizeof path_, "%s/%.*s", directory, static_cast<int>(name.size()),
                name.data());
}

bool LineFile::open() noexcept {
  fd_ = open_in(directory_, path_, O_RDWR | O_APPEND | O_CREAT);
  if (fd_ < 0) return false;
  struct stat file {};
  char last = '\n';
  if (fstat(fd_, &file) == 0 && file.st_size > 0 && pread(fd_, &last, 1, file.st_size - 1) == 1 &&
      last != '\n' && write_all(fd_, "\n") != 1) {
    close();
    return false;
  }
  return true;
}

void LineFile::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::size_t LineFile::append(std::string_view lines) noexcept {
  if (fd_ < 0 && !open()) return 0;
  const std::size_t done = write_all(fd_, lines);
  if (done < lines.size()) close();
  return done;
}

bool replace_file(const char* directory, std::string_view name, std::int32_t pid,
                  std::string_view text) noexcept {
  char path[kMaxPathBytes + kMaxFileNameBytes];
  char temporary[kMaxPathBytes + kMaxFileNameBytes + 24];
  std::snprintf(path, sizeof path, "%s/%.*s", directory, static_cast<int>(name.size()),
                name.data());
  std::snprintf(temporary, sizeof temporary, "%s.%d.new", path, pid);
  (void)unlink(temporary);
  const int fd = open_in(directory, temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (fd < 0) return false;
  const bool whole = write_all(fd, text) == text.size();
  if (close(fd) == 0 && whole && rename(temporary, path) == 0) return true;
  (void)unlink(temporary);
  return false;
}

void remove_file(const char* directory, std::string_view name) noexcept {
  char path[kMaxPathBytes + kMaxFileNameBytes];
  std::snprintf(path, sizeof path, "%s/%.*s", directory, static_cast<int>(name.size()),
                name.data());
  (void)unlink(path);
}

std::int32_t index_on_node(const char* pci_bus_id) noexcept {
  if (pci_bus_id[0] == '\0') return -1;
  DIR* devices = opendir("/sys/bus/pci/devices");
  if (devices == nullptr) return -1;
  std::int32_t before = 0;
  bool found = false;
  while (const dirent* entry = readdir(devices)) {
    const int order = std::strcmp(entry->d_name, pci_bus_id);
    if (order > 0 || !is_gpu(entry->d_name)) continue;
    if (order == 0) {
      found = true;
    } else {
      ++before;
    }
  }
  closedir(devices);
  return found ? before : -1;
}

}  // namespace ncclscope::plugin::inspector
