// SPDX-License-Identifier: Apache-2.0
//
// The session protocol, fed with bytes.
#include <gtest/gtest.h>

#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using testing::make_hello;
using testing::make_init;
using testing::Packet;
using testing::PacketBuilder;
using testing::Rig;
using testing::Wire;
using wire::RecordType;

TEST(Session, WelcomesANewSessionWithTheInstanceAndNoRecords) {
  Rig rig;
  auto plugin = rig.open(9);
  const auto welcome = plugin->last<wire::Welcome>(RecordType::kWelcome);
  EXPECT_EQ(welcome.agent_instance, Rig::kInstance);
  EXPECT_EQ(welcome.highest_index, 0u);
}

TEST(Session, RefusesAFirstRecordThatIsNotHello) {
  Rig rig;
  auto plugin = rig.connect();
  EXPECT_FALSE(plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish()));
  EXPECT_EQ(plugin->last<wire::Refuse>(RecordType::kRefuse).reason,
            static_cast<std::uint16_t>(wire::RefuseReason::kNoHello));
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kNoHello), 1u);
}

TEST(Session, OfAnOlderConnectionAsksForHelloAndIgnoresWhatCameBefore) {
  Rig rig;
  auto plugin = rig.connect();
  plugin->session().greet_again();
  plugin->burst_end();
  EXPECT_EQ(plugin->answers().size(), 1u) << "HelloAgain";
  EXPECT_TRUE(plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish()));
  EXPECT_EQ(plugin->session().state(), nullptr);
  EXPECT_TRUE(plugin->feed(PacketBuilder().hello(make_hello(9)).finish()));
  EXPECT_EQ(plugin->last<wire::Welcome>(RecordType::kWelcome).agent_instance, Rig::kInstance);
  // From here on it is a session like any other.
  EXPECT_FALSE(plugin->feed(PacketBuilder().hello(make_hello(10)).finish()));
}

TEST(Session, OfAnOlderConnectionThatNeverSaysHelloIsClosed) {
  Rig rig;
  auto plugin = rig.connect();
  plugin->session().greet_again();
  EXPECT_TRUE(plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish()));
  rig.clock.advance_ms(5'000);
  rig.tick();
  EXPECT_TRUE(plugin->over());
}

TEST(Session, RefusesAPeerThatSaysNothing) {
  Rig rig;
  auto plugin = rig.connect();
  rig.clock.advance_ms(4'999);
  rig.tick();
  EXPECT_FALSE(plugin->over());
  rig.clock.advance_ms(1);
  rig.tick();
  EXPECT_TRUE(plugin->over());
  EXPECT_EQ(plugin->last<wire::Refuse>(RecordType::kRefuse).reason,
            static_cast<std::uint16_t>(wire::RefuseReason::kNoHello));
}

TEST(Session, RefusesAnotherMajorVersionAndNamesItsOwn) {
  Rig rig;
  auto plugin = rig.connect();
  Packet packet = PacketBuilder().hello(make_hello(9)).finish();
  packet[4] = std::byte{2};
  EXPECT_FALSE(plugin->feed(packet));
  const auto refuse = plugin->last<wire::Refuse>(RecordType::kRefuse);
  EXPECT_EQ(refuse.reason, static_cast<std::uint16_t>(wire::RefuseReason::kVersion));
  EXPECT_EQ(refuse.major, wire::kMajorVersion);
}

struct BadFrame {
  const char* name;
  wire::DecodeError error;
  void (*spoil)(Packet&);
};
class SessionBadFrame : public ::testing::TestWithParam<BadFrame> {};

TEST_P(SessionBadFrame, EndsTheSessionCountsAndTellsWhy) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->answers();
  Packet packet = PacketBuilder()
                      .init(make_init(0, 5, 0, 2), {{wire::StringKey::kCommunicatorName, "dp"}})
                      .operation()
                      .finish(1);
  GetParam().spoil(packet);
  EXPECT_FALSE(plugin->feed(packet));
  EXPECT_EQ(rig.ingest.stats().error(to_ingest_error(GetParam().error)), 1u);
  EXPECT_EQ(plugin->answers().size(), 1u);
  EXPECT_FALSE(plugin->feed(PacketBuilder().operation().finish(1)))
      << "a closed session takes nothing";
  EXPECT_EQ(rig.ingest.find(9)->records_received, 0u);
}

