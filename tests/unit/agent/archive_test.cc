// SPDX-License-Identifier: Apache-2.0
//
// The agent's archive without a thread and without time: what sessions send is in segments, limits
// hold, what is lost is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agent/archive/archive_sink.h"
#include "agent/archive/archive_writer.h"
#include "agent/archive/segment_store.h"
#include "archive/reader.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_hello;
using testing::make_init;
using testing::PacketBuilder;
using testing::Wire;

constexpr std::uint64_t kSecond = 1'000'000'000;

/// The inside of an agent with an archive.
struct ArchiveRig {
  static ArchiveWriter::Options small_segments() {
    ArchiveWriter::Options options;
    options.flush_ns = 5 * kSecond;
    options.segment_ns = 60 * kSecond;
    return options;
  }
  static SegmentStore::Options store_options(const fs::path& folder) {
    SegmentStore::Options options;
    options.directory = folder;
    options.node = "node0";
    options.job_bytes = 1u << 30;
    options.total_bytes = 1u << 30;
    options.age_ns = static_cast<std::int64_t>(3600 * kSecond);
    options.instance = 0xABCDEF12;
    return options;
  }
  static SegmentStore make_store(const SegmentStore::Options& options) {
    Result<SegmentStore> store = SegmentStore::create(options);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(store).value();
  }

  explicit ArchiveRig(const fs::path& folder,
                      const std::function<void(SegmentStore::Options&)>& adapt = {},
                      ArchiveWriter::Options writer_options = small_segments(),
                      Aggregator::Options aggregator_options = {}, std::size_t chunks = 1000)
      : tail(1000),
        aggregator(clock, resolver, gpus, tail, std::move(aggregator_options)),
        queue(chunks),
        sink(aggregator, queue, stats, clock, {"node0", "test", 5 * kSecond}),
        ingest(sink, clock, {}),
        writer(make_store([&] {
                 SegmentStore::Options options = store_options(folder);
                 if (adapt) adapt(options);
                 return options;
               }()),
               stats, clock, writer_options) {}

  std::unique_ptr<Wire> open(std::uint64_t session, std::string_view job = "7",
                             std::int64_t pid = 100) {
    auto wire = std::make_unique<Wire>(ingest, pid, 1000);
    wire::Hello hello = make_hello(session);
    hello.realtime_offset_ns =
        clock.realtime_ns() - static_cast<std::int64_t>(clock.monotonic_ns());
    wire->feed(PacketBuilder()
                   .hello(hello, {{wire::StringKey::kSlurmJobId, job},
                                  {wire::StringKey::kSlurmStepId, "3"},
                                  {wire::StringKey::kExecutable, "python3"}})
                   .init(make_init(0, 0xabc, static_cast<std::int32_t>(session), 8, 2),
                         {{wire::StringKey::kCommunicatorName, "DP"}})
                   .finish());
    return wire;
  }
  /// The reactor's timer, then the writer's.
  void pump() {
    ingest.tick();
    aggregator.tick();
    sink.tick();
    while (auto chunk = queue.pop(std::chrono::milliseconds(0))) {
      writer.take(*chunk);
      queue.give_back(std::move(chunk));
    }
    writer.tick();
  }
  void run(std::uint64_t seconds) {
    for (std::uint64_t i = 0; i < 4 * seconds; ++i) {
      clock.advance_ms(250);
      pump();
    }
  }
  void finish() {
    sink.flush();
    pump();
    writer.finish();
  }

  FakeClock clock;
  ClaimsResolver resolver{""};
  GpuTable gpus{"/nonexistent"};
  OperationTail tail;
  Aggregator aggregator;
  ArchiveQueue queue;
  ArchiveStats stats;
  ArchiveSink sink;
  Ingest ingest;
  ArchiveWriter writer;
};

