// SPDX-License-Identifier: Apache-2.0
#include "verdict/judge.h"

#include <gmock/gmock.h>

#include "tests/unit/verdict/job_rig.h"
#include "verdict/text.h"

namespace ncclscope::verdict {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string told(const Job& job, const Finding& finding) {
  return headline(job, finding) + "\n" + explanation(job, finding);
}

/// Window after window in which `rank` of the only communicator is late by `seconds` per second.
std::vector<Finding> after(const Job& job, int windows, const Window& window,
                           JudgeOptions options = {}) {
  Judge judge(job, options);
  for (int i = 0; i < windows; ++i) judge.add(window);
  return judge.findings();
}

TEST(Judge, AccusesNobodyInAHealthyJob) {
  const Job job = ddp_job(2, 2);
  EXPECT_THAT(after(job, 12, even_window(job)), IsEmpty());
}

TEST(Judge, AccusesALateGpuAfterThreeWindows) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  EXPECT_THAT(after(job, 2, window), IsEmpty());
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].confidence, Confidence::kHigh);
  EXPECT_DOUBLE_EQ(found[0].observed_seconds, 30);
  EXPECT_EQ(told(job, found[0]),
            "GPU 0 of node1 (global rank 2) is late\n"
            "It works 300 ms per second longer than its peers, and the others wait for it, most in "
            "AllReduce of communicator dp_group (0000000000000000, 4 ranks); it waits 0 s per "
            "second itself. A GPU counts as late from 10 ms per second on. Reason: host or GPU is "
            "not known, its clocks could not be matched.");
}

TEST(Judge, TellsHostFromGpuByTheQueue) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  // Hosts run ahead: everybody's operations queue, those of who calls late for less time.
  const auto told_with = [&](double seconds) {
    for (GpuRates& gpu : window.gpus) {
      gpu.queue_operations = gpu.calls = 10;
      gpu.queue_seconds = 6.9;
    }
    window.gpus[2].queue_seconds = seconds;
    return after(job, 3, window)[0];
  };
  EXPECT_EQ(told_with(2.6).reason, Reason::kHost);
  EXPECT_THAT(explanation(job, told_with(2.6)),
              ::testing::EndsWith("Reason: late on the host (data loader, Python, CPU): its "
                                  "operations queue for less time than the others' (4.3 s per "
                                  "second)."));
  EXPECT_EQ(told_with(6.91).reason, Reason::kEither);
  EXPECT_EQ(told_with(7.15).reason, Reason::kGpu);
  EXPECT_THAT(explanation(job, told_with(7.15)),
              ::testing::EndsWith("Reason: its GPU was still computing when the operation was "
                                  "called: its operations queue for longer than the others' (250 "
                                  "ms per second)."));
  // Some of it is known of the median only.
  window.gpus[2].queue_operations = 0;
  EXPECT_EQ(after(job, 3, window)[0].reason, Reason::kUnknown);
}

TEST(Judge, SaysSoonerWithLessConfidenceIfAsked) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  JudgeOptions options;
  options.provisional = true;
  EXPECT_EQ(after(job, 1, window, options)[0].confidence, Confidence::kLow);
  EXPECT_EQ(after(job, 2, window, options)[0].confidence, Confidence::kMedium);
}

TEST(Judge, ForgetsACulpritThatIsInTimeAgain) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  Judge judge(job);
  for (int i = 0; i < 3; ++i) judge.add(window);
  EXPECT_THAT(judge.findings(), SizeIs(1));
  judge.add(even_window(job));
  EXPECT_THAT(judge.findings(), IsEmpty());
}

/// Tensor groups in a node, data parallelism across `nodes` of 2 GPUs.
Job tp_dp_job(int nodes) {
  Job job = make_job(nodes, 2);
  std::vector<std::uint32_t> even;
  std::vector<std::uint32_t> odd;
  for (std::uint32_t n = 0; n < static_cast<std::uint32_t>(nodes); ++n) {
    even.push_back(2 * n);
    odd.push_back(2 * n + 1);
  }
  add_communicator(job, "dp", "dp", even);
  add_communicator(job, "dp", "dp", odd);
  return job;
}

TEST(Judge, NamesTheNodeWhenAllCulpritsAreOnIt) {
  const Job job = tp_dp_job(4);
  Window window = even_window(job);
  make_late(job, window, 0, 1, 0.2);
  make_late(job, window, 1, 1, 0.2);
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kLateNode);
  EXPECT_EQ(
      told(job, found[0]),
      "node node1 is late\n"
      "Late are GPU 0 of node1 (global rank 2); GPU 1 of node1 (global rank 3). They work up to "
      "200 ms per second longer than their peers, and the others wait for them, most in AllReduce "
      "of communicator dp (0000000000000000, 4 ranks); they wait 0 s per second themselves. A GPU "
      "counts as late from 10 ms per second on.");
}

