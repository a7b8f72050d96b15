// SPDX-License-Identifier: Apache-2.0
#include "verdict/hang.h"

#include <gmock/gmock.h>

#include "tests/unit/verdict/job_rig.h"
#include "verdict/text.h"

namespace ncclscope::verdict {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What is said about a standing: "headline. explanation" of the first finding.
std::string told(const Job& job, const Standing& standing) {
  const std::vector<Finding> findings = Judge(job).findings(standing);
  if (findings.empty()) return "";
  return headline(job, findings[0]) + "\n" + explanation(job, findings[0]);
}

class HangTest : public ::testing::Test {
 protected:
  HangTest() : job_(ddp_job(2, 2)), standing_(idle(job_)) {}
  void all_wait_but(const std::vector<std::uint32_t>& members, double seconds = 90) {
    for (std::uint32_t m = 0; m < job_.members.size(); ++m) {
      if (std::find(members.begin(), members.end(), m) == members.end())
        wait_in(standing_, m, seconds);
    }
  }
  Hang only() const {
    const std::vector<Hang> hangs = find_hangs(job_, standing_);
    EXPECT_THAT(hangs, SizeIs(1));
    return hangs.empty() ? Hang{} : hangs[0];
  }

  Job job_;
  Standing standing_;
};

TEST_F(HangTest, IsNoneWhileNobodyWaitsLong) {
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
  all_wait_but({2}, 29);
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
}

TEST_F(HangTest, NamesTheRankThatNeverCalled) {
  all_wait_but({2});
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kRankNeverCalled);
  EXPECT_THAT(hang.members, ElementsAre(2));
  EXPECT_TRUE(hang.is_hang());
  EXPECT_TRUE(hang.sure);
  EXPECT_EQ(
      told(job_, standing_),
      "hang (rank_never_called): rank 2 of communicator dp_group has not called what the "
      "others wait in\n"
      "Outside NCCL: rank 2 (global rank 2, GPU 0 of node1). The others have called an "
      "operation that this one has not. Communicator dp_group (0000000000000000, 4 ranks) has "
      "stood still for 90.0 s; a wait is a hang from 60.0 s on.");
}

TEST_F(HangTest, IsOnlyWaitingBelowTheThreshold) {
  all_wait_but({0}, 40);
  EXPECT_FALSE(only().is_hang());
  EXPECT_EQ(
      told(job_, standing_),
      "waiting for rank 0 of communicator dp_group (outside NCCL)\n"
      "Outside NCCL: rank 0 (global rank 0, GPU 0 of node0). The others have called an "
      "operation that this one has not. Communicator dp_group (0000000000000000, 4 ranks) has "
      "stood still for 40.0 s; not yet a hang, that is from 60.0 s on.");
}

TEST_F(HangTest, LearnsFromWaitsThatEndedByThemselves) {
  standing_.longest_ended_seconds = 100;
  all_wait_but({0}, 200);
  EXPECT_FALSE(only().is_hang());
  all_wait_but({0}, 300);
  EXPECT_TRUE(only().is_hang());
}

TEST_F(HangTest, NamesTheProcessThatIsGone) {
  all_wait_but({3});
  standing_.progress[3].state = MemberState::kVanished;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kProcessGone);
  EXPECT_THAT(hang.members, ElementsAre(3));
  EXPECT_EQ(told(job_, standing_),
            "hang (process_gone): rank 3 of communicator dp_group is gone\n"
            "Gone: rank 3 (global rank 3, GPU 1 of node1). Processes ended without an end of the "
            "communicator, or are not reported any more. Communicator dp_group (0000000000000000, "
            "4 ranks) has stood still for 90.0 s; a wait is a hang from 60.0 s on.");
}

TEST_F(HangTest, CountsRanksThatNeverReported) {
  all_wait_but({});
  job_.communicators[0].nranks = 6;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kProcessGone);
  EXPECT_THAT(hang.members, IsEmpty());
  EXPECT_EQ(hang.unreported, 2u);
  EXPECT_FALSE(hang.sure);
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("hang (process_gone): 2 ranks of communicator dp_group do not "
                                    "report\n"));
}

TEST_F(HangTest, AccusesWithDoubtWhileAgentsAreMissing) {
  // Of six ranks two are on a node whose agent does not answer.
  all_wait_but({2});
  job_.communicators[0].nranks = 6;
  standing_.agents_missing = true;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kRankNeverCalled);
  EXPECT_THAT(hang.members, ElementsAre(2));
  EXPECT_FALSE(hang.sure);
  EXPECT_THAT(told(job_, standing_), ::testing::EndsWith("2 of its ranks are not reported."));
}

