// SPDX-License-Identifier: Apache-2.0
//
// The frame protocol: writer, reader, golden frames of version 1, and random round trips.
// NCCLSCOPE_UPDATE_GOLDEN=1 writes golden files that are missing (existing ones are never changed).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "proto/wire/decode.h"
#include "tests/unit/proto/golden_frames.h"

namespace ncclscope::wire {
namespace {

using golden::Bytes;

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(NCCLSCOPE_TEST_DATA) / "frames/v1" / (name + ".bin");
}
Bytes read_golden(const std::string& name) {
  std::ifstream file(golden_path(name), std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Seen {
  std::uint8_t type;
  Bytes record;
  std::uint64_t index;
};
DecodeError read_all(const Bytes& packet, std::vector<Seen>& seen) {
  FrameHeader header{};
  return read_frame(packet, header,
                    [&](std::uint8_t type, std::span<const std::byte> r, std::uint64_t index) {
                      seen.push_back({type, {r.begin(), r.end()}, index});
                      return true;
                    });
}
template <typename Record>
bool same_body(const Seen& seen, Record expected) {
  Record got{};
  if (!read_record(seen.record, got)) return false;
  expected.header = got.header;
  return std::memcmp(&got, &expected, sizeof got) == 0;
}

TEST(GoldenFrames, AreWhatTheWriterWrites) {
  for (const auto& [name, bytes] : golden::all()) {
    if (std::getenv("NCCLSCOPE_UPDATE_GOLDEN") != nullptr &&
        !std::filesystem::exists(golden_path(name))) {
      std::ofstream file(golden_path(name), std::ios::binary);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
    EXPECT_EQ(read_golden(name), bytes) << name;
  }
}

TEST(GoldenFrames, HelloAndCommunicatorInitKeepTheirStrings) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("hello"), seen), DecodeError::kNone);
  ASSERT_EQ(read_all(read_golden("communicator_init"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 2u);
  Hello hello{};
  ASSERT_TRUE(read_record(seen[0].record, hello));
  EXPECT_EQ(hello.session_id, golden::hello().session_id);
  EXPECT_EQ(hello.realtime_offset_ns, -222);
  EXPECT_EQ(hello.pid, 4711u);
  std::vector<std::pair<StringKey, std::string>> strings;
  const auto collect = [&](StringKey key, std::string_view text) {
    strings.emplace_back(key, text);
  };
  ASSERT_TRUE(read_strings(seen[0].record, sizeof hello, hello.string_bytes, collect));
  CommunicatorInit init{};
  ASSERT_TRUE(read_record(seen[1].record, init));
  EXPECT_EQ(init.hash, golden::communicator_init().hash);
  ASSERT_TRUE(read_strings(seen[1].record, sizeof init, init.string_bytes, collect));
  const std::vector<std::pair<StringKey, std::string>> expected = {
      {StringKey::kPluginVersion, "0.1.0"},
      {StringKey::kSlurmJobId, "1234"},
      {StringKey::kRank, "9"},
      {StringKey::kCommunicatorName, "dp"},
      {StringKey::kGpuPciBusId, "0000:3b:00.0"},
      {StringKey::kGpuUuid, "GPU-0b5ed2a4"}};
  EXPECT_EQ(strings, expected);
}

TEST(GoldenFrames, StateRecordsHaveNoIndex) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("state"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_TRUE(same_body(seen[0], golden::progress()));
  EXPECT_TRUE(same_body(seen[1], golden::books()));
  EXPECT_EQ(seen[1].record.size(), kBooksFirstBytes) << "shorter than Books are now";
  EXPECT_EQ(seen[2].record.size(), 24u);
  for (const Seen& s : seen) EXPECT_EQ(s.index, 0u);
}

TEST(GoldenFrames, BooksOfFirstLengthAndLongerOnesAreRead) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("books_with_governor"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(same_body(seen[0], golden::books_with_governor()));
  Books books{};
  books.kernel_slice = 99;
  EXPECT_TRUE(
      read_record(std::span<const std::byte>(seen[0].record).first(kBooksFirstBytes), books));
  EXPECT_EQ(books.kernel_slice, 0u) << "not sent is 0";
  EXPECT_FALSE(
      read_record(std::span<const std::byte>(seen[0].record).first(kBooksFirstBytes - 8), books));
  seen.clear();
  ASSERT_EQ(read_all(read_golden("books_with_files"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(same_body(seen[0], golden::books_with_files()));
}

TEST(GoldenFrames, IndexedRecordsCountUpFromTheFirstIndex) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("indexed"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_TRUE(same_body(seen[0], golden::operation()));
  EXPECT_TRUE(same_body(seen[1], golden::network_phases()));
  EXPECT_TRUE(same_body(seen[2], golden::channel_detail()));
  EXPECT_TRUE(same_body(seen[3], golden::communicator_finalize()));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(seen[i].index, 1001 + i);
  Operation o{};
  ASSERT_TRUE(read_record(seen[0].record, o));
  EXPECT_EQ(count_of(o), 123'456'789u);
  EXPECT_EQ(plan_of(o), 42u);
  EXPECT_EQ(duration_ns_of(o), 6'000'000'000u);
  EXPECT_EQ(enqueue_time_ns_of(o), 444u + 17'000u);
  EXPECT_EQ(timing_of(o), TimingSource::kGpu);
}

TEST(GoldenFrames, TheEnvironmentFollowsHelloInSeveralRecords) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("environment"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 3u);
  std::vector<std::pair<StringKey, std::string>> strings;
  std::vector<std::uint16_t> flags;
  for (std::size_t i = 1; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].index, 0u);
    Environment head{};
    ASSERT_TRUE(read_record(seen[i].record, head));
    flags.push_back(head.flags);
    ASSERT_TRUE(read_strings(
        seen[i].record, sizeof head, head.string_bytes,
        [&](StringKey key, std::string_view text) { strings.emplace_back(key, text); }));
  }
  const std::vector<std::pair<StringKey, std::string>> expected = {
      {StringKey::kVariable, "NCCL_DEBUG=WARN"},
      {StringKey::kVariable, "NCCL_IB_HCA=mlx5_0,"},
      {StringKey::kVariableMore, "mlx5_1"},
      {StringKey::kVariable, "NCCL_ALGO="}};
  EXPECT_EQ(strings, expected);
  EXPECT_EQ(flags, (std::vector<std::uint16_t>{0, kEnvironmentEnd | kEnvironmentCut}));
}

TEST(GoldenFrames, AFutureMinorVersionIsReadAsFarAsItIsKnown) {
  std::vector<Seen> seen;
  ASSERT_EQ(read_all(read_golden("future"), seen), DecodeError::kNone);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].type, 99);
  EXPECT_EQ(seen[0].index, 0u);
  EXPECT_EQ(seen[1].index, 500u);
  EXPECT_EQ(seen[1].record.size(), sizeof(Operation) + 8);
  EXPECT_TRUE(same_body(seen[1], golden::operation()));
  EXPECT_EQ(seen[2].index, 501u) << "an unknown indexed type takes an index";
  EXPECT_EQ(seen[3].index, 502u);
  EXPECT_TRUE(same_body(seen[3], golden::operation()));
}

TEST(FrameWriter, IsEmptyAgainAfterFinish) {
  Bytes buffer(kMaxFrameBytes);
  FrameWriter writer(buffer);
  Operation o = golden::operation();
  set_header(o, RecordType::kOperation);
  EXPECT_TRUE(writer.add(o));
  EXPECT_EQ(writer.finish(1, 2).size(), sizeof(FrameHeader) + sizeof(Operation));
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.finish(0, 2).size(), sizeof(FrameHeader));
}

TEST(FrameWriter, RefusesWhatDoesNotFitAndLeavesTheFrameWhole) {
  Bytes buffer(kMaxFrameBytes + 4096);
  FrameWriter writer(buffer);
  Operation o{};
  set_header(o, RecordType::kOperation);
  std::size_t added = 0;
  while (writer.add(o)) ++added;
  EXPECT_EQ(added, (kMaxFrameBytes - sizeof(FrameHeader)) / sizeof(Operation))
      << "never above the limit";
  const auto packet = writer.finish(1, 2);
  std::vector<Seen> seen;
  EXPECT_EQ(read_all({packet.begin(), packet.end()}, seen), DecodeError::kNone);
  EXPECT_EQ(seen.size(), added);
}

TEST(StringRecordWriter, CutsLongStringsAndLeavesOutWhatDoesNotFit) {
  StringRecordWriter<Hello> record(golden::hello(), RecordType::kHello);
  EXPECT_TRUE(record.add(StringKey::kHostname, std::string(500, 'h')));
  int fitted = 1;
  while (record.add(StringKey::kRank, std::string(kMaxStringBytes, 'r'))) ++fitted;
  EXPECT_FALSE(record.add(StringKey::kRank, std::string(kMaxStringBytes, 'r')));
  const auto bytes = record.finish();
  EXPECT_LE(bytes.size(), kMaxRecordBytes);
  Hello hello{};
  ASSERT_TRUE(read_record(bytes, hello));
  int found = 0;
  EXPECT_TRUE(
      read_strings(bytes, sizeof hello, hello.string_bytes, [&](StringKey, std::string_view text) {
        EXPECT_EQ(text.size(), kMaxStringBytes);
        ++found;
      }));
  EXPECT_EQ(found, fitted);
}

TEST(FrameDecoder, DeliversNothingFromAFrameWhoseFramingIsWrongAnywhere) {
  Bytes packet = read_golden("indexed");
  packet[sizeof(FrameHeader) + 3 * 56 + 1] = std::byte{200};  // the last record's length
  std::vector<Seen> seen;
  EXPECT_EQ(read_all(packet, seen), DecodeError::kBadRecord);
  EXPECT_TRUE(seen.empty());
}

TEST(FrameDecoder, RefusesEveryTruncationOfEveryGoldenFrame) {
  for (const auto& [name, bytes] : golden::all()) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      std::vector<Seen> seen;
      EXPECT_NE(read_all({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}, seen),
                DecodeError::kNone)
          << name << " cut to " << size;
    }
  }
}

