// SPDX-License-Identifier: Apache-2.0
//
// What the archive costs: CPU time per operation of the reactor (its sink) and of the writer
// (packing, compressing, writing) together, and bytes per operation on disk. The same frames go
// through the agent's inside with and without an archive, in turns; the difference of the CPU times
// is the archive's. Traffic: 8 processes of a training job, about 1,100 operations a second each,
// times with the noise of a real host (tests/unit/archive/traffic.h). Fails if what is read back is
// not what was fed.
#include <benchmark/benchmark.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "agent/archive/archive_sink.h"
#include "agent/archive/archive_writer.h"
#include "agent/ingest/session.h"
#include "archive/reader.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/agent/plugin_frames.h"
#include "tests/unit/archive/traffic.h"

namespace ncclscope::agent {
namespace {

namespace fs = std::filesystem;
using archive::testing::Traffic;
using testing::Packet;
using testing::PacketBuilder;

constexpr std::size_t kProcesses = 8;
constexpr std::uint16_t kCommunicators = 4;
constexpr int kOperationsOfFrame = 100;  // a plugin's, every 100 ms
constexpr int kFrames = 400;             // of each process

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class NullCarrier final : public SessionCarrier {
 public:
  void output_ready() override {}
  void session_over() override {}
};

struct Frames {
  struct Frame {
    std::size_t process;
    Packet packet;
    std::uint64_t sent_ns;
  };
  std::vector<Packet> introductions;
  std::vector<Frame> frames;  // in the order of their times

  Frames() {
    for (std::size_t p = 0; p < kProcesses; ++p) {
      PacketBuilder hello;
      hello.hello(testing::make_hello(p + 1), {{wire::StringKey::kSlurmJobId, "1"}});
      for (std::uint16_t c = 0; c < kCommunicators; ++c)
        hello.init(testing::make_init(c, 100u + c, static_cast<std::int32_t>(p), kProcesses));
      introductions.push_back(hello.finish());
      Traffic traffic(p + 1, kCommunicators);
      std::uint64_t index = 1;
      for (int f = 0; f < kFrames; ++f) {
        PacketBuilder packet;
        for (int i = 0; i < kOperationsOfFrame; ++i)
          packet.add(traffic.next(), wire::RecordType::kOperation);
        const std::uint64_t sent_ns = traffic.now_ns();
        frames.push_back({p, packet.finish(index, sent_ns), sent_ns});
        index += kOperationsOfFrame;
      }
    }
    std::stable_sort(frames.begin(), frames.end(),
                     [](const Frame& a, const Frame& b) { return a.sent_ns < b.sent_ns; });
  }
};

/// Feeds all frames. With a folder: into an archive there. Returns CPU seconds; below 0: failed.
double feed(const Frames& frames, const fs::path& folder) {
  FakeClock clock;
  ClaimsResolver resolver{""};
  GpuTable gpus{"/nonexistent"};
  OperationTail tail(1000);
  Aggregator aggregator(clock, resolver, gpus, tail, {});
  ArchiveStats stats;
  ArchiveQueue queue(1000);
  ArchiveSink sink(aggregator, queue, stats, clock, {"node0", "bench", 5'000'000'000});
  std::unique_ptr<ArchiveWriter> writer;
  if (!folder.empty()) {
    SegmentStore::Options options;
    options.directory = folder;
    options.node = "node0";
    options.job_bytes = options.total_bytes = std::uint64_t{1} << 40;
    options.age_ns = std::int64_t{1} << 60;
    Result<SegmentStore> store = SegmentStore::create(options);
    if (!store.ok()) return -1;
    writer = std::make_unique<ArchiveWriter>(std::move(store).value(), stats, clock,
                                             ArchiveWriter::Options{});
  }
  RecordSink& first = writer ? static_cast<RecordSink&>(sink) : aggregator;
  Ingest ingest(first, clock, {});
  NullCarrier carrier;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<OutFrame> output;
  for (const Packet& introduction : frames.introductions) {
    const auto pid = static_cast<std::int64_t>(sessions.size() + 1);
    sessions.push_back(ingest.open(PeerIdentity{pid, 0, false, "bench", "uid:0"}, carrier));
    if (sessions.back()->on_frame(introduction) != Session::Verdict::kContinue) return -1;
  }
  const auto write = [&] {
    while (auto chunk = queue.pop(std::chrono::milliseconds(0))) {
      writer->take(*chunk);
      queue.give_back(std::move(chunk));
    }
    writer->tick();
  };
  std::uint64_t ticked_ns = frames.frames.front().sent_ns;
  const double begin = cpu_seconds();
  for (const Frames::Frame& frame : frames.frames) {
    if (sessions[frame.process]->on_frame(frame.packet) != Session::Verdict::kContinue) return -1;
    sessions[frame.process]->on_burst_end();
    sessions[frame.process]->take_output(output);
    // As often as the reactor's timer.
    while (frame.sent_ns - ticked_ns >= 250'000'000) {
      ticked_ns += 250'000'000;
      clock.advance_ms(250);
      if (!writer) continue;
      sink.tick();
      write();
    }
  }
  if (writer) {
    sink.flush();
    write();
    writer->finish();
  }
  return cpu_seconds() - begin;
}

std::uint64_t operations_in(const fs::path& folder, std::uint64_t& bytes) {
  std::vector<fs::path> segments;
  if (!archive::find_segments(folder, segments).ok()) return 0;
  std::uint64_t count = 0;
  bytes = 0;
  for (const fs::path& path : segments) {
    archive::Status status;
    const auto reader = archive::Reader::open(path, status);
    if (!reader) return 0;
    while (reader->next() != nullptr) {
    }
    if (!reader->status().ok() || reader->truncated()) return 0;
    count += reader->operations();
    bytes += fs::file_size(path);
  }
  return count;
}

void ArchiveCost(benchmark::State& state) {
  const Frames frames;
  const auto fed = static_cast<std::uint64_t>(kProcesses) * kFrames * kOperationsOfFrame;
  std::vector<double> costs;
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    const tests::TemporaryDirectory folder;
    const double without = feed(frames, {});
    const double with = feed(frames, folder / "archive");
    const std::uint64_t kept = operations_in(folder / "archive", bytes);
    if (without < 0 || with < 0 || kept != fed) {
      state.SkipWithError("the archive does not hold the operations that were fed");
      return;
    }
    costs.push_back((with - without) / static_cast<double>(fed));
  }
  // Other people's work makes single runs longer, never shorter by much: the median.
  std::sort(costs.begin(), costs.end());
  state.counters["ns_per_operation"] = costs[costs.size() / 2] * 1e9;
  state.counters["bytes_per_operation"] = static_cast<double>(bytes) / static_cast<double>(fed);
}
BENCHMARK(ArchiveCost)->Iterations(7)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ncclscope::agent

BENCHMARK_MAIN();
