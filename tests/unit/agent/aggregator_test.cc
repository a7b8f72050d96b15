// SPDX-License-Identifier: Apache-2.0
//
// From records to sums, through real sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/aggregate/books.h"
#include "agent/aggregate/series.h"
#include "proto/model/bandwidth.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using model::Function;
using testing::make_init;
using testing::OperationSpec;
using testing::PacketBuilder;
using testing::Rig;
using wire::RecordType;

const CommunicatorSnapshot& only_communicator(const SnapshotPtr& s) {
  EXPECT_EQ(s->jobs.size(), 1u);
  EXPECT_EQ(s->jobs.at(0).communicators.size(), 1u);
  return s->jobs.at(0).communicators.at(0);
}

TEST(Aggregator, AttributesBusBytesAndBusyTimeOfSingleOperations) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec spec;
  spec.count = 1 << 20;  // 4 MiB of float
  spec.duration_ns = 200'000;
  plugin->feed(PacketBuilder().init(make_init(0, 0xabc, 1, 4)).operations(10, spec).finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  EXPECT_EQ(c.comm, "0000000000000abc");
  EXPECT_EQ(c.nranks, 4u);
  ASSERT_EQ(c.sums.size(), 1u);
  const OperationSumsRow& row = c.sums[0];
  EXPECT_EQ(row.function, Function::kAllReduce);
  EXPECT_STREQ(kSizeClassNames[row.size_class], "<=16MiB");
  EXPECT_EQ(row.algorithm, model::Algorithm::kRing);
  EXPECT_EQ(row.protocol, model::Protocol::kSimple);
  EXPECT_EQ(row.operations_by_timing[1], 10u);
  EXPECT_EQ(row.bytes_by_timing[1], 10ull * (4 << 20));
  EXPECT_EQ(row.timed_operations, 10u);
  EXPECT_DOUBLE_EQ(row.bus_bytes, 10.0 * (4 << 20) * 1.5);
  EXPECT_NEAR(row.busy_seconds, 10 * 200e-6, 1e-12);
  ASSERT_EQ(c.rank_sums.size(), 1u);
  EXPECT_EQ(c.rank_sums[0].rank, 1);
  EXPECT_EQ(c.rank_sums[0].operations, 10u);
  EXPECT_NEAR(c.rank_sums[0].seconds, 2e-3, 1e-12);
  ASSERT_EQ(snapshot->jobs[0].durations.size(), 1u);
  EXPECT_EQ(snapshot->jobs[0].durations[0].counts[3], 10u) << "160 us < 200 us <= 640 us";
}

TEST(Aggregator, GivesNoBandwidthWhereItIsNotDefined) {
  Rig rig;
  auto plugin = rig.open(9);
  wire::CommunicatorInit init = make_init(0, 5, 0, 0);
  init.flags &= static_cast<std::uint16_t>(~wire::kCommRanksKnown);
  OperationSpec untimed;
  untimed.timing = wire::TimingSource::kNone;
  untimed.untimed = wire::UntimedReason::kCounterDrift;
  OperationSpec host;
  host.timing = wire::TimingSource::kHostCallback;
  OperationSpec zero;
  zero.duration_ns = 0;
  plugin->feed(PacketBuilder()
                   .init(init)
                   .operation()  // AllReduce of unknown nranks
                   .operation(untimed)
                   .operation(host)
                   .operation(zero)
                   .finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  ASSERT_EQ(c.sums.size(), 1u);
  EXPECT_EQ(c.sums[0].operations_by_timing, (std::array<std::uint64_t, 3>{1, 2, 1}));
  EXPECT_EQ(c.sums[0].timed_operations, 0u);
  EXPECT_EQ(c.sums[0].bus_bytes, 0);
  EXPECT_EQ(c.sums[0].busy_seconds, 0);
  const auto& unobserved = snapshot->jobs[0].unobserved;
  EXPECT_EQ(unobserved[static_cast<std::size_t>(wire::UntimedReason::kCounterDrift)], 1u);
  EXPECT_EQ(unobserved[static_cast<std::size_t>(wire::UntimedReason::kNotCarried)], 1u);
  EXPECT_EQ(unobserved[static_cast<std::size_t>(wire::UntimedReason::kTimingRejected)], 1u);
}

TEST(Aggregator, SharesABatchTimeByBusBytes) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec small;
  small.plan = 3;
  small.count = 1000;
  small.gpu_start_ns = 1'000'000;
  small.duration_ns = 400'000;
  OperationSpec large = small;
  large.count = 3'000'000;
  plugin->feed(
      PacketBuilder().init(make_init(0, 5, 0, 2)).operation(small).operation(large).finish(1));
  EXPECT_EQ(rig.aggregator.build(rig.ingest.stats())
                ->jobs[0]
                .communicators[0]
                .sums.at(0)
                .timed_operations,
            0u)
      << "a plan waits for its other operations";
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  ASSERT_EQ(c.sums.size(), 2u);
  EXPECT_NEAR(c.sums[0].busy_seconds, 400e-6 * 1000 / 3'001'000, 1e-9);
  EXPECT_NEAR(c.sums[1].busy_seconds, 400e-6 * 3'000'000 / 3'001'000, 1e-9);
  EXPECT_NEAR(c.sums[0].bus_bytes + c.sums[1].bus_bytes, 4.0 * 3'001'000, 1e-6);
  EXPECT_NEAR(c.sums[0].bus_bytes / c.sums[0].busy_seconds,
              c.sums[1].bus_bytes / c.sums[1].busy_seconds, 1)
      << "both show the bandwidth of the batch";
  EXPECT_TRUE(c.rank_sums.empty()) << "fused collectives say nothing about a rank";
}

TEST(Aggregator, TakesOperationsOfOnePlanThatDoNotOverlapOneByOne) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec first;
  first.plan = 3;
  first.gpu_start_ns = 1'000'000;
  first.duration_ns = 100'000;
  OperationSpec second = first;
  second.function = Function::kAllGather;
  second.gpu_start_ns = 1'100'000;  // begins exactly where the first one stopped
  second.duration_ns = 300'000;
  plugin->feed(
      PacketBuilder().init(make_init(0, 5, 0, 2)).operation(second).operation(first).finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  ASSERT_EQ(c.rank_sums.size(), 2u);
  EXPECT_NEAR(c.rank_sums[0].seconds, 100e-6, 1e-12);
  EXPECT_NEAR(c.rank_sums[1].seconds, 300e-6, 1e-12);
}