void put32(Packet& p, std::size_t at, std::uint32_t value) {
  std::memcpy(p.data() + at, &value, sizeof value);
}

INSTANTIATE_TEST_SUITE_P(
    All, SessionBadFrame,
    ::testing::Values(
        BadFrame{"Empty", wire::DecodeError::kTooShort, [](Packet& p) { p.clear(); }},
        BadFrame{"Truncated", wire::DecodeError::kTooShort, [](Packet& p) { p.resize(31); }},
        BadFrame{"Magic", wire::DecodeError::kBadMagic, [](Packet& p) { p[0] = std::byte{0}; }},
        BadFrame{"Version", wire::DecodeError::kBadVersion, [](Packet& p) { p[4] = std::byte{9}; }},
        BadFrame{"HeaderTooSmall", wire::DecodeError::kBadHeader,
                 [](Packet& p) { p[5] = std::byte{24}; }},
        BadFrame{"HeaderOdd", wire::DecodeError::kBadHeader,
                 [](Packet& p) { p[5] = std::byte{33}; }},
        BadFrame{"HeaderPastEnd", wire::DecodeError::kBadHeader,
                 [](Packet& p) { p[5] = std::byte{248}; }},
        BadFrame{"LengthLies", wire::DecodeError::kBadLength, [](Packet& p) { put32(p, 8, 64); }},
        BadFrame{"CutInARecord", wire::DecodeError::kBadLength,
                 [](Packet& p) { p.resize(p.size() - 8); }},
        BadFrame{"TooLong", wire::DecodeError::kBadLength,
                 [](Packet& p) {
                   p.resize(wire::kMaxFrameBytes + 8);
                   put32(p, 8, wire::kMaxFrameBytes + 8);
                 }},
        BadFrame{"RecordWithoutLength", wire::DecodeError::kBadRecord,
                 [](Packet& p) { p[33] = std::byte{0}; }},
        BadFrame{"RecordPastEnd", wire::DecodeError::kBadRecord,
                 [](Packet& p) { p[33] = std::byte{255}; }},
        BadFrame{"RecordTooShortForItsType", wire::DecodeError::kBadRecord,
                 [](Packet& p) {
                   p = PacketBuilder().add(wire::Goodbye{}, RecordType::kOperation).finish(1);
                 }},
        BadFrame{"Count", wire::DecodeError::kBadCount, [](Packet& p) { p[12] = std::byte{7}; }},
        BadFrame{"StringPastRecord", wire::DecodeError::kBadString,
                 [](Packet& p) { put32(p, 32 + 40, 4096); }},
        BadFrame{"StringTooLong", wire::DecodeError::kBadString,
                 [](Packet& p) { p[32 + 48 + 2] = std::byte{0xFF}; }}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Session, CountsEachIndexOnceAndGapsAsLost) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(3).finish(1));
  plugin->feed(PacketBuilder().operations(3).finish(2));   // 2 and 3 again, 4 new
  plugin->feed(PacketBuilder().operations(2).finish(10));  // 5..9 never came
  const SessionState& state = *rig.ingest.find(9);
  EXPECT_EQ(state.records_received, 6u);
  EXPECT_EQ(state.records_duplicate, 2u);
  EXPECT_EQ(state.records_lost, 5u);
  EXPECT_EQ(state.highest_index, 11u);
  EXPECT_EQ(state.highest_index,
            state.records_received + state.records_lost + state.records_before);
  const SnapshotPtr snapshot = rig.snapshot();
  EXPECT_EQ(snapshot->jobs.at(0).communicators.at(0).sums.at(0).operations_by_timing[1], 6u);
  EXPECT_EQ(snapshot->jobs.at(0).lost_operations, 5u);
}

