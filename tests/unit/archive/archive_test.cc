// SPDX-License-Identifier: Apache-2.0
//
// Segments: what was written is read, what was cut is read up to the cut, what was damaged is
// refused with file and offset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "archive/crc32c.h"
#include "archive/format.h"
#include "archive/reader.h"
#include "archive/varint.h"
#include "archive/writer.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/archive/traffic.h"

namespace ncclscope::archive {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::make_communicator;
using testing::make_job;
using testing::make_process;
using testing::Traffic;

class Archive : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path file(const std::string& name = "a.ncsa") const { return folder_ / name; }

  std::unique_ptr<Writer> create(const fs::path& path, const Writer::Options& options = {}) {
    Status status;
    auto writer = Writer::create(path, options, status);
    EXPECT_TRUE(status.ok()) << status.message();
    return writer;
  }
  std::unique_ptr<Reader> open(const fs::path& path) {
    Status status;
    auto reader = Reader::open(path, status);
    EXPECT_TRUE(status.ok()) << status.message();
    return reader;
  }

  /// A small segment of one process: operations, and one of every other kind.
  void write_small(const fs::path& path, int operations = 40) {
    auto writer = create(path);
    writer->set_job(make_job());
    const std::uint32_t process = writer->add_process(make_process(7));
    const std::uint32_t a = writer->add_communicator(process, make_communicator(0, 3));
    const std::uint32_t b = writer->add_communicator(process, make_communicator(1, 5));
    Traffic traffic(1);
    std::uint64_t index = 0;
    for (int i = 0; i < operations; ++i) {
      const wire::Operation o = traffic.next();
      ASSERT_TRUE(writer->add(o.communicator == 0 ? a : b, ++index, o, traffic.now_ns()).ok());
      written_.push_back(o);
      if (i == operations / 2) {
        ASSERT_TRUE(writer->flush().ok());
      }
    }
    wire::NetworkPhases network{};
    wire::set_header(network, wire::RecordType::kNetworkPhases);
    network.index = 5;
    network.bytes = 1 << 20;
    network.phase_ns[2] = 123'456;
    ASSERT_TRUE(writer->add(a, ++index, network).ok());
    wire::ChannelDetail channel{};
    wire::set_header(channel, wire::RecordType::kChannelDetail);
    channel.channel = 3;
    channel.gpu_stop_ns = 99;
    ASSERT_TRUE(writer->add(a, ++index, channel).ok());
    wire::Progress progress{};
    wire::set_header(progress, wire::RecordType::kProgress);
    progress.communicator = 1;
    progress.oldest_index = 77;
    progress.oldest_signature = 0xABCDEF;
    ASSERT_TRUE(writer->add(b, progress).ok());
    wire::Books books{};
    wire::set_header(books, wire::RecordType::kBooks);
    books.seen = 41;
    books.nccl_cost_blocks = 9;
    ASSERT_TRUE(writer->add(a, books).ok());
    wire::CommunicatorFinalize finalize{};
    wire::set_header(finalize, wire::RecordType::kCommunicatorFinalize);
    finalize.seen = 40;
    finalize.unfinished = 1;
    ASSERT_TRUE(writer->add(a, ++index, finalize).ok());
    const Status status = writer->finish();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write_bytes(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  struct Read {
    std::vector<wire::Operation> operations;
    std::size_t others = 0;
    Status status;
    bool truncated = false;
  };
  static Read read(const fs::path& path) {
    Read out;
    auto reader = Reader::open(path, out.status);
    if (!reader) return out;
    while (const Batch* batch = reader->next()) {
      for (const OperationRow& row : batch->operations) out.operations.push_back(row.record);
      out.others += batch->network.size() + batch->channels.size() + batch->finalizes.size() +
                    batch->progress.size() + batch->books.size();
    }
    out.status = reader->status();
    out.truncated = reader->truncated();
    return out;
  }

  const tests::TemporaryDirectory temporary_;
  const fs::path folder_ = temporary_.path();
  std::vector<wire::Operation> written_;
};

bool same(const wire::Operation& a, const wire::Operation& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

TEST(Crc32c, GivesTheKnownCheckValue) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c({reinterpret_cast<const std::byte*>(digits.data()), digits.size()}),
            0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Varint, ComesBackWhateverItsSize) {
  std::vector<std::byte> bytes;
  const std::uint64_t values[] = {0, 1, 127, 128, 300, 1ull << 32, ~0ull};
  for (const std::uint64_t v : values) put_varint(bytes, v);
  Cursor in(bytes);
  for (const std::uint64_t v : values) EXPECT_EQ(in.varint(), v);
  EXPECT_TRUE(in.ok() && in.at_end());
  for (const std::int64_t v :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(unzigzag(zigzag(v)), v);
  const std::vector<std::byte> endless(11, std::byte{0xFF});
  Cursor bad(endless);
  (void)bad.varint();
  EXPECT_FALSE(bad.ok());
}

TEST_F(Archive, GivesBackEveryFieldOfEveryRecord) {
  write_small(file());
  EXPECT_FALSE(fs::exists(file("a.ncsa.part")));
  auto reader = open(file());
  ASSERT_NE(reader, nullptr);
  std::vector<wire::Operation> operations;
  std::uint64_t index = 0;
  const Batch* last = nullptr;
  while (const Batch* batch = reader->next()) {
    last = batch;
    for (const OperationRow& row : batch->operations) {
      operations.push_back(row.record);
      EXPECT_EQ(row.record_index, ++index);
      EXPECT_EQ(*row.source->job, make_job());
      EXPECT_EQ(*row.source->process, make_process(7));
      EXPECT_EQ(*row.source->communicator,
                make_communicator(row.record.communicator, row.record.communicator == 0 ? 3 : 5));
    }
    if (batch->books.empty()) continue;
    ASSERT_EQ(batch->network.size(), 1u);
    EXPECT_EQ(batch->network[0].record.phase_ns[2], 123'456u);
    EXPECT_EQ(batch->network[0].record.index, 5u);
    EXPECT_EQ(batch->network[0].record_index, 41u);
    ASSERT_EQ(batch->channels.size(), 1u);
    EXPECT_EQ(batch->channels[0].record.channel, 3);
    EXPECT_EQ(batch->channels[0].record.gpu_stop_ns, 99u);
    ASSERT_EQ(batch->progress.size(), 1u);
    EXPECT_EQ(batch->progress[0].record.oldest_signature, 0xABCDEFu);
    EXPECT_EQ(batch->progress[0].source->communicator->id, 1);
    EXPECT_EQ(batch->books[0].record.seen, 41u);
    EXPECT_EQ(batch->books[0].record.nccl_cost_blocks, 9u);
    ASSERT_EQ(batch->finalizes.size(), 1u);
    EXPECT_EQ(batch->finalizes[0].record.unfinished, 1u);
    EXPECT_EQ(batch->finalizes[0].record_index, 43u);
  }
  EXPECT_NE(last, nullptr);
  EXPECT_TRUE(reader->status().ok()) << reader->status().message();
  EXPECT_FALSE(reader->truncated());
  ASSERT_EQ(operations.size(), written_.size());
  for (std::size_t i = 0; i < operations.size(); ++i)
    EXPECT_TRUE(same(operations[i], written_[i])) << i;
}

TEST_F(Archive, GivesBackRecordsThatFollowNoPattern) {
  std::mt19937_64 random(11);
  auto writer = create(file());
  writer->set_job(make_job());
  std::vector<std::uint32_t> ids;
  for (int p = 0; p < 3; ++p) {
    const std::uint32_t process = writer->add_process(make_process(p));
    for (std::uint16_t c = 0; c < 4; ++c)
      ids.push_back(writer->add_communicator(process, make_communicator(c, c)));
  }
  // By process and in order, as they are read.
  std::vector<std::vector<std::pair<wire::Operation, std::uint64_t>>> expected(3);
  for (int i = 0; i < 5000; ++i) {
    wire::Operation o{};
    wire::set_header(o, wire::RecordType::kOperation);
    const std::size_t which = random() % ids.size();
    o.communicator = static_cast<std::uint16_t>(which % 4);
    o.function = static_cast<std::uint8_t>(random());
    o.datatype = static_cast<std::uint8_t>(random());
    o.algorithm_protocol = static_cast<std::uint8_t>(random());
    o.untimed_reason = static_cast<std::uint8_t>(random());
    o.channels = static_cast<std::uint8_t>(random());
    o.channels_seen = static_cast<std::uint8_t>(random());
    o.flags = static_cast<std::uint16_t>(random());
    o.root_or_peer = static_cast<std::int32_t>(random());
    o.index = static_cast<std::uint32_t>(random());
    o.sequence = static_cast<std::uint32_t>(random());
    o.count_plan = random();
    o.api_time_ns = random() % 5 == 0 ? 0 : random();
    o.gpu_start_ns = random() % 5 == 0 ? 0 : random();
    o.duration_enqueue = random() % 5 == 0 ? 0 : random();
    const std::uint64_t index = random();
    ASSERT_TRUE(writer->add(ids[which], index, o, random()).ok());
    expected[which / 4].emplace_back(o, index);
    if (random() % 700 == 0) {
      ASSERT_TRUE(writer->flush().ok());
    }
  }
  ASSERT_TRUE(writer->finish().ok());
  auto reader = open(file());
  ASSERT_NE(reader, nullptr);
  std::vector<std::size_t> at(3, 0);
  while (const Batch* batch = reader->next()) {
    for (const OperationRow& row : batch->operations) {
      const std::size_t p = row.source->process_number;
      ASSERT_LT(at[p], expected[p].size());
      const auto& [record, index] = expected[p][at[p]++];
      EXPECT_TRUE(same(row.record, record));
      EXPECT_EQ(row.record_index, index);
    }
  }
  EXPECT_TRUE(reader->status().ok()) << reader->status().message();
  for (std::size_t p = 0; p < 3; ++p) EXPECT_EQ(at[p], expected[p].size());
}

TEST_F(Archive, BlockThatIsFullIsFlushedByItself) {
  auto writer = create(file());
  writer->set_job(make_job());
  const std::uint32_t process = writer->add_process(make_process(1));
  const std::uint32_t c = writer->add_communicator(process, make_communicator(0, 0));
  Traffic traffic(3, 1);
  const std::size_t count = kMaxRows + 1000;
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_TRUE(writer->add(c, i + 1, traffic.next(), traffic.now_ns()).ok());
  wire::Books books{};
  wire::set_header(books, wire::RecordType::kBooks);
  for (std::size_t i = 0; i < kMaxRows / 8 + 10; ++i) ASSERT_TRUE(writer->add(c, books).ok());
  ASSERT_TRUE(writer->finish().ok());
  const Read all = read(file());
  EXPECT_TRUE(all.status.ok()) << all.status.message();
  EXPECT_EQ(all.operations.size(), count);
  EXPECT_EQ(all.others, kMaxRows / 8 + 10);
}

TEST_F(Archive, SteadyTrafficTakesAtMostEightBytesAnOperation) {
  auto writer = create(file());
  writer->set_job(make_job());
  std::vector<Traffic> traffic;
  std::vector<std::uint32_t> ids;
  constexpr int kProcesses = 8;
  for (int p = 0; p < kProcesses; ++p) {
    traffic.emplace_back(static_cast<std::uint64_t>(p));
    const std::uint32_t process = writer->add_process(make_process(p));
    ids.push_back(writer->add_communicator(process, make_communicator(0, p)));
    ids.push_back(writer->add_communicator(process, make_communicator(1, p)));
  }
  std::uint64_t index = 0;
  for (int round = 0; round < 4000; ++round) {
    ++index;
    for (std::size_t p = 0; p < kProcesses; ++p) {
      const wire::Operation o = traffic[p].next();
      ASSERT_TRUE(writer->add(ids[2 * p + o.communicator], index, o, traffic[p].now_ns()).ok());
    }
    if (round % 1000 == 999) {
      ASSERT_TRUE(writer->flush().ok());
    }
  }
  ASSERT_TRUE(writer->finish().ok());
  const double bytes = static_cast<double>(fs::file_size(file())) / (4000.0 * kProcesses);
  RecordProperty("bytes_per_operation", std::to_string(bytes));
  EXPECT_LE(bytes, 8.0);
}

TEST_F(Archive, RelatesTheClockOfTheGpuToThatOfTheHost) {
  write_small(file());
  auto reader = open(file());
  ASSERT_NE(reader, nullptr);
  while (const Batch* batch = reader->next()) {
    for (const OperationRow& row : batch->operations) {
      const auto start = row.start_epoch_ns();
      ASSERT_TRUE(start.has_value());
      const std::int64_t truth = row.source->epoch_ns(row.record.gpu_start_ns - Traffic::kGpuClock);
      EXPECT_LE(*start, truth);
      EXPECT_LE(static_cast<std::uint64_t>(truth - *start),
                row.source->gpu_clock_error_ns + 20'000);
      EXPECT_LT(row.source->gpu_clock_error_ns, 1'000'000u);
    }
  }
}

TEST_F(Archive, CutAnywhereGivesTheBlocksBeforeTheCut) {
  write_small(file());
  const std::string whole = bytes_of(file());
  const Read all = read(file());
  std::size_t blocks_seen = 0;
  std::size_t before = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_bytes(file("cut.ncsa"), whole.substr(0, length));
    const Read cut = read(file("cut.ncsa"));
    ASSERT_TRUE(cut.status.ok()) << length << ": " << cut.status.message();
    ASSERT_TRUE(cut.truncated) << length;
    ASSERT_LE(cut.operations.size(), all.operations.size());
    for (std::size_t i = 0; i < cut.operations.size(); ++i)
      ASSERT_TRUE(same(cut.operations[i], all.operations[i]));
    if (cut.operations.size() != before) ++blocks_seen;
    ASSERT_GE(cut.operations.size(), before) << length;
    before = cut.operations.size();
    if (length % 7 != 0) continue;
    // Zeros instead of what is missing: a machine that went down.
    write_bytes(file("cut.ncsa"),
                whole.substr(0, length) + std::string(whole.size() - length, '\0'));
    const Read zeros = read(file("cut.ncsa"));
    ASSERT_LE(zeros.operations.size(), all.operations.size());
  }
  EXPECT_EQ(blocks_seen, 2u);
}

TEST_F(Archive, DamageAnywhereIsFoundAndToldWithFileAndOffset) {
  write_small(file());
  const std::string whole = bytes_of(file());
  const Read all = read(file());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    write_bytes(file("bad.ncsa"), damaged);
    const Read bad = read(file("bad.ncsa"));
    if (!bad.status.ok()) {
      ++refused;
      ASSERT_THAT(bad.status.message(), HasSubstr("bad.ncsa: at offset ")) << at;
    } else {
      // The last block is taken for one that was not written in full.
      ASSERT_TRUE(bad.truncated) << at;
      ASSERT_GE(at + sizeof(BlockHeader), whole.size()) << at;
    }
    ASSERT_LE(bad.operations.size(), all.operations.size());
    for (std::size_t i = 0; i < bad.operations.size(); ++i)
      ASSERT_TRUE(same(bad.operations[i], all.operations[i]));
  }
  EXPECT_GT(refused, whole.size() / 2);
}

TEST_F(Archive, RefusesWhatIsNoSegment) {
  write_bytes(file(), "{\"header\":{\"id\":\"0x1\"}}\n");
  EXPECT_THAT(read(file()).status.message(),
              HasSubstr("a.ncsa: at offset 0: not a segment of an ncclscope archive"));
  EXPECT_THAT(read(folder_).status.message(), HasSubstr("is no regular file"));
  EXPECT_THAT(read(file("missing.ncsa")).status.message(), HasSubstr("cannot be opened"));
  write_small(file("v2.ncsa"));
  std::string bytes = bytes_of(file("v2.ncsa"));
  bytes[8] = 2;
  write_bytes(file("v2.ncsa"), bytes);
  EXPECT_THAT(read(file("v2.ncsa")).status.message(), HasSubstr("version 2.0"));
}

TEST_F(Archive, BytesBehindTheEndAreRefused) {
  write_small(file());
  write_bytes(file(), bytes_of(file()) + bytes_of(file()));
  const Read twice = read(file());
  EXPECT_THAT(twice.status.message(), HasSubstr("behind the end block"));
  EXPECT_EQ(twice.operations.size(), written_.size());
}

TEST_F(Archive, FileInTheMakingIsReadUpToTheLastFlush) {
  auto writer = create(file());
  writer->set_job(make_job());
  const std::uint32_t process = writer->add_process(make_process(1));
  const std::uint32_t c = writer->add_communicator(process, make_communicator(0, 0));
  Traffic traffic(3, 1);
  for (std::uint64_t i = 1; i <= 10; ++i)
    ASSERT_TRUE(writer->add(c, i, traffic.next(), traffic.now_ns()).ok());
  ASSERT_TRUE(writer->flush().ok());
  for (std::uint64_t i = 11; i <= 15; ++i)
    ASSERT_TRUE(writer->add(c, i, traffic.next(), traffic.now_ns()).ok());
  EXPECT_EQ(writer->path(), file("a.ncsa.part"));
  const Read part = read(file("a.ncsa.part"));
  EXPECT_TRUE(part.status.ok() && part.truncated);
  EXPECT_EQ(part.operations.size(), 10u);
  std::vector<fs::path> segments;
  ASSERT_TRUE(find_segments(folder_, segments).ok());
  EXPECT_EQ(segments, std::vector<fs::path>{file("a.ncsa.part")});
}

TEST_F(Archive, LaterDescriptionsHoldForLaterRecords) {
  auto writer = create(file());
  writer->set_job(make_job());
  const std::uint32_t process = writer->add_process(make_process(1));
  Communicator about = make_communicator(0, 0);
  about.dimension.clear();
  const std::uint32_t c = writer->add_communicator(process, about);
  Traffic traffic(3, 1);
  ASSERT_TRUE(writer->add(c, 1, traffic.next(), 0).ok());
  ASSERT_TRUE(writer->flush().ok());
  about.dimension = "tp";
  writer->describe_communicator(c, about);
  ASSERT_TRUE(writer->add(c, 2, traffic.next(), 0).ok());
  ASSERT_TRUE(writer->finish().ok());
  auto reader = open(file());
  ASSERT_NE(reader, nullptr);
  const Batch* first = reader->next();
  ASSERT_NE(first, nullptr);
  const Communicator* before = first->operations[0].source->communicator;
  EXPECT_EQ(before->dimension, "");
  const Batch* second = reader->next();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->operations[0].source->communicator->dimension, "tp");
  EXPECT_EQ(before->dimension, "");
  EXPECT_EQ(reader->next(), nullptr);
}

TEST_F(Archive, ModeIsAsAskedForWhateverTheUmask) {
  const mode_t before = umask(0077);
  Writer::Options options;
  options.mode = 0640;
  auto writer = create(file(), options);
  umask(before);
  struct stat about {};
  ASSERT_EQ(stat(file("a.ncsa.part").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777u, 0640u);
}

TEST_F(Archive, NeverWritesOverAFile) {
  write_small(file());
  Status status;
  EXPECT_EQ(Writer::create(file(), {}, status), nullptr);
  EXPECT_THAT(status.message(), HasSubstr("a.ncsa: is there already"));
  write_bytes(file("b.ncsa.part"), "x");
  EXPECT_EQ(Writer::create(file("b.ncsa"), {}, status), nullptr);
  EXPECT_THAT(status.message(), HasSubstr("b.ncsa.part: cannot be created"));
}

}  // namespace
}  // namespace ncclscope::archive