TEST(Aggregator, CountsSendReceivePairsOfABatchInTheRankSums) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec send;
  send.plan = 3;
  send.function = Function::kSend;
  OperationSpec receive = send;
  receive.function = Function::kRecv;
  plugin->feed(
      PacketBuilder().init(make_init(0, 5, 0, 2)).operation(send).operation(receive).finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  ASSERT_EQ(c.rank_sums.size(), 2u);
  EXPECT_NEAR(c.rank_sums[0].seconds + c.rank_sums[1].seconds, 100e-6, 1e-12);
}

TEST(Aggregator, FlushesAPlanWhenAnotherBeginsWhenItIsOldAndWhenTheProcessLeaves) {
  Rig rig;
  auto plugin = rig.open(9);
  const auto timed = [&] {
    return rig.aggregator.build(rig.ingest.stats())
        ->jobs[0]
        .communicators[0]
        .sums.at(0)
        .timed_operations;
  };
  OperationSpec spec;
  spec.plan = 3;
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operation(spec).finish(1));
  EXPECT_EQ(timed(), 0u);
  spec.plan = 4;
  plugin->feed(PacketBuilder().operation(spec).finish(2));
  EXPECT_EQ(timed(), 1u);
  rig.clock.advance_ms(499);
  rig.tick();
  EXPECT_EQ(timed(), 1u);
  rig.clock.advance_ms(1);
  rig.tick();
  EXPECT_EQ(timed(), 2u);
  spec.plan = 5;
  plugin->feed(PacketBuilder().operation(spec).finish(3));
  plugin->disconnect();
  EXPECT_EQ(timed(), 3u);
}

TEST(Aggregator, KeepsFirstOperationsOutOfTheRankSumsOnly) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec warmup;
  warmup.flags |= wire::operation_flags::kWarmup;
  plugin->feed(
      PacketBuilder().init(make_init(0, 5, 0, 2)).operations(3, warmup).operation().finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  EXPECT_EQ(c.sums.at(0).timed_operations, 4u);
  EXPECT_EQ(c.rank_sums.at(0).operations, 1u);
}

TEST(Aggregator, RekeysACommunicatorOnceItsHashIsKnown) {
  Rig rig;
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "7", 101);
  a->feed(PacketBuilder().init(make_init(0, 0, 0, 2)).operations(3).finish(1));
  b->feed(PacketBuilder().init(make_init(0, 0xbeef, 1, 2)).operations(2).finish(1));
  EXPECT_EQ(rig.snapshot()->jobs.at(0).communicators.size(), 2u);
  a->feed(PacketBuilder().init(make_init(0, 0xbeef, 0, 2)).operation().finish(4));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  EXPECT_EQ(c.comm, "000000000000beef");
  EXPECT_TRUE(c.hash_known);
  EXPECT_EQ(c.sums.at(0).timed_operations, 6u);
  ASSERT_EQ(c.ranks.size(), 2u);
  EXPECT_EQ(c.ranks[0].rank, 0);
  EXPECT_EQ(c.ranks[1].rank, 1);
  EXPECT_EQ(rig.aggregator.communicators(), 1u);
  ASSERT_EQ(c.rank_sums.size(), 2u);
  EXPECT_EQ(c.rank_sums[0].operations, 4u);
}

TEST(Aggregator, TakesAnIdThatIsUsedAgainAfterFinalizeAsANewCommunicator) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(2).finalize(0).finish(1));
  plugin->feed(PacketBuilder().init(make_init(0, 0xb, 0, 4)).operation().finish(4));
  const SnapshotPtr snapshot = rig.snapshot();
  ASSERT_EQ(snapshot->jobs.at(0).communicators.size(), 2u);
  const auto& old = snapshot->jobs[0].communicators[0];
  const auto& fresh = snapshot->jobs[0].communicators[1];
  EXPECT_EQ(old.comm, "000000000000000a");
  EXPECT_EQ(old.ranks.at(0).state, RankState::kFinalized);
  EXPECT_EQ(old.sums.at(0).timed_operations, 2u);
  EXPECT_EQ(fresh.ranks.at(0).state, RankState::kRunning);
  EXPECT_EQ(fresh.sums.at(0).timed_operations, 1u);
}

TEST(Aggregator, NoticesAReusedIdWhenTheFinalizeWasLost) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operation().finish(1));
  plugin->feed(PacketBuilder().init(make_init(0, 0xb, 0, 2)).operation().finish(9));
  const SnapshotPtr snapshot = rig.snapshot();
  ASSERT_EQ(snapshot->jobs.at(0).communicators.size(), 2u);
  EXPECT_EQ(snapshot->jobs[0].communicators[0].ranks.at(0).state, RankState::kFinalized);
}

TEST(Aggregator, RefusesRecordsOfAFinalizedCommunicator) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finalize(0).operation().finish(1));
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kUnknownCommunicator), 1u);
}

TEST(Aggregator, KeepsJobsApartAndCommunicatorsOfAProcessApart) {
  Rig rig;
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "8", 101);
  a->feed(PacketBuilder()
              .init(make_init(0, 0xa, 0, 2))
              .init(make_init(1, 0xb, 0, 4))
              .operation()
              .operations(2, {.communicator = 1})
              .finish(1));
  b->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(5).finish(1));
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.size(), 2u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "7");
  EXPECT_EQ(s->jobs[0].communicators.at(0).sums.at(0).timed_operations, 1u);
  EXPECT_EQ(s->jobs[0].communicators.at(1).sums.at(0).timed_operations, 2u);
  EXPECT_EQ(s->jobs[1].identity.job_id, "8");
  EXPECT_EQ(s->jobs[1].communicators.at(0).sums.at(0).timed_operations, 5u);
}

