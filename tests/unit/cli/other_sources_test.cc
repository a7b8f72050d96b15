// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/diagnose/flight_recorder.h"
#include "cli/diagnose/other_sources.h"
#include "cli/diagnose/ras.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using tests::error_of;

const std::string kData = NCCLSCOPE_TEST_DATA;

std::string file_text(const std::string& name) {
  std::ifstream in(kData + "/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string flight_error(const std::string& text) {
  return error_of([&] { (void)parse_flight_dump("d/trace_3", text); });
}

OtherSources flight(const std::string& folder) {
  OtherSourceOptions options;
  options.flight_recorder = {kData + "/flight_recorder/" + folder};
  return look_at(options, "", {});
}

// ---- Flight Recorder

TEST(FlightRecorder, NamesTheRankThatDidNotCall) {
  const OtherSources out = flight("never_called");
  ASSERT_THAT(out.flight_findings, SizeIs(1));
  const verdict::Finding& finding = out.flight_findings[0];
  EXPECT_EQ(finding.kind, verdict::Kind::kHang);
  EXPECT_EQ(finding.hang_class, verdict::HangClass::kRankNeverCalled);
  EXPECT_EQ(finding.confidence, verdict::Confidence::kHigh);
  ASSERT_THAT(finding.members, SizeIs(1));
  const verdict::Job& job = out.flight->job;
  EXPECT_EQ(job.gpus[job.members[finding.members[0]].gpu].global_rank, "2");
  EXPECT_NEAR(finding.seconds, 600.0, 1e-6);
  EXPECT_EQ(out.outcome(), Outcome::kFinding);
  EXPECT_THAT(
      text_of(out, 32),
      AllOf(HasSubstr("The job: hang (rank_never_called): rank 2 of communicator default_pg"),
            HasSubstr("AllReduce 2 MiB BFloat16, GPU started"),
            HasSubstr("4 dumps of PyTorch's Flight Recorder: 4 process groups")));
}

TEST(FlightRecorder, TellsGroupsOfTheSameNameAndOtherRanksApart) {
  const OtherSources out = flight("never_called");
  int groups = 0;
  for (const verdict::Communicator& c : out.flight->job.communicators) {
    if (c.name != "tp") continue;
    ++groups;
    EXPECT_EQ(c.nranks, 2u);
  }
  EXPECT_EQ(groups, 2);
}

TEST(FlightRecorder, ReadsConvertedPicklesAndNamesTheLinesThatCallDifferentThings) {
  const OtherSources out = flight("mismatch");
  ASSERT_THAT(out.flight_findings, SizeIs(1));
  EXPECT_EQ(out.flight_findings[0].hang_class, verdict::HangClass::kArgumentMismatch);
  ASSERT_THAT(out.flight->missing, SizeIs(1));
  EXPECT_EQ(out.flight->missing[0].kind, Missing::Kind::kNotRecorded);
  EXPECT_THAT(text_of(out, 32),
              AllOf(HasSubstr("Called at train.py:44 (train_step) by rank 0"),
                    HasSubstr("Called at train.py:97 (save_checkpoint) by rank 1"),
                    HasSubstr("TORCH_NCCL_ENABLE_TIMING")));
}

TEST(FlightRecorder, SaysWhoseDumpsAreMissing) {
  OtherSourceOptions options;
  const std::string folder = kData + "/flight_recorder/never_called/nccl_trace_rank_";
  options.flight_recorder = {folder + "0", folder + "1", folder + "3"};
  const OtherSources out = look_at(options, "4711", {});
  ASSERT_THAT(out.flight->missing, SizeIs(1));
  EXPECT_EQ(out.flight->missing[0].who, "global rank 2");
  EXPECT_EQ(out.flight->missing[0].why, "no dump of theirs was given");
  for (const verdict::Finding& finding : out.flight_findings)
    EXPECT_EQ(finding.confidence, verdict::Confidence::kLow);
}

TEST(FlightRecorder, IsHealthyWhereEverythingCompleted) {
  std::string text = file_text("flight_recorder/never_called/nccl_trace_rank_2");
  const FlightDump dump = parse_flight_dump("nccl_trace_rank_2", text);
  EXPECT_EQ(dump.rank, 2);
  EXPECT_EQ(dump.nccl_version, "2.28.9");
  ASSERT_THAT(dump.entries, SizeIs(7));
  EXPECT_EQ(dump.entries[1].operation, "all_reduce");
  EXPECT_EQ(dump.entries[1].input_elements, std::uint64_t{1} << 20);
  EXPECT_DOUBLE_EQ(dump.entries[1].duration_seconds, 1.5e-3);
  OtherSources out;
  out.flight = observe_flight_dumps({dump}, "");
  const verdict::Judge judge(out.flight->job);
  EXPECT_THAT(judge.findings(out.flight->standing), IsEmpty());
}

TEST(FlightRecorder, FindsTheRankInTheName) {
  EXPECT_EQ(rank_of_dump("/tmp/nccl_trace_rank_12"), 12);
  EXPECT_EQ(rank_of_dump("a/7.json"), 7);
  EXPECT_EQ(rank_of_dump("a3/trace"), -1);
  EXPECT_EQ(rank_of_dump("trace_99999999999"), -1);
}

TEST(FlightRecorder, NamesFileAndEntryOfWhatIsWrong) {
  EXPECT_THAT(flight_error("{\"entries\": [\n  {\"a\": 1},\n"),
              HasSubstr("d/trace_3:3:1: no JSON"));
  EXPECT_THAT(flight_error("{\"entries\": [\n  {\"a\": x}]}"), HasSubstr("d/trace_3:2:9: no JSON"));
  EXPECT_THAT(flight_error("\x80\x04 pickle"), AllOf(HasSubstr("a pickle"), HasSubstr("python3")));
  EXPECT_THAT(flight_error("[]"), HasSubstr("d/trace_3: wanted a dump of the Flight Recorder"));
  EXPECT_THAT(flight_error(R"({"version":"3.0","entries":[]})"),
              HasSubstr("d/trace_3: version: wanted 2.x, is \"3.0\""));
  EXPECT_THAT(flight_error(R"({"entries":[{}]})"), HasSubstr("d/trace_3: entry 0: process_group"));
  EXPECT_THAT(flight_error(R"({"entries":[7]})"),
              HasSubstr("d/trace_3: entry 0: wanted an object"));
  EXPECT_THAT(flight_error(R"({"entries":[{"process_group":["0","x"],"profiling_name":"nccl:reduce",
                            "collective_seq_id":"a"}]})"),
              HasSubstr("entry 0: collective_seq_id: wanted a number, is \"a\""));
  EXPECT_THAT(flight_error(R"({"pg_config":{"0":{"ranks":"[0, x]"}}})"),
              HasSubstr("pg_config: 0: ranks: wanted a list of ranks"));
  EXPECT_THAT(error_of([] { (void)parse_flight_dump("trace", R"({"entries":[]})"); }),
              HasSubstr("whose is it?"));
  EXPECT_THAT(error_of([] { (void)read_flight_dumps({"/nonexistent/trace_1"}); }),
              HasSubstr("/nonexistent/trace_1: cannot be read"));
}