class AgentArchive : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<fs::path> segments(const std::string& job = "") const {
    std::vector<fs::path> found;
    const archive::Status status =
        archive::find_segments(job.empty() ? folder_ : folder_ / job, found);
    EXPECT_TRUE(status.ok() || !fs::exists(folder_ / job)) << status.message();
    return found;
  }
  struct Content {
    std::vector<archive::Job> jobs;
    std::vector<archive::Process> processes;
    std::vector<archive::Communicator> communicators;
    std::vector<std::uint64_t> indexes;
    std::vector<wire::Operation> operations;
    std::vector<wire::Progress> progress;
    std::vector<wire::Books> books;
    std::size_t network = 0, channels = 0, finalizes = 0;
    std::size_t cut = 0;
  };
  [[nodiscard]] Content read(const std::string& job = "") const {
    Content out;
    for (const fs::path& path : segments(job)) {
      archive::Status status;
      auto reader = archive::Reader::open(path, status);
      if (!reader) {
        ADD_FAILURE() << status.message();
        continue;
      }
      while (const archive::Batch* batch = reader->next()) {
        for (const auto& row : batch->operations) {
          out.jobs.push_back(*row.source->job);
          out.processes.push_back(*row.source->process);
          out.communicators.push_back(*row.source->communicator);
          out.indexes.push_back(row.record_index);
          out.operations.push_back(row.record);
        }
        for (const auto& row : batch->progress) out.progress.push_back(row.record);
        for (const auto& row : batch->books) out.books.push_back(row.record);
        out.network += batch->network.size();
        out.channels += batch->channels.size();
        out.finalizes += batch->finalizes.size();
      }
      EXPECT_TRUE(reader->status().ok()) << reader->status().message();
      if (reader->truncated()) ++out.cut;
    }
    return out;
  }

  const tests::TemporaryDirectory temporary_;
  const fs::path folder_ = temporary_.path() / "archive";
};