TEST(Judge, NamesTheGroupAndTheReplica) {
  Job job = make_job(8, 1);
  const std::uint32_t a = add_communicator(job, "dp", "dp", {0, 1, 2, 3});
  const std::uint32_t b = add_communicator(job, "dp", "dp", {4, 5, 6, 7});
  Window window = even_window(job);
  make_late(job, window, a, 1, 0.2);
  make_late(job, window, b, 1, 0.2);
  std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kLateReplica);
  EXPECT_EQ(headline(job, found[0]), "data-parallel replica 1 is late");
  const std::uint32_t tp = add_communicator(job, "tp", "tp", {1, 5});
  found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kLateGroup);
  EXPECT_EQ(found[0].communicator, tp);
  EXPECT_EQ(headline(job, found[0]), "the members of communicator tp are late");
}

TEST(Judge, NamesEachWhereTheyHaveNothingInCommon) {
  const Job job = ddp_job(8, 1);
  Window window = even_window(job);
  make_late(job, window, 0, 6, 0.3);
  window.collectives[1].seconds -= 0.2;
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_THAT(found[0].gpus, ElementsAre(6)) << "the costliest first";
  EXPECT_THAT(found[1].gpus, ElementsAre(1));
}

TEST(Judge, AccusesTheWorstFirst) {
  const Job job = ddp_job(8, 1);
  Window window = even_window(job);
  make_late(job, window, 0, 6, 0.3);
  window.collectives[1].seconds -= 0.1;
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].gpus, ElementsAre(6));
}

TEST(Judge, TakesTheNoiseOfAllItsWindows) {
  const Job job = ddp_job(1, 4);
  Judge judge(job);
  for (int i = 0; i < 3; ++i) {
    Window window = even_window(job);
    make_late(job, window, 0, 2, 0.1);
    // In one window of three the others differ.
    if (i == 1) window.collectives[0].seconds += 0.09;
    if (i == 1) window.collectives[1].seconds += 0.05;
    judge.add(window);
  }
  EXPECT_THAT(judge.findings(), IsEmpty());
}

TEST(Judge, CallsALongerStageImbalance) {
  Job job = make_job(2, 4);
  for (std::uint32_t g = 0; g < 4; ++g) add_communicator(job, "pp", "pp", {g, g + 4});
  add_communicator(job, "all", "", {0, 1, 2, 3, 4, 5, 6, 7});
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) {
    if (job.members[rates.member].gpu < 4) rates.seconds += 0.05;
  }
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kImbalance);
  EXPECT_FALSE(is_fault(found[0].kind));
  EXPECT_THAT(found[0].gpus, ElementsAre(4, 5, 6, 7));
  EXPECT_NEAR(found[0].seconds, 0.1, 1e-9);
}

TEST(Judge, CallsItImbalanceIfItWasAlwaysSo) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  Judge judge(job);
  judge.set_baseline({{0, 0, 0.25, 0}, {}});
  for (int i = 0; i < 3; ++i) judge.add(window);
  std::vector<Finding> found = judge.findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kImbalance);
  EXPECT_EQ(
      told(job, found[0]),
      "the work is unevenly spread\n"
      "GPU 0 of node1 (global rank 2) works longer, up to 300 ms per second: a whole pipeline "
      "stage or expert, or no more than this job always had it. Uneven work, no fault.");
}

TEST(Judge, LearnsWhatAJobAlwaysHad) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.008);  // below what counts as late
  Judge judge(job);
  for (int i = 0; i < 12; ++i) judge.add(window);
  Window more = even_window(job);
  make_late(job, more, 0, 2, 0.011);
  for (int i = 0; i < 3; ++i) judge.add(more);
  std::vector<Finding> found = judge.findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kImbalance);
  make_late(job, more, 0, 2, 0.1);
  for (int i = 0; i < 3; ++i) judge.add(more);
  found = judge.findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kLateGpu);
}

TEST(Judge, SaysThatLatenessIsHidden) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  window.step_seconds = 1.01;
  make_late(job, window, 0, 2, 0.3);
  Judge judge(job);
  judge.set_baseline({{}, 1.0, {}});
  for (int i = 0; i < 3; ++i) judge.add(window);
  EXPECT_TRUE(judge.findings()[0].hidden);
}

TEST(Judge, FindsASlowTransferAndItsSuspects) {
  Job job = make_job(4, 1);
  add_communicator(job, "a", "", {0, 1});
  add_communicator(job, "b", "", {0, 2});
  add_communicator(job, "c", "", {1, 2});
  Judge judge(job);
  for (int i = 0; i < 12; ++i) judge.add(even_window(job));
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) {
    if (job.members[rates.member].communicator < 2) rates.seconds *= 1.25;
  }
  judge.add(window);
  EXPECT_THAT(judge.findings(), IsEmpty()) << "one window is not enough";
  judge.add(window);
  const std::vector<Finding> found = judge.findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(told(job, found[0]),
            "AllReduce of communicator a transfers at 80 % of what it did\n"
            "Even the rank that waits least is slower than before, with the same mix of messages, "
            "and nobody is late: the transfer itself is slower. Suspects: GPU 0 of node0 (global "
            "rank 0).");
}

