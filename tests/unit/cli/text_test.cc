// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/agents.h"
#include "cli/json.h"
#include "cli/tail_text.h"
#include "nlohmann/json.hpp"

namespace ncclscope::cli {
namespace {

TEST(FormatBytes, KeepsWholeNumbersWhole) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(256ull << 20), "256 MiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::uint64_t>::max()), "16 EiB");
}

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(-1), "0 s");
  EXPECT_EQ(format_duration(std::nan("")), "0 s");
  EXPECT_EQ(format_duration(850e-9), "850 ns");
  EXPECT_EQ(format_duration(999.6e-9), "1.00 us");
  EXPECT_EQ(format_duration(12.34e-6), "12.3 us");
  EXPECT_EQ(format_duration(4.5e-3), "4.50 ms");
  EXPECT_EQ(format_duration(1.234), "1.23 s");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(7322), "2 h 2 min");
}

TEST(FormatBandwidth, IsInPowersOfTen) {
  EXPECT_EQ(format_bandwidth(123.4e9), "123 GB/s");
  EXPECT_EQ(format_bandwidth(12.34e9), "12.3 GB/s");
  EXPECT_EQ(format_bandwidth(5e6), "0.01 GB/s");
}

TEST(Printable, LeavesNoControlCharacters) {
  EXPECT_EQ(printable("a\x1B[2Jb\n\t\x7F"), "a?[2Jb???");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "?31m")
      << "C1 control sequence introducer";
  EXPECT_EQ(printable("J\xC3\xBClich \xC2\xB5s"), "J\xC3\xBClich \xC2\xB5s");
}

TEST(Table, AlignsColumnsByCharacters) {
  Table table({{"NAME"}, {"N", Table::Align::kRight}, {"LAST"}});
  table.add({"J\xC3\xBClich", "5", "x"});
  table.add({"b", "123", ""});
  EXPECT_EQ(table.render(),
            "NAME      N  LAST\n"
            "J\xC3\xBClich    5  x\n"
            "b       123\n");
}

TEST(Table, CutsRowsAndLines) {
  Table table({{"NAME"}, {"VALUE"}});
  table.add({"\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F-long", "1"});
  table.add({"second", "2"});
  EXPECT_EQ(table.render(1, 4), "NAME\n\xC3\xA4\xC3\xB6\xC3\xBC\xC3\x9F\n");
}

TEST(AgentAddress, PathsAreUnixSockets) {
  EXPECT_EQ(target_of("/run/x.sock"), "unix:/run/x.sock");
  EXPECT_EQ(target_of("unix:/run/x.sock"), "unix:/run/x.sock");
  EXPECT_EQ(target_of("node0/api.sock"), "unix:node0/api.sock");
  EXPECT_EQ(target_of("node1:9465"), "node1:9465");
  EXPECT_EQ(target_of("dns:///node1:9465"), "dns:///node1:9465");
}

TEST(Explain, SaysWhatWhereAndHowToStart) {
  const std::string text = explain("/nonexistent/api.sock", {grpc::StatusCode::UNAVAILABLE, "no"});
  EXPECT_NE(text.find("/nonexistent/api.sock"), std::string::npos);
  EXPECT_NE(text.find("No such file"), std::string::npos);
  EXPECT_NE(text.find("systemctl start ncclscope-agent"), std::string::npos);
  EXPECT_NE(explain("x", {grpc::StatusCode::PERMISSION_DENIED, "not\x1B yours"}).find("not? yours"),
            std::string::npos);
}

v1::TailOperationsResponse operation() {
  v1::TailOperationsResponse response;
  v1::Operation& o = *response.mutable_operation();
  o.set_job_id("4711");
  o.set_comm("00c0ffee12345678");
  o.set_rank(3);
  o.set_collective("AllReduce");
  o.set_datatype("ncclFloat32");
  o.set_bytes(256u << 20);
  o.set_bytes_complete(true);
  o.set_root(-1);
  o.set_peer(-1);
  o.set_algorithm("RING");
  o.set_protocol("SIMPLE");
  o.set_channels(16);
  o.set_channels_known(true);
  o.set_index(118);
  o.set_timing("gpu");
  o.set_complete(true);
  o.set_duration_ns(2'500'000);
  o.set_busbw(187.9e9);
  o.set_session_id(0xFEDCBA9876543210u);
  return response;
}

TEST(TailLine, ShowsAnOperationWithUnits) {
  EXPECT_EQ(tail_line("nid001", operation()),
            "--:--:--.------  nid001  4711  00c0ffee12345678 r3  #118 AllReduce  256 MiB float32  "
            "RING/SIMPLE  16 "
            "channels  2.50 ms  busbw 188 GB/s");
}

TEST(TailLine, SaysWhyThereIsNoTime) {
  v1::TailOperationsResponse response = operation();
  v1::Operation& o = *response.mutable_operation();
  o.set_duration_ns(0);
  o.set_busbw(0);
  o.set_untimed_reason("copy_engine");
  o.set_rank(-1);
  o.set_collective("Send");
  o.set_peer(2);
  o.clear_algorithm();
  o.clear_protocol();
  o.set_complete(false);
  const std::string line = tail_line("n", response);
  EXPECT_NE(line.find("r?  #118 Send peer 2"), std::string::npos) << line;
  EXPECT_NE(line.find("not timed: copy_engine  incomplete"), std::string::npos) << line;
  EXPECT_EQ(line.find("GB/s"), std::string::npos) << line;
}

TEST(TailLine, NamesNetworkPhasesByDirection) {
  v1::TailOperationsResponse response;
  v1::NetworkPhases& n = *response.mutable_network();
  n.set_is_send(true);
  n.set_peer(1);
  for (const std::uint64_t ns : {1'000u, 2'000u, 3'000u}) n.add_phase_ns(ns);
  EXPECT_NE(tail_line("n", response)
                .find("send to 1  0 B  0 steps  gpu_wait 1.00 us  peer_wait 2.00 us  wire 3.00 us"),
            std::string::npos)
      << tail_line("n", response);
  n.set_is_send(false);
  EXPECT_NE(tail_line("n", response).find("data_wait 1.00 us  flush 2.00 us  gpu_wait 3.00 us"),
            std::string::npos);
}

TEST(TailLine, IsEmptyWithoutARecord) {
  EXPECT_EQ(tail_line("n", {}), "");
}

TEST(Json, HasNumbersAsNumbersAndAllFields) {
  const nlohmann::ordered_json json = message_json(operation());
  EXPECT_EQ(json["operation"]["bytes"], 256u << 20);
  EXPECT_TRUE(json["operation"]["bytes"].is_number());
  EXPECT_EQ(json["operation"]["session_id"], "fedcba9876543210");
  EXPECT_EQ(json["operation"]["warmup"], false) << "fields with default values are there";
  EXPECT_EQ(json["skipped"], 0);
  EXPECT_FALSE(json.contains("network")) << "of a oneof only what is set";
}

TEST(Json, HasListsOfMessages) {
  v1::ProcessBooks books;
  v1::Count& count = *books.add_dropped();
  count.set_reason("overwritten");
  count.set_value(7);
  const nlohmann::ordered_json json = message_json(books);
  EXPECT_EQ(json["dropped"].dump(), R"([{"reason":"overwritten","value":7}])");
  EXPECT_EQ(json["untimed"].dump(), "[]");
}

}  // namespace
}  // namespace ncclscope::cli
