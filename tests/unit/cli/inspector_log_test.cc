// SPDX-License-Identifier: Apache-2.0
//
// Lines of NCCL Inspector: every format, the fast way and the general one, and what is wrong with
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cli/inspector_log/line_parser.h"
#include "cli/inspector_log/line_reader.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli::inspector_log {
namespace {

using Kind = LineParser::Kind;
using testing::HasSubstr;

/// A parser that keeps the lines: its texts point into them.
class KeepingParser {
 public:
  Kind parse(std::string line) {
    lines_.push_back(std::move(line));
    return parser_.parse(lines_.back());
  }
  [[nodiscard]] const Performance& performance() const { return parser_.performance(); }
  [[nodiscard]] const std::string& error() const { return parser_.error(); }
  [[nodiscard]] std::int64_t announced_left() const { return parser_.announced_left(); }
  [[nodiscard]] std::int64_t dropped_by_writer() const { return parser_.dropped_by_writer(); }
  [[nodiscard]] std::uint64_t forgotten() const { return parser_.forgotten(); }

 private:
  std::deque<std::string> lines_;
  LineParser parser_;
};

std::string header(const std::string& version, const std::string& name = "unknown", int rank = 3) {
  return R"({"header":{"id":"0x7f3a","comm_name":")" + name + R"(","rank":)" +
         std::to_string(rank) +
         R"(,"n_ranks":8,"nnodes":2},"metadata":{"inspector_output_format_version":")" + version +
         R"(","git_rev":"v2.30.7","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1764000000123456,)"
         R"("hostname":"node7","pid":4711},)";
}

const std::string kPayload40 =
    R"("coll_perf":{"coll":"AllReduce","coll_sn":17,"coll_msg_size_bytes":1048576,"coll_exec_time_us":250,)"
    R"("coll_timing_source":"kernel_gpu","coll_algobw_gbs":4.194304,"coll_busbw_gbs":7.340032}})";
const std::string kPayload42 =
    R"("coll_perf":{"coll":"AllGather","coll_algo":"RING","coll_proto":"LL128","coll_sn":5,"coll_msg_size_bytes":4096,)"
    R"("coll_exec_time_us":12,"coll_timing_source":"kernel_cpu","coll_algobw_gbs":2.730667,"coll_busbw_gbs":2.389333}})";
const std::string kP2p =
    R"("p2p_perf":{"p2p":"Send","p2p_sn":1,"p2p_peer":4,"p2p_msg_size_bytes":65536,"p2p_exec_time_us":33,)"
    R"("p2p_timing_source":"collective_cpu","p2p_algobw_gbs":1.985939,"p2p_busbw_gbs":1.985939}})";

TEST(LineParser, ReadsV40) {
  KeepingParser parser;
  ASSERT_EQ(parser.parse(header("v4.0") + kPayload40), Kind::kPerformance) << parser.error();
  const Performance& operation = parser.performance();
  EXPECT_EQ(operation.context->id, "0x7f3a");
  EXPECT_EQ(operation.context->comm_name, "");  // "unknown"
  EXPECT_EQ(operation.context->rank, 3);
  EXPECT_EQ(operation.context->n_ranks, 8);
  EXPECT_EQ(operation.context->nnodes, 2);
  EXPECT_EQ(operation.context->hostname, "node7");
  EXPECT_EQ(operation.context->pid, 4711);
  EXPECT_EQ(operation.dump_timestamp_us, 1764000000123456);
  EXPECT_EQ(operation.operation, "AllReduce");
  EXPECT_EQ(operation.algorithm, "");
  EXPECT_EQ(operation.sequence, 17);
  EXPECT_EQ(operation.message_bytes, 1048576);
  EXPECT_EQ(operation.exec_time_us, 250);
  EXPECT_EQ(operation.timing_source, "kernel_gpu");
  EXPECT_EQ(operation.algbw_gbs, 4.194304);
  EXPECT_EQ(operation.busbw_gbs, 7.340032);
  EXPECT_FALSE(operation.point_to_point);
}

TEST(LineParser, ReadsAlgorithmsOfV42AndPointToPoint) {
  KeepingParser parser;
  ASSERT_EQ(parser.parse(header("v4.2", "tp") + kPayload42), Kind::kPerformance);
  EXPECT_EQ(parser.performance().algorithm, "RING");
  EXPECT_EQ(parser.performance().protocol, "LL128");
  EXPECT_EQ(parser.performance().context->comm_name, "tp");
  ASSERT_EQ(parser.parse(header("v4.2", "tp") + kP2p), Kind::kPerformance);
  EXPECT_TRUE(parser.performance().point_to_point);
  EXPECT_EQ(parser.performance().peer, 4);
  EXPECT_EQ(parser.performance().algorithm, "");
  EXPECT_EQ(parser.performance().operation, "Send");
}

