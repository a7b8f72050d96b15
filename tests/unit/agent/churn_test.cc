// SPDX-License-Identifier: Apache-2.0
//
// The life of a busy node on an injected clock: short jobs come and go, each with communicators of
// random hashes. Series stay within their limits at every minute, and memory stays flat.
//   agent_churn_test [--hours H] [--jobs N] [--alive A] [--communicators C]
// The defaults are a short day for every test run; scripts/soak.sh runs a whole one. Under a
// sanitizer memory is not judged: its allocator keeps what was freed.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <random>
#include <string_view>

#include "agent/export/metrics_endpoint.h"
#include "tests/unit/agent/series_rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NCCLSCOPE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NCCLSCOPE_TEST_SANITIZED 1
#endif
#endif

namespace ncclscope::agent {
namespace {

using testing::make_init;
using testing::OperationSpec;
using testing::PacketBuilder;
using testing::Rig;

#ifdef NCCLSCOPE_TEST_SANITIZED
constexpr bool kJudgesMemory = false;
#else
constexpr bool kJudgesMemory = true;
#endif

constexpr std::uint64_t kMaxResidentBytes = 40'000'000;
constexpr std::uint64_t kUsers = 40;

struct Size {
  std::uint64_t hours = 3, jobs = 1'250, alive = 100, communicators = 64;
};
Size size;

std::uint64_t heap_bytes() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// One process with all communicators of its job, as a user would see it from outside.
class ShortJob {
 public:
  ShortJob(Rig& rig, std::uint64_t number, std::uint64_t ends_at_minute, std::mt19937_64& random)
      : ends_at_minute_(ends_at_minute),
        wire_(rig.connect(static_cast<std::int64_t>(10'000 + number),
                          static_cast<std::int64_t>(1'000 + number % kUsers))) {
    const std::string job = std::to_string(100'000 + number);
    wire_->feed(
        PacketBuilder()
            .hello(testing::make_hello(1 + number), {{wire::StringKey::kSlurmJobId, job},
                                                     {wire::StringKey::kPluginVersion, "0.1.0"}})
            .finish());
    if (wire_->over()) return;
    PacketBuilder packet;
    for (std::uint64_t c = 0; c < size.communicators; ++c) {
      packet.init(make_init(static_cast<std::uint16_t>(c), random() | 1u,
                            static_cast<std::int32_t>(random() % 8), 8),
                  {{wire::StringKey::kGpuPciBusId, "0000:3b:00.0"}});
    }
    EXPECT_TRUE(wire_->feed(packet.finish()));
  }

  /// What one minute brings: operations of every communicator, and the plugin's state.
  void minute(std::uint64_t now_ns, std::mt19937_64& random) {
    if (wire_->over()) return;
    PacketBuilder packet;
    wire::Books books{};
    books.time_ns = now_ns;
    books.seen = index_;
    std::uint64_t records = 0;
    for (std::uint64_t c = 0; c < size.communicators; ++c) {
      const auto id = static_cast<std::uint16_t>(c);
      for (int i = 0; i < 2; ++i, ++records) {
        OperationSpec spec{.communicator = id};
        spec.function = static_cast<model::Function>(1 + random() % 7);
        spec.algorithm = static_cast<model::Algorithm>(1 + random() % 2);
        spec.protocol = static_cast<model::Protocol>(1 + random() % 3);
        spec.count = std::uint64_t{1} << random() % 28;
        packet.operation(spec);
      }
      packet.progress(id, now_ns);
    }
    packet.add(books, wire::RecordType::kBooks);
    EXPECT_TRUE(wire_->feed(packet.finish(index_, now_ns)));
    index_ += records;
  }
  void end(std::mt19937_64& random) {
    // One in four is killed.
    if (!wire_->over() && random() % 4 != 0) wire_->feed(PacketBuilder().goodbye().finish());
    wire_->disconnect();
  }
  [[nodiscard]] std::uint64_t ends_at_minute() const { return ends_at_minute_; }
  [[nodiscard]] bool refused() const { return wire_->over(); }

 private:
  std::uint64_t ends_at_minute_;
  std::uint64_t index_ = 1;
  std::unique_ptr<testing::Wire> wire_;
};

TEST(Churn, LeavesSeriesWithinTheirLimitsAndMemoryFlat) {
  Rig rig({}, {}, OperationTail::kDefaultCapacity);
  SnapshotStore store;
  MetricsEndpoint endpoint(store);
  HttpRequest request;
  request.headers["Accept-Encoding"] = "gzip";
  std::mt19937_64 random(1);
  std::deque<ShortJob> alive;
  const std::uint64_t empty_bytes = heap_bytes();
  const std::uint64_t minutes = size.hours * 60;
  const std::uint64_t life = std::max<std::uint64_t>(1, minutes * size.alive / size.jobs);
  const SeriesLimits limits;
  std::uint64_t started = 0, refused = 0, most_series = 0, most_bytes_per_series = 0;
  std::uint64_t most_alive = 0, most_resident = 0;
  std::array<std::uint64_t, 2> most_heap{};  // of each half, after the first fifth
  for (std::uint64_t minute = 0; minute < minutes; ++minute) {
    while (!alive.empty() && alive.front().ends_at_minute() <= minute) {
      alive.front().end(random);
      alive.pop_front();
    }
    // The first hundred come spread over one life, so that they do not leave together.
    while (started < (minute + 1) * size.jobs / minutes) {
      alive.emplace_back(rig, started++, minute + life, random);
      if (alive.back().refused()) ++refused;
    }
    for (ShortJob& job : alive) job.minute(rig.clock.monotonic_ns(), random);
    rig.clock.advance_ms(60'000);
    rig.tick();
    store.publish(rig.snapshot());

    const SnapshotPtr snapshot = store.get();
    std::map<std::int64_t, std::uint64_t> by_user;
    std::uint64_t series = 0;
    for (const JobSnapshot& job : snapshot->jobs) {
      const std::uint64_t of_job = count_series(job).total();
      ASSERT_LE(of_job, limits.job) << "minute " << minute;
      by_user[job.identity.uid] += of_job;
      series += of_job;
    }
    for (const auto& [uid, of_user] : by_user) ASSERT_LE(of_user, limits.principal);
    ASSERT_LE(series, limits.agent) << "minute " << minute;
    if (minute % 15 == 0) {
      EXPECT_EQ(endpoint.metrics(request).status, 200);
    }
    most_series = std::max(most_series, series);
    most_alive = std::max<std::uint64_t>(most_alive, alive.size());
    most_resident = std::max(most_resident, read_self().resident_bytes);
    if (minute >= minutes / 5) {
      const std::uint64_t heap = heap_bytes();
      std::uint64_t& most = most_heap[minute < minutes * 3 / 5 ? 0 : 1];
      most = std::max(most, heap);
      most_bytes_per_series = std::max(most_bytes_per_series, (heap - empty_bytes) / series);
    }
  }
  std::printf(
      "%llu jobs of %llu communicators in %llu hours, %llu alive, %llu refused: at most %llu "
      "series, %.1f MB resident, heap %.2f MB then %.2f MB, %llu bytes per series\n",
      static_cast<unsigned long long>(started), static_cast<unsigned long long>(size.communicators),
      static_cast<unsigned long long>(size.hours), static_cast<unsigned long long>(most_alive),
      static_cast<unsigned long long>(refused), static_cast<unsigned long long>(most_series),
      static_cast<double>(most_resident) * 1e-6, static_cast<double>(most_heap[0]) * 1e-6,
      static_cast<double>(most_heap[1]) * 1e-6,
      static_cast<unsigned long long>(most_bytes_per_series));
  EXPECT_EQ(started, size.jobs);
  if (kJudgesMemory) {
    EXPECT_LE(static_cast<double>(most_heap[1]), static_cast<double>(most_heap[0]) * 1.02);
    EXPECT_LE(most_resident, kMaxResidentBytes);
    std::ifstream file(NCCLSCOPE_SOURCE_DIR "/tests/data/golden/bytes_per_series");
    std::uint64_t bound = 0;
    ASSERT_TRUE(file >> bound) << "tests/data/golden/bytes_per_series holds one number";
    EXPECT_LE(most_bytes_per_series, bound);
  }

  for (ShortJob& job : alive) job.end(random);
  alive.clear();
  for (int i = 0; i < 7; ++i) {
    rig.clock.advance_ms(60'000);
    rig.tick();
  }
  EXPECT_TRUE(rig.snapshot()->jobs.empty());
  EXPECT_EQ(rig.aggregator.communicators(), 0u);
}

/// A tenant that makes new communicators for ever, on and on in one process.
TEST(Churn, OfOneJobsCommunicatorsTakesNoMoreMemory) {
  Rig rig;
  auto plugin = rig.open(9);
  std::mt19937_64 random(2);
  std::uint64_t index = 1;
  std::array<std::uint64_t, 2> most_heap{};
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    PacketBuilder packet;
    std::uint64_t records = 0;
    for (std::uint16_t id = 0; id < 60; ++id) {
      packet.init(make_init(static_cast<std::uint16_t>(round % 2 * 60 + id), random() | 1u, 0, 2));
      OperationSpec spec;
      spec.communicator = static_cast<std::uint16_t>(round % 2 * 60 + id);
      packet.operation(spec);
      ++records;
      if (random() % 2 == 0) {
        packet.finalize(spec.communicator);
        ++records;
      }
    }
    ASSERT_TRUE(plugin->feed(packet.finish(index)));
    index += records;
    rig.clock.advance_ms(1'000);
    rig.tick();
    const SnapshotPtr snapshot = rig.snapshot();
    ASSERT_LE(count_series(snapshot->jobs.at(0)).total(), SeriesLimits{}.job);
    std::uint64_t& most = most_heap[round < kRounds / 2 ? 0 : 1];
    most = std::max(most, heap_bytes());
  }
  EXPECT_LT(rig.aggregator.communicators(), 450u);
  if (kJudgesMemory) {
    EXPECT_LE(static_cast<double>(most_heap[1]), static_cast<double>(most_heap[0]) * 1.02);
  }
}

}  // namespace
}  // namespace ncclscope::agent

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using ncclscope::agent::size;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    std::uint64_t* value = name == "--hours"           ? &size.hours
                           : name == "--jobs"          ? &size.jobs
                           : name == "--alive"         ? &size.alive
                           : name == "--communicators" ? &size.communicators
                                                       : nullptr;
    const long long given = value != nullptr && i + 1 < argc ? std::atoll(argv[++i]) : 0;
    if (given <= 0 || (value == &size.communicators && given > 200)) {
      std::fprintf(stderr,
                   "'%s' is not --hours, --jobs, --alive or --communicators (at most 200) "
                   "with a number above 0\n",
                   argv[i]);
      return 2;
    }
    *value = static_cast<std::uint64_t>(given);
  }
  return RUN_ALL_TESTS();
}