TEST(Judge, DoesNotCompareAnotherMixOfMessages) {
  const Job job = ddp_job(4, 1);
  Judge judge(job);
  for (int i = 0; i < 12; ++i) judge.add(even_window(job));
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) {
    rates.seconds *= 1.25;
    rates.bus_bytes *= 0.8;
  }
  judge.add(window);
  judge.add(window);
  EXPECT_THAT(judge.findings(), IsEmpty());
}

TEST(Judge, TellsALinkFromANic) {
  const Job job = ddp_job(4, 1);
  Window window = even_window(job);
  for (GpuRates& gpu : window.gpus) gpu.send = gpu.receive = {0.1, 1e9, 0, 10};
  window.gpus[3].send.seconds = 0.2;
  std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(
      told(job, found[0]),
      "the egress link of GPU 0 of node3 (global rank 3) is slow\n"
      "A byte it sends is on the wire 2.0 times as long as the median of the job's GPUs; what "
      "it receives is as fast as others'.");
  window.gpus[3].receive.seconds = 0.3;
  found = after(job, 3, window);
  EXPECT_EQ(headline(job, found[0]), "the NIC of GPU 0 of node3 (global rank 3) is slow");
}

TEST(Judge, NamesTheNicOfARingAndNotWhoSendsToIt) {
  const Job job = ddp_job(6, 1);
  Window window = even_window(job);
  for (GpuRates& gpu : window.gpus) gpu.send = gpu.receive = {0.1, 1e9, 0, 10};
  for (const std::uint32_t g : {0u, 1u, 2u, 3u, 4u, 5u}) window.peers.push_back({g, (g + 1) % 6});
  window.gpus[2].send.seconds = window.gpus[3].send.seconds = 0.2;
  const std::vector<Finding> found = after(job, 3, window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(told(job, found[0]),
            "the NIC of GPU 0 of node3 (global rank 3) is slow\n"
            "A byte it sends is on the wire 2.0 times as long as the median of the job's GPUs, and "
            "what it receives takes long as well: the NIC, not one direction.");
}

TEST(Judge, HoldsATransferAgainstWhatIsKnownFromElsewhere) {
  const Job job = ddp_job(4, 1);
  const Window window = even_window(job);  // 10 ms for 1e8 bytes
  const Shape shape{Collective::kAllReduce, "<=256MiB", "RING", "dp", 4, 2};
  Judge judge(job);
  judge.set_baseline({{}, {}, {{shape, {2e10, 1e8}}}});
  for (int i = 0; i < 2; ++i) judge.add(window);
  const std::vector<Finding> found = judge.findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(headline(job, found[0]),
            "AllReduce of communicator dp_group transfers at 50 % of what it did");
  Judge other(job);
  other.set_baseline({{}, {}, {{shape, {2e10, 3e8}}}});
  for (int i = 0; i < 2; ++i) other.add(window);
  EXPECT_THAT(other.findings(), IsEmpty()) << "another mix of messages";
}

TEST(Judge, TellsASlowGpuFromItsNicWhereTheTransferIsSlow) {
  const Job job = ddp_job(4, 1);
  Window window = even_window(job);
  for (GpuRates& gpu : window.gpus) {
    gpu.send = {0.1, 1e9, 0};
    gpu.receive = {0.5, 1e9, 0.001};
  }
  window.gpus[1].receive.blocked_seconds = 0.3;
  const Shape shape{Collective::kAllReduce, "<=256MiB", "RING", "dp", 4, 2};
  const auto found_with = [&](const Window& w) {
    Judge judge(job);
    judge.set_baseline({{}, {}, {{shape, {2e10, 1e8}}}});
    for (int i = 0; i < 3; ++i) judge.add(w);
    return judge.findings();
  };
  std::vector<Finding> found = found_with(window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].gpus, std::vector<std::uint32_t>{1});
  EXPECT_EQ(
      told(job, found[0]),
      "AllReduce of communicator dp_group transfers at 50 % of what it did\n"
      "Even the rank that waits least is slower than before, with the same mix of messages, "
      "and nobody is late. What has come waits for GPU 0 of node1 (global rank 1) to take it, "
      "longer than at the others, and nothing holds up what it sends on: the GPU is slow, not "
      "its NIC.");
  window.gpus[1].send.blocked_seconds = 0.3;  // it cannot send on: a victim
  found = found_with(window);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].gpus.size(), 4u);
  EXPECT_THAT(after(job, 3, window), IsEmpty()) << "no fault while the transfer is as it was";
}

TEST(Judge, PutsAHangFirstAndLeavesRatesOut) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  Judge judge(job);
  for (int i = 0; i < 3; ++i) judge.add(window);
  Standing standing = idle(job);
  for (const std::uint32_t m : {0u, 1u, 3u}) wait_in(standing, m, 40);
  std::vector<Finding> found = judge.findings(standing);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].kind, Kind::kLateGpu) << "faults before information";
  EXPECT_EQ(found[1].kind, Kind::kWaiting);
  for (const std::uint32_t m : {0u, 1u, 3u}) wait_in(standing, m, 70);
  found = judge.findings(standing);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Kind::kHang);
}

}  // namespace
}  // namespace ncclscope::verdict
