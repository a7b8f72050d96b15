// SPDX-License-Identifier: Apache-2.0
// Inspector's lines and label values, byte by byte.
#include "plugin/inspector/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "plugin/inspector/windows.h"
#include "proto/model/inspector.h"

namespace ncclscope::plugin::inspector {
namespace {

namespace mi = model::inspector;

template <typename Put>
std::string text_of(const Put& put, std::size_t bytes = 65'536) {
  std::string memory(bytes, '\0');
  TextBuffer out(memory.data(), memory.size());
  put(out);
  return std::string(out.view());
}
std::string fixed(double v) {
  return text_of([v](TextBuffer& out) { out.put_fixed(v); });
}
std::string json(std::string_view v) {
  return text_of([v](TextBuffer& out) { out.put_json(v); });
}

Writer writer() {
  Writer w;
  std::snprintf(w.host, sizeof w.host, "node1");
  w.pid = 4242;
  return w;
}
CommunicatorText communicator(const char* name = "dp_group") {
  CommunicatorText c;
  c.hash = 0xABCDEF0123456789u;
  c.rank = 3;
  c.nranks = 8;
  c.nnodes = 2;
  std::snprintf(c.name, sizeof c.name, "%s", name);
  return c;
}
LineText all_reduce() {
  LineText line;
  line.function = model::Function::kAllReduce;
  line.algorithm = model::Algorithm::kRing;
  line.protocol = model::Protocol::kSimple;
  line.datatype = model::DataType::kBfloat16;
  line.sequence = 17;
  line.count = 1'000'000;
  line.duration_ns = 123'456;
  line.completed_ns = 1'700'000'000'123'456'789;
  return line;
}
std::string line_of(const LineText& line, Format format = Format::kV40,
                    const CommunicatorText& c = communicator()) {
  return text_of([&](TextBuffer& out) { put_line(out, writer(), format, c, line); });
}

TEST(InspectorText, WritesNumbersAsPrintfDoesWithoutItsLocale) {
  EXPECT_EQ(fixed(0), "0.000000");
  EXPECT_EQ(fixed(16.2), "16.200000");
  EXPECT_EQ(fixed(0.0000004), "0.000000");
  EXPECT_EQ(fixed(0.0000006), "0.000001");
  EXPECT_EQ(fixed(999.9999996), "1000.000000");
  EXPECT_EQ(fixed(-1), "0.000000");
  EXPECT_EQ(fixed(std::nan("")), "0.000000");
  EXPECT_EQ(fixed(std::numeric_limits<double>::infinity()), "1000000000000.000000");
  EXPECT_EQ(text_of([](TextBuffer& out) { out.put_short(12.5).put(" ").put_short(3); }), "12.5 3");
  EXPECT_EQ(text_of([](TextBuffer& out) { out.put_signed(INT64_MIN); }), "-9223372036854775808");
  EXPECT_EQ(text_of([](TextBuffer& out) { out.put_hex(0); }), "0x0");
}

TEST(InspectorText, EscapesStringsAndLetsNoInvalidByteOut) {
  EXPECT_EQ(json("a/b\"c\\d"), R"(a\/b\"c\\d)");
  EXPECT_EQ(json("\t\n\x01\x1f"), R"(\t\n\u0001\u001f)");
  EXPECT_EQ(json("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(json("cut\xC3"), "cut\xEF\xBF\xBD");
  EXPECT_EQ(json("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD") << "a surrogate";
  EXPECT_EQ(text_of([](TextBuffer& out) { out.put_label("a\"b\\c\nd\x01"); }),
            "a\\\"b\\\\c\\nd\xEF\xBF\xBD");
}

TEST(InspectorText, NeverWritesBeyondItsBuffer) {
  const std::size_t whole = line_of(all_reduce(), Format::kV42).size();
  for (std::size_t bytes = 0; bytes < whole + 10; ++bytes) {
    std::string memory(bytes + 8, '#');
    TextBuffer out(memory.data(), bytes);
    put_line(out, writer(), Format::kV42, communicator(), all_reduce());
    EXPECT_EQ(memory.substr(bytes), "########");
    EXPECT_EQ(out.full(), bytes < whole) << bytes;
  }
}

TEST(InspectorText, WritesALineOfV40WithEveryKeyInInspectorsOrder) {
  EXPECT_EQ(
      line_of(all_reduce()),
      R"({"header":{"id":"0xabcdef0123456789","comm_name":"dp_group","rank":3,"n_ranks":8,"nnodes":2},)"
      R"("metadata":{"inspector_output_format_version":"v4.0","git_rev":"ncclscope-)" NCCLSCOPE_VERSION
      R"(","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1700000000123456,)"
      R"("hostname":"node1","pid":4242},"coll_perf":{"coll":"AllReduce","coll_sn":17,)"
      R"("coll_msg_size_bytes":2000000,"coll_exec_time_us":123,"coll_timing_source":"kernel_gpu",)"
      R"("coll_algobw_gbs":16.200104,"coll_busbw_gbs":28.350181}})"
      "\n");
}

TEST(InspectorText, AddsAlgorithmAndProtocolInV42) {
  const std::string line = line_of(all_reduce(), Format::kV42);
  EXPECT_NE(line.find(R"("inspector_output_format_version":"v4.2")"), std::string::npos);
  EXPECT_NE(
      line.find(R"("coll":"AllReduce","coll_algo":"RING","coll_proto":"SIMPLE","coll_sn":17,)"),
      std::string::npos);
}

TEST(InspectorText, TakesBytesOfOneRankAndBandwidthOfAll) {
  LineText line = all_reduce();
  line.function = model::Function::kAllGather;
  line.duration_ns = 1'000'000;
  // 8 ranks of 2 MB in 1 ms: 16 GB/s, of which 7/8 cross the bus.
  const std::string text = line_of(line);
  EXPECT_NE(text.find(R"("coll_msg_size_bytes":2000000,"coll_exec_time_us":1000,)"),
            std::string::npos);
  EXPECT_NE(text.find(R"("coll_algobw_gbs":16.000000,"coll_busbw_gbs":14.000000)"),
            std::string::npos);
}

TEST(InspectorText, WritesTransfersWithTheirPeer) {
  LineText line = all_reduce();
  line.function = model::Function::kSend;
  line.sequence = 1;
  line.peer = 5;
  line.duration_ns = 900;
  const std::string text = line_of(line, Format::kV42, communicator(""));
  EXPECT_NE(text.find(R"("comm_name":"unknown")"), std::string::npos);
  EXPECT_NE(text.find(R"("p2p_perf":{"p2p":"Send","p2p_sn":1,"p2p_peer":5,)"
                      R"("p2p_msg_size_bytes":2000000,"p2p_exec_time_us":1,)"
                      R"("p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":2222.222222,)"
                      R"("p2p_busbw_gbs":2222.222222}})"),
            std::string::npos);
}

TEST(InspectorText, NumbersTheCallbacksOfATraceInTheirOrder) {
  LineText line = all_reduce();
  line.traced = true;
  line.enqueued_ns = 1'000'000;
  const std::array<ChannelTrace, 2> channels = {
      {{.channel = 4, .start_ns = 1'003'000, .stop_ns = 1'009'000},
       {.channel = 5, .start_ns = 1'002'000, .stop_ns = 1'008'000}}};
  line.channels = channels;
  const std::string text = line_of(line);
  EXPECT_NE(
      text.find(
          R"("event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":[)"
          R"({"channel_id":4,"kernel_start_sn":4,"kernel_stop_sn":8,"kernel_record_sn":7},)"
          R"({"channel_id":5,"kernel_start_sn":3,"kernel_stop_sn":6,"kernel_record_sn":5}]},)"
          R"("event_trace_ts":{"coll_start_ts":1000,"coll_stop_ts":1000,"kernel_events":[)"
          R"({"channel_id":4,"kernel_start_ts":1003,"kernel_stop_ts":1009,"kernel_record_ts":1009},)"
          R"({"channel_id":5,"kernel_start_ts":1002,"kernel_stop_ts":1008,"kernel_record_ts":1008}]}}})"),
      std::string::npos)
      << text;
}

TEST(InspectorText, FitsTheLongestLineIntoWhatIsReservedForIt) {
  LineText line = all_reduce();
  line.function = model::Function::kReduceScatter;
  line.sequence = ~std::uint64_t{0};
  line.count = ~std::uint64_t{0};
  line.completed_ns = ~std::uint64_t{0};
  line.algorithm = model::Algorithm::kCollnetDirect;
  Writer w = writer();
  std::fill_n(w.host, sizeof w.host - 1, '\x01');
  const CommunicatorText c = communicator(std::string(64, '\x01').c_str());
  std::array<ChannelTrace, kMaxTracedChannels> channels;
  channels.fill({255, ~std::uint64_t{0}, ~std::uint64_t{0}});
  for (const bool traced : {false, true}) {
    line.traced = traced;
    line.enqueued_ns = ~std::uint64_t{0};
    line.channels = channels;
    const std::string text =
        text_of([&](TextBuffer& out) { put_line(out, w, Format::kV42, c, line); });
    EXPECT_LE(text.size(), kMaxLineBytes + (traced ? channels.size() * kMaxChannelBytes : 0));
    EXPECT_EQ(text.back(), '\n');
  }
}

TEST(InspectorText, TellsWhatWasLostInV42) {
  StatisticsText s;
  s.collectives = 5;
  s.collectives_lost = 7;
  s.collectives_lost_before = 4;
  s.p2p = 1;
  const std::string text = text_of([&](TextBuffer& out) {
    put_statistics(out, writer(), Format::kV42, communicator(), s, 1'000'000'000);
  });
  EXPECT_NE(text.find(R"("dump_timestamp_us":1000000,)"), std::string::npos);
  EXPECT_NE(text.find(R"("dump_stats":{"coll_records":5,"coll_dropped_total":7,)"
                      R"("coll_dropped_since_last_dump":3,"p2p_records":1,"p2p_dropped_total":0,)"
                      R"("p2p_dropped_since_last_dump":0}})"
                      "\n"),
            std::string::npos);
}

TEST(InspectorSizes, AreNamedAsInspectorNamesThem) {
  const auto text = [](std::uint64_t bytes) {
    return std::string(mi::size_text(mi::size_range(bytes)).view());
  };
  EXPECT_EQ(text(0), "0B");
  EXPECT_EQ(text(1), "1-2B");
  EXPECT_EQ(text(8192), "8-9KB");
  EXPECT_EQ(text(65'536), "64-65KB");
  EXPECT_EQ(text(1'024'000), "1000-1001KB");
  EXPECT_EQ(text(1'048'576), "1-2MB");
  EXPECT_EQ(text(100'000'000), "95-96MB");
  EXPECT_EQ(text(512ull << 20), "512-513MB");
  EXPECT_EQ(text(4ull << 30), "4-5GB");
  EXPECT_EQ(text(5'000'000'000), "4-5GB");
  EXPECT_EQ(text(~std::uint64_t{0}), "65534-65535TB");
}

class InspectorWindows : public ::testing::Test {
 protected:
  InspectorWindows() {
    std::snprintf(options_.cluster, sizeof options_.cluster, "alpha");
    std::snprintf(options_.job_id, sizeof options_.job_id, "4711");
    options_.local_rank = 2;
    context_.text = communicator("a\"b");
    std::snprintf(context_.gpu_uuid, sizeof context_.gpu_uuid,
                  "GPU-00112233-4455-6677-8899-aabbccddeeff");
  }
  bool add(std::uint64_t duration_ns, model::Function f = model::Function::kAllReduce,
           std::uint64_t count = 1'000'000) {
    LineText line = all_reduce();
    line.function = f;
    line.count = count;
    line.duration_ns = duration_ns;
    return windows_->add(options_, writer(), context_, line);
  }
  std::string shown(std::size_t gpu = 0) {
    return text_of(
        [&](TextBuffer& out) { EXPECT_TRUE(windows_->put_text(out, options_, writer(), gpu)); },
        2u << 20);
  }
  Options options_;
  Context context_;
  std::unique_ptr<Windows> windows_ = std::make_unique<Windows>();
};

TEST_F(InspectorWindows, ShowTheGeometricMeanOfBandwidthAndTheMeanOfTime) {
  // 2 MB over 8 ranks: 3.5 MB over the bus. 35 and 140 GB/s: 70 between them.
  EXPECT_TRUE(add(100'000));
  EXPECT_TRUE(add(25'000));
  constexpr const char* kLabels =
      R"({version="v5.1",cluster="alpha",slurm_job_id="4711",node="node1",hostname="node1",)"
      R"(gpu="GPU2",comm_name="a\"b",n_nodes="2",nranks="8",collective="AllReduce",)"
      R"(message_size="1-2MB",algo_proto="RING_SIMPLE"} )";
  EXPECT_EQ(shown(), "# HELP nccl_bus_bandwidth_gbs " + std::string(mi::kBusBandwidthHelp) +
                         "\n# TYPE nccl_bus_bandwidth_gbs gauge\nnccl_bus_bandwidth_gbs" + kLabels +
                         "70\n# HELP nccl_collective_exec_time_microseconds " +
                         std::string(mi::kExecutionTimeHelp) +
                         "\n# TYPE nccl_collective_exec_time_microseconds gauge\n"
                         "nccl_collective_exec_time_microseconds" +
                         kLabels + "62.5\n");
  EXPECT_STREQ(windows_->gpu(0).file,
               "nccl_inspector_metrics_00112233-4455-6677-8899-aabbccddeeff.prom");
  windows_->clear();
  EXPECT_EQ(shown(), "");
}

TEST_F(InspectorWindows, AddUpEqualLabelsAndKeepGpusApart) {
  EXPECT_TRUE(add(100'000));
  context_.text.hash = 1;  // no label
  EXPECT_TRUE(add(100'000));
  context_.device = 1;
  EXPECT_TRUE(add(100'000, model::Function::kRecv));
  ASSERT_EQ(windows_->gpus(), 2u);
  const std::string first = shown(0);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 6) << first;
  const std::string second = shown(1);
  EXPECT_NE(second.find(R"(nccl_p2p_bus_bandwidth_gbs{version="v5.1")"), std::string::npos);
  EXPECT_NE(second.find(R"(nranks="8",p2p_operation="Recv",message_size="1-2MB"} 20)"),
            std::string::npos)
      << second;
  EXPECT_EQ(second.find("nccl_bus_bandwidth_gbs"), std::string::npos);
}

TEST_F(InspectorWindows, RefuseWhatIsBeyondTheirRoomAndStillFitTheirText) {
  // Each label as long as it can be.
  std::fill_n(options_.cluster, sizeof options_.cluster - 1, '\x01');
  std::fill_n(options_.job_id, sizeof options_.job_id - 1, '\x01');
  std::fill_n(context_.text.name, sizeof context_.text.name - 1, '\x01');
  std::size_t taken = 0;
  for (std::uint32_t n = 2; n < 3'000; ++n) {
    context_.text.nranks = n;
    if (add(100'000)) ++taken;
  }
  EXPECT_EQ(taken, Windows::kMaxRows);
  std::string memory(Windows::kMaxRows * Windows::kMaxRowBytes + 4096, '\0');
  TextBuffer out(memory.data(), memory.size());
  EXPECT_TRUE(windows_->put_text(out, options_, writer(), 0)) << "does not fit into the writer's";
}

}  // namespace
}  // namespace ncclscope::plugin::inspector
