// SPDX-License-Identifier: Apache-2.0
#include "verdict/window.h"

#include <gmock/gmock.h>

#include "tests/unit/verdict/job_rig.h"

namespace ncclscope::verdict {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

TEST(Window, ChargesTheRankThatSpendsLeastWithWhatTheOthersWait) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  const WindowResult result = evaluate(job, window);
  EXPECT_NEAR(result.caused[2], 0.3, 1e-12);
  EXPECT_NEAR(result.wait[2], 0, 1e-12);
  EXPECT_NEAR(result.wait[0], 0.3, 1e-12);
  EXPECT_NEAR(result.caused[0], 0, 1e-12);
  EXPECT_NEAR(result.communication[2], 0.1, 1e-12);
  EXPECT_NEAR(result.lag[2], 0.3, 1e-12);
  EXPECT_NEAR(result.lag[0], 0, 1e-12);
  EXPECT_THAT(result.late, ElementsAre(0, 0, 1, 0));
  EXPECT_DOUBLE_EQ(result.threshold, thresholds::kLateSeconds);
  const CommunicatorTiming* worst = result.worst(job, 2);
  ASSERT_NE(worst, nullptr);
  EXPECT_NEAR(worst->min_seconds, 0.01, 1e-12);
  EXPECT_NEAR(worst->others_mean_seconds, 0.04, 1e-12);
}

TEST(Window, FindsNobodyLateBelowOnePercent) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.009);
  EXPECT_FALSE(evaluate(job, window).anybody_late());
}

TEST(Window, DoesNotAccuseAVictimThatIsLateForItsOwnGroup) {
  // GPU 0 is late in its tensor group; GPU 1 therefore comes late to its data-parallel partner.
  Job job = make_job(2, 2);
  const std::uint32_t tp = add_communicator(job, "tp", "tp", {0, 1});
  add_communicator(job, "tp", "tp", {2, 3});
  const std::uint32_t dp0 = add_communicator(job, "dp", "dp", {0, 2});
  const std::uint32_t dp1 = add_communicator(job, "dp", "dp", {1, 3});
  Window window = even_window(job);
  make_late(job, window, tp, 0, 0.3);   // GPU 1 waits for GPU 0
  make_late(job, window, dp0, 0, 0.3);  // GPU 2 does, too
  make_late(job, window, dp1, 0, 0.3);  // GPU 3 waits for GPU 1
  const WindowResult result = evaluate(job, window);
  EXPECT_NEAR(result.caused[1], 0.3, 1e-12);
  EXPECT_NEAR(result.wait[1], 0.3, 1e-12);
  EXPECT_THAT(result.late, ElementsAre(1, 0, 0, 0));
}

TEST(Window, ComparesOnlyWhereAllRanksReport) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  window.collectives.pop_back();
  const WindowResult result = evaluate(job, window);
  EXPECT_TRUE(result.timings.empty());
  EXPECT_THAT(result.judged, Each(0));
  EXPECT_FALSE(result.anybody_late());
}

TEST(Window, ComparesOnlyWhereTelemetrySeesEnough) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  window.coverage[0] = 0.98;
  EXPECT_FALSE(evaluate(job, window).anybody_late());
}

TEST(Window, ComparesOnlyEqualNumbersOfOperations) {
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  window.collectives[0].operations = 10.2;
  EXPECT_FALSE(evaluate(job, window).anybody_late());
  WindowOptions lenient;
  lenient.operations_tolerance = 0.1;
  EXPECT_TRUE(evaluate(job, window, lenient).anybody_late());
}

TEST(Window, CountsWaitingForItsPipelineAsCommunication) {
  Job job = ddp_job(3, 1);
  Window window = even_window(job);
  make_late(job, window, 0, 1, 0.2);
  for (GpuRates& gpu : window.gpus) gpu.other_seconds = 0.5;
  window.gpus[1].other_seconds = 0.7;
  // It comes late to the others because its input came late.
  EXPECT_FALSE(evaluate(job, window).anybody_late());
}