TEST_F(HangTest, NamesTheProcessThatSaysNothing) {
  all_wait_but({});
  standing_.progress[1].sample_age_seconds = 88;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kProcessStopped);
  EXPECT_THAT(hang.members, ElementsAre(1));
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith(
                  "hang (process_stopped): rank 1 of communicator dp_group says nothing any more\n"
                  "Silent: rank 1 (global rank 1, GPU 1 of node0)."));
}

TEST_F(HangTest, NamesTheSmallerPartyOfAMismatch) {
  all_wait_but({});
  standing_.progress[1].signature = 8;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kArgumentMismatch);
  EXPECT_THAT(hang.members, ElementsAre(1));
  EXPECT_THAT(
      told(job_, standing_),
      ::testing::StartsWith("hang (argument_mismatch): rank 1 of communicator dp_group calls "
                            "another operation than the others\n"));
  standing_.progress[2].signature = 8;
  EXPECT_THAT(only().members, ElementsAre(0, 1, 2, 3)) << "two against two: nobody knows";
}

TEST_F(HangTest, ComparesOperationsOfOneIndexOnly) {
  all_wait_but({});
  standing_.progress[1].signature = 8;
  standing_.progress[1].completed = 99;  // still in the one before
  EXPECT_EQ(only().hang_class, HangClass::kNetworkStuck);
}

TEST_F(HangTest, NamesTheGpuThatNeverStarted) {
  all_wait_but({});
  standing_.progress[2].started = 100;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kGpuNeverStarted);
  EXPECT_THAT(hang.members, ElementsAre(2));
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("hang (gpu_never_started): the GPU of rank 2 of communicator "
                                    "dp_group never started\n"));
}

TEST_F(HangTest, AccusesNoRankOfAStuckNetwork) {
  all_wait_but({});
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kNetworkStuck);
  EXPECT_THAT(hang.members, IsEmpty());
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("hang (network_stuck): the network of communicator dp_group is "
                                    "stuck\n"));
}

TEST_F(HangTest, DoesNotBlameTheNetworkForOneWhoJustCame) {
  all_wait_but({});
  standing_.progress[0].inflight_seconds = 1;
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
}

TEST_F(HangTest, SaysNothingWhereTelemetryIsBlind) {
  all_wait_but({2});
  standing_.coverage[0] = 0.9;
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
  EXPECT_EQ(told(job_, standing_),
            "telemetry of communicator dp_group is blind\n"
            "90 % of the operations of communicator dp_group (0000000000000000, 4 ranks) were "
            "recorded: no verdict is made about it.");
}

TEST_F(HangTest, SeesThatEverybodyIsOutsideNccl) {
  for (Progress& p : standing_.progress) p.idle_seconds = 700;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kOutsideNccl);
  EXPECT_EQ(hang.communicator, kNone);
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("hang (outside_nccl): nobody is in NCCL"));
  standing_.progress[1].idle_seconds = 5;
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
}

/// Where GPU times are not asked for: operations count as completed when they are launched.
class UnseenHangTest : public HangTest {
 protected:
  UnseenHangTest() {
    for (Progress& p : standing_.progress) {
      p.collective_ends_unknown = true;
      p.last_waits_for_all = true;
      p.calls_signature = 5;
      p.idle_seconds = 90;
    }
  }
  void all_called_but(const std::vector<std::uint32_t>& members) {
    for (std::uint32_t m = 0; m < standing_.progress.size(); ++m) {
      Progress& p = standing_.progress[m];
      if (std::find(members.begin(), members.end(), m) == members.end())
        p.enqueued = p.started = p.completed = 101;
    }
  }
};

TEST_F(UnseenHangTest, NamesTheRankThatNeverCalledButNotWhereItIs) {
  all_called_but({2});
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kRankNeverCalled);
  EXPECT_THAT(hang.members, ElementsAre(2));
  EXPECT_DOUBLE_EQ(hang.seconds, 90);
  EXPECT_FALSE(hang.sure);
  EXPECT_EQ(
      told(job_, standing_),
      "hang (rank_never_called): rank 2 of communicator dp_group has not called what the "
      "others wait in\n"
      "The others have called an operation that rank 2 (global rank 2, GPU 0 of node1) has not. "
      "Whether it is outside NCCL or in an operation that does not end cannot be told: GPU times "
      "of the last ones were not asked for. Communicator dp_group (0000000000000000, 4 ranks) has "
      "stood still for 90.0 s; a wait is a hang from 60.0 s on.");
}

TEST_F(UnseenHangTest, CountsFromWhenTheLastOneStoppedCalling) {
  all_called_but({2});
  standing_.progress[2].idle_seconds = 20;  // far behind, and still calling
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
  standing_.progress[2].idle_seconds = 40;
  EXPECT_FALSE(only().is_hang());
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("waiting for rank 2 of communicator dp_group\n"));
}

