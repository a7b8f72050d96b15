// SPDX-License-Identifier: Apache-2.0
//
// What the aggregator makes of operations beyond their sums: steps, communication time, dimensions,
// all-to-alls.
#include "agent/aggregate/job_signals.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using model::Function;
using testing::make_init;
using testing::make_operation;
using testing::OperationSpec;
using testing::PacketBuilder;
using testing::Rig;

constexpr std::uint64_t kMillisecond = 1'000'000;

/// A plugin that is fed operation by operation.
class Feed {
 public:
  Feed(Rig& rig, std::uint64_t session, std::int64_t pid = 100)
      : wire_(rig.open(session, "7", pid)) {}

  void init(std::uint16_t id, std::int32_t rank, std::uint32_t nranks, std::string_view name = "",
            std::uint32_t nnodes = 1) {
    testing::Strings strings;
    if (!name.empty()) strings.emplace_back(wire::StringKey::kCommunicatorName, name);
    wire::CommunicatorInit init = make_init(id, 0x100u + id, rank, nranks, nnodes);
    init.cuda_device = 0;
    ASSERT_TRUE(wire_->feed(PacketBuilder().init(init, strings).finish()));
  }
  void add(OperationSpec spec, std::int32_t peer = -1) {
    wire::Operation o = make_operation(spec);
    o.root_or_peer = peer;
    ASSERT_TRUE(wire_->feed(
        PacketBuilder().add(o, wire::RecordType::kOperation).finish(++index_, spec.api_ns + 1)));
  }
  /// The Sends and Receives of an all-to-all of one launch, own ones first and without a time.
  void all_to_all(std::uint16_t id, std::int32_t rank, std::int32_t nranks, std::uint16_t plan,
                  std::uint64_t start_ns) {
    for (const bool own : {true, false}) {
      for (std::int32_t peer = 0; peer < nranks; ++peer) {
        if ((peer == rank) != own) continue;
        for (const Function f : {Function::kSend, Function::kRecv}) {
          OperationSpec spec{.communicator = id, .function = f, .count = 256, .plan = plan};
          spec.gpu_start_ns = start_ns;
          if (own) {
            spec.timing = wire::TimingSource::kNone;
            spec.untimed = wire::UntimedReason::kSelf;
          }
          add(spec, peer);
        }
      }
    }
  }
  void leave() {
    ASSERT_TRUE(wire_->feed(PacketBuilder().goodbye().finish()));
    wire_->disconnect();
  }

 private:
  std::unique_ptr<testing::Wire> wire_;
  std::uint64_t index_ = 0;
};

const CommunicatorSnapshot& communicator(const SnapshotPtr& snapshot, std::size_t i = 0) {
  return snapshot->jobs.at(0).communicators.at(i);
}

std::uint64_t operations(const CommunicatorSnapshot& c, Function function) {
  std::uint64_t sum = 0;
  for (const OperationSumsRow& row : c.sums) {
    if (row.function != function) continue;
    for (const std::uint64_t n : row.operations_by_timing) sum += n;
  }
  return sum;
}

TEST(JobSignals, CountAnAllToAllOnceAndNotAsSendsAndReceives) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 1, 4);
  plugin.all_to_all(0, 1, 4, 7, kMillisecond);
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = communicator(snapshot);
  EXPECT_EQ(operations(c, Function::kAllToAll), 1u);
  EXPECT_EQ(operations(c, Function::kSend), 0u);
  EXPECT_EQ(operations(c, Function::kRecv), 0u);
  ASSERT_EQ(c.sums.size(), 1u);
  EXPECT_EQ(c.sums[0].bytes_by_timing[1], 4 * 1024u);
  EXPECT_DOUBLE_EQ(c.sums[0].bus_bytes, 3 * 1024.0);
  EXPECT_DOUBLE_EQ(c.sums[0].busy_seconds, 100e-6);
  ASSERT_EQ(c.rank_sums.size(), 1u) << "it synchronises, so it tells who is late";
  EXPECT_EQ(c.rank_sums[0].function, Function::kAllToAll);
  EXPECT_EQ(snapshot->jobs[0].unobserved[static_cast<std::size_t>(wire::UntimedReason::kSelf)], 0u);
}