TEST(Session, RefusesIndexedRecordsWithoutAUsableIndex) {
  for (const std::uint64_t index : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Rig rig;
    auto plugin = rig.open(9);
    EXPECT_FALSE(
        plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operation().finish(index)));
    EXPECT_EQ(rig.ingest.stats().error(IngestError::kBadIndex), 1u) << index;
  }
}

TEST(Session, AcknowledgesCumulativelyAndNotMoreOftenThanFourTimesASecond) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->answers();
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(3).finish(1));
  plugin->burst_end();
  EXPECT_TRUE(plugin->answers().empty()) << "only just welcomed";
  rig.clock.advance_ms(250);
  plugin->feed(PacketBuilder().operations(3).finish(4));
  plugin->burst_end();
  EXPECT_EQ(plugin->last<wire::Ack>(RecordType::kAck).index, 6u);
  plugin->feed(PacketBuilder().operation().finish(7));
  plugin->burst_end();
  EXPECT_TRUE(plugin->answers().empty());
  rig.clock.advance_ms(250);
  rig.tick();
  EXPECT_EQ(plugin->last<wire::Ack>(RecordType::kAck).index, 7u)
      << "the timer acknowledges what is due";
  rig.clock.advance_ms(1000);
  rig.tick();
  EXPECT_TRUE(plugin->answers().empty()) << "nothing new, nothing sent";
}

TEST(Session, ResumesAfterAReconnect) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(5).finish(1));
  plugin->disconnect();
  plugin = rig.open(9);
  EXPECT_EQ(plugin->last<wire::Welcome>(RecordType::kWelcome).highest_index, 5u);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(5).finish(3));
  const SnapshotPtr snapshot = rig.snapshot();
  EXPECT_EQ(rig.ingest.find(9)->records_received, 7u);
  ASSERT_EQ(snapshot->jobs.size(), 1u);
  ASSERT_EQ(snapshot->jobs[0].communicators.size(), 1u);
  EXPECT_EQ(snapshot->jobs[0].communicators[0].ranks.size(), 1u);
  EXPECT_EQ(snapshot->jobs[0].communicators[0].sums.at(0).operations_by_timing[1], 7u);
}

TEST(Session, BeginsWhereAnotherAgentInstanceLeftOff) {
  Rig rig;
  auto plugin = rig.open(9, "7", 100, /*acknowledged=*/1000);
  EXPECT_EQ(plugin->last<wire::Welcome>(RecordType::kWelcome).highest_index, 1000u);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(2).finish(1001));
  const SessionState& state = *rig.ingest.find(9);
  EXPECT_EQ(state.records_before, 1000u);
  EXPECT_EQ(state.records_received, 2u);
  EXPECT_EQ(state.records_lost, 0u);
}

TEST(Session, TakesWhatAnotherAgentAcknowledgedInBetween) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(5).finish(1));
  plugin->disconnect();
  auto again = rig.connect();
  wire::Hello hello = make_hello(9, 20);
  hello.agent_instance = 4711;
  again->feed(PacketBuilder().hello(hello).finish());
  EXPECT_EQ(again->last<wire::Welcome>(RecordType::kWelcome).highest_index, 20u);
  EXPECT_EQ(rig.ingest.find(9)->records_before, 15u);
  EXPECT_EQ(rig.ingest.find(9)->records_received, 5u);
}

TEST(Session, ReplacesAnOlderConnectionOfTheSameProcess) {
  Rig rig;
  auto old = rig.open(9);
  auto fresh = rig.open(9);
  EXPECT_TRUE(old->over());
  EXPECT_FALSE(old->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).finish()));
  EXPECT_TRUE(fresh->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operation().finish(1)));
  old->disconnect();
  EXPECT_NE(rig.ingest.find(9)->connection, nullptr) << "the old one's end is not the session's";
}

TEST(Session, RefusesASessionIdThatBelongsToAnotherProcess) {
  Rig rig;
  auto owner = rig.open(9, "7", 100);
  auto thief = rig.connect(/*pid=*/200, /*uid=*/1000);
  EXPECT_FALSE(thief->feed(PacketBuilder().hello(make_hello(9)).finish()));
  EXPECT_FALSE(owner->over());
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kSessionConflict), 1u);
}