TEST(Aggregator, KeepsWhatAnotherUserClaimsOfAJobApart) {
  Rig rig;
  auto owner = rig.connect(100, 1000);
  auto stranger = rig.connect(101, 2000);
  auto api = rig.connect(0, -1, /*claimed=*/true);
  std::uint64_t session = 1;
  for (auto* w : {owner.get(), stranger.get(), api.get()}) {
    w->feed(PacketBuilder()
                .hello(testing::make_hello(session++), {{wire::StringKey::kSlurmJobId, "7"}})
                .init(make_init(0, 0xa, 0, 2))
                .operation()
                .finish(1));
  }
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.size(), 3u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "7");
  EXPECT_EQ(s->jobs[0].identity.uid, 1000);
  EXPECT_EQ(s->jobs[1].identity.job_id, "7~2000");
  EXPECT_EQ(s->jobs[2].identity.job_id, "7~claimed");
  for (const JobSnapshot& job : s->jobs)
    EXPECT_EQ(job.communicators.at(0).sums.at(0).timed_operations, 1u);
}

TEST(Aggregator, ContinuesARanksCountersInANewProcess) {
  Rig rig;
  auto first = rig.open(9, "7", 100);
  first->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(3).finish(1));
  first->disconnect();
  auto second = rig.open(10, "7", 200);
  second->feed(
      PacketBuilder().init(make_init(4, 0xa, 0, 2)).operations(2, {.communicator = 4}).finish(1));
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  ASSERT_EQ(c.ranks.size(), 1u);
  EXPECT_EQ(c.ranks[0].pid, 200);
  EXPECT_EQ(c.rank_sums.at(0).operations, 5u);
  EXPECT_EQ(c.sums.at(0).timed_operations, 5u);
}

TEST(Aggregator, KeepsALivingRankFromBeingTakenOver) {
  Rig rig;
  auto first = rig.open(9, "7", 100);
  auto second = rig.open(10, "7", 200);
  first->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(3).finish(1));
  second->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(2).finish(1));
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.at(0).communicators.size(), 2u);
  EXPECT_EQ(s->jobs[0].communicators[0].rank_sums.at(0).operations, 3u);
  EXPECT_FALSE(s->jobs[0].communicators[1].hash_known);
  EXPECT_EQ(s->jobs[0].communicators[1].rank_sums.at(0).operations, 2u);
  EXPECT_EQ(s->agent.identity_mismatches, 1u);
}

TEST(Aggregator, ShowsTheAgeOfTheOldestOperation) {
  Rig rig;
  auto plugin = rig.open(9);
  const std::uint64_t start = rig.clock.monotonic_ns();
  plugin->feed(
      PacketBuilder().init(make_init(0, 0xa, 0, 2)).progress(0, start, 41, start).finish());
  rig.clock.advance_ms(1500);
  SnapshotPtr s = rig.snapshot();
  EXPECT_NEAR(s->jobs.at(0).communicators.at(0).ranks.at(0).inflight_seconds, 1.5, 1e-9);
  EXPECT_EQ(s->jobs[0].communicators[0].ranks[0].oldest_index, 41u);
  EXPECT_NEAR(s->jobs[0].communicators[0].ranks[0].sample_age_seconds, 1.5, 1e-9);
  plugin->feed(PacketBuilder().progress(0, start - 5, 40, 1).finish());
  EXPECT_EQ(rig.snapshot()->jobs[0].communicators[0].ranks[0].oldest_index, 41u)
      << "an older sample is not taken";
  plugin->feed(PacketBuilder().progress(0, start + 5).finish());
  EXPECT_EQ(rig.snapshot()->jobs[0].communicators[0].ranks[0].inflight_seconds, 0);
}

TEST(Aggregator, NamesTheUnfinishedOperationByOneLikeIt) {
  Rig rig;
  auto plugin = rig.open(9);
  OperationSpec spec;
  spec.function = model::Function::kAllReduce;
  spec.datatype = model::DataType::kFloat32;
  spec.count = 1024;
  spec.index = 6;
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operation(spec).finish(1));
  const auto feed = [&](std::uint64_t signature) {
    wire::Progress progress{};
    progress.time_ns = rig.clock.monotonic_ns();
    progress.collectives_enqueued = 8;
    progress.oldest_index = 7;
    progress.oldest_time_ns = rig.clock.monotonic_ns() - 2'000'000'000;
    progress.oldest_signature = signature;
    plugin->feed(PacketBuilder().add(progress, RecordType::kProgress).finish());
  };
  const auto rank = [&] { return rig.snapshot()->jobs.at(0).communicators.at(0).ranks.at(0); };
  rig.clock.advance_ms(3000);
  feed(model::operation_signature(spec.function, spec.count, spec.datatype, -1));
  RankSnapshot shown = rank();
  ASSERT_TRUE(shown.last.has_value());
  EXPECT_EQ(shown.last->function, model::Function::kAllReduce);
  EXPECT_EQ(shown.last->bytes, 4096u);
  EXPECT_EQ(shown.last->index, 6u);
  EXPECT_NEAR(shown.last->age_seconds, 3, 1e-9);
  ASSERT_TRUE(shown.oldest.has_value());
  EXPECT_EQ(shown.oldest->bytes, 4096u);
  EXPECT_EQ(shown.oldest->index, 7u);
  rig.clock.advance_ms(1);
  feed(model::operation_signature(spec.function, 2048, spec.datatype, -1));
  EXPECT_FALSE(rank().oldest.has_value()) << "none like it has completed";
  // Eight others push it out.
  for (std::uint64_t count = 1; count <= 8; ++count) {
    spec.count = count;
    plugin->feed(PacketBuilder().operation(spec).finish(1 + count));
  }
  rig.clock.advance_ms(1);
  feed(model::operation_signature(spec.function, 1024, spec.datatype, -1));
  EXPECT_FALSE(rank().oldest.has_value());
  EXPECT_EQ(rank().last->count, 8u);
  plugin->disconnect();
}