TEST_F(AgentArchive, KeepsEveryRecordOfEveryJobWithWhoseItIs) {
  ArchiveRig rig(folder_);
  auto one = rig.open(1, "7", 100);
  auto two = rig.open(2, "8", 200);
  wire::NetworkPhases phases{};
  phases.communicator = wire::kNoCommunicator;
  wire::ChannelDetail detail{};
  one->feed(PacketBuilder()
                .operations(3, {.count = 777, .index = 5})
                .add(phases, wire::RecordType::kNetworkPhases)
                .add(detail, wire::RecordType::kChannelDetail)
                .add(wire::Books{}, wire::RecordType::kBooks)
                .progress(0, 5, 9)
                .finalize(0)
                .finish(1));
  two->feed(PacketBuilder().operations(2).goodbye().finish(1));
  two->disconnect();
  rig.finish();
  const Content seven = read("7");
  ASSERT_EQ(seven.operations.size(), 3u);
  EXPECT_EQ(seven.indexes, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(wire::count_of(seven.operations[0]), 777u);
  EXPECT_EQ(seven.operations[0].index, 5u);
  EXPECT_EQ(seven.jobs[0].job_id, "7");
  EXPECT_EQ(seven.jobs[0].node, "node0");
  EXPECT_EQ(seven.jobs[0].uid, 1000);
  EXPECT_EQ(seven.jobs[0].identity_source, "claimed");
  EXPECT_EQ(seven.processes[0].pid, 100);
  EXPECT_EQ(seven.processes[0].session_id, 1u);
  EXPECT_EQ(seven.processes[0].step, "3");
  EXPECT_EQ(seven.processes[0].program, "python3");
  EXPECT_EQ(seven.processes[0].nccl_version, 22809u);
  EXPECT_EQ(seven.communicators[0].comm, "0000000000000abc");
  EXPECT_EQ(seven.communicators[0].name, "DP");
  EXPECT_EQ(seven.communicators[0].dimension, "dp");
  EXPECT_EQ(seven.communicators[0].rank, 1);
  EXPECT_EQ(seven.communicators[0].nranks, 8u);
  EXPECT_EQ(seven.communicators[0].nnodes, 2u);
  EXPECT_EQ(seven.network, 1u);
  EXPECT_EQ(seven.channels, 1u);
  EXPECT_EQ(seven.finalizes, 1u);
  EXPECT_EQ(seven.books.size(), 1u);
  const Content eight = read("8");
  EXPECT_EQ(eight.operations.size(), 2u);
  EXPECT_EQ(seven.cut + eight.cut, 0u);
  EXPECT_EQ(rig.stats.operations, 5u);
  EXPECT_EQ(rig.stats.dropped_queue + rig.stats.dropped_disk, 0u);
  // The aggregator has seen it all too.
  EXPECT_EQ(rig.aggregator.build(rig.ingest.stats())->jobs.size(), 2u);
}

TEST_F(AgentArchive, WritesWithinTheFlushInterval) {
  ArchiveRig rig(folder_);
  auto wire = rig.open(1);
  wire->feed(PacketBuilder().operations(3).finish(1));
  rig.run(4);
  EXPECT_THAT(read().operations, IsEmpty());
  rig.run(1);
  const Content content = read();
  EXPECT_EQ(content.operations.size(), 3u);
  EXPECT_EQ(content.cut, 1u);  // it is still being written to
  EXPECT_EQ(segments()[0].extension(), ".part");
}

TEST_F(AgentArchive, KeepsWhereEverybodyIsWhileAJobHangs) {
  ArchiveRig rig(folder_);
  auto wire = rig.open(1);
  wire->feed(PacketBuilder().operations(3).finish(1));
  for (std::uint64_t second = 0; second < 20; ++second) {
    wire->feed(PacketBuilder().progress(0, 1000 + second, 3, 900).finish());
    rig.run(1);
  }
  rig.finish();
  const Content content = read();
  ASSERT_FALSE(content.progress.empty());
  EXPECT_EQ(content.progress.back().oldest_index, 3u);
  EXPECT_EQ(content.progress.back().oldest_time_ns, 900u);
  // That nothing has moved is not told again and again.
  EXPECT_LE(content.progress.size(), 2u);
}

TEST_F(AgentArchive, RotatesAndGoesOnInANewSegment) {
  ArchiveRig rig(folder_);
  auto wire = rig.open(1);
  std::uint64_t index = 1;
  for (int second = 0; second < 150; ++second) {
    wire->feed(PacketBuilder().operation().finish(index++));
    rig.run(1);
  }
  rig.finish();
  EXPECT_EQ(segments().size(), 3u);
  const Content content = read();
  EXPECT_EQ(content.cut, 0u);
  ASSERT_EQ(content.indexes.size(), 150u);
  for (std::size_t i = 0; i < content.indexes.size(); ++i) EXPECT_EQ(content.indexes[i], i + 1);
}

TEST_F(AgentArchive, CompletesTheSegmentOfAJobThatIsSilent) {
  ArchiveRig rig(folder_);
  auto wire = rig.open(1);
  wire->feed(PacketBuilder().operation().finish(1));
  rig.run(35);
  ASSERT_EQ(segments().size(), 1u);
  EXPECT_EQ(segments()[0].extension(), ".ncsa");
  rig.run(300);
  EXPECT_EQ(segments().size(), 1u);
}

TEST_F(AgentArchive, DeletesTheOldestSegmentsOfAJobThatHasTooMuch) {
  ArchiveWriter::Options writer = ArchiveRig::small_segments();
  writer.segment_ns = 10 * kSecond;
  ArchiveRig rig(
      folder_, [](SegmentStore::Options& o) { o.job_bytes = 4000; }, writer);
  auto large = rig.open(1, "large", 100);
  auto small = rig.open(2, "small", 200);
  small->feed(PacketBuilder().operation().finish(1));
  std::uint64_t index = 1;
  for (int second = 0; second < 200; ++second) {
    large->feed(PacketBuilder().operation().finish(index++));
    rig.run(1);
  }
  const Content content = read("large");
  ASSERT_FALSE(content.indexes.empty());
  EXPECT_GT(content.indexes.front(), 50u);
  EXPECT_GE(content.indexes.back(), 190u);
  EXPECT_EQ(read("small").indexes.size(), 1u);
  EXPECT_GT(rig.stats.deleted[1], 5u);
  EXPECT_EQ(rig.stats.deleted[0] + rig.stats.deleted[2], 0u);
  std::uint64_t bytes = 0;
  for (const fs::path& path : segments()) bytes += fs::file_size(path);
  EXPECT_EQ(rig.stats.stored_bytes, bytes);
  EXPECT_EQ(rig.stats.segments, segments().size());
}

TEST_F(AgentArchive, DeletesTheOldestOfAllWhenAllHaveTooMuch) {
  ArchiveWriter::Options writer = ArchiveRig::small_segments();
  writer.segment_ns = 10 * kSecond;
  ArchiveRig rig(
      folder_, [](SegmentStore::Options& o) { o.total_bytes = 4000; }, writer);
  auto first = rig.open(1, "first", 100);
  first->feed(PacketBuilder().operation().finish(1));
  rig.run(40);
  EXPECT_EQ(segments("first").size(), 1u);
  auto second = rig.open(2, "second", 200);
  std::uint64_t index = 1;
  for (int i = 0; i < 200; ++i) {
    second->feed(PacketBuilder().operation().finish(index++));
    rig.run(1);
  }
  EXPECT_FALSE(fs::exists(folder_ / "first"));
  EXPECT_GT(rig.stats.deleted[2], 5u);
  EXPECT_LE(rig.stats.stored_bytes, 5000u);
}

TEST_F(AgentArchive, DeletesWhatIsTooOld) {
  ArchiveRig rig(folder_, [](SegmentStore::Options& o) {
    o.age_ns = static_cast<std::int64_t>(100 * kSecond);
  });
  auto wire = rig.open(1);
  wire->feed(PacketBuilder().operation().finish(1));
  rig.run(40);
  EXPECT_EQ(segments().size(), 1u);
  rig.run(100);
  EXPECT_THAT(segments(), IsEmpty());
  EXPECT_EQ(rig.stats.deleted[0], 1u);
  EXPECT_EQ(rig.stats.stored_bytes, 0u);
}

TEST_F(AgentArchive, CountsWhatTheQueueDoesNotTake) {
  ArchiveRig rig(folder_, {}, ArchiveRig::small_segments(), {}, 1);
  auto wire = rig.open(1);
  wire->feed(PacketBuilder().operations(3).finish(1));
  rig.sink.tick();
  wire->feed(PacketBuilder().operations(4).finish(4));
  rig.sink.tick();  // the disk has not taken the first ones
  EXPECT_EQ(rig.stats.dropped_queue, 4u);
  rig.pump();
  wire->feed(PacketBuilder().operations(2).finish(8));
  rig.finish();
  EXPECT_EQ(read().indexes, (std::vector<std::uint64_t>{1, 2, 3, 8, 9}));
}

TEST_F(AgentArchive, DiskThatRefusesCostsOneJobItsOperationsUntilItTakesThemAgain) {
  ArchiveRig rig(folder_);
  std::ofstream(folder_ / "7") << "in the way";
  auto seven = rig.open(1, "7", 100);
  auto eight = rig.open(2, "8", 200);
  seven->feed(PacketBuilder().operations(3).finish(1));
  eight->feed(PacketBuilder().operations(2).finish(1));
  rig.run(1);
  EXPECT_EQ(rig.stats.dropped_disk, 3u);
  fs::remove(folder_ / "7");
  rig.run(11);
  seven->feed(PacketBuilder().operations(4).finish(4));
  rig.finish();
  EXPECT_EQ(read("7").indexes, (std::vector<std::uint64_t>{4, 5, 6, 7}));
  EXPECT_EQ(read("8").indexes.size(), 2u);
  EXPECT_EQ(rig.stats.dropped_disk, 3u);
}

TEST_F(AgentArchive, KeepsCommunicatorsApartThatMetricsFold) {
  Aggregator::Options limits;
  limits.max_communicators = 1;
  limits.communicators_per_principal = 1;
  ArchiveRig rig(folder_, {}, ArchiveRig::small_segments(), limits);
  auto wire = rig.open(1);
  wire->feed(PacketBuilder()
                 .init(make_init(1, 0xd1, 2, 4))
                 .init(make_init(2, 0xd2, 2, 4))
                 .operation({.communicator = 1})
                 .operation({.communicator = 2})
                 .finish(1));
  rig.finish();
  std::set<std::string> names;
  for (const auto& c : read().communicators) names.insert(c.comm);
  EXPECT_EQ(names, (std::set<std::string>{"00000000000000d1", "00000000000000d2"}));
}

TEST_F(AgentArchive, TakesUpWhatAKilledAgentLeftBehind) {
  {
    ArchiveRig killed(folder_);
    auto wire = killed.open(1);
    wire->feed(PacketBuilder().operations(3).finish(1));
    killed.run(5);
    ASSERT_EQ(segments()[0].extension(), ".part");
  }
  ArchiveRig next(folder_);
  ASSERT_EQ(segments().size(), 1u);
  EXPECT_EQ(segments()[0].extension(), ".ncsa");
  EXPECT_EQ(next.stats.segments, 1u);
  EXPECT_EQ(next.stats.stored_bytes, fs::file_size(segments()[0]));
  const Content content = read();
  EXPECT_EQ(content.operations.size(), 3u);
  EXPECT_EQ(content.cut, 1u);
}

TEST_F(AgentArchive, DirectoryBelongsToOneAgentPerNode) {
  ArchiveRig rig(folder_);
  SegmentStore::Options options = ArchiveRig::store_options(folder_);
  const Result<SegmentStore> twice = SegmentStore::create(options);
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.status().message(), HasSubstr("node0.lock is held by another agent"));
  options.node = "node1";
  EXPECT_TRUE(SegmentStore::create(options).ok());
}