TEST(Window, JudgesNoGpuOfWhichItSeesAPart) {
  Job job = ddp_job(2, 2);
  const std::uint32_t tp = add_communicator(job, "tp", "tp", {0, 1});
  Window window = even_window(job);
  make_late(job, window, 0, 2, 0.3);
  window.coverage[tp] = 0.9;
  const WindowResult result = evaluate(job, window);
  EXPECT_THAT(result.judged, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(result.late, ElementsAre(0, 0, 1, 0));
}

TEST(Window, ComparesStagesAmongThemselves) {
  Job job = make_job(2, 4);  // two stages
  for (std::uint32_t g = 0; g < 4; ++g) add_communicator(job, "pp", "pp", {g, g + 4});
  const std::uint32_t all = add_communicator(job, "all", "", {0, 1, 2, 3, 4, 5, 6, 7});
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) {
    if (job.members[rates.member].gpu < 4) rates.seconds += 0.05;  // the second stage works longer
  }
  WindowResult result = evaluate(job, window);
  EXPECT_FALSE(result.anybody_late());
  EXPECT_THAT(result.uneven, ElementsAre(0, 0, 0, 0, ::testing::Gt(0.05), ::testing::Gt(0.05),
                                         ::testing::Gt(0.05), ::testing::Gt(0.05)));
  make_late(job, window, all, 2, 0.3);
  result = evaluate(job, window);
  EXPECT_THAT(result.late, ElementsAre(0, 0, 1, 0, 0, 0, 0, 0));
}

TEST(Window, ExcusesAnExpertThatHasMoreTokens) {
  Job job = make_job(1, 4);
  const std::uint32_t ep = add_communicator(job, "ep", "ep", {0, 1, 2, 3});
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) rates.collective = Collective::kAllToAll;
  make_late(job, window, ep, 1, 0.1);
  WindowResult result = evaluate(job, window);
  EXPECT_THAT(result.late, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(result.loaded, Each(0));
  window.collectives[1].bus_bytes *= 1.5;
  result = evaluate(job, window);
  EXPECT_THAT(result.loaded, ElementsAre(0, 1, 0, 0));
  // 5 % more tokens cannot be 100 ms more work in 800.
  window.collectives[1].bus_bytes *= 1.05 / 1.5;
  EXPECT_THAT(evaluate(job, window).loaded, Each(0));
}

TEST(Window, KnowsThatOthersSendTheirTokensToTheExpertThatHasMore) {
  Job job = make_job(1, 4);
  const std::uint32_t ep = add_communicator(job, "ep", "ep", {0, 1, 2, 3});
  Window window = even_window(job);
  for (CollectiveRates& rates : window.collectives) rates.collective = Collective::kAllToAll;
  make_late(job, window, ep, 1, 0.24);
  // Half as many again: it receives 3 * 1.5, and the others send 1 + 1 + 1.5. 240 ms are 30 % more
  // of the 800 that others work.
  window.collectives[1].bus_bytes *= 4.5 / 3.5;
  EXPECT_THAT(evaluate(job, window).loaded, ElementsAre(0, 1, 0, 0));
  // One in ten more: 3.3 and 3.1.
  window.collectives[1].bus_bytes *= 3.3 / 3.1 / (4.5 / 3.5);
  EXPECT_THAT(evaluate(job, window).loaded, Each(0));
}