TEST(Aggregator, ShowsRanksAsStalledThatDoNotGetOn) {
  Aggregator::Options options;
  options.stalled_ns = 20'000'000'000;
  Rig rig(options);
  auto plugin = rig.open(9);
  const auto feed = [&](std::uint64_t enqueued, std::uint64_t completed, std::uint64_t oldest_ns) {
    wire::Progress progress{};
    progress.time_ns = rig.clock.monotonic_ns();
    progress.collectives_enqueued = enqueued;
    progress.collectives_started = progress.collectives_completed = completed;
    progress.oldest_index = oldest_ns != 0 ? completed : ~std::uint64_t{0};
    progress.oldest_time_ns = oldest_ns;
    plugin->feed(PacketBuilder().add(progress, RecordType::kProgress).finish());
  };
  const auto stalled = [&] {
    return rig.snapshot()->jobs.at(0).communicators.at(0).ranks.at(0).stalled;
  };
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finish());
  EXPECT_FALSE(stalled()) << "nothing is known of it yet";
  feed(5, 5, 0);
  rig.clock.advance_ms(19'999);
  feed(5, 5, 0);  // says the same again
  EXPECT_FALSE(stalled());
  rig.clock.advance_ms(1);
  EXPECT_TRUE(stalled()) << "nothing to do for 20 s";
  const std::uint64_t called = rig.clock.monotonic_ns();
  feed(6, 5, called);
  EXPECT_FALSE(stalled());
  rig.clock.advance_ms(15'000);
  feed(7, 5, called);  // calls one more, the oldest does not end
  EXPECT_FALSE(stalled());
  rig.clock.advance_ms(5'000);
  EXPECT_TRUE(stalled());
  feed(7, 6, called);
  EXPECT_TRUE(stalled()) << "what is the oldest now was called as long ago";
  feed(7, 7, 0);
  EXPECT_FALSE(stalled());
  plugin->disconnect();
  rig.clock.advance_ms(3'000);
  rig.tick();
  EXPECT_TRUE(stalled()) << "vanished: at once";
}

/// A rank of which nobody sees operations end: they come without GPU times, and count as completed.
class Unobserved : public ::testing::Test {
 protected:
  Unobserved() : plugin_(rig_.open(9)) {
    plugin_->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finish());
  }
  ~Unobserved() override { plugin_->disconnect(); }
  void call(model::Function function, std::uint64_t count = 1024) {
    OperationSpec spec{.function = function, .timing = wire::TimingSource::kNone};
    spec.untimed = wire::UntimedReason::kNotAsked;
    spec.count = count;
    spec.index = static_cast<std::uint32_t>(called_++);
    plugin_->feed(PacketBuilder().operation(spec).finish(++records_));
    tell();
  }
  void tell(std::uint64_t open = 0) {
    rig_.clock.advance_ms(1);
    wire::Progress progress{};
    progress.time_ns = rig_.clock.monotonic_ns();
    progress.collectives_enqueued = called_ + open;
    progress.collectives_started = progress.collectives_completed = called_;
    progress.oldest_index = open > 0 ? called_ : ~std::uint64_t{0};
    progress.oldest_time_ns = open > 0 ? progress.time_ns : 0;
    progress.flags = flags_;
    plugin_->feed(PacketBuilder().add(progress, RecordType::kProgress).finish());
  }
  const RankSnapshot& rank() {
    snapshot_ = rig_.snapshot();
    return snapshot_->jobs.at(0).communicators.at(0).ranks.at(0);
  }

  Rig rig_;
  std::unique_ptr<testing::Wire> plugin_;
  std::uint16_t flags_ = wire::kProgressCollectiveEndsUnknown;
  std::uint64_t called_ = 0, records_ = 0;
  SnapshotPtr snapshot_;
};

TEST_F(Unobserved, RanksSayWhatTheyWouldWaitIn) {
  EXPECT_EQ(stalled_state(rank()), "idle");
  call(model::Function::kAllReduce);
  EXPECT_EQ(stalled_state(rank()), "unobserved");
  call(model::Function::kBroadcast);
  EXPECT_EQ(stalled_state(rank()), "unobserved_other");
  tell(1);
  EXPECT_EQ(stalled_state(rank()), "queued");
  flags_ = wire::kProgressP2pEndsUnknown;
  tell();
  EXPECT_EQ(stalled_state(rank()), "unobserved_other");
  flags_ = 0;
  tell(1);
  EXPECT_EQ(stalled_state(rank()), "called");
  tell();
  EXPECT_EQ(stalled_state(rank()), "idle");
}

TEST_F(Unobserved, RanksAreKnownByWhatTheyCalled) {
  for (int i = 0; i < 20; ++i) call(model::Function::kAllReduce);
  const std::uint64_t before = rank().calls_signature;
  EXPECT_NE(before, 0u);
  call(model::Function::kAllReduce);
  EXPECT_EQ(rank().calls_signature, before) << "the last 16 are alike";
  call(model::Function::kAllReduce, 1025);
  EXPECT_NE(rank().calls_signature, before);
  ++called_;  // a record is lost
  tell();
  EXPECT_EQ(rank().calls_signature, 0u);
  EXPECT_FALSE(rank().last_waits_for_all);
}

TEST_F(Unobserved, CallsOfLongAgoHaveEnded) {
  call(model::Function::kAllReduce);
  EXPECT_TRUE(rank().collective_ends_unknown);
  rig_.clock.advance_ms(3'600'000);
  EXPECT_TRUE(rank().collective_ends_unknown) << "it has called nothing else since";
  plugin_->feed(PacketBuilder().init(make_init(1, 0xb, 0, 2)).finish());
  wire::Progress progress{};
  progress.communicator = 1;
  progress.time_ns = rig_.clock.monotonic_ns();
  progress.collectives_enqueued = 1;
  plugin_->feed(PacketBuilder().add(progress, RecordType::kProgress).finish());
  EXPECT_FALSE(rank().collective_ends_unknown);
}

TEST_F(Unobserved, OperationsAreAShareOfTheCommunicators) {
  const auto share = [&] {
    rank();
    return snapshot_->jobs.at(0).communicators.at(0).untimed_share;
  };
  EXPECT_FALSE(share().has_value());
  call(model::Function::kAllReduce);
  EXPECT_DOUBLE_EQ(share().value(), 1);
  plugin_->feed(PacketBuilder().operations(3, {.index = 1}).finish(++records_));
  EXPECT_DOUBLE_EQ(share().value(), 0.25);
}

TEST(Aggregator, TakesTheNumberOfRdmaDevicesAsToldAndNothingElse) {
  Rig rig;
  const auto told = [&](std::uint64_t session, const std::string& text) {
    auto plugin = rig.connect(static_cast<std::int64_t>(100 + session));
    plugin->feed(PacketBuilder()
                     .hello(testing::make_hello(session), {{wire::StringKey::kSlurmJobId, "7"},
                                                           {wire::StringKey::kRdmaDevices, text}})
                     .finish());
    std::optional<std::uint64_t> devices;
    const SnapshotPtr snapshot = rig.snapshot();
    for (const ProcessSnapshot& p : snapshot->jobs.at(0).processes) {
      if (p.session_id == session) devices = p.rdma_devices;
    }
    return devices;
  };
  EXPECT_EQ(told(1, "0"), 0u);
  EXPECT_EQ(told(2, "8"), 8u);
  for (const char* text : {"", "-1", "8 ", "eight", "10000", "99999999999999999999"}) {
    static std::uint64_t session = 10;
    EXPECT_EQ(told(session++, text), std::nullopt) << text;
  }
}

TEST(Aggregator, MovesTimesOfAClaimedSessionToItsOwnClock) {
  Rig rig;
  auto remote = rig.connect(0, -1, /*claimed=*/true);
  // The other host booted much later: its monotonic clock reads 5 s.
  remote->feed(PacketBuilder()
                   .hello(testing::make_hello(9))
                   .init(make_init(0, 0xa, 0, 2))
                   .progress(0, 5'000'000'000, 3, 4'000'000'000)
                   .finish(0, 5'000'000'000));
  EXPECT_NEAR(rig.snapshot()->jobs.at(0).communicators.at(0).ranks.at(0).inflight_seconds, 1.0,
              1e-9);
}

TEST(Aggregator, MarksProcessesThatVanishAndThoseThatSayGoodbye) {
  Rig rig;
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "7", 101);
  a->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).progress(0, 1, 3, 1).finish());
  b->feed(PacketBuilder().init(make_init(0, 0xa, 1, 2)).goodbye().finish());
  a->disconnect();
  b->disconnect();
  const auto state = [&](std::size_t rank) {
    return rig.snapshot()->jobs.at(0).communicators.at(0).ranks.at(rank).state;
  };
  EXPECT_EQ(state(1), RankState::kFinalized);
  rig.clock.advance_ms(2'999);
  rig.tick();
  EXPECT_EQ(state(0), RankState::kRunning) << "it may be reconnecting";
  rig.clock.advance_ms(1);
  rig.tick();
  EXPECT_EQ(state(0), RankState::kVanished);
  EXPECT_EQ(rig.snapshot()->jobs[0].communicators[0].ranks[0].inflight_seconds, 0);
  a = rig.open(9, "7", 100);
  EXPECT_EQ(state(0), RankState::kRunning) << "it was only slow";
}

TEST(Aggregator, LeavesSeriesOutAndFreesThemAfterTheGraceTime) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operation().finish(1));
  plugin->disconnect();
  rig.clock.advance_ms(3'000);
  rig.tick();
  rig.clock.advance_ms(299'000);
  rig.tick();
  EXPECT_EQ(rig.snapshot()->jobs.size(), 1u);
  rig.clock.advance_ms(1'000);
  rig.tick();
  rig.tick();
  EXPECT_TRUE(rig.snapshot()->jobs.empty());
  EXPECT_EQ(rig.aggregator.communicators(), 0u);
}

TEST(Aggregator, FreesACommunicatorThatEndedWhileItsJobGoesOn) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder()
                   .init(make_init(0, 0xa, 0, 2))
                   .init(make_init(1, 0xb, 0, 2))
                   .finalize(0)
                   .finish(1));
  rig.clock.advance_ms(300'000);
  rig.tick();
  EXPECT_EQ(only_communicator(rig.snapshot()).comm, "000000000000000b");
}

TEST(Aggregator, FoldsCommunicatorsBeyondTheLimitIntoOther) {
  Aggregator::Options options;
  options.max_communicators = 3;
  Rig rig(options);
  auto plugin = rig.open(9);
  PacketBuilder packet;
  for (std::uint16_t id = 0; id < 10; ++id)
    packet.init(make_init(id, 0x10u + id, 0, 2)).operation({.communicator = id});
  packet.finalize(9);
  EXPECT_TRUE(plugin->feed(packet.finish(1)));
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.at(0).communicators.size(), 4u);
  const CommunicatorSnapshot& other = s->jobs[0].communicators.back();
  EXPECT_EQ(other.comm, "other");
  EXPECT_TRUE(other.ranks.empty());
  std::uint64_t operations = 0;
  for (const auto& c : s->jobs[0].communicators) {
    for (const auto& row : c.sums) operations += row.operations_by_timing[1];
  }
  EXPECT_EQ(operations, 10u) << "folding keeps sums right";
  EXPECT_EQ(s->jobs[0].folded, 7u);
  EXPECT_EQ(rig.aggregator.folded(), 7u);
}

TEST(Aggregator, RefusesSessionsBeyondTheLimitOfJobs) {
  Aggregator::Options options;
  options.max_jobs = 2;
  Rig rig(options);
  auto a = rig.open(1, "a", 1);
  auto b = rig.open(2, "b", 2);
  auto c = rig.open(3, "c", 3);
  auto d = rig.open(4, "b", 4);
  EXPECT_TRUE(c->over());
  EXPECT_FALSE(d->over()) << "a known job takes more processes";
  EXPECT_EQ(rig.snapshot()->agent.jobs_refused, 1u);
  EXPECT_EQ(rig.ingest.find(3), nullptr);
}

TEST(Aggregator, StaysWithinBoundsWhateverTheRecordsSay) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 0xFFFFFFFFu)).finish());
  std::uint64_t index = 1;
  std::uint32_t random = 12345;
  for (int frame = 0; frame < 50; ++frame) {
    PacketBuilder packet;
    for (int i = 0; i < 500; ++i) {
      wire::Operation o = testing::make_operation({});
      auto* bytes = reinterpret_cast<unsigned char*>(&o);
      for (std::size_t b = 4; b < sizeof o; ++b) {
        random = random * 1664525u + 1013904223u;
        bytes[b] = static_cast<unsigned char>(random >> 24);
      }
      // Half of them plausible enough to reach every row there can be.
      if (i % 2 == 0) {
        o.function &= 15u;
        o.algorithm_protocol = static_cast<std::uint8_t>(random >> 8 & 0x37u);
        o.count_plan &= (std::uint64_t{1} << (random >> 8) % 40) - 1;
      }
      packet.add(o, RecordType::kOperation);
    }
    ASSERT_TRUE(plugin->feed(packet.finish(index, random)));
    index += 500;
  }
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  EXPECT_LE(count_series(snapshot->jobs[0]).total(), SeriesLimits{}.job);
  EXPECT_GT(snapshot->jobs[0].folded, 0u);
  std::uint64_t operations = 0;
  for (const auto& row : c.sums) {
    for (const std::uint64_t n : row.operations_by_timing) operations += n;
  }
  EXPECT_EQ(operations, 25'000u);
}

