// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/diagnose/nodes.h"
#include "cli/diagnose/observation.h"
#include "cli/diagnose/report.h"

namespace ncclscope::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr double kSilent = 10;

/// What the agent of node `n` says of job 4711, in which each node has one rank of one communicator
/// of `nranks`.
Answer answer_of(int n, int nranks = 2) {
  Answer answer;
  answer.address = "agent at node" + std::to_string(n);
  answer.answered = true;
  answer.response.set_node("node" + std::to_string(n));
  answer.response.set_time_ns(1'000'000'000'000);
  v1::JobSnapshot* job = answer.response.add_jobs();
  job->mutable_job()->set_job_id("4711");
  v1::Communicator* c = job->add_communicators();
  c->set_comm("00000000000000aa");
  c->set_hash_known(true);
  c->set_name("dp_group");
  c->set_dimension("dp");
  c->set_nranks(static_cast<std::uint32_t>(nranks));
  c->set_nnodes(static_cast<std::uint32_t>(nranks));
  c->set_coverage(1);
  v1::Rank* rank = c->add_ranks();
  rank->set_rank(n);
  rank->set_global_rank(std::to_string(n));
  rank->set_gpu_known(true);
  rank->set_pid(100 + n);
  rank->set_state("running");
  v1::RankProgress* p = job->add_progress();
  p->set_comm(c->comm());
  p->set_rank(n);
  p->set_state("running");
  p->set_collectives_enqueued(50);
  p->set_collectives_started(50);
  p->set_collectives_completed(50);
  v1::RankSums* sums = job->add_rank_sums();
  sums->set_comm(c->comm());
  sums->set_rank(n);
  sums->set_collective("AllReduce");
  sums->set_timed_operations(100);
  sums->set_seconds(10);
  sums->set_bus_bytes(1e9);
  return answer;
}

v1::RankProgress& progress_of(Answer& answer) {
  return *answer.response.mutable_jobs(0)->mutable_progress(0);
}

void wait_in(Answer& answer, double seconds) {
  v1::RankProgress& p = progress_of(answer);
  p.set_collectives_enqueued(51);
  p.set_collectives_started(51);
  p.set_inflight_seconds(seconds);
  p.set_oldest_index(50);
  p.set_oldest_signature(7);
  p.set_oldest_started(true);
  v1::OperationBrief* oldest = p.mutable_oldest();
  oldest->set_collective("AllReduce");
  oldest->set_bytes(33554432);
  oldest->set_datatype("ncclBfloat16");
}

