// SPDX-License-Identifier: Apache-2.0
//
// Quotas and who gives way when a table is full.
#include <gtest/gtest.h>

#include "agent/ingest/quota.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using testing::make_hello;
using testing::make_init;
using testing::PacketBuilder;
using testing::Rig;
using testing::Wire;

constexpr std::uint64_t kSecond = 1'000'000'000;

std::unique_ptr<Wire> open(Rig& rig, std::uint64_t session, std::int64_t uid,
                           const std::string& job) {
  auto wire = rig.connect(static_cast<std::int64_t>(session), uid);
  wire->feed(
      PacketBuilder().hello(make_hello(session), {{wire::StringKey::kSlurmJobId, job}}).finish());
  return wire;
}

std::uint64_t exceeded(Rig& rig, Quota quota) {
  return rig.snapshot()->agent.quota_exceeded[static_cast<std::size_t>(quota)];
}

bool has_job(Rig& rig, const std::string& id) {
  const SnapshotPtr s = rig.snapshot();
  return std::any_of(s->jobs.begin(), s->jobs.end(),
                     [&](const JobSnapshot& job) { return job.identity.job_id == id; });
}

TEST(ByteBucket, HoldsOneSecondAndPaysDebtsBack) {
  ByteBucket bucket(1000);
  EXPECT_TRUE(bucket.allows(kSecond));
  bucket.take(1500);
  EXPECT_FALSE(bucket.allows(kSecond));
  EXPECT_FALSE(bucket.allows(kSecond + kSecond * 4 / 10)) << "500 are owed";
  EXPECT_TRUE(bucket.allows(kSecond + kSecond * 6 / 10));
  EXPECT_FALSE(bucket.full(kSecond + kSecond * 6 / 10));
  EXPECT_TRUE(bucket.full(100 * kSecond)) << "no more than a second's worth is saved up";
  bucket.take(1000);
  EXPECT_FALSE(bucket.allows(100 * kSecond));
  EXPECT_FALSE(bucket.allows(50 * kSecond)) << "a clock that steps back gives nothing";
  EXPECT_TRUE(bucket.allows(101 * kSecond));
}

TEST(ByteBucket, AllowsEverythingWithoutALimit) {
  ByteBucket bucket;
  bucket.take(~std::size_t{0});
  EXPECT_TRUE(bucket.allows(0));
  EXPECT_TRUE(bucket.full(0));
}

TEST(QuotaCounter, CountsAlwaysAndLogsOnceAMinuteAndPrincipal) {
  QuotaCounter counter;
  for (int i = 0; i < 100; ++i) counter.exceeded(Quota::kBytes, "uid:1", kSecond, "slow");
  counter.exceeded(Quota::kBytes, "uid:2", kSecond, "slow");
  counter.exceeded(Quota::kSessions, "uid:1", kSecond, "refused");
  EXPECT_EQ(counter.count(Quota::kBytes), 101u);
  EXPECT_EQ(counter.count(Quota::kSessions), 1u);
  EXPECT_EQ(counter.logged(), 3u);
  counter.exceeded(Quota::kBytes, "uid:1", 62 * kSecond, "slow");
  EXPECT_EQ(counter.logged(), 4u);
}

TEST(QuotaCounter, IsBoundedHoweverManyPrincipalsThereAre) {
  QuotaCounter counter;
  for (int i = 0; i < 1000; ++i) {
    counter.exceeded(Quota::kBytes, "uid:" + std::to_string(i), kSecond, "slow");
  }
  EXPECT_EQ(counter.count(Quota::kBytes), 1000u);
  EXPECT_EQ(counter.logged(), QuotaCounter::kMaxLogged);
  counter.exceeded(Quota::kBytes, "uid:5000", 62 * kSecond, "slow");
  EXPECT_EQ(counter.logged(), QuotaCounter::kMaxLogged + 1);
}

TEST(SessionQuota, MakesOnesOwnOldSessionsGiveWay) {
  Ingest::Options options;
  options.sessions_per_principal = 2;
  Rig rig({}, options);
  auto other = open(rig, 50, 2000, "1");
  auto a = open(rig, 1, 1000, "2");
  auto b = open(rig, 2, 1000, "2");
  auto c = open(rig, 3, 1000, "2");
  EXPECT_TRUE(c->over()) << "both are connected";
  EXPECT_EQ(exceeded(rig, Quota::kSessions), 1u);
  a->disconnect();
  auto d = open(rig, 4, 1000, "2");
  EXPECT_FALSE(d->over());
  EXPECT_EQ(rig.ingest.find(1), nullptr);
  EXPECT_NE(rig.ingest.find(50), nullptr);
}