TEST(Aggregator, TakesAnyCommunicatorIdButBoundsHowManyLiveAtOnce) {
  Aggregator::Options options;
  options.series = {100'000, 1'000'000, 1'000'000};
  Rig rig(options);
  auto plugin = rig.open(9);
  EXPECT_TRUE(plugin->feed(PacketBuilder()
                               .init(make_init(0xFFFE, 5, 0, 2))
                               .init(make_init(wire::kNoCommunicator, 6, 0, 2))
                               .finish()));
  EXPECT_EQ(only_communicator(rig.snapshot()).ranks.at(0).communicator_id, 0xFFFE);
  EXPECT_EQ(rig.aggregator.folded(), 1u);
  for (std::uint16_t id = 0; id < 3000; ++id) {
    plugin->feed(PacketBuilder().init(make_init(id, 100u + id, 0, 2)).finish());
  }
  EXPECT_EQ(rig.aggregator.communicators(), Aggregator::kMaxCommunicatorsPerSession);
}

TEST(SlotTable, BehavesAsAMapUnderRandomUse) {
  SlotTable table;
  std::map<std::uint16_t, CommRank*> expected;
  std::vector<CommRank> ranks(64);
  std::uint32_t random = 1;
  for (int i = 0; i < 100'000; ++i) {
    random = random * 1664525u + 1013904223u;
    // Ids that collide in small tables.
    const auto id = static_cast<std::uint16_t>((random >> 16 & 7u) * 64 + (random >> 20 & 7u));
    if ((random >> 28) % 2 == 0) {
      table.set(id, &ranks[id % 64]);
      expected[id] = &ranks[id % 64];
    } else {
      table.erase(id);
      expected.erase(id);
    }
    ASSERT_EQ(table.size(), expected.size());
    const auto probe = static_cast<std::uint16_t>((random >> 8 & 7u) * 64 + (random >> 12 & 7u));
    const auto it = expected.find(probe);
    ASSERT_EQ(table.find(probe), it == expected.end() ? nullptr : it->second) << i;
  }
}

TEST(Aggregator, SumsNetworkPhasesByGpuAndDirection) {
  Rig rig;
  auto plugin = rig.open(9);
  wire::NetworkPhases p{};
  p.is_send = 1;
  p.bytes = 100;
  p.phase_ns[2] = 2'000'000'000;
  wire::NetworkPhases foreign = p;
  foreign.communicator = wire::kNoCommunicator;
  wire::NetworkPhases receive = p;
  receive.is_send = 0;
  plugin->feed(PacketBuilder()
                   .init(make_init(0, 5, 0, 2), {{wire::StringKey::kGpuPciBusId, "0000:3b:00.0"}})
                   .add(p, RecordType::kNetworkPhases)
                   .add(foreign, RecordType::kNetworkPhases)
                   .add(receive, RecordType::kNetworkPhases)
                   .finish(1));
  const SnapshotPtr s = rig.snapshot();
  ASSERT_EQ(s->jobs.at(0).network.size(), 2u);
  EXPECT_EQ(s->jobs[0].network[0].gpu, 0);
  EXPECT_TRUE(s->jobs[0].network[0].is_send);
  EXPECT_EQ(s->jobs[0].network[0].bytes, 200u);
  EXPECT_DOUBLE_EQ(s->jobs[0].network[0].phase_seconds[2], 4.0);
  EXPECT_EQ(s->jobs[0].network[1].operations, 1u);
}

TEST(Aggregator, NumbersGpusByBusIdAndDescribesRanks) {
  Rig rig;
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "7", 101);
  using wire::StringKey;
  a->feed(PacketBuilder()
              .init(make_init(0, 5, 0, 2), {{StringKey::kCommunicatorName, "dp\n0"},
                                            {StringKey::kGpuPciBusId, "0000:86:00.0"},
                                            {StringKey::kGpuUuid, "GPU-1"}})
              .finish());
  b->feed(PacketBuilder()
              .init(make_init(0, 5, 1, 2), {{StringKey::kGpuPciBusId, "0000:3B:00.0"}})
              .finish());
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = only_communicator(snapshot);
  EXPECT_EQ(c.name, "dp?0");
  EXPECT_EQ(c.ranks.at(0).gpu, 1);
  EXPECT_EQ(c.ranks[0].gpu_uuid, "GPU-1");
  EXPECT_EQ(c.ranks.at(1).gpu, 0);
}

