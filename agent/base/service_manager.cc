// SPDX-License-Identifier: Apache-2.0
#include "agent/base/service_manager.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "agent/base/result.h"

namespace ncclscope::agent {
namespace {

constexpr int kFirstPassed = 3;     // SD_LISTEN_FDS_START
constexpr int kMostPassed = 65536;  // more is not meant

const char* environment(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): changed before there are threads only
}

std::optional<std::uint64_t> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc() || end != all.data() + all.size()) return std::nullopt;
  return value;
}

/// `fd` < 0: none goes with it.
void send_state(const std::string& state, int fd) {
  const char* path = environment("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const ScopedFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return;
  iovec text{const_cast<char*>(state.data()), state.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  // Best effort: a service manager that does not listen is not our trouble.
  [[maybe_unused]] const ssize_t ignored =
      ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> result;
  while (true) {
    const std::size_t colon = names.find(':');
    result.emplace_back(names.substr(0, colon));
    if (colon == std::string_view::npos) return result;
    names.remove_prefix(colon + 1);
  }
}

}  // namespace

bool is_managed() {
  return environment("NOTIFY_SOCKET") != nullptr;
}

void notify_service_manager(const std::string& state) {
  send_state(state, -1);
}

std::chrono::microseconds watchdog_period() {
  const auto period = number(environment("WATCHDOG_USEC"));
  const auto pid = number(environment("WATCHDOG_PID"));
  if (!period || (pid && *pid != static_cast<std::uint64_t>(::getpid()))) return {};
  return std::chrono::microseconds(static_cast<std::int64_t>(*period));
}

std::vector<PassedDescriptor> take_passed_descriptors() {
  const auto pid = number(environment("LISTEN_PID"));
  const auto count = number(environment("LISTEN_FDS"));
  const char* names = environment("LISTEN_FDNAMES");
  std::vector<PassedDescriptor> passed;
  if (pid && *pid == static_cast<std::uint64_t>(::getpid()) && count && *count <= kMostPassed) {
    const std::vector<std::string> all = split(names == nullptr ? "" : names);
    for (std::size_t i = 0; i < *count; ++i) {
      const int fd = kFirstPassed + static_cast<int>(i);
      const int flags = ::fcntl(fd, F_GETFL);
      if (flags < 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) continue;
      (void)::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
      passed.push_back({i < all.size() ? all[i] : std::string(), ScopedFd(fd)});
    }
  }
  // squeue and others that we start are not meant.
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
    ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe): before there are threads
  return passed;
}

void store_descriptor(int fd, const std::string& name) {
  send_state(concat("FDSTORE=1\nFDNAME=", name), fd);
}

void forget_descriptor(const std::string& name) {
  send_state(concat("FDSTOREREMOVE=1\nFDNAME=", name), -1);
}

}  // namespace ncclscope::agent