TEST(FrameDecoder, SurvivesAnySingleByteChange) {
  // Memory safety is what matters (this runs under sanitizers); whatever is accepted must lie in
  // the packet.
  for (const auto& [name, bytes] : golden::all()) {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const unsigned value : {0u, 1u, 0x7Fu, 0x80u, 0xFFu}) {
        Bytes packet = bytes;
        packet[at] = static_cast<std::byte>(value);
        FrameHeader header{};
        std::size_t total = 0;
        const DecodeError error = read_frame(
            packet, header, [&](std::uint8_t, std::span<const std::byte> r, std::uint64_t) {
              total += r.size();
              Hello hello{};
              if (read_record(r, hello)) {
                static_cast<void>(read_strings(r, sizeof hello, hello.string_bytes,
                                               [](StringKey, std::string_view) {}));
              }
              return true;
            });
        if (error == DecodeError::kNone) {
          EXPECT_EQ(total + header.header_bytes, packet.size());
        }
      }
    }
  }
}

TEST(FrameDecoder, StopsWhenTheSinkSaysSo) {
  const Bytes packet = read_golden("indexed");
  FrameHeader header{};
  int calls = 0;
  EXPECT_EQ(read_frame(packet, header,
                       [&](std::uint8_t, std::span<const std::byte>, std::uint64_t) {
                         return ++calls < 2;
                       }),
            DecodeError::kBadRecord);
  EXPECT_EQ(calls, 2);
}