TEST(JobSignals, FindAllToAllsThoughTheHostIsAheadOfTheGpu) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 2);
  constexpr std::uint16_t kPlans = 40;
  for (const bool own : {true, false}) {  // own transfers of all launches before any other
    for (std::uint16_t plan = 1; plan <= kPlans; ++plan) {
      for (const Function f : {Function::kSend, Function::kRecv}) {
        OperationSpec spec{.communicator = 0, .function = f, .plan = plan};
        spec.gpu_start_ns = plan * kMillisecond;
        if (own) spec.timing = wire::TimingSource::kNone;
        plugin.add(spec, own ? 0 : 1);
      }
    }
  }
  const SnapshotPtr snapshot = rig.snapshot();
  EXPECT_EQ(operations(communicator(snapshot), Function::kAllToAll), kPlans);
  EXPECT_EQ(operations(communicator(snapshot), Function::kSend), 0u);
}

TEST(JobSignals, FindAllToAllsThoughRecordsOfSeveralLaunchesComeMixed) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 4);
  for (std::int32_t peer = 0; peer < 4; ++peer) {
    for (std::uint16_t plan = 1; plan <= 5; ++plan) {
      for (const Function f : {Function::kSend, Function::kRecv}) {
        OperationSpec spec{.communicator = 0, .function = f, .plan = plan};
        spec.gpu_start_ns = plan * kMillisecond;
        if (peer == 0) spec.timing = wire::TimingSource::kNone;
        plugin.add(spec, peer);
      }
    }
  }
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = communicator(snapshot);
  EXPECT_EQ(operations(c, Function::kAllToAll), 5u);
  EXPECT_EQ(operations(c, Function::kSend), 0u);
  EXPECT_DOUBLE_EQ(c.sums.at(0).busy_seconds, 5 * 100e-6);
}

TEST(JobSignals, LeavePipelinesAndLoneTransfersToItselfAsTheyAre) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 2);
  for (std::uint16_t plan = 1; plan <= 30; ++plan) {
    OperationSpec spec{.communicator = 0, .function = Function::kSend, .plan = plan};
    spec.gpu_start_ns = plan * kMillisecond;
    plugin.add(spec, 1);
    spec.function = Function::kRecv;
    plugin.add(spec, 1);
  }
  OperationSpec own{.communicator = 0, .function = Function::kSend, .plan = 99};
  own.timing = wire::TimingSource::kNone;
  own.untimed = wire::UntimedReason::kSelf;
  plugin.add(own, 0);
  const SnapshotPtr snapshot = rig.snapshot();
  const CommunicatorSnapshot& c = communicator(snapshot);
  EXPECT_EQ(operations(c, Function::kAllToAll), 0u);
  EXPECT_EQ(operations(c, Function::kSend), 31u);
  EXPECT_EQ(operations(c, Function::kRecv), 30u);
  EXPECT_EQ(snapshot->jobs[0].unobserved[static_cast<std::size_t>(wire::UntimedReason::kSelf)], 1u);
}

TEST(JobSignals, CountOwnTransfersAtLastThoughNothingElseOfTheirLaunchComes) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 4);
  OperationSpec own{.communicator = 0, .function = Function::kSend, .plan = 3};
  own.timing = wire::TimingSource::kNone;
  plugin.add(own, 0);
  rig.tick();
  EXPECT_EQ(operations(communicator(rig.aggregator.build(rig.ingest.stats())), Function::kSend),
            0u);
  rig.clock.advance_ns(60'000'000'000);
  rig.tick();
  EXPECT_EQ(operations(communicator(rig.aggregator.build(rig.ingest.stats())), Function::kSend),
            1u);
}

TEST(JobSignals, NeverCountCommunicationTimeTwice) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 8);
  plugin.init(1, 0, 2);
  // Two communicators, two streams: [1, 3) and [2, 5) ms, then [10, 11) ms in both.
  const auto run = [&](std::uint16_t id, std::uint64_t from_ms, std::uint64_t to_ms) {
    OperationSpec spec{.communicator = id};
    spec.gpu_start_ns = from_ms * kMillisecond;
    spec.duration_ns = (to_ms - from_ms) * kMillisecond;
    plugin.add(spec);
  };
  run(0, 1, 3);
  run(1, 10, 11);
  run(1, 2, 5);
  run(0, 10, 11);
  const SnapshotPtr snapshot = rig.snapshot();
  ASSERT_EQ(snapshot->jobs[0].gpus.size(), 1u);
  EXPECT_DOUBLE_EQ(snapshot->jobs[0].gpus[0].communication_seconds, 5e-3);
  EXPECT_FALSE(snapshot->jobs[0].gpus[0].communication_ratio);
}

