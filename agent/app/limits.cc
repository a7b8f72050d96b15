// SPDX-License-Identifier: Apache-2.0
#include "agent/app/limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

std::size_t raise_descriptor_limit() {
  // More than any agent needs: with an unlimited hard limit, tables of the kernel grow with it.
  constexpr rlim_t kEnough = 1u << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur < wanted) {
    const rlim_t before = std::exchange(limit.rlim_cur, wanted);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return static_cast<std::size_t>(limit.rlim_cur);
}

std::size_t connections_within(std::size_t wanted, std::size_t descriptors) {
  const std::size_t reserved = std::min(kReservedDescriptors, descriptors / 2);
  // Equal shares can take a full table to twice its limit.
  return std::max<std::size_t>(1, std::min(wanted, (descriptors - reserved) / 2));
}

std::uint64_t resident_bytes() {
  // One small read four times a second; no allocation, since it runs when memory is short.
  const ScopedFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return 0;
  std::array<char, 128> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size <= 0) return 0;
  const std::string_view line(text.data(), static_cast<std::size_t>(size));
  const std::size_t space = line.find(' ');
  std::uint64_t pages = 0;
  if (space == std::string_view::npos ||
      std::from_chars(line.data() + space + 1, line.data() + line.size(), pages).ec != std::errc())
    return 0;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace ncclscope::agent
