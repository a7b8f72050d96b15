// SPDX-License-Identifier: Apache-2.0
//
// Drives a running agent as plugins of a training job do, and says what that costs it: 8 ranks x
// 1,000 collectives a second each, 6 communicators per rank, a frame every 100 ms with Progress and
// Books, /metrics left to the caller.
//   agent_load SOCKET PID SECONDS [RANKS] [OPERATIONS_PER_SECOND]
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/clock.h"
#include "tests/unit/agent/plugin_frames.h"

namespace {

using namespace ncclscope;  // NOLINT(google-build-using-namespace): a program of its own
using namespace ncclscope::agent::testing;  // NOLINT(google-build-using-namespace)

constexpr std::uint16_t kCommunicators = 6;
constexpr int kFramesPerSecond = 10;

struct Cost {
  double cpu_seconds = 0;
  long rss_kib = 0;
};
Cost cost_of(int pid) {
  Cost cost;
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string field;
  for (int i = 1; stat >> field; ++i) {
    if (i == 14 || i == 15)
      cost.cpu_seconds +=
          std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
    if (i == 24)
      cost.rss_kib = std::strtol(field.c_str(), nullptr, 10) * sysconf(_SC_PAGESIZE) / 1024;
  }
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: agent_load SOCKET PID SECONDS [RANKS] [OPERATIONS_PER_SECOND]\n");
    return 2;
  }
  const std::string path = argv[1];
  const int pid = std::atoi(argv[2]);
  const int seconds = std::atoi(argv[3]);
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 8;
  const int rate = argc > 5 ? std::atoi(argv[5]) : 1000;
  const ncclscope::agent::SystemClock clock;
  std::vector<int> sockets;
  for (int r = 0; r < ranks; ++r) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      std::perror("connect");
      return 1;
    }
    PacketBuilder packet;
    packet.hello(make_hello(clock.monotonic_ns() + static_cast<unsigned>(r)),
                 {{wire::StringKey::kSlurmJobId, "1234"}});
    for (std::uint16_t c = 0; c < kCommunicators; ++c) packet.init(make_init(c, 100u + c, r, 8));
    const Packet bytes = packet.finish(0, clock.monotonic_ns());
    if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return 1;
    sockets.push_back(fd);
  }
  std::uint64_t index = 1;
  const Cost before = cost_of(pid);
  auto next = std::chrono::steady_clock::now();
  for (int frame = 0; frame < seconds * kFramesPerSecond; ++frame) {
    for (const int fd : sockets) {
      PacketBuilder packet;
      const std::uint64_t now = clock.monotonic_ns();
      const int count = rate / kFramesPerSecond;
      for (int i = 0; i < count; ++i) {
        OperationSpec spec;
        const auto n = static_cast<unsigned>(frame * count + i);
        spec.communicator = static_cast<std::uint16_t>(n % kCommunicators);
        spec.function = n % 3 == 0   ? model::Function::kAllReduce
                        : n % 3 == 1 ? model::Function::kAllGather
                                     : model::Function::kReduceScatter;
        spec.count = std::uint64_t{1} << (8 + n % 18);
        spec.plan = static_cast<std::uint16_t>(n % 65535 + 1);
        spec.api_ns = now - 100'000'000 +
                      static_cast<unsigned>(i) * 1'000'000ull * 1000 / static_cast<unsigned>(rate);
        spec.gpu_start_ns = spec.api_ns + 20'000;
        spec.flags |= wire::operation_flags::kApiSeen;
        packet.operation(spec);
      }
      for (std::uint16_t c = 0; c < kCommunicators; ++c) packet.progress(c, now);
      wire::Books books{};
      books.time_ns = now;
      packet.add(books, wire::RecordType::kBooks);
      const Packet bytes = packet.finish(index, clock.monotonic_ns());
      if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
        std::perror("send");
        return 1;
      }
      std::byte answer[4096];
      while (::recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0) {
      }
    }
    index += static_cast<std::uint64_t>(rate / kFramesPerSecond);
    next += std::chrono::milliseconds(1000 / kFramesPerSecond);
    std::this_thread::sleep_until(next);
  }
  const Cost after = cost_of(pid);
  std::printf("%d ranks x %d operations/s for %d s: %.3f %% of a core, RSS %.1f MB\n", ranks, rate,
              seconds, 100 * (after.cpu_seconds - before.cpu_seconds) / seconds,
              static_cast<double>(after.rss_kib) / 1024);
  return 0;
}