TEST(FrameDecoder, ReadsBackWhatWasWrittenForRandomRecords) {
  std::mt19937_64 random(20'240'601);
  for (int round = 0; round < 200; ++round) {
    Bytes buffer(kMaxFrameBytes);
    FrameWriter writer(buffer);
    std::vector<Bytes> written;
    const std::size_t count = random() % 60;
    for (std::size_t i = 0; i < count; ++i) {
      Bytes record(8 * (1 + random() % 255));
      for (auto& b : record) b = static_cast<std::byte>(random());
      record[1] = static_cast<std::byte>(record.size() / 8);
      if (writer.add_bytes(record)) written.push_back(std::move(record));
    }
    const std::uint64_t first = random() >> 2;
    const auto packet = writer.finish(first, random());
    std::vector<Seen> seen;
    ASSERT_EQ(read_all({packet.begin(), packet.end()}, seen), DecodeError::kNone);
    ASSERT_EQ(seen.size(), written.size());
    std::uint64_t index = first;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].record, written[i]);
      EXPECT_EQ(seen[i].index, is_indexed(seen[i].type) ? index++ : 0u);
    }
  }
}

TEST(Operation, PacksAndSaturates) {
  Operation o{};
  o.api_time_ns = 1000;
  o.count_plan = pack_count_plan(~std::uint64_t{0}, 0xFFFF);
  EXPECT_EQ(count_of(o), kMaxCount);
  EXPECT_EQ(plan_of(o), 0xFFFF);
  o.duration_enqueue = pack_duration_enqueue(~std::uint64_t{0}, ~std::uint64_t{0});
  EXPECT_EQ(duration_ns_of(o), kMaxDurationNs);
  EXPECT_EQ(enqueue_time_ns_of(o), 1000 + kMaxEnqueueUs * 1000);
}

}  // namespace
}  // namespace ncclscope::wire