TEST_F(UnseenHangTest, AccusesNobodyForNotComingToABroadcastYet) {
  all_called_but({1, 2, 3});
  standing_.progress[0].last_waits_for_all = false;  // its root may have left it
  EXPECT_EQ(only().hang_class, HangClass::kUnknown);
  EXPECT_EQ(only().communicator, kNone);
}

TEST_F(UnseenHangTest, NamesTheSmallerPartyOfAMismatch) {
  all_called_but({});
  standing_.progress[1].calls_signature = 6;
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kArgumentMismatch);
  EXPECT_THAT(hang.members, ElementsAre(1));
}

TEST_F(UnseenHangTest, ComparesCallsOfRanksThatCalledEquallyOften) {
  all_called_but({1});
  standing_.progress[1].calls_signature = 6;
  EXPECT_EQ(only().hang_class, HangClass::kRankNeverCalled);
  standing_.progress[3].calls_signature = 0;  // some of its records were lost
  EXPECT_EQ(only().hang_class, HangClass::kRankNeverCalled);
}

TEST_F(UnseenHangTest, SaysThatItDoesNotKnowWhetherEverybodyIsOutside) {
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kUnknown);
  EXPECT_EQ(hang.communicator, kNone);
  EXPECT_FALSE(hang.is_hang()) << "not before it would be one of outside_nccl";
  EXPECT_FALSE(hang.sure);
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("unknown: nobody calls NCCL, and whether the last operations "
                                    "end is not seen\n"));
  for (Progress& p : standing_.progress) p.idle_seconds = 700;
  EXPECT_TRUE(only().is_hang());
  EXPECT_THAT(told(job_, standing_), ::testing::StartsWith("hang (unknown): "));
  standing_.progress[3].idle_seconds = 5;
  EXPECT_THAT(find_hangs(job_, standing_), IsEmpty());
}

TEST_F(UnseenHangTest, DoesNotSayThatAGpuNeverStartedWhatIsQueuedBehindOthers) {
  for (Progress& p : standing_.progress) {
    p.enqueued = 101;  // the first of a block with GPU times
    p.inflight_seconds = 90;
    p.signature = 7;
  }
  const Hang hang = only();
  EXPECT_EQ(hang.hang_class, HangClass::kUnknown);
  EXPECT_EQ(hang.communicator, 0u);
  EXPECT_TRUE(hang.is_hang());
  EXPECT_THAT(told(job_, standing_),
              ::testing::StartsWith("hang (unknown): communicator dp_group stands still, and what "
                                    "its last operations wait for is not seen\n"));
}

TEST_F(UnseenHangTest, DoesNotBlameTheNetworkForRanksThatItCannotSee) {
  all_called_but({});
  wait_in(standing_, 0, 90);
  standing_.progress[0].enqueued = standing_.progress[0].started = 101;
  standing_.progress[0].completed = 100;
  standing_.progress[0].collective_ends_unknown = false;
  EXPECT_EQ(only().hang_class, HangClass::kUnknown);
}

TEST(Hang, OfUnseenOperationsIsNotBlamedOnAVictimThatWaitsElsewhere) {
  Job job = make_job(2, 2);
  const std::uint32_t tp = add_communicator(job, "tp", "tp", {0, 1});
  const std::uint32_t dp = add_communicator(job, "dp", "dp", {0, 2});
  Standing standing = idle(job);
  for (Progress& p : standing.progress) {
    p.collective_ends_unknown = p.last_waits_for_all = true;
    p.idle_seconds = 80;
  }
  for (const std::uint32_t m : {member(job, tp, 0), member(job, dp, 1)}) {
    Progress& p = standing.progress[m];
    p.enqueued = p.started = p.completed = 101;
  }
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].communicator, tp);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, tp, 1)));
}

TEST(Hang, IsNotBlamedOnAVictimThatWaitsElsewhere) {
  // GPU 1 never calls in tp; GPU 0 waits there, and therefore does not come to dp, where GPU 2
  // waits.
  Job job = make_job(2, 2);
  const std::uint32_t tp = add_communicator(job, "tp", "tp", {0, 1});
  const std::uint32_t dp = add_communicator(job, "dp", "dp", {0, 2});
  Standing standing = idle(job);
  wait_in(standing, member(job, tp, 0), 80);
  wait_in(standing, member(job, dp, 1), 75);
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].communicator, tp);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, tp, 1)));
}

TEST(Hang, InACircleIsBlamedOnTheLongestWait) {
  // GPU 0 calls a first and then b, GPU 1 the other way round.
  Job job = make_job(1, 2);
  const std::uint32_t a = add_communicator(job, "a", "", {0, 1});
  const std::uint32_t b = add_communicator(job, "b", "", {0, 1});
  Standing standing = idle(job);
  wait_in(standing, member(job, a, 0), 80);
  wait_in(standing, member(job, b, 1), 79);
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].communicator, a);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, a, 1)));
}