/// Ten seconds later: `operations` more that took `seconds` together.
Answer later(Answer answer, std::uint64_t operations, double seconds) {
  answer.response.set_time_ns(answer.response.time_ns() + 10'000'000'000);
  v1::RankSums* sums = answer.response.mutable_jobs(0)->mutable_rank_sums(0);
  sums->set_timed_operations(sums->timed_operations() + operations);
  sums->set_seconds(sums->seconds() + seconds);
  return answer;
}

TEST(Observation, PutsTheAnswersOfTheNodesTogether) {
  const Observation now = observe({answer_of(0), answer_of(1)}, "4711", kSilent);
  EXPECT_THAT(now.job.communicators, SizeIs(1));
  EXPECT_THAT(now.job.members, SizeIs(2));
  EXPECT_THAT(now.job.gpus, SizeIs(2));
  EXPECT_THAT(now.missing, IsEmpty());
  EXPECT_FALSE(now.standing.agents_missing);
  EXPECT_EQ(now.knowing, 2u);
}

TEST(Observation, SaysWhichAnswersAreMissing) {
  Answer dead;
  dead.address = "agent at node1";
  dead.problem = "no answer within 5 s";
  Answer silent = answer_of(0, 3);
  progress_of(silent).set_sample_age_seconds(42);
  Answer vanished = answer_of(2, 3);
  vanished.response.mutable_jobs(0)->mutable_communicators(0)->mutable_ranks(0)->set_state(
      "vanished");
  const Observation now = observe({silent, dead, vanished}, "4711", kSilent);
  ASSERT_THAT(now.missing, SizeIs(4));
  EXPECT_EQ(now.missing[0].kind, Missing::Kind::kAgent);
  EXPECT_EQ(now.missing[1].kind, Missing::Kind::kSilent);
  EXPECT_EQ(now.missing[1].who, "pid 100 on node0, GPU 0 of node0 (global rank 0)");
  EXPECT_THAT(now.missing[1].why, StartsWith("told nothing for 42.0 s"));
  EXPECT_EQ(now.missing[2].kind, Missing::Kind::kVanished);
  EXPECT_EQ(now.missing[3].kind, Missing::Kind::kRanks);
  EXPECT_THAT(now.missing[3].who, StartsWith("rank 1 of communicator dp_group"));
  EXPECT_TRUE(now.standing.agents_missing);
}

TEST(Observation, NamesAgentsTooOldToTellProgress) {
  Answer old = answer_of(0, 1);
  old.response.mutable_jobs(0)->clear_progress();
  const Observation now = observe({old}, "4711", kSilent);
  ASSERT_THAT(now.missing, SizeIs(1));
  EXPECT_EQ(now.missing[0].kind, Missing::Kind::kBlind);
}

TEST(Observation, PrefersTheProcessThatRunsToOneThatHadItsPlace) {
  Answer answer = answer_of(0, 1);
  v1::Communicator* c = answer.response.mutable_jobs(0)->mutable_communicators(0);
  v1::Rank* before = c->add_ranks();
  before->CopyFrom(c->ranks(0));
  before->set_state("vanished");
  before->set_pid(99);
  c->mutable_ranks()->SwapElements(0, 1);
  const Observation now = observe({answer}, "4711", kSilent);
  ASSERT_THAT(now.members, SizeIs(1));
  EXPECT_EQ(now.members[0].pid, 100);
  EXPECT_EQ(now.standing.progress[0].state, verdict::MemberState::kRunning);
}

TEST(Observation, KeepsCommunicatorsWithoutHashApartByNode) {
  Answer a = answer_of(0);
  Answer b = answer_of(1);
  for (Answer* answer : {&a, &b})
    answer->response.mutable_jobs(0)->mutable_communicators(0)->set_hash_known(false);
  EXPECT_THAT(observe({a, b}, "4711", kSilent).job.communicators, SizeIs(2));
}

TEST(Observation, KnowsNothingOfOtherJobs) {
  const Observation now = observe({answer_of(0)}, "4712", kSilent);
  EXPECT_EQ(now.knowing, 0u);
  EXPECT_THAT(now.job.members, IsEmpty());
}

TEST(WindowBetween, GivesRatesByEachAgentsOwnClock) {
  const Round first = {answer_of(0), answer_of(1)};
  Round last = {later(first[0], 20, 2), later(first[1], 40, 1)};
  last[1].response.set_time_ns(first[1].response.time_ns() + 20'000'000'000);
  const Observation now = observe(last, "4711", kSilent);
  const verdict::Window window = window_between(first, last, now);
  ASSERT_THAT(window.collectives, SizeIs(2));
  EXPECT_DOUBLE_EQ(window.collectives[0].operations, 2);
  EXPECT_DOUBLE_EQ(window.collectives[0].seconds, 0.2);
  EXPECT_DOUBLE_EQ(window.collectives[1].operations, 2);
  EXPECT_DOUBLE_EQ(window.collectives[1].seconds, 0.05);
}

TEST(WindowBetween, LeavesOutWhatBeganAnew) {
  const Round first = {answer_of(0), answer_of(1)};
  Round last = {later(first[0], 20, 2), later(first[1], 20, 2)};
  last[0].response.mutable_jobs(0)->mutable_rank_sums(0)->set_timed_operations(3);  // a new agent
  const verdict::Window window = window_between(first, last, observe(last, "4711", kSilent));
  EXPECT_THAT(window.collectives, SizeIs(1));
}

TEST(WindowBetween, LeavesOutAgentsThatDidNotAnswerBefore) {
  const Round first = {answer_of(0), Answer{}};
  const Round last = {later(first[0], 20, 2), later(answer_of(1), 20, 2)};
  EXPECT_THAT(window_between(first, last, observe(last, "4711", kSilent)).collectives, SizeIs(1));
}

TEST(WaitMemory, KeepsTheLongestWaitThatEnded) {
  WaitMemory memory;
  for (const double seconds : {5.0, 40.0, 0.0, 10.0}) {
    Answer answer = answer_of(0, 1);
    if (seconds > 0) wait_in(answer, seconds);
    memory.add(observe({answer}, "4711", kSilent));
  }
  EXPECT_DOUBLE_EQ(memory.longest_ended_seconds(), 40);
}

struct Reported {
  Observation now;
  std::vector<verdict::Finding> findings;
  [[nodiscard]] Report report() const { return {now, findings, {}, 32, kSilent}; }
};

Reported report_on(const Round& round) {
  Reported out;
  out.now = observe(round, "4711", kSilent);
  out.findings = verdict::Judge(out.now.job).findings(out.now.standing);
  return out;
}

TEST(Report, ShowsWhoIsBehindAndWhoWaits) {
  Answer waits = answer_of(0);
  wait_in(waits, 90);
  v1::Neighbour* next = progress_of(waits).add_neighbours();
  next->set_peer(1);
  next->set_is_send(true);
  Answer away = answer_of(1);
  v1::OperationBrief* last = progress_of(away).mutable_last();
  last->set_collective("AllReduce");
  last->set_bytes(33554432);
  last->set_datatype("ncclBfloat16");
  last->set_age_seconds(91);
  const Reported reported = report_on({waits, away});
  EXPECT_EQ(outcome_of(reported.report()), Outcome::kFinding);
  const std::string text = report_text(reported.report());
  EXPECT_THAT(text,
              StartsWith("Job 4711: hang (rank_never_called): rank 1 of communicator dp_group "
                         "has not called what the others wait in\n  Confidence high, since "));
  // clang-format off
  EXPECT_THAT(text, HasSubstr(R"(
communicator dp_group (00000000000000aa, 2 ranks):
   RANK  GLOBAL  NODE   GPU  PID  CALLED  STARTED  DONE   WAITS  STATE         IN                                          LAST DONE                              RING
>     1       1  node1    0  101      50       50    50       -  outside NCCL  -                                           AllReduce 32 MiB Bfloat16, 91.0 s ago  -
      0       0  node0    0  100      51       51    50  90.0 s  waits         #50 AllReduce 32 MiB Bfloat16, GPU started  -                                      ? > . > 1

2 of 2 agents answered, 2 know the job: 2 GPUs, 1 communicator
)"));
  // clang-format on
  const nlohmann::ordered_json json = report_json(reported.report());
  EXPECT_EQ(json.at("outcome"), "finding");
  const auto& finding = json.at("findings").at(0);
  EXPECT_EQ(finding.at("kind"), "hang");
  EXPECT_EQ(finding.at("class"), "rank_never_called");
  EXPECT_EQ(finding.at("ranks"), nlohmann::ordered_json::array({1}));
  EXPECT_EQ(finding.at("gpus").at(0).at("node"), "node1");
  EXPECT_EQ(finding.at("waiting_seconds"), 90);
  EXPECT_EQ(json.at("ranks").size(), 2u);
}

TEST(Report, IsHealthyOrPartial) {
  EXPECT_THAT(report_text(report_on({answer_of(0), answer_of(1)}).report()),
              StartsWith("Job 4711: healthy\n"));
  Answer dead;
  dead.address = "agent at node1";
  dead.problem = "no answer within 5 s";
  const Reported partial = report_on({answer_of(0), dead});
  EXPECT_EQ(outcome_of(partial.report()), Outcome::kPartial);
  EXPECT_THAT(report_text(partial.report()),
              HasSubstr("Missing answers:\n  agent at node1: no answer within 5 s\n  rank 1 of "));
}

TEST(Report, IsNotHealthyWhereNobodyCouldBeJudged) {
  Reported reported = report_on({answer_of(0), answer_of(1)});
  verdict::WindowResult blind;
  blind.judged = blind.late = {0, 0};
  blind.lag = blind.communication = blind.wait = blind.caused = blind.queue = {0, 0};
  blind.send.resize(2);
  blind.receive.resize(2);
  Report report = reported.report();
  report.windows = {&blind};
  EXPECT_EQ(outcome_of(report), Outcome::kPartial);
  EXPECT_THAT(report_text(report), StartsWith("Job 4711: nothing is wrong as far as can be seen, "
                                              "but who is late cannot be told\n"));

  verdict::WindowResult seen = blind;
  seen.judged = {1, 1};
  report.windows = {&seen, &blind};
  EXPECT_EQ(outcome_of(report), Outcome::kHealthy);

  // Who waits for a rank communicates with nobody, and why is told.
  report.windows = {&blind};
  reported.findings.emplace_back().kind = verdict::Kind::kWaiting;
  EXPECT_EQ(outcome_of(report), Outcome::kHealthy);
}

TEST(Report, NeverPrintsWhatCouldSteerATerminal) {
  Answer answer = answer_of(0, 1);
  answer.response.set_node("node\x1b[2J");
  answer.response.mutable_jobs(0)->mutable_communicators(0)->set_name("a\x1b]0;b\x07");
  wait_in(answer, 90);
  progress_of(answer).mutable_oldest()->set_collective("All\x1bReduce");
  const std::string text = report_text(report_on({answer}).report());
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_EQ(text.find('\x07'), std::string::npos) << text;
}

TEST(Nodes, AreNamedInAList) {
  EXPECT_THAT(split_list("a,b:1,,c"), ElementsAre("a", "b:1", "c"));
  EXPECT_THAT(split_list(""), IsEmpty());
}

TEST(Nodes, AreAskedAtTheirPortAndThisOneAtItsSocket) {
  const std::string socket = "/proc/self/exe";  // is there
  EXPECT_EQ(address_of("gpu7", 9465, "gpu8", socket), "gpu7:9465");
  EXPECT_EQ(address_of("gpu7:1", 9465, "gpu8", socket), "gpu7:1");
  EXPECT_EQ(address_of("gpu8", 9465, "gpu8.cluster", socket), "unix:" + socket);
  EXPECT_EQ(address_of("gpu8.cluster", 9465, "gpu8", socket), "unix:" + socket);
  EXPECT_EQ(address_of("gpu8", 9465, "gpu8", "/nowhere/api.sock"), "gpu8:9465");
  EXPECT_EQ(address_of("/run/x.sock", 9465, "gpu8", socket), "/run/x.sock");
}

TEST(Nodes, OfPrometheusComeWithoutTheirPort) {
  EXPECT_EQ(host_of("gpu7:9464"), "gpu7");
  EXPECT_EQ(host_of("[fe80::1]:9464"), "fe80::1");
  EXPECT_EQ(host_of("gpu7"), "gpu7");
}

TEST(Nodes, OfSlurmAreAskedForWithItsIdsOnly) {
  EXPECT_THROW((void)slurm_nodes("--help"), std::runtime_error);
  EXPECT_THROW((void)slurm_nodes("1;2"), std::runtime_error);
  EXPECT_THROW((void)slurm_nodes(""), std::runtime_error);
}

TEST(OutputOf, ReturnsWhatAProgramPrints) {
  using std::chrono::milliseconds;
  EXPECT_EQ(output_of({"printf", "a\\nb"}, milliseconds(20'000)), "a\nb");
  EXPECT_THROW((void)output_of({"false"}, milliseconds(20'000)), std::runtime_error);
  EXPECT_THROW((void)output_of({"/nowhere/at/all"}, milliseconds(20'000)), std::runtime_error);
  EXPECT_THROW((void)output_of({"sleep", "600"}, milliseconds(50)), std::runtime_error);
}

TEST(PrometheusAnswer, IsReadAsAVector) {
  const auto samples =
      parse_vector(R"({"status":"success","data":{"resultType":"vector","result":[)"
                   R"({"metric":{"instance":"gpu7:9464"},"value":[1700000000.1,"0.25"]}]}})");
  ASSERT_THAT(samples, SizeIs(1));
  EXPECT_EQ(samples[0].labels.at("instance"), "gpu7:9464");
  EXPECT_DOUBLE_EQ(samples[0].value, 0.25);
}

TEST(PrometheusAnswer, ThatIsNoneIsRefused) {
  for (const char* body :
       {"<html>", "[]", R"({"status":"error","error":"x"})", R"({"status":"success"})",
        R"({"status":"success","data":{"result":[1]}})"})
    EXPECT_THROW((void)parse_vector(body), std::runtime_error) << body;
}

TEST(TransferBaselines, NeedBandwidthAndBytesOfTheSameShape) {
  const std::map<std::string, std::string> labels = {
      {"collective", "AllReduce"}, {"size", "<=64MiB"}, {"algorithm", "RING"},
      {"dimension", "dp"},         {"nranks", "4"},     {"nnodes", "2"}};
  auto without_bytes = labels;
  without_bytes["size"] = "<=1MiB";
  auto not_compared = labels;
  not_compared["collective"] = "Broadcast";
  const auto found =
      transfer_baselines({{labels, 8e10}, {without_bytes, 7e10}, {not_compared, 6e10}},
                         {{labels, 5e7}, {not_compared, 4e7}});
  ASSERT_EQ(found.size(), 1u);
  const verdict::Shape& shape = found.begin()->first;
  EXPECT_EQ(shape,
            (verdict::Shape{verdict::Collective::kAllReduce, "<=64MiB", "RING", "dp", 4, 2}));
  EXPECT_EQ(found.begin()->second.transfer, 8e10);
  EXPECT_EQ(found.begin()->second.bytes, 5e7);
}

TEST(LabelValue, IsQuoted) {
  EXPECT_EQ(label_value("ns/job"), "\"ns/job\"");
  EXPECT_EQ(label_value("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
}

}  // namespace
}  // namespace ncclscope::cli