TEST(LineParser, ReadsNumbersAndNamesOfAnyLengthAsTheGeneralParserDoes) {
  std::mt19937_64 random(7);
  const auto digits = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += static_cast<char>((i == 0 && count > 1 ? '1' : '0') + random() % 9);
    return text;
  };
  KeepingParser fast, general;
  ASSERT_EQ(fast.parse(header("v4.2") + kPayload40), Kind::kPerformance);
  for (int length = 1; length <= 18; ++length) {
    for (int fraction = 0; fraction <= 18; ++fraction) {
      const std::string name(static_cast<std::size_t>(length + fraction), 'x');
      const std::string number = digits(length) + (fraction > 0 ? "." + digits(fraction) : "") +
                                 (fraction % 7 == 6 ? "e-3" : "");
      const std::string payload = R"("coll_perf":{"coll":")" + name + R"(","coll_sn":)" +
                                  digits(length) + R"(,"coll_msg_size_bytes":-)" + digits(length) +
                                  R"(,"coll_exec_time_us":)" + digits(length) +
                                  R"(,"coll_algobw_gbs":)" + number + R"(,"coll_busbw_gbs":)" +
                                  number + "}}";
      ASSERT_EQ(fast.parse(header("v4.2") + payload), Kind::kPerformance) << payload;
      ASSERT_EQ(general.parse(" " + header("v4.2") + payload), Kind::kPerformance) << payload;
      const Performance &one = fast.performance(), &other = general.performance();
      EXPECT_EQ(one.operation, name);
      EXPECT_EQ(other.operation, name);
      EXPECT_EQ(one.sequence, other.sequence) << payload;
      EXPECT_EQ(one.message_bytes, other.message_bytes) << payload;
      EXPECT_EQ(one.exec_time_us, other.exec_time_us) << payload;
      EXPECT_EQ(one.algbw_gbs, other.algbw_gbs) << payload;
      EXPECT_EQ(one.busbw_gbs, other.busbw_gbs) << payload;
    }
  }
}

TEST(LineParser, RecognisesCommunicatorsThatTakeTurns) {
  KeepingParser parser;
  for (int step = 0; step < 5; ++step) {
    for (const std::string name : {"tp", "tp", "pp", "tp", "dp", "dp"}) {
      ASSERT_EQ(parser.parse(header("v4.2", name, step % 2) + kPayload42), Kind::kPerformance);
      EXPECT_EQ(parser.performance().context->comm_name, name);
      EXPECT_EQ(parser.performance().context->rank, step % 2);
    }
  }
}

TEST(LineParser, ForgetsCommunicatorsWhereAProcessMakesThemWithoutEnd) {
  KeepingParser parser;
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(parser.parse(header("v4.2", "tp" + std::to_string(i), i) + kPayload42),
              Kind::kPerformance);
    ASSERT_EQ(parser.performance().context->rank, i);
    if (i % 100 != 0) continue;
    ASSERT_EQ(parser.parse(header("v4.2", "world") + kPayload42), Kind::kPerformance);
    ASSERT_EQ(parser.performance().context->comm_name, "world");
  }
  EXPECT_GT(parser.forgotten(), 0U);
}

TEST(LineParser, GivesTheSameTheFastWayAndTheGeneralWay) {
  // The second of two equal lines is recognised; white space keeps a third from it.
  for (const std::string& payload : {kPayload40, kPayload42, kP2p}) {
    for (const std::string& name :
         {std::string("unknown"), std::string("dp"), std::string(R"(a\/b \"c\" \u00e9)")}) {
      KeepingParser parser;
      const std::string line = header("v4.2", name) + payload;
      ASSERT_EQ(parser.parse(line), Kind::kPerformance) << parser.error();
      const Performance first = parser.performance();
      const std::string operation(first.operation), algorithm(first.algorithm),
          timing(first.timing_source);
      ASSERT_EQ(parser.parse(line), Kind::kPerformance);
      const Performance second = parser.performance();
      EXPECT_EQ(second.context, first.context);
      EXPECT_EQ(second.operation, operation);
      ASSERT_EQ(parser.parse(" " + line), Kind::kPerformance);
      const Performance third = parser.performance();
      EXPECT_EQ(third.context, first.context);
      EXPECT_EQ(third.operation, operation);
      EXPECT_EQ(third.algorithm, algorithm);
      EXPECT_EQ(third.timing_source, timing);
      for (const Performance& other : {second, third}) {
        EXPECT_EQ(other.dump_timestamp_us, first.dump_timestamp_us);
        EXPECT_EQ(other.sequence, first.sequence);
        EXPECT_EQ(other.message_bytes, first.message_bytes);
        EXPECT_EQ(other.exec_time_us, first.exec_time_us);
        EXPECT_EQ(other.peer, first.peer);
        EXPECT_EQ(other.algbw_gbs, first.algbw_gbs);
        EXPECT_EQ(other.busbw_gbs, first.busbw_gbs);
      }
    }
  }
}