TEST(Hang, OfWhatIsQueuedBehindAnotherCollectiveIsNobodysGpu) {
  // GPU 0 runs a, which waits for GPU 1's process; b is called and queued behind it on GPU 0 and
  // has started on GPU 2.
  Job job = make_job(1, 3);
  const std::uint32_t a = add_communicator(job, "a", "", {0, 1});
  const std::uint32_t b = add_communicator(job, "b", "", {0, 2});
  Standing standing = idle(job);
  wait_in(standing, member(job, a, 0), 80);
  wait_in(standing, member(job, b, 0), 79);
  wait_in(standing, member(job, b, 1), 79);
  standing.progress[member(job, b, 0)].started = 100;
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].communicator, a);
}

TEST(Hang, OfAReceiveIsBlamedOnThePeerOutsideNccl) {
  Job job = make_job(2, 1);
  const std::uint32_t pp = add_communicator(job, "pp", "pp", {0, 1});
  Standing standing = idle(job);
  Progress& p = standing.progress[member(job, pp, 1)];
  p.p2p_enqueued = p.p2p_started = 11;
  p.p2p_completed = 10;
  p.inflight_seconds = 90;
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].hang_class, HangClass::kRankNeverCalled);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, pp, 0)));
  EXPECT_TRUE(hangs[0].point_to_point);
}

TEST(Hang, OfAnAllToAllIsBlamedOnTheGpuThatNeverStarted) {
  Job job = make_job(2, 2);
  const std::uint32_t ep = add_communicator(job, "ep", "ep", {0, 1, 2, 3});
  Standing standing = idle(job);
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    Progress& p = standing.progress[member(job, ep, rank)];
    p.p2p_enqueued = 24;
    p.p2p_started = rank == 1 ? 16 : 24;
    p.p2p_completed = 16;
    p.inflight_seconds = 90;
  }
  std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].hang_class, HangClass::kGpuNeverStarted);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, ep, 1)));
  // Where nobody is seen to have begun, nothing is known.
  for (Progress& p : standing.progress) p.p2p_started = p.p2p_completed;
  EXPECT_THAT(find_hangs(job, standing), IsEmpty());
}

TEST(Hang, OfAReceiveAccusesNobodyWhoseWaitIsElsewhere) {
  // Stage 1 waits for stage 0, which waits in its own data-parallel group for GPU 2.
  Job job = make_job(3, 1);
  const std::uint32_t pp = add_communicator(job, "pp", "pp", {0, 1});
  const std::uint32_t dp = add_communicator(job, "dp", "dp", {0, 2});
  Standing standing = idle(job);
  Progress& p = standing.progress[member(job, pp, 1)];
  p.p2p_enqueued = p.p2p_started = 11;
  p.p2p_completed = 10;
  p.inflight_seconds = 90;
  wait_in(standing, member(job, dp, 0), 85);
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].communicator, dp);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, dp, 1)));
}

/// Two stages of two GPUs: GPU 1 never starts the collective that its stage waits in. The second
/// stage waits for input, and its hosts have called its collective already.
TEST(Hang, IsNotBlamedOnAStageThatWaitsForItsInput) {
  Job job = make_job(2, 2);
  const std::uint32_t first = add_communicator(job, "tp", "tp", {0, 1});
  const std::uint32_t second = add_communicator(job, "tp", "tp", {2, 3});
  const std::uint32_t left = add_communicator(job, "pp", "pp", {0, 2});
  const std::uint32_t right = add_communicator(job, "pp", "pp", {1, 3});
  Standing standing = idle(job);
  wait_in(standing, member(job, first, 0), 90);
  wait_in(standing, member(job, first, 1), 90);
  --standing.progress[member(job, first, 1)].started;
  for (const std::int32_t rank : {0, 1}) {
    wait_in(standing, member(job, second, rank), 80);
    --standing.progress[member(job, second, rank)].started;
  }
  for (const std::uint32_t pp : {left, right}) {
    Progress& p = standing.progress[member(job, pp, 1)];
    p.p2p_enqueued = p.p2p_started = 1;
    p.inflight_seconds = 85;
  }
  const std::vector<Hang> hangs = find_hangs(job, standing);
  ASSERT_THAT(hangs, SizeIs(1));
  EXPECT_EQ(hangs[0].hang_class, HangClass::kGpuNeverStarted);
  EXPECT_EQ(hangs[0].communicator, first);
  EXPECT_THAT(hangs[0].members, ElementsAre(member(job, first, 1)));
}

}  // namespace
}  // namespace ncclscope::verdict