TEST(Aggregator, DescribesEachRankOfAProcessByWhatWasSaidOfIt) {
  Rig rig;
  auto plugin = rig.open(9, "7", 100);
  using wire::StringKey;
  // By communicator: two of one GPU, of which one says nothing of its UUID, and one of another GPU.
  plugin->feed(PacketBuilder()
                   .init(make_init(0, 0xa, 0, 2), {{StringKey::kGpuPciBusId, "0000:3b:00.0"},
                                                   {StringKey::kGpuUuid, "GPU-1"}})
                   .init(make_init(1, 0xb, 0, 2), {{StringKey::kGpuPciBusId, "0000:3b:00.0"}})
                   .init(make_init(2, 0xc, 0, 2), {{StringKey::kGpuPciBusId, "0000:86:00.0"},
                                                   {StringKey::kGpuUuid, "GPU-2"}})
                   .init(make_init(3, 0xd, 0, 2), {{StringKey::kGpuPciBusId, "0000:3b:00.0"},
                                                   {StringKey::kGpuUuid, "GPU-1"}})
                   .finish());
  const auto told = [&] {
    std::vector<std::pair<std::string, std::string>> ranks;
    const SnapshotPtr snapshot = rig.snapshot();
    for (const CommunicatorSnapshot& c : snapshot->jobs.at(0).communicators)
      ranks.emplace_back(c.ranks.at(0).gpu_uuid, c.ranks.at(0).pci_bus_id);
    return ranks;
  };
  const std::pair<std::string, std::string> first{"GPU-1", "0000:3b:00.0"},
      second{"GPU-2", "0000:86:00.0"}, unnamed{"", "0000:3b:00.0"};
  EXPECT_EQ(told(), (std::vector{first, unnamed, second, first}));
  // What is said later of one is said of that one; what is not said again stays.
  plugin->feed(
      PacketBuilder().init(make_init(1, 0xb, 0, 2), {{StringKey::kGpuUuid, "GPU-1"}}).finish(5));
  EXPECT_EQ(told(), (std::vector{first, first, second, first}));
}

