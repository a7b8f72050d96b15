// SPDX-License-Identifier: Apache-2.0
//
// Drives a running agent as plugins do; /metrics is left to the caller.
//   agent_load SOCKET steady PID SECONDS [RANKS] [OPERATIONS_PER_SECOND]
//     a training job, and what it costs the agent: 8 ranks x 1,000 collectives a second each,
//     6 communicators per rank, a frame every 100 ms with Progress and Books
//   agent_load SOCKET churn JOBS ALIVE COMMUNICATORS
//     short jobs that come and go, as many users as it may be (root: 40), communicators of random
//     hashes, operations of random kinds and sizes; one job in four is killed. Prints how many
//     operations it sent.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/scoped_fd.h"
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

const agent::SystemClock system_clock;

/// Ends the program if the agent is not there.
agent::ScopedFd connect_to(const std::string& path) {
  agent::ScopedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    std::perror("connect");
    std::exit(1);
  }
  return fd;
}

/// Waits while the socket is full. False when the agent has closed it.
bool send_packet(const agent::ScopedFd& fd, const Packet& packet) {
  const bool sent = ::send(fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL) >= 0;
  std::byte answer[4096];
  while (::recv(fd.get(), answer, sizeof answer, MSG_DONTWAIT) > 0) {
  }
  return sent;
}

// ---- churn
// ---------------------------------------------------------------------------------------

constexpr std::size_t kRoundsOfAJob = 18;
constexpr std::chrono::milliseconds kRound{50};
constexpr unsigned kUsers = 40;
constexpr uid_t kFirstUser = 40'000;

class ShortJob {
 public:
  ShortJob(const std::string& path, int number, std::uint16_t communicators,
           std::mt19937_64& random)
      : communicators_(communicators) {
    // Who connects is what counts: the kernel tells the agent the effective user.
    const bool root = ::geteuid() == 0;
    if (root && ::seteuid(kFirstUser + static_cast<unsigned>(number) % kUsers) != 0) std::exit(1);
    fd_ = connect_to(path);
    if (root && ::seteuid(0) != 0) std::exit(1);
    PacketBuilder packet;
    const std::string job = std::to_string(100'000 + number);
    packet.hello(make_hello(random()),
                 {{wire::StringKey::kSlurmJobId, job}, {wire::StringKey::kPluginVersion, "0.1.0"}});
    for (std::uint16_t c = 0; c < communicators; ++c) {
      packet.init(make_init(c, random() | 1u, static_cast<std::int32_t>(random() % 8), 8),
                  {{wire::StringKey::kGpuPciBusId, "0000:3b:00.0"}});
    }
    open_ = send_packet(fd_, packet.finish(0, system_clock.monotonic_ns()));
  }

  /// Two operations of every communicator, and the plugin's state.
  void round(std::mt19937_64& random) {
    ++rounds_;
    if (!open_) return;
    PacketBuilder packet;
    const std::uint64_t now = system_clock.monotonic_ns();
    for (std::uint16_t c = 0; c < communicators_; ++c) {
      for (int i = 0; i < 2; ++i) {
        OperationSpec spec;
        spec.communicator = c;
        spec.function = static_cast<model::Function>(1 + random() % 7);
        spec.algorithm = static_cast<model::Algorithm>(1 + random() % 2);
        spec.protocol = static_cast<model::Protocol>(1 + random() % 3);
        spec.count = std::uint64_t{1} << random() % 28;
        spec.api_ns = now;
        packet.operation(spec);
      }
      packet.progress(c, now);
    }
    wire::Books books{};
    books.time_ns = now;
    books.seen = index_ - 1;
    packet.add(books, wire::RecordType::kBooks);
    open_ = send_packet(fd_, packet.finish(index_, now));
    if (open_) index_ += 2ull * communicators_;
  }
  void end(std::mt19937_64& random) {
    if (open_ && random() % 4 != 0)
      send_packet(fd_, PacketBuilder().goodbye().finish(0, system_clock.monotonic_ns()));
    fd_.reset();
  }
  [[nodiscard]] bool refused() const { return !open_; }
  [[nodiscard]] std::size_t rounds() const { return rounds_; }
  [[nodiscard]] std::uint64_t operations() const { return index_ - 1; }

 private:
  std::uint16_t communicators_;
  agent::ScopedFd fd_;
  std::uint64_t index_ = 1;
  std::size_t rounds_ = 0;
  bool open_ = false;
};

int churn(const std::string& path, int jobs, std::size_t alive, std::uint16_t communicators) {
  std::mt19937_64 random(1);
  std::deque<ShortJob> running;
  std::uint64_t operations = 0;
  int started = 0;
  int refused = 0;
  std::size_t most = 0;
  auto next = std::chrono::steady_clock::now();
  const auto end_first = [&] {
    running.front().end(random);
    operations += running.front().operations();
    if (running.front().refused()) ++refused;
    running.pop_front();
  };
  // As many start in each round as keep the number of those alive.
  const auto each_round = (alive + kRoundsOfAJob - 1) / kRoundsOfAJob;
  while (started < jobs) {
    while (!running.empty() && running.front().rounds() >= kRoundsOfAJob) end_first();
    for (std::size_t i = 0; i < each_round && running.size() < alive && started < jobs; ++i) {
      running.emplace_back(path, started++, communicators, random);
    }
    most = std::max(most, running.size());
    for (ShortJob& job : running) job.round(random);
    next += kRound;
    std::this_thread::sleep_until(next);
  }
  while (!running.empty()) end_first();
  std::printf("%d jobs, %zu alive, %d cut off, %llu operations\n", started, most, refused,
              static_cast<unsigned long long>(operations));
  return 0;
}

// ---- steady
// --------------------------------------------------------------------------------------

int steady(const std::string& path, int pid, int seconds, int ranks, int rate) {
  std::vector<agent::ScopedFd> sockets;
  for (int r = 0; r < ranks; ++r) {
    agent::ScopedFd fd = connect_to(path);
    PacketBuilder packet;
    packet.hello(make_hello(system_clock.monotonic_ns() + static_cast<unsigned>(r)),
                 {{wire::StringKey::kSlurmJobId, "1234"}});
    for (std::uint16_t c = 0; c < kCommunicators; ++c) packet.init(make_init(c, 100u + c, r, 8));
    if (!send_packet(fd, packet.finish(0, system_clock.monotonic_ns()))) return 1;
    sockets.push_back(std::move(fd));
  }
  std::uint64_t index = 1;
  const Cost before = cost_of(pid);
  auto next = std::chrono::steady_clock::now();
  for (int frame = 0; frame < seconds * kFramesPerSecond; ++frame) {
    for (const agent::ScopedFd& fd : sockets) {
      PacketBuilder packet;
      const std::uint64_t now = system_clock.monotonic_ns();
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
      if (!send_packet(fd, packet.finish(index, system_clock.monotonic_ns()))) {
        std::perror("send");
        return 1;
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

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const std::string mode = argc > 4 ? argv[2] : "";
  if (mode == "steady")
    return steady(argv[1], number(3, 0), number(4, 0), number(5, 8), number(6, 1000));
  if (mode == "churn" && argc == 6) {
    return churn(argv[1], number(3, 0), static_cast<std::size_t>(number(4, 0)),
                 static_cast<std::uint16_t>(number(5, 0)));
  }
  std::fprintf(stderr,
               "usage: agent_load SOCKET steady PID SECONDS [RANKS] [OPERATIONS_PER_SECOND] | "
               "SOCKET churn JOBS ALIVE COMMUNICATORS\n");
  return 2;
}