TEST(LineParser, ReadsNumbersAsAGeneralParserDoes) {
  KeepingParser parser;
  for (const char* number : {"0.000000", "1234567.890123", "0.1", "99999999.999999", "3",
                             "12345678901234567890.5", "1e-3", "7.340032e2"}) {
    std::string line = header("v4.0") + kPayload40;
    line.replace(line.find("4.194304"), 8, number);
    ASSERT_EQ(parser.parse(line), Kind::kPerformance) << number << parser.error();
    EXPECT_EQ(parser.performance().algbw_gbs, std::strtod(number, nullptr)) << number;
  }
  std::string line = header("v4.0") + kPayload40;
  line.replace(line.find("4.194304"), 8, "\"nan\"");
  ASSERT_EQ(parser.parse(line), Kind::kPerformance);
  EXPECT_TRUE(std::isnan(parser.performance().algbw_gbs));
}

TEST(LineParser, ReadsTracesOfVerboseLines) {
  std::string payload = kPayload40;
  payload.insert(
      payload.size() - 2,
      R"(,"event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,)"
      R"("kernel_stop_sn":5,"kernel_record_sn":4},{"channel_id":1,"kernel_start_sn":3,"kernel_stop_sn":5,"kernel_record_sn":4}]},)"
      R"("event_trace_ts":{"coll_start_ts":1764000000000001,"coll_stop_ts":1764000000000002,"kernel_events":[{"channel_id":0,)"
      R"("kernel_start_ts":1764000000000012,"kernel_stop_ts":1764000000000250,"kernel_record_ts":1764000000000249},)"
      R"({"channel_id":1,"kernel_start_ts":1764000000000010,"kernel_stop_ts":1764000000000260,"kernel_record_ts":1764000000000259}]})");
  KeepingParser parser;
  for (const std::string& line :
       {header("v4.0") + payload, header("v4.0") + payload, " " + header("v4.0") + payload}) {
    ASSERT_EQ(parser.parse(line), Kind::kPerformance) << parser.error();
    EXPECT_EQ(parser.performance().channels, 2);
    EXPECT_EQ(parser.performance().enqueued_us, 1764000000000001);
    EXPECT_EQ(parser.performance().kernel_start_us, 1764000000000010);
    EXPECT_EQ(parser.performance().kernel_stop_us, 1764000000000260);
  }
}

TEST(LineParser, TakesKeysInAnyOrderAndOthersBesides) {
  KeepingParser parser;
  ASSERT_EQ(
      parser.parse(
          R"({"x_more":[1,{"a":2}],"coll_perf":{"coll_sn":2,"coll":"Broadcast","x_gpu_uuid":"GPU-1"},)"
          R"("metadata":{"dump_timestamp_us":5},"header":{"nnodes":1,"id":"0x1","rank":0,"n_ranks":2}})"),
      Kind::kPerformance)
      << parser.error();
  EXPECT_EQ(parser.performance().operation, "Broadcast");
  EXPECT_EQ(parser.performance().sequence, 2);
  EXPECT_EQ(parser.performance().message_bytes, -1);
}

std::string marker(const std::string& version, int collectives, int p2p, int proxy = 0) {
  return header(version) + R"("dump_stats":{"coll_records":)" + std::to_string(collectives) +
         R"(,"coll_dropped_total":9,"coll_dropped_since_last_dump":4,"p2p_records":)" +
         std::to_string(p2p) +
         R"(,"p2p_dropped_total":1,"p2p_dropped_since_last_dump":1,"proxy_records":)" +
         std::to_string(proxy) + "}}";
}