TEST(Window, AccusesNoExpertOfWhoseTokensNothingIsKnown) {
  Job job = make_job(1, 4);
  add_communicator(job, "ep", "ep", {0, 1, 2, 3});  // moves its tokens without NCCL
  const std::uint32_t dp = add_communicator(job, "dp", "dp", {0, 1, 2, 3});
  Window window = even_window(job);
  std::erase_if(window.collectives,
                [&](const CollectiveRates& r) { return job.members[r.member].communicator != dp; });
  make_late(job, window, dp, 1, 0.1);
  const WindowResult result = evaluate(job, window);
  EXPECT_THAT(result.late, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(result.loaded, Each(1));
}

TEST(Window, TellsLatenessFromNoise) {
  const Job job = ddp_job(4, 8);
  Window window = even_window(job);
  for (std::size_t g = 0; g < 32; ++g)
    window.collectives[g].seconds = 0.5 + 0.004 * static_cast<double>(g % 8);
  window.collectives[9].seconds -= 0.03;
  EXPECT_FALSE(evaluate(job, window).anybody_late()) << "others differ as much";
  window.collectives[9].seconds -= 0.2;
  EXPECT_EQ(evaluate(job, window).late[9], 1);
}

TEST(Window, DoesNotTakeTheMiddleOfANodeForItsNoise) {
  // Two of eight are next to the median whatever the others do, and one more is by chance.
  const Job job = ddp_job(1, 8);
  Window window = even_window(job);
  const double seconds[] = {0.475, 0.490, 0.494, 0.499, 0.500, 0.500, 0.506, 0.510};
  for (std::size_t g = 0; g < 8; ++g) window.collectives[g].seconds = seconds[g];
  const WindowResult result = evaluate(job, window);
  EXPECT_NEAR(result.lag[0], 0.025, 1e-9);
  EXPECT_FALSE(result.anybody_late()) << "threshold " << result.threshold;
}

TEST(Window, LeavesOneLateGpuOfFourOutOfTheNoise) {
  // On two nodes it moves the median of its own, and so half of all distances.
  const Job job = ddp_job(2, 2);
  Window window = even_window(job);
  window.collectives[0].seconds = 0.502;
  window.collectives[1].seconds = 0.5;
  window.collectives[2].seconds = 0.501;
  window.collectives[3].seconds = 0.45;
  const WindowResult result = evaluate(job, window);
  EXPECT_NEAR(result.noise, 0.001, 1e-9);
  EXPECT_THAT(result.late, ElementsAre(0, 0, 0, 1));
}

TEST(Window, LeavesOutOfTheNoiseWhatOneLateGpuDoesToOthers) {
  // Of a pipeline on two nodes, as measured: the later stage of its replica waits less.
  const Job job = ddp_job(2, 4);
  Window window = even_window(job);
  const double seconds[] = {0.502, 0.505, 0.150, 0.489, 0.536, 0.536, 0.386, 0.387};
  for (std::size_t g = 0; g < 8; ++g) window.collectives[g].seconds = seconds[g];
  const WindowResult result = evaluate(job, window);
  EXPECT_LT(result.noise, 0.02);
  EXPECT_EQ(result.late[2], 1);
}

TEST(Window, TakesTheTransferOfTheRankThatWaitedLeast) {
  const Job job = ddp_job(2, 1);
  Window window = even_window(job);
  make_late(job, window, 0, 1, 0.1);
  const WindowResult result = evaluate(job, window);
  ASSERT_EQ(result.timings.size(), 1u);
  EXPECT_NEAR(result.timings[0].transfer, 1e8 / 0.01, 1);
  EXPECT_EQ(result.timings[0].size, "<=256MiB");
}

TEST(Window, HasNoShapeWhereSizesAreMixed) {
  const Job job = ddp_job(2, 1);
  Window window = even_window(job);
  window.shapes.push_back({0, Collective::kAllReduce, "<=1MiB", "RING", 0.2});
  EXPECT_EQ(evaluate(job, window).timings[0].size, "");
}

TEST(Window, FindsTheSenderWhoseBytesTakeLong) {
  const Job job = ddp_job(4, 1);
  Window window = even_window(job);
  for (GpuRates& gpu : window.gpus) gpu.send = gpu.receive = {0.1, 1e9, 0, 10};
  window.gpus[3].send.seconds = 0.2;
  WindowResult result = evaluate(job, window);
  EXPECT_THAT(result.slow_send, ElementsAre(0, 0, 0, ::testing::DoubleNear(2, 1e-9)));
  EXPECT_THAT(result.slow_receive, Each(0));
  window.gpus.resize(3);
  result = evaluate(job, window);
  EXPECT_THAT(result.slow_send, Each(0)) << "three GPUs are too few for a median";
}

TEST(Window, AccusesNoLinkOfWhichFewOperationsAreKnown) {
  const Job job = ddp_job(6, 1);
  Window window = even_window(job);  // of 10 s
  for (GpuRates& gpu : window.gpus) gpu.send = {0.1, 1e9, 0, 1.6};
  window.gpus[3].send.seconds = 0.2;
  EXPECT_THAT(evaluate(job, window).slow_send, ElementsAre(0, 0, 0, 2, 0, 0));
  window.gpus[3].send.operations = 1.5;
  EXPECT_THAT(evaluate(job, window).slow_send, Each(0));
}

TEST(Window, ComparesNoLinkThatCarriesSmallMessages) {
  const Job job = ddp_job(8, 1);
  Window window = even_window(job);
  for (GpuRates& gpu : window.gpus) gpu.send = {0.1, 1e9, 0, 10};
  // As in a pipeline within nodes: half of the GPUs send activations over the network, the others
  // only what all GPUs of the job add up, which takes its time for a few bytes.
  for (const std::uint32_t g : {0u, 3u, 4u, 7u}) window.gpus[g].send = {2e-3, 1e3, 0, 10};
  EXPECT_THAT(evaluate(job, window).slow_send, Each(0));
  window.gpus[5].send.seconds = 0.2;
  EXPECT_THAT(evaluate(job, window).slow_send, ElementsAre(0, 0, 0, 0, 0, 2, 0, 0));
}

TEST(Window, AccusesNoLinkWhereAllDiffer) {
  const Job job = ddp_job(7, 1);
  Window window = even_window(job);
  const std::vector<double> seconds = {0.05, 0.1, 0.13, 0.06, 0.2, 0.14, 0.08};
  for (std::size_t g = 0; g < seconds.size(); ++g) window.gpus[g].send = {seconds[g], 1e9, 0, 10};
  EXPECT_THAT(evaluate(job, window).slow_send, Each(0));
  window.gpus[4].send.seconds = 0.31;  // half of the GPUs are more than 40 % off
  EXPECT_THAT(evaluate(job, window).slow_send, Contains(::testing::Gt(3)));
}

TEST(Window, JudgesNobodyWhoseWaitsHaveNoTimes) {
  Job job = ddp_job(2, 2);
  const std::uint32_t ep = add_communicator(job, "ep_group", "ep", {0, 1});
  Window window = even_window(job);
  std::erase_if(window.collectives, [&](const CollectiveRates& rates) {
    return job.members[rates.member].communicator == ep;
  });
  window.untimed = {ep};
  EXPECT_THAT(evaluate(job, window).judged, ElementsAre(0, 0, 1, 1));
}

TEST(Roles, NameAWholeStageReplicaAndGroup) {
  Job job = make_job(2, 2);  // stages {0, 1} and {2, 3}
  add_communicator(job, "pp", "pp", {0, 2});
  add_communicator(job, "pp", "pp", {1, 3});
  const std::uint32_t dp = add_communicator(job, "dp", "dp", {0, 1});
  add_communicator(job, "dp", "dp", {2, 3});
  const std::vector<Role> stage = roles_of(job, {0, 1});
  ASSERT_EQ(stage.size(), 2u);
  EXPECT_EQ(stage[0].kind, RoleKind::kStage);
  EXPECT_EQ(stage[1].kind, RoleKind::kGroup);
  EXPECT_EQ(stage[1].communicator, dp);
  const std::vector<Role> replica = roles_of(job, {0, 2});
  ASSERT_EQ(replica.size(), 2u);
  EXPECT_EQ(replica[0].kind, RoleKind::kReplica);
  EXPECT_EQ(replica[0].rank, 0);
  EXPECT_TRUE(roles_of(job, {0, 3}).empty());
}

}  // namespace
}  // namespace ncclscope::verdict