TEST_F(AgentArchive, OthersCannotReadUnlessTheGroupMay) {
  const auto mode_of = [](const fs::path& path) {
    struct stat about {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return about.st_mode & 0777u;
  };
  for (const bool group : {false, true}) {
    fs::remove_all(folder_);
    ArchiveRig rig(folder_, [&](SegmentStore::Options& o) { o.group_readable = group; });
    auto wire = rig.open(1);
    wire->feed(PacketBuilder().operation().finish(1));
    rig.finish();
    EXPECT_EQ(mode_of(folder_), group ? 0750u : 0700u);
    EXPECT_EQ(mode_of(folder_ / "7"), group ? 0750u : 0700u);
    ASSERT_EQ(segments().size(), 1u);
    EXPECT_EQ(mode_of(segments()[0]), group ? 0640u : 0600u);
  }
}

TEST(ArchiveFileName, IsSafeWhateverTheJobIsCalled) {
  EXPECT_EQ(file_name_of("4711_3"), "4711_3");
  EXPECT_EQ(file_name_of("team/llama-70b"), "team%2Fllama-70b");
  EXPECT_EQ(file_name_of(".."), "%2E.");
  EXPECT_EQ(file_name_of("."), "%2E");
  EXPECT_EQ(file_name_of(""), "%");
  EXPECT_EQ(file_name_of("node1.lock"), "node1%2Elock") << "another node's lock";
  EXPECT_EQ(file_name_of(".lock"), "%2Elock");
  EXPECT_EQ(file_name_of("a.lock.b"), "a.lock.b");
  EXPECT_EQ(file_name_of("7~claimed"), "7%7Eclaimed");
  EXPECT_EQ(file_name_of(std::string_view("a\0b", 3)), "a%00b");
  const std::string long_one(300, 'x');
  EXPECT_LE(file_name_of(long_one).size(), 120u);
  EXPECT_NE(file_name_of(long_one), file_name_of(long_one + "y"));
  EXPECT_NE(file_name_of("a/b"), file_name_of("a_b"));
}

}  // namespace
}  // namespace ncclscope::agent