TEST(Session, KeepsEqualSessionIdsOfDifferentPrincipalsApart) {
  Rig rig;
  // Whoever comes first, with whatever id: it does not stand in the way of the other.
  auto squatter = rig.connect(/*pid=*/100, /*uid=*/2000);
  EXPECT_TRUE(squatter->feed(PacketBuilder().hello(make_hello(9, 500)).finish()));
  auto claimed = rig.connect(/*pid=*/100, /*uid=*/1000, /*claimed=*/true);
  EXPECT_TRUE(claimed->feed(PacketBuilder().hello(make_hello(9, 400)).finish()));
  auto owner = rig.open(9, "7", 100);
  EXPECT_EQ(owner->last<wire::Welcome>(RecordType::kWelcome).highest_index, 0u);
  EXPECT_TRUE(owner->feed(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(3).finish(1)));
  EXPECT_FALSE(squatter->over());
  EXPECT_FALSE(claimed->over());
  EXPECT_EQ(rig.ingest.remembered_sessions(), 3u);
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kSessionConflict), 0u);
}

TEST(Session, RefusesSessionIdZeroAndAChangeInMidConnection) {
  Rig rig;
  auto zero = rig.connect();
  EXPECT_FALSE(zero->feed(PacketBuilder().hello(make_hello(0)).finish()));
  auto plugin = rig.open(9);
  EXPECT_TRUE(plugin->feed(PacketBuilder().hello(make_hello(9)).finish()));
  EXPECT_FALSE(plugin->feed(PacketBuilder().hello(make_hello(10)).finish()));
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kBadSession), 2u);
}

TEST(Session, CountsOperationsOfUnannouncedCommunicatorsAndAppliesThemNowhere) {
  Rig rig;
  auto plugin = rig.open(9);
  EXPECT_TRUE(plugin->feed(PacketBuilder().operations(2).finish(1)));
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kUnknownCommunicator), 2u);
  EXPECT_EQ(rig.ingest.find(9)->operations_unknown, 2u);
  EXPECT_EQ(rig.ingest.find(9)->records_received, 2u) << "the books stay balanced";
  EXPECT_TRUE(rig.snapshot()->jobs.at(0).communicators.empty());
}

TEST(Session, SkipsRecordTypesFromTheFuture) {
  Rig rig;
  auto plugin = rig.open(9);
  const Packet packet = PacketBuilder()
                            .init(make_init(0, 5, 0, 2))
                            .add(wire::Goodbye{}, static_cast<RecordType>(40))  // indexed, unknown
                            .add(wire::Goodbye{}, static_cast<RecordType>(200))
                            .operation()
                            .finish(1);
  EXPECT_TRUE(plugin->feed(packet));
  EXPECT_EQ(rig.ingest.stats().unknown_records, 2u);
  EXPECT_EQ(rig.ingest.find(9)->highest_index, 2u) << "an unknown indexed record has an index too";
}

using Variables = std::vector<std::pair<std::string, std::string>>;

TEST(Session, KeepsTheVariablesThatCameBehindHello) {
  Rig rig;
  auto plugin = rig.connect();
  EXPECT_TRUE(
      plugin->feed(PacketBuilder()
                       .hello(make_hello(9), {{wire::StringKey::kSlurmJobId, "7"}})
                       .environment({"NCCL_IB_HCA=mlx5_0", "NCCL_ALGO="}, 0)
                       .environment({"NCCL_DEBUG=INFO", "NCCL_ALGO=Ring", "HOME=/root", "NCCL_X"})
                       .finish()));
  const SnapshotPtr snapshot = rig.snapshot();
  const ProcessSnapshot& process = snapshot->jobs.at(0).processes.at(0);
  ASSERT_NE(process.environment, nullptr);
  EXPECT_EQ(process.environment->variables,
            (Variables{{"NCCL_ALGO", ""}, {"NCCL_DEBUG", "INFO"}, {"NCCL_IB_HCA", "mlx5_0"}}))
      << "by name, the first of a name, nothing but NCCL's";
  EXPECT_TRUE(process.environment->cut) << "something was left out";
  EXPECT_EQ(rig.ingest.stats().unknown_records, 0u);
}