TEST(FlightRecorder, RefusesTwoDumpsOfOneRank) {
  const std::string file = kData + "/flight_recorder/never_called/nccl_trace_rank_0";
  EXPECT_THAT(error_of([&] {
                (void)read_flight_dumps({file, file});
              }),
              HasSubstr("two dumps of rank 0"));
}

TEST(FlightRecorder, KnowsNcclsNamesAndSizes) {
  EXPECT_EQ(nccl_name("_reduce_scatter_base"), "ReduceScatter");
  EXPECT_EQ(nccl_name("send 0->1"), "Send");
  EXPECT_EQ(nccl_name("coalesced"), "");
  EXPECT_EQ(torch_element_bytes("BFloat16"), 2u);
  EXPECT_EQ(torch_element_bytes("Unheard"), 0u);
}

// ---- RAS

RasStatus ras(const std::string& name) {
  return parse_ras_status(name, file_text("ras/" + name));
}

TEST(Ras, AccusesWhoIsBehindAndNotWhoWaitsElsewhere) {
  const RasStatus before = ras("stuck_0.json");
  const RasStatus now = ras("stuck_1.json");
  const std::vector<RasFinding> found = judge_ras(now, &before);
  ASSERT_THAT(found, SizeIs(2));
  for (const RasFinding& f : found) {
    EXPECT_EQ(f.kind, "rank_never_called");
    EXPECT_TRUE(f.fault);
    EXPECT_EQ(f.confidence, "high");
    ASSERT_THAT(f.ranks, SizeIs(1));
    EXPECT_EQ(f.ranks[0].pid, 201);
  }
  EXPECT_EQ(found[1].comm, "beebea5449e0a7e7");
  EXPECT_THAT(found[1].headline, HasSubstr("rank 1 of communicator beebea5449e0a7e7 has not"));
}