/// Training with buckets of 1, 2 and 3 MB on one communicator and 20 small all-reduces on another.
void train(Feed& plugin, std::uint64_t steps, std::uint64_t step_ns) {
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::uint64_t begin = 1'000'000'000 + step * step_ns;
    const auto run = [&](std::uint16_t id, std::uint64_t i, std::uint64_t count) {
      OperationSpec spec{.communicator = id, .count = count};
      spec.api_ns = begin + i * 1000;
      spec.gpu_start_ns = begin + i * (step_ns / 50);
      spec.duration_ns = step_ns / 100;
      plugin.add(spec);
    };
    for (std::uint64_t i = 0; i < 40; ++i) run(1, i, 500'000);
    for (std::uint64_t i = 0; i < 3; ++i) run(0, 40 + i, 250'000 * (i + 1));
  }
}

TEST(JobSignals, TimeStepsAndTheShareOfCommunication) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 8, "", 4);
  plugin.init(1, 0, 2);
  train(plugin, 200, 800 * kMillisecond);
  SnapshotPtr snapshot = rig.snapshot();
  const JobSnapshot& job = snapshot->jobs[0];
  ASSERT_TRUE(job.steps);
  std::uint64_t all = 0;
  for (const std::uint64_t n : job.steps->counts) all += n;
  EXPECT_GE(all, 180u);
  EXPECT_EQ(job.steps->counts[step_bucket(800 * kMillisecond)], all) << "0.5 s < 0.8 s <= 1 s";
  EXPECT_NEAR(job.steps->sum_seconds, 0.8 * static_cast<double>(all), 1e-6);
  ASSERT_TRUE(job.gpus.at(0).communication_ratio);
  EXPECT_NEAR(*job.gpus[0].communication_ratio, 0.43, 0.01);  // 43 operations of a hundredth each
}

TEST(JobSignals, NameDimensionsByNameElseByWhatIsDone) {
  Rig rig;
  Feed plugin(rig, 9);
  plugin.init(0, 0, 8, "", 4);
  plugin.init(1, 0, 2);
  plugin.init(2, 0, 4, "PIPELINE_MODEL_PARALLEL_GROUP");
  plugin.init(3, 0, 4, "EMBEDDING_GROUP");
  plugin.init(4, 0, 4, "default_pg");
  train(plugin, 100, 800 * kMillisecond);
  rig.clock.advance_ns(10'000'000'000);
  rig.tick();
  const SnapshotPtr snapshot = rig.snapshot();
  EXPECT_EQ(communicator(snapshot, 0).dimension, "dp");
  EXPECT_EQ(communicator(snapshot, 1).dimension, "tp");
  EXPECT_EQ(communicator(snapshot, 2).dimension, "pp");
  EXPECT_EQ(communicator(snapshot, 3).dimension, "");
  EXPECT_EQ(communicator(snapshot, 4).dimension, "");
}

TEST(JobSignals, KeepCommunicationTimeWhenAProcessOfAnUnknownGpuLeaves) {
  Aggregator::Options options;
  options.grace_ns = 1'000'000'000;
  Ingest::Options ingest;
  ingest.grace_ns = options.grace_ns;
  Rig rig(options, ingest);
  auto stays = rig.open(8, "7", 99);
  for (std::uint64_t session = 10; session < 14; ++session) {
    auto wire = rig.open(session, "7", static_cast<std::int64_t>(session));
    wire::CommunicatorInit init = make_init(0, session, 0, 2);
    init.cuda_device = -1;
    OperationSpec spec;
    spec.duration_ns = kMillisecond;
    wire->feed(PacketBuilder().init(init).operation(spec).goodbye().finish(1));
    wire->disconnect();
    rig.clock.advance_ns(10'000'000'000);
    rig.tick();
  }
  const SnapshotPtr snapshot = rig.snapshot();
  ASSERT_EQ(snapshot->jobs[0].gpus.size(), 1u);
  EXPECT_EQ(snapshot->jobs[0].gpus[0].gpu, -1);
  EXPECT_DOUBLE_EQ(snapshot->jobs[0].gpus[0].communication_seconds, 4e-3);
}

}  // namespace
}  // namespace ncclscope::agent