TEST(Session, KnowsNoVariablesBeforeTheirListHasEnded) {
  Rig rig;
  auto plugin = rig.open(9);
  EXPECT_EQ(rig.snapshot()->jobs.at(0).processes.at(0).environment, nullptr);
  EXPECT_TRUE(plugin->feed(PacketBuilder().environment({"NCCL_DEBUG=INFO"}, 0).finish()));
  EXPECT_TRUE(plugin->feed(PacketBuilder().environment({"NCCL_ALGO=Ring"}).finish()));
  EXPECT_EQ(rig.ingest.find(9)->environment->variables, (Variables{{"NCCL_ALGO", "Ring"}}))
      << "a list does not go on in another frame";
  EXPECT_TRUE(
      plugin->feed(PacketBuilder().environment({}).environment({"NCCL_ALGO=Tree"}).finish()));
  EXPECT_TRUE(rig.ingest.find(9)->environment->variables.empty()) << "one list in a frame";
}

TEST(Session, BoundsVariablesInNumberAndLength) {
  Rig rig;
  auto plugin = rig.open(9);
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back("NCCL_V" + std::to_string(i) + "=1");
  PacketBuilder many;
  for (int record = 0; record < 4; ++record)
    many.environment({names.begin() + record * 50, names.begin() + (record + 1) * 50},
                     record == 3 ? wire::kEnvironmentEnd : 0);
  EXPECT_TRUE(plugin->feed(many.finish()));
  EXPECT_EQ(rig.ingest.find(9)->environment->variables.size(), wire::kMaxVariables);
  EXPECT_TRUE(rig.ingest.find(9)->environment->cut);

  wire::Environment head{};
  head.flags = wire::kEnvironmentEnd;
  wire::StringRecordWriter<wire::Environment> record(head, wire::RecordType::kEnvironment);
  record.add(wire::StringKey::kVariableMore, "of nothing");
  record.add(wire::StringKey::kVariable, "NCCL_X=");
  for (int i = 0; i < 10; ++i) record.add(wire::StringKey::kVariableMore, std::string(128, 'v'));
  alignas(8) std::byte buffer[4096];
  wire::FrameWriter writer(buffer);
  writer.add_bytes(record.finish());
  const auto packet = writer.finish(0, 1);
  EXPECT_TRUE(plugin->feed({packet.begin(), packet.end()}));
  EXPECT_EQ(rig.ingest.find(9)->environment->variables,
            (Variables{{"NCCL_X", std::string(wire::kMaxVariableBytes - 7, 'v')}}));
  EXPECT_TRUE(rig.ingest.find(9)->environment->cut);
}

TEST(Session, RefusesAnEnvironmentWhoseStringsDoNotFit) {
  Rig rig;
  auto plugin = rig.open(9);
  Packet packet = PacketBuilder().environment({"NCCL_DEBUG=INFO"}).finish();
  packet[sizeof(wire::FrameHeader) + 4] = std::byte{200};  // string_bytes
  EXPECT_FALSE(plugin->feed(packet));
  EXPECT_EQ(rig.ingest.stats().error(to_ingest_error(wire::DecodeError::kBadString)), 1u);
}

TEST(Session, KeepsEqualVariablesOnceAndWhatOneUserHasBounded) {
  Rig rig;
  const std::size_t limit = EnvironmentStore::Limits{}.principal_count;
  std::vector<std::unique_ptr<Wire>> plugins;
  for (std::size_t i = 0; i < 2 * limit; ++i) {
    plugins.push_back(rig.open(100 + i));
    plugins.back()->feed(PacketBuilder().environment({"NCCL_DEBUG=INFO"}).finish());
  }
  EXPECT_EQ(rig.ingest.find(100)->environment, rig.ingest.find(101)->environment);
  EXPECT_EQ(rig.ingest.quotas().count(Quota::kEnvironments), 0u);
  for (std::size_t i = 0; i < 2 * limit; ++i) {
    plugins[i]->feed(
        PacketBuilder().environment({"NCCL_DEBUG_FILE=/tmp/" + std::to_string(i)}).finish());
  }
  EXPECT_NE(rig.ingest.find(100)->environment, nullptr);
  EXPECT_EQ(rig.ingest.find(100 + 2 * limit - 1)->environment, nullptr);
  EXPECT_GE(rig.ingest.quotas().count(Quota::kEnvironments), limit);
  auto other = rig.connect(1, 4242);
  other->feed(PacketBuilder().hello(make_hello(9)).environment({"NCCL_ALGO=Ring"}).finish());
  EXPECT_NE(rig.ingest.find(9)->environment, nullptr) << "another user is not touched";
}