TEST(SessionQuota, AFullTableTakesFromWhoeverHoldsMostAndNeverWhatIsInUse) {
  Ingest::Options options;
  options.max_sessions = 4;
  Rig rig({}, options);
  auto live = open(rig, 1, 1000, "1");
  auto gone = open(rig, 2, 1000, "1");
  auto last = open(rig, 3, 1000, "1");
  auto other = open(rig, 10, 2000, "2");
  gone->disconnect();
  other->disconnect();
  rig.clock.advance_ms(500);
  last->disconnect();
  auto share = open(rig, 20, 3000, "3");
  EXPECT_FALSE(share->over())
      << "those may still be reconnecting, but an equal share is everybody's";
  EXPECT_EQ(rig.ingest.remembered_sessions(), 5u);
  auto early = open(rig, 21, 3000, "3");
  EXPECT_TRUE(early->over());
  share->disconnect();
  rig.clock.advance_ms(20'000);
  auto newcomer = open(rig, 30, 4000, "4");
  EXPECT_FALSE(newcomer->over());
  EXPECT_EQ(rig.ingest.remembered_sessions(), 5u);
  EXPECT_EQ(rig.ingest.find(2), nullptr) << "the oldest of whoever holds most";
  EXPECT_NE(rig.ingest.find(1), nullptr) << "in use";
  EXPECT_NE(rig.ingest.find(3), nullptr);
  EXPECT_NE(rig.ingest.find(10), nullptr) << "that user holds no more than the newcomer";
  // The one who holds most gets nothing from those who hold less.
  auto greedy = open(rig, 4, 1000, "1");
  EXPECT_FALSE(greedy->over());
  EXPECT_EQ(rig.ingest.find(3), nullptr) << "its own gave way";
  EXPECT_NE(rig.ingest.find(20), nullptr);
  EXPECT_NE(rig.ingest.find(10), nullptr);
}

TEST(JobQuota, EndsOnesOwnEndedJobsFirstThenThoseOfWhoeverHasMost) {
  Aggregator::Options options;
  options.max_jobs = 4;
  options.jobs_per_principal = 3;
  Rig rig(options);
  auto victim = open(rig, 1, 1000, "victim");
  auto a = open(rig, 2, 2000, "a");
  auto b = open(rig, 3, 2000, "b");
  auto c = open(rig, 4, 2000, "c");
  auto d = open(rig, 5, 2000, "d");
  EXPECT_TRUE(d->over()) << "three live jobs are its quota";
  EXPECT_EQ(exceeded(rig, Quota::kJobs), 1u);
  a->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(3).finish(1));
  a->disconnect();
  auto e = open(rig, 6, 2000, "e");
  EXPECT_TRUE(e->over()) << "it may only be reconnecting";
  rig.clock.advance_ms(4000);
  rig.tick();
  auto f = open(rig, 7, 2000, "f");
  EXPECT_FALSE(f->over());
  EXPECT_FALSE(has_job(rig, "a"));
  // All four are live now; a third user takes its share, then what of the greediest has ended.
  auto share = open(rig, 8, 3000, "share");
  EXPECT_FALSE(share->over());
  auto early = open(rig, 9, 3000, "third");
  EXPECT_TRUE(early->over());
  b->feed(PacketBuilder().goodbye().finish());
  b->disconnect();
  auto third = open(rig, 9, 3000, "third");
  EXPECT_FALSE(third->over());
  EXPECT_FALSE(has_job(rig, "b"));
  EXPECT_TRUE(has_job(rig, "victim"));
  EXPECT_TRUE(has_job(rig, "c"));
  EXPECT_TRUE(has_job(rig, "f"));
  // Whose job was ended may come back: its session is still remembered.
  c->feed(PacketBuilder().goodbye().finish());
  c->disconnect();
  auto again = open(rig, 2, 2000, "a");
  EXPECT_FALSE(again->over());
  EXPECT_EQ(rig.ingest.find(2)->highest_index, 3u);
  EXPECT_TRUE(again->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(2).finish(4)));
  EXPECT_TRUE(has_job(rig, "a"));
}

/// Room is made from all that the user has: it must still be known afterwards (ASan).
TEST(JobQuota, MakesRoomFromTheLastThingOfItsUser) {
  Aggregator::Options of_jobs;
  of_jobs.jobs_per_principal = 1;
  Aggregator::Options of_series;
  of_series.series.principal = kLeastSeriesOfAJob;
  for (const Aggregator::Options& options : {of_jobs, of_series}) {
    Rig rig(options);
    for (std::uint64_t n = 1; n <= 5; ++n) {
      auto wire = open(rig, n, 2000, std::to_string(n));
      ASSERT_FALSE(wire->over()) << n;
      EXPECT_TRUE(wire->feed(PacketBuilder().init(make_init(0, n, 0, 2)).operation().finish(1)));
      EXPECT_TRUE(has_job(rig, std::to_string(n)));
      EXPECT_FALSE(has_job(rig, std::to_string(n - 1)));
      wire->feed(PacketBuilder().goodbye().finish());
      wire->disconnect();
    }
  }
  // And where all that it has does not make enough.
  Aggregator::Options full;
  full.series.agent = kLeastSeriesOfAJob;
  Rig rig(full);
  auto other = open(rig, 1, 1000, "other");
  for (std::uint64_t n = 2; n <= 4; ++n) EXPECT_TRUE(open(rig, n, 2000, "late")->over());
  EXPECT_EQ(exceeded(rig, Quota::kJobs), 3u);
}