TEST(LineParser, CountsWhatTheWriterLost) {
  KeepingParser parser;
  EXPECT_EQ(parser.parse(marker("v4.1", 10, 2)), Kind::kOther);
  EXPECT_EQ(parser.announced_left(), 0);  // lines of v4.1 are full lines
  EXPECT_EQ(parser.dropped_by_writer(), 5);
  EXPECT_EQ(parser.parse(header("v4.1") + kPayload40), Kind::kPerformance);
}

TEST(LineParser, ReadsTheStreamOfV43) {
  KeepingParser parser;
  ASSERT_EQ(parser.parse(marker("v4.3", 2, 1)), Kind::kOther);
  ASSERT_EQ(parser.parse("{" + kPayload42), Kind::kPerformance) << parser.error();
  EXPECT_EQ(parser.performance().context->rank, 3);
  EXPECT_EQ(parser.performance().dump_timestamp_us, 1764000000123456);
  ASSERT_EQ(parser.parse("{" + kP2p), Kind::kPerformance);
  EXPECT_EQ(parser.announced_left(), 1);
  ASSERT_EQ(parser.parse("{ " + kPayload42), Kind::kPerformance) << parser.error();
  EXPECT_EQ(parser.announced_left(), 0);
  EXPECT_EQ(parser.parse("{" + kPayload42), Kind::kBad);
  EXPECT_THAT(parser.error(), HasSubstr("more coll_perf lines than"));
}

