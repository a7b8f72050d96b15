// SPDX-License-Identifier: Apache-2.0
//
// A process of its own for tests of who has connected.
//   identity_peer greet SOCKET FILE JOB   waits for the file, says Hello with SLURM_JOB_ID=JOB,
//                                         prints "welcome" and stays until it is killed
//   identity_peer connect SOCKET FD       connects the inherited socket FD and exits
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/integration/agent/running_agent.h"

namespace {

using namespace ncclscope::agent::testing;

int greet(char** arguments) {
  const std::string file = arguments[1];
  if (!eventually([&] { return std::filesystem::exists(file); })) return 2;
  Plugin plugin(arguments[0]);
  if (!plugin.greet(static_cast<std::uint64_t>(::getpid()), arguments[2])) return 3;
  std::puts("welcome");
  std::fflush(stdout);
  plugin.await_end();
  return 0;
}

int connect_and_exit(char** arguments) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, arguments[0], sizeof address.sun_path - 1);
  const int fd = std::atoi(arguments[1]);
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : 4;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "greet") == 0) return greet(argv + 2);
  if (argc == 4 && std::strcmp(argv[1], "connect") == 0) return connect_and_exit(argv + 2);
  return 1;
}