TEST(CommunicatorQuota, AFullTableStillHasEverybodysEqualShare) {
  Aggregator::Options options;
  options.max_communicators = 6;
  options.communicators_per_principal = 6;
  Rig rig(options);
  auto greedy = open(rig, 1, 1000, "greedy");
  PacketBuilder many;
  for (std::uint16_t id = 0; id < 10; ++id) many.init(make_init(id, 100u + id, 0, 2));
  const testing::Packet packet = many.finish();
  greedy->feed(packet);
  auto polite = open(rig, 2, 2000, "polite");
  polite->feed(packet);
  const SnapshotPtr s = rig.snapshot();
  EXPECT_EQ(s->jobs.at(0).communicators.size(), 7u) << "six and other";
  EXPECT_EQ(s->jobs.at(1).communicators.size(), 4u) << "its share of six, and other";
}

TEST(CommunicatorQuota, FoldsThoseOfOneUserOnly) {
  Aggregator::Options options;
  options.communicators_per_principal = 2;
  Rig rig(options);
  auto greedy = open(rig, 1, 1000, "greedy");
  auto polite = open(rig, 2, 2000, "polite");
  PacketBuilder many;
  for (std::uint16_t id = 0; id < 5; ++id) many.init(make_init(id, 100u + id, 0, 2));
  greedy->feed(many.finish());
  greedy->feed(PacketBuilder().operations(7, {.communicator = 4}).finish(1));
  polite->feed(
      PacketBuilder().init(make_init(0, 100, 0, 2)).init(make_init(1, 101, 0, 2)).finish());
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.size(), 2u);
  EXPECT_EQ(s->jobs[0].communicators.size(), 3u) << "two and other";
  EXPECT_EQ(s->jobs[1].communicators.size(), 2u);
  EXPECT_EQ(s->agent.quota_exceeded[static_cast<std::size_t>(Quota::kCommunicators)], 3u);
  // What ends gives its place back.
  greedy->feed(PacketBuilder().goodbye().finish());
  greedy->disconnect();
  rig.clock.advance_ms(600'000);
  rig.tick();
  rig.tick();
  auto again = open(rig, 3, 1000, "again");
  again->feed(PacketBuilder().init(make_init(0, 200, 0, 2)).init(make_init(1, 201, 0, 2)).finish());
  EXPECT_EQ(exceeded(rig, Quota::kCommunicators), 3u);
}

TEST(PlanQuota, OneUsersPlansDoNotCutAnothersShort) {
  Aggregator::Options options;
  options.max_pending_items = 16;
  Rig rig(options);
  auto victim = open(rig, 1, 1000, "victim");
  auto attacker = open(rig, 2, 2000, "attacker");
  victim->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish());
  attacker->feed(PacketBuilder().init(make_init(0, 6, 0, 2)).finish());
  // Two operations that share their stamps: one batch, if it is not cut in two.
  victim->feed(PacketBuilder().operation({.plan = 7}).finish(1));
  for (std::uint64_t i = 0; i < 100; ++i) {
    attacker->feed(PacketBuilder().operation({.plan = 9}).finish(1 + i));
  }
  victim->feed(PacketBuilder().operation({.plan = 7}).finish(2));
  const SnapshotPtr s = rig.snapshot();
  const auto& row = s->jobs.at(1).communicators.at(0).sums.at(0);
  EXPECT_EQ(s->jobs.at(1).identity.job_id, "victim");
  EXPECT_EQ(row.timed_operations, 2u);
  EXPECT_DOUBLE_EQ(row.busy_seconds, 100e-6) << "they shared their time";
}

TEST(MemoryLimit, RefusesWhatIsNewAndKeepsWhatIsThere) {
  Rig rig;
  auto a = open(rig, 1, 1000, "1");
  a->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish());
  auto away = open(rig, 2, 1000, "1");
  away->disconnect();
  rig.ingest.set_memory_full(true);
  rig.aggregator.set_memory_full(true);
  auto fresh = open(rig, 3, 1000, "1");
  EXPECT_TRUE(fresh->over());
  auto back = open(rig, 2, 1000, "1");
  EXPECT_FALSE(back->over()) << "a session that is remembered goes on";
  a->feed(PacketBuilder()
              .init(make_init(1, 6, 0, 2))
              .operations(3, {.communicator = 0})
              .operations(4, {.communicator = 1})
              .finish(1));
  const SnapshotPtr s = rig.snapshot();
  EXPECT_EQ(s->jobs.at(0).communicators.size(), 2u) << "the known one and other";
  EXPECT_EQ(s->jobs.at(0).communicators.at(0).sums.at(0).operations_by_timing[1], 3u);
  EXPECT_EQ(s->agent.quota_exceeded[static_cast<std::size_t>(Quota::kMemory)], 2u);
  rig.ingest.set_memory_full(false);
  auto later = open(rig, 3, 1000, "1");
  EXPECT_FALSE(later->over());
}

}  // namespace
}  // namespace ncclscope::agent
