// SPDX-License-Identifier: Apache-2.0
//
// How many operation records one core takes from frames to sums: through the real session and
// aggregator, from encoded frames of 584 records, 8 sessions x 64 communicators; and the same
// through a Unix socket (with the sender on another thread). Fails if the sums do not hold exactly
// the operations that were fed.
#include <benchmark/benchmark.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "agent/aggregate/aggregator.h"
#include "agent/base/reactor.h"
#include "agent/ingest/listener.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/agent/plugin_frames.h"

namespace ncclscope::agent {
namespace {

using testing::OperationSpec;
using testing::Packet;
using testing::PacketBuilder;

constexpr int kSessions = 8;
constexpr std::uint16_t kCommunicators = 64;
constexpr int kRecordsPerFrame =
    (wire::kMaxFrameBytes - sizeof(wire::FrameHeader)) / sizeof(wire::Operation);

/// A frame of a training-like mix: functions, sizes and communicators alternate, each operation has
/// its own plan.
Packet mixed_frame(int variant) {
  PacketBuilder packet;
  for (int i = 0; i < kRecordsPerFrame; ++i) {
    const auto n = static_cast<unsigned>(variant * kRecordsPerFrame + i);
    OperationSpec spec;
    spec.communicator = static_cast<std::uint16_t>(n * 7 % kCommunicators);
    constexpr model::Function kMix[] = {model::Function::kAllReduce, model::Function::kAllGather,
                                        model::Function::kReduceScatter,
                                        model::Function::kAllReduce};
    spec.function = kMix[n % 4];
    spec.count = std::uint64_t{1} << (8 + n % 18);
    spec.protocol = n % 18 < 6 ? model::Protocol::kLl : model::Protocol::kSimple;
    spec.plan = static_cast<std::uint16_t>(n % 65535 + 1);
    spec.api_ns = 1'000'000'000 + n * 50'000ull;
    spec.gpu_start_ns = 9'000'000'000 + n * 50'000ull;
    spec.duration_ns = 20'000 + n % 1000;
    spec.flags |= wire::operation_flags::kApiSeen;
    packet.operation(spec);
  }
  return packet.finish(1);
}

Packet introduction(int session) {
  PacketBuilder packet;
  packet.hello(testing::make_hello(static_cast<std::uint64_t>(session) + 1),
               {{wire::StringKey::kSlurmJobId, "1"}});
  for (std::uint16_t c = 0; c < kCommunicators; ++c) {
    packet.init(testing::make_init(c, 100u + c, session, kSessions));
  }
  return packet.finish();
}

void set_first_index(Packet& packet, std::uint64_t index) {
  std::memcpy(packet.data() + offsetof(wire::FrameHeader, first_index), &index, sizeof index);
}

std::uint64_t operations_in(const Snapshot& snapshot) {
  std::uint64_t sum = 0;
  for (const auto& job : snapshot.jobs) {
    for (const auto& c : job.communicators) {
      for (const auto& row : c.sums) {
        for (const std::uint64_t n : row.operations_by_timing) sum += n;
      }
    }
  }
  return sum;
}

struct Core {
  SystemClock clock;
  ClaimsResolver resolver{""};
  GpuTable gpus{"/nonexistent"};
  OperationTail tail;
  Aggregator aggregator{clock, resolver, gpus, tail, {}};
  Ingest ingest{aggregator, clock, {}};
};

class NullCarrier final : public SessionCarrier {
 public:
  void output_ready() override {}
  void session_over() override {}
};

void SessionToSums(benchmark::State& state) {
  Core core;
  NullCarrier carrier;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<OutFrame> output;
  for (int s = 0; s < kSessions; ++s) {
    sessions.push_back(core.ingest.open(PeerIdentity{s + 1, 0, false, "bench", "uid:0"}, carrier));
    if (sessions.back()->on_frame(introduction(s)) != Session::Verdict::kContinue) {
      state.SkipWithError("introduction refused");
      return;
    }
  }
  std::vector<Packet> frames;
  for (int v = 0; v < 32; ++v) frames.push_back(mixed_frame(v));
  std::uint64_t index[kSessions];
  for (auto& i : index) i = 1;
  std::uint64_t fed = 0;
  std::size_t turn = 0;
  for (auto _ : state) {
    const std::size_t s = turn % kSessions;
    Packet& frame = frames[turn / kSessions % frames.size()];
    set_first_index(frame, index[s]);
    if (sessions[s]->on_frame(frame) != Session::Verdict::kContinue) {
      state.SkipWithError("frame refused");
      return;
    }
    sessions[s]->on_burst_end();
    sessions[s]->take_output(output);
    index[s] += kRecordsPerFrame;
    fed += kRecordsPerFrame;
    ++turn;
  }
  core.aggregator.flush_all();
  if (operations_in(*core.aggregator.build(core.ingest.stats())) != fed) {
    state.SkipWithError("the sums do not hold the operations that were fed");
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(fed));
}
BENCHMARK(SessionToSums);

void SocketToSums(benchmark::State& state) {
  const tests::TemporaryDirectory directory;
  const std::string path = directory / "agent.sock";
  Core core;
  auto reactor = Reactor::create();
  if (!reactor.ok()) return state.SkipWithError("no reactor");
  Listener::Options options;
  options.path = path;
  auto listener = Listener::create(*reactor.value(), core.ingest, options);
  if (!listener.ok()) return state.SkipWithError(listener.status().message().c_str());

  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> sent{0};
  std::thread sender([&] {
    std::vector<int> sockets;
    for (int s = 0; s < kSessions; ++s) {
      const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path, path.data(), path.size());
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
      const Packet hello = introduction(s);
      if (::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) return;
      sockets.push_back(fd);
    }
    std::vector<Packet> frames;
    for (int v = 0; v < 32; ++v) frames.push_back(mixed_frame(v));
    std::uint64_t index = 1;
    for (std::size_t turn = 0; !stop; ++turn) {
      Packet& frame = frames[turn / kSessions % frames.size()];
      if (turn % kSessions == 0 && turn != 0) index += kRecordsPerFrame;
      set_first_index(frame, index);
      if (::send(sockets[turn % kSessions], frame.data(), frame.size(), MSG_NOSIGNAL) < 0) return;
      sent += kRecordsPerFrame;
    }
    for (const int fd : sockets) ::close(fd);
  });
  const IngestStats& stats = core.ingest.stats();
  while (stats.connections_open < kSessions || stats.records < 10 * kRecordsPerFrame) {
    reactor.value()->run_once(std::chrono::milliseconds(10));
  }
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  const std::uint64_t records_before = stats.records;
  for (auto _ : state) reactor.value()->run_once(std::chrono::milliseconds(10));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const std::uint64_t records = stats.records - records_before;
  stop = true;
  while (stats.connections_open > 0) reactor.value()->run_once(std::chrono::milliseconds(10));
  sender.join();
  core.aggregator.flush_all();
  if (operations_in(*core.aggregator.build(stats)) != sent) {
    state.SkipWithError("the sums do not hold the operations that were sent");
  }
  const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) +
                     static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  state.SetItemsProcessed(static_cast<std::int64_t>(records));
  state.counters["records_per_cpu_second"] = static_cast<double>(records) / cpu;
}
BENCHMARK(SocketToSums)->UseRealTime()->MinTime(2);

}  // namespace
}  // namespace ncclscope::agent

int main(int argc, char** argv) {
  ncclscope::agent::set_log_level(ncclscope::agent::LogLevel::kError);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