TEST(EnvironmentStore, GivesRoomBackAndLeavesEverybodyAShare) {
  EnvironmentStore store({.bytes = 4000, .principal_bytes = 3000, .principal_count = 64});
  const auto of = [](int number) {
    return ProcessEnvironment{{{"NCCL_V", std::to_string(number)}}, false};
  };
  std::vector<ProcessEnvironmentPtr> kept;
  for (int i = 0; i < 64; ++i) kept.push_back(store.keep("uid:1", of(i)));
  EXPECT_LE(store.bytes(), 3000u);
  EXPECT_EQ(kept.back(), nullptr);
  std::vector<ProcessEnvironmentPtr> more;
  for (int user = 2; user < 12; ++user)
    more.push_back(store.keep("uid:" + std::to_string(user), of(0)));
  EXPECT_NE(more[0], nullptr);
  EXPECT_NE(more[1], nullptr);
  kept.clear();
  more.clear();
  store.prune();
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_NE(store.keep("uid:1", of(1)), nullptr);
}

TEST(Session, RefusesRecordsThatOnlyAgentsSend) {
  Rig rig;
  auto plugin = rig.open(9);
  EXPECT_FALSE(plugin->feed(PacketBuilder().add(wire::Welcome{}, RecordType::kWelcome).finish()));
  EXPECT_EQ(rig.ingest.stats().error(IngestError::kWrongDirection), 1u);
}

TEST(Session, TellsDetailToTheSessionsOfAJobOnly) {
  Rig rig;
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "8", 101);
  a->answers();
  b->answers();
  DetailRequest request;
  request.job_id = "7";
  request.level = static_cast<std::uint8_t>(wire::DetailLevel::kFull);
  request.network_phases = true;
  request.duration_ms = 5000;
  EXPECT_EQ(rig.ingest.set_detail(request), 1u);
  const auto told = a->last<wire::SetDetail>(RecordType::kSetDetail);
  EXPECT_EQ(told.level, 2u);
  EXPECT_EQ(told.network, 1u);
  EXPECT_EQ(told.duration_ms, 5000u);
  EXPECT_TRUE(b->answers().empty());
  request.job_id.clear();
  EXPECT_EQ(rig.ingest.set_detail(request), 2u);
  request.uid = 4;
  EXPECT_EQ(rig.ingest.set_detail(request), 0u);
}

TEST(Session, ForgetsADisconnectedSessionAfterTheGraceTime) {
  Rig rig;
  auto plugin = rig.open(9);
  plugin->disconnect();
  rig.clock.advance_ms(299'999);
  rig.tick();
  EXPECT_NE(rig.ingest.find(9), nullptr);
  rig.clock.advance_ms(1);
  rig.tick();
  EXPECT_EQ(rig.ingest.find(9), nullptr);
}

TEST(Session, MakesRoomByForgettingTheLongestAwayAndRefusesWhenAllAreConnected) {
  Ingest::Options options;
  options.max_sessions = 2;
  Rig rig({}, options);
  auto a = rig.open(1, "7", 101);
  auto b = rig.open(2, "7", 102);
  auto c = rig.open(3, "7", 103);
  EXPECT_TRUE(c->over());
  EXPECT_EQ(c->last<wire::Refuse>(RecordType::kRefuse).reason,
            static_cast<std::uint16_t>(wire::RefuseReason::kQuota));
  a->disconnect();
  auto d = rig.open(4, "7", 104);
  EXPECT_FALSE(d->over());
  EXPECT_EQ(rig.ingest.find(1), nullptr);
}

}  // namespace
}  // namespace ncclscope::agent