TEST(Ras, OneSampleAccusesNobody) {
  const std::vector<RasFinding> found = judge_ras(ras("stuck_1.json"), nullptr);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_FALSE(found[0].fault);
  EXPECT_THAT(found[0].explanation, HasSubstr("give an earlier one"));
}

TEST(Ras, WhatMovesIsWell) {
  const RasStatus before = ras("moving_0.json");
  EXPECT_THAT(judge_ras(ras("moving_1.json"), &before), IsEmpty());
}

TEST(Ras, ReadsWhatNccl2289PrintsOfMissingRanks) {
  EXPECT_FALSE(nlohmann::json::accept(file_text("ras/dead_2_28_9.json")));
  const std::vector<RasFinding> found = judge_ras(ras("dead_2_28_9.json"), nullptr);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].kind, "process_gone");
  EXPECT_THAT(found[0].headline, HasSubstr("rank 2 of communicator a1349768e9517ed7 is dead"));
  EXPECT_EQ(found[1].kind, "process_stopped");
  EXPECT_EQ(found[1].ranks.at(0).pid, 101);
}

TEST(Ras, TellsErrorsOfNccl) {
  const std::vector<RasFinding> found = judge_ras(ras("error.json"), nullptr);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, "nccl_error");
  EXPECT_EQ(found[0].comm, "000000000000002a");
  EXPECT_THAT(found[0].explanation,
              AllOf(HasSubstr("rank 0: asynchronous error 6"), HasSubstr("rank 1: aborted")));
}

TEST(Ras, AccusesTheSmallerPartyOfDifferentCalls) {
  const std::vector<RasFinding> found = judge_ras(ras("mismatch.json"), nullptr);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, "argument_mismatch");
  ASSERT_THAT(found[0].ranks, SizeIs(1));
  EXPECT_EQ(found[0].ranks[0].rank, 2);
}

TEST(Ras, NamesFileAndPlaceOfWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return error_of([&] { (void)parse_ras_status("ras.json", text); });
  };
  EXPECT_THAT(error("NCCL version 2.26"), HasSubstr("ras.json:1:1: no JSON"));
  EXPECT_THAT(error("{}"), HasSubstr("ras.json: wanted an object with communicators"));
  EXPECT_THAT(error(R"({"communicators":[{}]})"), HasSubstr("ras.json: communicator 0: hash"));
  EXPECT_THAT(error(R"({"communicators":[{"hash":"0x1","ranks":[{"rank":0,
                     "collective_counts":{"AllReduce":-1}}]}]})"),
              HasSubstr("communicator 0: ranks 0: AllReduce: wanted a count"));
}

TEST(Ras, RunsNcclrasTwice) {
  const tests::TemporaryDirectory folder;
  const std::string program = folder / "ncclras";
  std::ofstream(program) << "#!/bin/sh\necho \"$@\" >>'" << folder / "calls"
                         << "'\ncat '" << kData << "/ras/stuck_1.json'\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  OtherSourceOptions options;
  options.ncclras = "node7:28028";
  options.ncclras_program = program;
  options.between_samples = std::chrono::milliseconds(0);
  const OtherSources out = look_at(options, "", {});
  EXPECT_TRUE(out.two_ras_samples);
  EXPECT_EQ(out.outcome(), Outcome::kFinding);
  std::ifstream calls(folder / "calls");
  std::string line;
  int count = 0;
  for (; std::getline(calls, line); ++count) EXPECT_EQ(line, "-f json -h node7 -p 28028");
  EXPECT_EQ(count, 2);
  EXPECT_THAT(text_of(out, 8), AllOf(HasSubstr("NCCL RAS"), Not(HasSubstr("One sample"))));
}

TEST(Ras, MakesOptionsOfAddressesOnly) {
  EXPECT_THAT(ncclras_command("ncclras", "local"), ElementsAre("ncclras", "-f", "json"));
  EXPECT_THAT(ncclras_command("r", "[::1]:28028"),
              ElementsAre("r", "-f", "json", "-h", "::1", "-p", "28028"));
  EXPECT_THROW((void)ncclras_command("r", "-x"), std::runtime_error);
  EXPECT_THROW((void)ncclras_command("r", "host:1;ls"), std::runtime_error);
}

}  // namespace
}  // namespace ncclscope::cli