TEST(Aggregator, KeepsTheNewestBooksAndNeighbours) {
  Rig rig;
  auto plugin = rig.open(9);
  wire::Books books{};
  books.time_ns = 50;
  books.seen = 9;
  wire::Books older = books;
  older.time_ns = 40;
  older.seen = 1;
  PacketBuilder packet;
  packet.init(make_init(0, 5, 0, 2)).add(books, RecordType::kBooks).add(older, RecordType::kBooks);
  struct {
    wire::Neighbours head;
    wire::Neighbour peers[2];
  } neighbours{};
  neighbours.head.count = 2;
  neighbours.peers[0] = {1, 1, 2, 0};
  neighbours.peers[1] = {3, 0, 2, 0};
  wire::set_header(neighbours.head, RecordType::kNeighbours, sizeof neighbours);
  static_assert(sizeof neighbours == 24);
  {
    wire::Neighbours wrong{};
    wrong.count = 9;  // more than the record holds
    auto second = rig.open(11, "7", 300);
    EXPECT_FALSE(second->feed(
        PacketBuilder().init(make_init(0, 6, 0, 2)).add(wrong, RecordType::kNeighbours).finish()));
  }
  std::vector<std::byte> buffer(wire::kMaxFrameBytes);
  wire::FrameWriter writer(buffer);
  writer.add(neighbours);
  const auto bytes = writer.finish(0, 1);
  plugin->feed(packet.finish());
  plugin->feed({bytes.begin(), bytes.end()});
  const SnapshotPtr s = rig.snapshot();
  EXPECT_EQ(s->jobs.at(0).processes.at(0).books.seen, 9u);
  ASSERT_EQ(s->jobs[0].communicators.at(0).ranks.at(0).neighbours.size(), 2u);
  EXPECT_EQ(s->jobs[0].communicators[0].ranks[0].neighbours[1].peer, 3);
}

/// What an agent says of the missing operations of session 1's rank 0.
std::uint64_t missing(Rig& rig) {
  return rig.snapshot()->jobs.at(0).communicators.at(0).ranks.at(0).missing;
}

/// Progress and books of one moment: `completed` operations are over, `written` records written.
PacketBuilder& add_state(PacketBuilder& packet, std::uint64_t completed, std::uint64_t written) {
  wire::Progress progress{};
  progress.time_ns = 5'000;
  progress.collectives_enqueued = progress.collectives_completed = progress.seen = completed;
  progress.recorded = completed;
  progress.oldest_index = ~std::uint64_t{0};
  wire::Books books{};
  books.time_ns = 5'001;
  books.records_written = written;
  packet.add(progress, RecordType::kProgress);
  packet.add(books, RecordType::kBooks);
  return packet;
}

TEST(Aggregator, CountsOperationsOfWhichNoRecordCame) {
  Rig rig;
  const auto wire = rig.open(1);
  PacketBuilder packet;
  packet.init(make_init(0, 0xABC, 0, 2));
  for (const std::uint32_t index : {0u, 1u, 4u}) packet.operation({.index = index});
  wire->feed(packet.finish(1));
  EXPECT_EQ(missing(rig), 0u) << "2 and 3 may still be in flight";
  PacketBuilder on_the_way;
  wire->feed(add_state(on_the_way, 6, 5).finish());
  EXPECT_EQ(missing(rig), 0u) << "two records have not come yet";
  PacketBuilder rest;
  rest.operation({.index = 3});
  rest.operation({.index = 5});
  wire->feed(rest.finish(4));
  PacketBuilder all_there;
  wire->feed(add_state(all_there, 6, 5).finish());
  EXPECT_EQ(missing(rig), 1u) << "2";
  PacketBuilder end;
  wire::CommunicatorFinalize finalize{};
  finalize.collectives_enqueued = finalize.collectives_completed = finalize.seen = 8;
  end.add(finalize, RecordType::kCommunicatorFinalize);
  wire->feed(end.finish(6));
  EXPECT_EQ(missing(rig), 3u) << "2, 6 and 7";
  const auto snapshot = rig.snapshot();
  EXPECT_DOUBLE_EQ(coverage(snapshot->jobs[0].communicators[0]).value_or(0), 5.0 / 8);
}

