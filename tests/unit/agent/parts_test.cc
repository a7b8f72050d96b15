// SPDX-License-Identifier: Apache-2.0
//
// The small parts: label values, job ids, GPU order, size and duration classes, GPU clock, tail,
// log limits.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/aggregate/fused_batch.h"
#include "agent/aggregate/gpu_clock.h"
#include "agent/aggregate/operation_sums.h"
#include "agent/aggregate/operation_tail.h"
#include "agent/base/log.h"
#include "agent/base/reactor.h"
#include "agent/identity/gpu_table.h"
#include "agent/identity/job_resolver.h"
#include "agent/identity/label_value.h"
#include "agent/identity/rdma_ports.h"

namespace ncclscope::agent {
namespace {

TEST(LabelValue, KeepsTextAndReplacesWhatCannotBeShown) {
  EXPECT_EQ(label_value("träin \xE2\x9C\x93"), "träin \xE2\x9C\x93");
  EXPECT_EQ(label_value("a\nb\x7F\x1B[0m"), "a?b??[0m");
  EXPECT_EQ(label_value("\xC0\xAF"), "??") << "overlong";
  EXPECT_EQ(label_value("\xED\xA0\x80"), "???") << "surrogate";
  EXPECT_EQ(label_value("\xF4\x90\x80\x80"), "????") << "above U+10FFFF";
  EXPECT_EQ(label_value("x\xE2\x9C"), "x??") << "cut";
  EXPECT_EQ(label_value("\xC2\x85"), "?") << "C1 control";
}

TEST(LabelValue, CutsBetweenCharacters) {
  const std::string text = std::string(127, 'a') + "\xC3\xA4";
  EXPECT_EQ(label_value(text), std::string(127, 'a'));
  EXPECT_EQ(label_value(std::string(500, 'b')).size(), kMaxLabelBytes);
}

HelloClaims claims(std::vector<std::pair<wire::StringKey, std::string>> strings) {
  HelloClaims c;
  c.strings = std::move(strings);
  return c;
}
ProcessIdentity resolve(std::vector<std::pair<wire::StringKey, std::string>> strings) {
  PeerIdentity peer;
  peer.uid = 0;
  return ClaimsResolver("").resolve(peer, claims(std::move(strings)));
}
using wire::StringKey;

TEST(ClaimsResolver, NamesSlurmJobs) {
  const ProcessIdentity p = resolve({{StringKey::kSlurmJobId, "1234"},
                                     {StringKey::kSlurmProcId, "5"},
                                     {StringKey::kSlurmLocalId, "1"},
                                     {StringKey::kSlurmJobName, "llm"},
                                     {StringKey::kSlurmJobPartition, "gpu"},
                                     {StringKey::kSlurmJobAccount, "lab"},
                                     {StringKey::kSlurmClusterName, "alps"},
                                     {StringKey::kSlurmRestartCount, "2"}});
  EXPECT_EQ(p.job.job_id, "1234");
  EXPECT_EQ(p.job.identity_source, "claimed");
  EXPECT_EQ(p.job.user, "root") << "from the peer's uid";
  EXPECT_EQ(p.job.cluster, "alps");
  EXPECT_EQ(p.job.partition, "gpu");
  EXPECT_EQ(p.job.account, "lab");
  EXPECT_EQ(p.job.job_name, "llm");
  EXPECT_EQ(p.job.run, 2u);
  EXPECT_EQ(p.global_rank, "5");
  EXPECT_EQ(p.local_rank, "1");
  EXPECT_EQ(p.local_index, 1);
}

TEST(ClaimsResolver, NamesArrayAndHeterogeneousJobs) {
  const ProcessIdentity array = resolve({{StringKey::kSlurmJobId, "1239"},
                                         {StringKey::kSlurmArrayJobId, "1234"},
                                         {StringKey::kSlurmArrayTaskId, "5"}});
  EXPECT_EQ(array.job.job_id, "1234_5");
  EXPECT_EQ(array.job.array_task, "5");
  const ProcessIdentity het = resolve({{StringKey::kSlurmJobId, "1235"},
                                       {StringKey::kSlurmHetJobId, "1234"},
                                       {StringKey::kSlurmHetJobOffset, "1"}});
  EXPECT_EQ(het.job.job_id, "1234");
}

TEST(ClaimsResolver, NamesKubernetesJobs) {
  const ProcessIdentity named = resolve({{StringKey::kPodNamespace, "team-a"},
                                         {StringKey::kPodName, "llm-worker-3"},
                                         {StringKey::kJobName, "llm-70b"}});
  EXPECT_EQ(named.job.job_id, "team-a/llm-70b");
  EXPECT_EQ(named.job.pod, "llm-worker-3");
  const ProcessIdentity unnamed =
      resolve({{StringKey::kPodNamespace, "team-a"}, {StringKey::kPodName, "llm-worker-3"}});
  EXPECT_EQ(unnamed.job.job_id, "team-a/llm");
}

TEST(ClaimsResolver, CallsTheRestUnknown) {
  const ProcessIdentity p = resolve({{StringKey::kRank, "3"}, {StringKey::kLocalRank, "x"}});
  EXPECT_EQ(p.job.job_id, "unknown");
  EXPECT_EQ(p.job.identity_source, "unknown");
  EXPECT_EQ(p.global_rank, "3");
  EXPECT_EQ(p.local_index, -1);
}

TEST(ClaimsResolver, PrefersTheConfiguredCluster) {
  const auto p = ClaimsResolver("mine").resolve(
      PeerIdentity{},
      claims({{StringKey::kSlurmJobId, "1"}, {StringKey::kSlurmClusterName, "theirs"}}));
  EXPECT_EQ(p.job.cluster, "mine");
}

TEST(PodName, LosesItsReplicaSuffix) {
  EXPECT_EQ(without_replica_suffix("trainer-0"), "trainer");
  EXPECT_EQ(without_replica_suffix("trainer-x7k2p"), "trainer");
  EXPECT_EQ(without_replica_suffix("trainer-3-x7k2p"), "trainer");
  EXPECT_EQ(without_replica_suffix("serve-6d4b75cb6d-hw9xm"), "serve");
  EXPECT_EQ(without_replica_suffix("llm-worker-12"), "llm");
  EXPECT_EQ(without_replica_suffix("llm-master-0"), "llm");
  EXPECT_EQ(without_replica_suffix("llm-launcher"), "llm");
  EXPECT_EQ(without_replica_suffix("my-training"), "my-training");
  EXPECT_EQ(without_replica_suffix("pod"), "pod");
}

class Sysfs : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / concat("ncclscope-sysfs-", ::getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void device(const char* id, const char* vendor, const char* klass) {
    const auto directory = root_ / "bus/pci/devices" / id;
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "vendor") << vendor << "\n";
    std::ofstream(directory / "class") << klass << "\n";
  }
  std::filesystem::path root_;
};

TEST_F(Sysfs, ActiveRdmaPortsAreCounted) {
  EXPECT_EQ(active_rdma_ports(root_.string()), 0u) << "no such directory";
  const auto port = [&](const char* device, const char* number, const char* state) {
    const auto directory = root_ / "class/infiniband" / device / "ports" / number;
    std::filesystem::create_directories(directory);
    if (state != nullptr) std::ofstream(directory / "state") << state << "\n";
  };
  port("mlx5_0", "1", "4: ACTIVE");
  port("mlx5_0", "2", "1: DOWN");
  port("mlx5_1", "1", "2: INIT");
  port("mlx5_2", "1", nullptr);
  EXPECT_EQ(active_rdma_ports(root_.string()), 1u);
  port("mlx5_1", "1", "4: ACTIVE");
  EXPECT_EQ(active_rdma_ports(root_.string()), 2u);
}

TEST_F(Sysfs, GpusAreNumberedInBusOrder) {
  device("0000:86:00.0", "0x10de", "0x030200");
  device("0000:3b:00.0", "0x10de", "0x030200");
  device("0000:3b:00.1", "0x10de", "0x040300");  // its audio function
  device("0000:17:00.0", "0x8086", "0x030000");  // another vendor's
  GpuTable table(root_.string());
  EXPECT_EQ(table.listed(), 2u);
  EXPECT_EQ(table.index(table.find("00000000:86:00.0", 0, 0)), 1);
  EXPECT_EQ(table.index(table.find("0000:3B:00.0", 7, 7)), 0);
  EXPECT_EQ(table.index(table.find("0000:99:00.0", 7, 7)), 2) << "one that sysfs does not show";
}

TEST(GpuTable, FallsBackToTheOrderSeenThenLocalRankThenDevice) {
  GpuTable table("/nonexistent");
  const GpuRef late = table.find("0000:86:00.0", 0, 0);
  EXPECT_EQ(table.index(late), 0);
  const GpuRef early = table.find("0000:3b:00.0", 0, 0);
  EXPECT_EQ(table.index(early), 0);
  EXPECT_EQ(table.index(late), 1);
  EXPECT_EQ(table.index(table.find("", 3, 1)), 3);
  EXPECT_EQ(table.index(table.find("nonsense", -1, 1)), 1);
  EXPECT_EQ(table.index(table.find("", -1, -1)), -1);
}

TEST(LabelValue, ReplacesWhatDoesNotShowOrTurnsTextAround) {
  for (const char* unseen :
       {"\u00ad", "\u061c", "\u115f", "\u180e", "\u200b", "\u200f", "\u2028", "\u202e", "\u2066",
        "\u3164", "\ufe0f", "\ufeff", "\ufff9", "\uffff", "\U000e0041", "\U0001fffe"}) {
    EXPECT_EQ(label_value(std::string("4") + unseen + "7"), "4?7");
  }
  for (const char* seen : {"\u00e9", "\u4e2d\u6587", "\u05d0", "\U0001f600", "\ufffd", "{}\"\\"}) {
    EXPECT_EQ(label_value(seen), seen);
  }
}

TEST(GpuTable, NumbersGpusThatAreNotListedPerOwner) {
  GpuTable table("/nonexistent");
  const GpuRef victim = table.find("0000:3b:00.0", -1, -1, "uid:1");
  for (const char* invented : {"0000:01:00.0", "0000:02:00.0", "0000:3b:00.0"}) {
    EXPECT_NE(table.find(invented, -1, -1, "uid:2"), victim);
  }
  EXPECT_EQ(table.index(victim), 0);
  EXPECT_EQ(table.index(table.find("0000:3b:00.0", -1, -1, "uid:2")), 2);
}

TEST(GpuTable, BoundsWhatInventedBusIdsCanTake) {
  GpuTable table("/nonexistent");
  for (int i = 0; i < 256; ++i) {
    constexpr char kHex[] = "0123456789abcdef";
    const std::string id = std::string("0000:") + kHex[i / 16] + kHex[i % 16] + ":00.0";
    EXPECT_LT(table.index(table.find(id, -1, -1)), static_cast<int>(GpuTable::kMaxUnlisted));
  }
}

TEST(SizeClass, HasInclusiveUpperBounds) {
  EXPECT_EQ(size_class_of(0), 0);
  for (std::size_t i = 0; i < kSizeClassBounds.size(); ++i) {
    EXPECT_EQ(size_class_of(kSizeClassBounds[i]), i);
    EXPECT_EQ(size_class_of(kSizeClassBounds[i] + 1), i + 1);
  }
}

TEST(DurationBucket, HasInclusiveUpperBounds) {
  EXPECT_EQ(duration_bucket(1), 0u);
  std::uint64_t bound = 10'000;
  for (std::size_t i = 0; i < kDurationBounds; ++i, bound *= 4) {
    EXPECT_EQ(duration_bucket(bound), i);
    EXPECT_EQ(duration_bucket(bound + 1), i + 1);
  }
  EXPECT_EQ(duration_bucket(wire::kMaxDurationNs), kDurationBounds);
}

TEST(PlanBatch, KeepsSumsOfTimeWhateverTheOverlap) {
  // Two chains: [0,100) with [50,150), and [200,300) alone.
  PlanBatch batch;
  TimedItem item;
  item.bus_bytes = 10;
  item.duration_ns = 100;
  for (const std::uint64_t start : {200u, 0u, 50u}) {
    item.start_ns = start;
    batch.add(1, item, 0);
  }
  double total = 0;
  int fused = 0;
  batch.flush([&](const AttributedItem& a) {
    total += a.duration_ns;
    fused += a.fused ? 1 : 0;
    EXPECT_EQ(a.rank_sums, !a.fused);
  });
  EXPECT_DOUBLE_EQ(total, 250);
  EXPECT_EQ(fused, 2);
  EXPECT_TRUE(batch.empty());
}

TEST(PlanBatch, SharesEquallyWhereNoBandwidthIsDefined) {
  PlanBatch batch;
  TimedItem item;
  item.duration_ns = 100;
  batch.add(1, item, 0);
  batch.add(1, item, 0);
  batch.flush([&](const AttributedItem& a) { EXPECT_DOUBLE_EQ(a.duration_ns, 50); });
}

TEST(PlanBatch, GivesItsTimeToTheReceivesInARanksSums) {
  PlanBatch batch;
  TimedItem item;
  item.duration_ns = 100;
  item.bus_bytes = 30;
  item.function = model::Function::kSend;
  batch.add(1, item, 0);
  item.function = model::Function::kRecv;
  item.bus_bytes = 10;
  batch.add(1, item, 0);
  batch.add(1, item, 0);
  double sent = 0, received = 0, total = 0;
  batch.flush([&](const AttributedItem& a) {
    (a.item.function == model::Function::kSend ? sent : received) += a.rank_duration_ns;
    total += a.duration_ns;
    EXPECT_TRUE(a.rank_sums);
  });
  EXPECT_DOUBLE_EQ(sent, 0);
  EXPECT_DOUBLE_EQ(received, 100);
  EXPECT_DOUBLE_EQ(total, 100);
  item.function = model::Function::kSend;
  batch.add(2, item, 0);
  batch.add(2, item, 0);
  batch.flush([&](const AttributedItem& a) { EXPECT_DOUBLE_EQ(a.rank_duration_ns, 50); });
}

TEST(GpuClock, SaysNothingWithoutBothBounds) {
  GpuClock clock;
  std::int64_t queue = 0;
  EXPECT_FALSE(clock.queue_ns(1000, 1000, queue));
  clock.observe(0, 5'000'000, 6'000'000, 7'000'000);  // no API time: upper bound only
  EXPECT_FALSE(clock.queue_ns(1000, 1000, queue));
}

TEST(GpuClock, SaysNothingWhileTheBoundsAreFarApart) {
  GpuClock clock;
  std::int64_t queue = 0;
  clock.observe(1'000'000, 1'010'000, 2'000'000, 90'000'000);  // sent 88 ms after it stopped
  EXPECT_FALSE(clock.queue_ns(1'000'000, 1'010'000, queue));
  clock.observe(89'000'000, 89'010'000, 89'900'000, 90'000'000);
  EXPECT_TRUE(clock.queue_ns(89'000'000, 89'010'000, queue));
  EXPECT_GE(queue, 0);
  EXPECT_LT(queue, 1'000'000);
}

TEST(GpuClock, MatchesAClockThatCountsFromTheUnixEpoch) {
  GpuClock clock;
  std::int64_t queue = 0;
  constexpr std::uint64_t kEpoch = 1'796'000'000'000'000'000;
  const std::uint64_t t = 27'000'000'000'000;
  clock.observe(t, kEpoch + t + 10'000, kEpoch + t + 100'000, t + 200'000);
  ASSERT_TRUE(clock.queue_ns(t, kEpoch + t + 10'000, queue));
  EXPECT_LT(queue, 1'000'000);
  ASSERT_TRUE(clock.queue_ns(t, kEpoch + t + 50'000'000, queue));
  EXPECT_NEAR(static_cast<double>(queue), 50e6, 1e6);
}

TEST(GpuClock, LoosensItsBoundsWithTime) {
  GpuClock clock;
  std::int64_t queue = 0;
  std::uint64_t t = 1'000'000'000;
  clock.observe(t, t + 10'000, t + 100'000, t + 200'000);
  EXPECT_TRUE(clock.queue_ns(t, t + 10'000, queue));
  // Ten minutes later, from an operation that tells nothing new: 2 x 50 ppm of 600 s is 60 ms.
  t += 600'000'000'000;
  clock.observe(t - 500'000'000, t, t + 100'000, t + 500'000'000);
  EXPECT_FALSE(clock.queue_ns(t, t + 10'000, queue));
}

TEST(GpuClock, StartsAgainWhenAClockJumps) {
  GpuClock clock;
  std::int64_t queue = 0;
  const std::uint64_t t = 1'000'000'000;
  clock.observe(t, t + 10'000, t + 100'000, t + 200'000);
  constexpr std::uint64_t kJump = 7'000'000'000;
  clock.observe(t + 1'000'000, t + kJump + 1'010'000, t + kJump + 1'100'000, t + 1'200'000);
  EXPECT_EQ(clock.contradictions(), 1u);
  EXPECT_TRUE(clock.queue_ns(t + 1'000'000, t + kJump + 1'010'000, queue));
  EXPECT_LT(queue, 1'000'000);
}

OperationTail::Entry entry(OperationTail::SourceId source, std::uint64_t index) {
  OperationTail::Entry e{};
  e.source = source;
  e.type = wire::RecordType::kOperation;
  e.record_index = index;
  return e;
}

TEST(OperationTail, TellsASlowReaderHowMuchItMissed) {
  OperationTail tail(4);
  const auto source = tail.add_source(TailSource());
  for (std::uint64_t i = 0; i < 10; ++i) {
    const auto e = entry(source, i);
    tail.append({&e, 1});
  }
  std::vector<TailRecord> out;
  const auto result = tail.read(2, 3, out);
  EXPECT_EQ(result.skipped, 4u);
  EXPECT_EQ(result.next, 9u);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].record_index, 6u);
  EXPECT_EQ(tail.begin(), 6u);
  EXPECT_EQ(tail.end(), 10u);
}

TEST(OperationTail, FreesARetiredSourceWithItsLastRecord) {
  OperationTail tail(2);
  const auto old = tail.add_source(TailSource());
  const auto e = entry(old, 1);
  tail.append({&e, 1});
  std::vector<TailRecord> out;
  tail.read(0, 1, out);
  std::weak_ptr<const TailSource> watched = out.at(0).source;
  out.clear();
  tail.retire_source(old);
  EXPECT_FALSE(watched.expired());
  const auto fresh = tail.add_source(TailSource());
  EXPECT_NE(fresh, old);
  const auto f = entry(fresh, 2);
  tail.append({&f, 1});
  tail.append({&f, 1});
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(tail.add_source(TailSource()), old) << "the place is used again";
}

TEST(OperationTail, WakesReadersOnRecordsAndOnClose) {
  OperationTail tail(4);
  const auto source = tail.add_source(TailSource());
  EXPECT_FALSE(tail.wait(0, std::chrono::milliseconds(0)));
  std::thread writer([&] {
    const auto e = entry(source, 1);
    tail.append({&e, 1});
  });
  EXPECT_TRUE(tail.wait(0, std::chrono::seconds(20)));
  writer.join();
  std::thread closer([&] { tail.close(); });
  EXPECT_FALSE(tail.wait(1, std::chrono::seconds(20)));
  EXPECT_TRUE(tail.closed());
  closer.join();
}

TEST(LogLimiter, LetsABurstThroughPerPeriod) {
  LogLimiter limiter(2, 1000);
  EXPECT_TRUE(limiter.admit(10));
  EXPECT_TRUE(limiter.admit(11));
  EXPECT_FALSE(limiter.admit(12));
  EXPECT_EQ(limiter.suppressed(), 1u);
  EXPECT_TRUE(limiter.admit(1010));
}

TEST(Reactor, RunsWhatOtherThreadsPostAndRefusesAfterItsEnd) {
  auto reactor = Reactor::create();
  ASSERT_TRUE(reactor.ok());
  Reactor& r = *reactor.value();
  std::thread thread([&] { r.run(); });
  int n = 0;
  EXPECT_TRUE(r.call([&] { ++n; }));
  EXPECT_EQ(n, 1);
  EXPECT_TRUE(r.post([&] { r.stop(); }));
  thread.join();
  EXPECT_FALSE(r.post([] {}));
  EXPECT_FALSE(r.call([&] { ++n; }));
  EXPECT_EQ(n, 1);
}

TEST(Reactor, ReleasesCallersWhenItStopsBeforeTheirTurn) {
  auto reactor = Reactor::create();
  ASSERT_TRUE(reactor.ok());
  std::thread caller([&] { EXPECT_FALSE(reactor.value()->call([] {})); });
  reactor.value()->stop();
  reactor.value()->run();  // finds the stop before the closures
  caller.join();
}

}  // namespace
}  // namespace ncclscope::agent