TEST(LineParser, KnowsWhoseAStreamIsWhenItForgets) {
  KeepingParser parser;
  ASSERT_EQ(parser.parse(marker("v4.3", 1, 0)), Kind::kOther);
  for (int i = 0; i < 20'000; ++i)
    ASSERT_EQ(parser.parse(header("v4.3", "tp" + std::to_string(i), i) + kPayload42),
              Kind::kPerformance);
  ASSERT_GT(parser.forgotten(), 0U);
  ASSERT_EQ(parser.parse("{" + kPayload42), Kind::kPerformance) << parser.error();
  EXPECT_EQ(parser.performance().context->comm_name, "");
  EXPECT_EQ(parser.performance().context->rank, 3);
}

TEST(LineParser, SkipsProxyTracesOfV44AndMissesWhatWasAnnounced) {
  KeepingParser parser;
  ASSERT_EQ(parser.parse(marker("v4.4", 1, 0, 2)), Kind::kOther);
  EXPECT_EQ(parser.parse(R"({"proxy_trace":{"record_type":"proxy_op","peer":1}})"), Kind::kOther);
  ASSERT_EQ(parser.parse("{" + kPayload42), Kind::kPerformance);
  EXPECT_EQ(parser.parse(marker("v4.4", 1, 0, 0)), Kind::kBad);  // one proxy_trace is missing
  EXPECT_THAT(parser.error(),
              HasSubstr("1 lines that the dump_stats line before announced are missing"));
  EXPECT_EQ(parser.parse("{" + kPayload42), Kind::kPerformance);  // and goes on with the new marker
}

TEST(LineParser, SaysWhatIsWrongWithALine) {
  KeepingParser parser;
  const auto error_of = [&](const std::string& line) {
    EXPECT_EQ(parser.parse(line), Kind::kBad) << line;
    return parser.error();
  };
  EXPECT_THAT(error_of(header("v4.0")), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[1,2]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("{" + kPayload40), HasSubstr("no \"header\""));
  EXPECT_THAT(error_of(header("v4.0") + R"("other":{}})"), HasSubstr("none of coll_perf"));
  std::string line = header("v4.0") + kPayload40;
  EXPECT_THAT(error_of(line.replace(line.find(":250"), 4, R"(:"x")")),
              HasSubstr(R"("coll_exec_time_us" is not an integer: "x")"));
  EXPECT_EQ(parser.parse(""), Kind::kOther);
  EXPECT_EQ(parser.parse(header("v4.0") + kPayload40 + "\r"), Kind::kPerformance);
}

class LineReaderTest : public testing::Test {
 protected:
  std::string write(const std::string& bytes) {
    const std::string path = folder_ / "a.log";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  static std::string compressed(const std::string& text) {
    z_stream stream{};
    deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&stream, text.size()) + 64, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    deflate(&stream, Z_FINISH);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
  }
  struct Read {
    std::vector<std::string> lines;
    LineReader::Next last;
    bool compressed_data_cut;
    std::string error;
  };
  static Read read(const std::string& path) {
    LineReader reader(path);
    Read result{};
    std::string_view line;
    while ((result.last = reader.next(line)) == LineReader::Next::kLine)
      result.lines.emplace_back(line);
    if (result.last == LineReader::Next::kCut) result.lines.push_back("CUT " + std::string(line));
    result.compressed_data_cut = reader.compressed_data_cut();
    result.error = reader.error();
    return result;
  }

  const tests::TemporaryDirectory temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(LineReaderTest, GivesLinesAndACutLastOne) {
  EXPECT_THAT(read(write("a\n\nbc\nd")).lines, testing::ElementsAre("a", "", "bc", "CUT d"));
  EXPECT_THAT(read(write("a\n")).lines, testing::ElementsAre("a"));
  EXPECT_THAT(read(write("")).lines, testing::ElementsAre());
}

TEST_F(LineReaderTest, ReadsGzipOfSeveralMembersByContent) {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "line " + std::to_string(i) + "\n";
  const Read whole = read(write(compressed(text) + compressed("last\n")));
  ASSERT_EQ(whole.lines.size(), 200001U);
  EXPECT_EQ(whole.lines[123456], "line 123456");
  EXPECT_EQ(whole.lines.back(), "last");
  EXPECT_FALSE(whole.compressed_data_cut);
  EXPECT_EQ(whole.last, LineReader::Next::kEnd);
}

TEST_F(LineReaderTest, ReadsGzipMembersOfAllSizesAcrossItsBuffers) {
  std::mt19937 random(7);
  std::string bytes;
  std::vector<std::string> lines;
  while (bytes.size() < (std::size_t{600} << 10)) {
    std::string text;
    for (auto count = random() % 40; count > 0; --count) {
      lines.push_back(std::to_string(random()) + std::string(random() % 300, 'x'));
      text += lines.back() + "\n";
    }
    bytes += compressed(text);
  }
  const Read whole = read(write(bytes));
  EXPECT_EQ(whole.error, "");
  EXPECT_FALSE(whole.compressed_data_cut);
  EXPECT_EQ(whole.lines, lines);
}

TEST_F(LineReaderTest, TellsACutMemberFromAWholeOneAtEveryByte) {
  const std::string first = compressed("first\n"), second = compressed("second\nthird\n");
  for (std::size_t size = 2; size <= first.size() + second.size(); ++size) {
    const Read cut = read(write((first + second).substr(0, size)));
    EXPECT_EQ(cut.error, "") << size;
    EXPECT_EQ(cut.compressed_data_cut, size != first.size() && size != first.size() + second.size())
        << size;
    if (size >= first.size()) {
      EXPECT_EQ(cut.lines.at(0), "first") << size;
    }
  }
  EXPECT_THAT(read(write(first + "no member of gzip")).error,
              HasSubstr("damaged (incorrect header)"));
}

TEST_F(LineReaderTest, SaysThatCompressedDataIsCutOrDamaged) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "line " + std::to_string(i * 7919) + "\n";
  const std::string good = compressed(text);
  const Read cut = read(write(good.substr(0, good.size() / 2)));
  EXPECT_TRUE(cut.compressed_data_cut);
  EXPECT_GT(cut.lines.size(), 1000U);
  std::string damaged = good;
  for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 40; ++i)
    damaged[i] = static_cast<char>(~damaged[i]);
  const Read bad = read(write(damaged));
  EXPECT_EQ(bad.last, LineReader::Next::kFailed);
  EXPECT_THAT(bad.error, HasSubstr("a.log:"));
  EXPECT_THAT(bad.error, HasSubstr("damaged"));
}

TEST_F(LineReaderTest, ChecksTheChecksum) {
  std::string bytes = compressed("first\n");
  bytes[bytes.size() - 6] = static_cast<char>(~bytes[bytes.size() - 6]);
  EXPECT_THAT(read(write(bytes)).error, HasSubstr("damaged (incorrect checksum)"));
}

TEST_F(LineReaderTest, TakesLongLinesAndRefusesEndlessOnes) {
  const std::string path = write(std::string(3 << 20, 'x') + "\ny\n");
  EXPECT_EQ(read(path).lines.size(), 2U);
  const Read endless = read(write(std::string(LineReader::kMaxLineBytes + 10, 'x')));
  EXPECT_EQ(endless.last, LineReader::Next::kFailed);
  EXPECT_THAT(endless.error, HasSubstr("16 MiB"));
}

TEST_F(LineReaderTest, NamesAFileThatIsNotThere) {
  const Read none = read(folder_ / "none.log");
  EXPECT_EQ(none.last, LineReader::Next::kFailed);
  EXPECT_THAT(none.error, HasSubstr("none.log: cannot be opened"));
}

}  // namespace
}  // namespace ncclscope::cli::inspector_log