TEST(Aggregator, DoesNotMissWhatAnEarlierAgentHad) {
  Rig rig;
  const auto wire = rig.open(1, "7", 100, /*acknowledged=*/1'000);
  PacketBuilder packet;
  packet.init(make_init(0, 0xABC, 0, 2));
  packet.operation({.index = 900});
  packet.operation({.index = 902});
  wire->feed(packet.finish(1'001));
  PacketBuilder state;
  wire->feed(add_state(state, 903, 1'002).finish());
  EXPECT_EQ(missing(rig), 1u);
}

TEST(Aggregator, PutsRecordsIntoTheTailWithTheirSource) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(
      PacketBuilder().init(make_init(2, 0xa, 1, 4)).operations(3, {.communicator = 2}).finish(1));
  plugin->feed(
      PacketBuilder().operations(3, {.communicator = 2}).finish(1));  // again: not in the tail
  std::vector<TailRecord> records;
  const auto read = rig.tail.read(0, 100, records);
  EXPECT_EQ(read.next, 3u);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2].record_index, 3u);
  EXPECT_EQ(records[2].type, RecordType::kOperation);
  EXPECT_EQ(records[2].operation().communicator, 2u);
  EXPECT_EQ(records[2].source->job_id, "7");
  EXPECT_EQ(records[2].source->comm, "000000000000000a");
  EXPECT_EQ(records[2].source->rank, 1);
  EXPECT_EQ(records[2].source->nranks, 4u);
  EXPECT_EQ(records[2].source->pid, 100);
}

TEST(Aggregator, CountsQueueTimeOnceTheClocksAreMatched) {
  Rig rig;
  auto plugin = rig.open(9);
  constexpr std::uint64_t kGpuAhead = 5'000'000'000'000;  // GPU clock - host clock
  const std::uint64_t now = rig.clock.monotonic_ns();
  const auto at = [&](std::uint64_t api, std::uint64_t queue) {
    OperationSpec spec;
    spec.api_ns = api;
    spec.gpu_start_ns = api + queue + kGpuAhead;
    spec.flags |= wire::operation_flags::kApiSeen;
    return spec;
  };
  // The first meets an idle GPU and ends just before the frame leaves; the second waits 30 ms.
  plugin->feed(PacketBuilder()
                   .init(make_init(0, 0xa, 0, 2))
                   .operation(at(now - 50'000'000, 10'000))
                   .operation(at(now - 30'200'000, 30'000'000))
                   .finish(1, now));
  SnapshotPtr s = rig.snapshot();
  EXPECT_EQ(s->jobs.at(0).communicators.at(0).ranks.at(0).queue_operations, 1u)
      << "the first came before there was an upper bound";
  EXPECT_NEAR(s->jobs[0].communicators[0].ranks[0].queue_seconds, 0.030, 0.001);
}

// Somebody sets the host's time of day: what lasts is measured on a clock that nobody sets.
TEST(TimeOfDay, CanBeSetWithoutChangingWhatLasts) {
  Rig rig;
  const std::int64_t offset_ns =
      rig.clock.realtime_ns() - static_cast<std::int64_t>(rig.clock.monotonic_ns());
  wire::Hello hello = testing::make_hello(1);
  hello.realtime_offset_ns = offset_ns;
  hello.start_time_ns = rig.clock.monotonic_ns() - 60'000'000'000;
  const auto wire = rig.connect();
  wire->feed(PacketBuilder().hello(hello, {{wire::StringKey::kSlurmJobId, "7"}}).finish());
  wire->feed(PacketBuilder().init(make_init(0, 0xAB, 0, 2)).finish());
  const std::uint64_t called_ns = rig.clock.monotonic_ns();
  std::int64_t stepped_ns = 0;
  std::uint64_t index = 0;
  const auto pass_a_second = [&] {
    rig.clock.advance_ms(1'000);
    const std::uint64_t now_ns = rig.clock.monotonic_ns();
    OperationSpec spec;
    spec.api_ns = now_ns - 500'000'000;
    spec.gpu_start_ns = spec.api_ns + 20'000;
    wire::Books books{};
    books.time_ns = now_ns;
    books.realtime_offset_ns = offset_ns + stepped_ns;
    PacketBuilder packet;
    packet.add(books, wire::RecordType::kBooks);
    packet.operation(spec).progress(0, now_ns, 5, called_ns);
    wire->feed(packet.finish(++index, now_ns));
    rig.tick();
    return rig.snapshot();
  };
  std::uint64_t before_ns = rig.snapshot()->monotonic_ns;
  double duration_seconds = 0;
  double age_seconds = 0;
  for (const std::int64_t step_ns :
       {std::int64_t{0}, std::int64_t{-3'600'000'000'000}, std::int64_t{86'400'000'000'000}}) {
    rig.clock.step_realtime_ns(step_ns);
    stepped_ns += step_ns;
    const SnapshotPtr now = pass_a_second();
    EXPECT_EQ(now->monotonic_ns - before_ns, 1'000'000'000u);
    before_ns = now->monotonic_ns;
    EXPECT_EQ(now->realtime_ns, rig.clock.realtime_ns());
    ASSERT_EQ(now->jobs.size(), 1u);
    const JobSnapshot& job = now->jobs[0];
    ASSERT_EQ(job.processes.size(), 1u);
    EXPECT_EQ(job.processes[0].start_time_ns, hello.start_time_ns);
    EXPECT_EQ(job.processes[0].books_age_seconds, 0);
    ASSERT_EQ(job.communicators.size(), 1u);
    const RankSnapshot& rank = job.communicators[0].ranks.at(0);
    EXPECT_DOUBLE_EQ(rank.inflight_seconds, age_seconds += 1);
    EXPECT_EQ(rank.sample_age_seconds, 0);
    EXPECT_EQ(rank.state, RankState::kRunning);
    ASSERT_EQ(job.durations.size(), 1u);
    if (duration_seconds == 0) duration_seconds = job.durations[0].sum_seconds;
    EXPECT_DOUBLE_EQ(job.durations[0].sum_seconds, duration_seconds * static_cast<double>(index));
  }
  EXPECT_GT(duration_seconds, 0);

  // A record shows the time of day that was right when it came.
  std::vector<TailRecord> records;
  rig.tail.read(0, 100, records);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].source->realtime_offset_ns, offset_ns);
  EXPECT_EQ(records[1].source->realtime_offset_ns, offset_ns - 3'600'000'000'000);
  EXPECT_EQ(records[2].source->realtime_offset_ns, offset_ns + 82'800'000'000'000);
}

}  // namespace
}  // namespace ncclscope::agent
