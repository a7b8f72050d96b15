// SPDX-License-Identifier: Apache-2.0
//
// The agent on a real Unix socket: good plugins, bad peers beside them, restarts, and the gateway
// for other threads.
#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/integration/agent/running_agent.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using testing::decode_errors;
using testing::eventually;
using testing::make_hello;
using testing::make_init;
using testing::Packet;
using testing::PacketBuilder;
using testing::Plugin;
using testing::RunningAgent;
using tests::TemporaryDirectory;
using wire::RecordType;

class AgentSocket : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string path_ = directory_ / "run/agent.sock";
};

TEST_F(AgentSocket, HasADirectoryAndModesThatLetPluginsIn) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0666u);
  ASSERT_EQ(::stat((directory_ / "run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0755u);
}

TEST_F(AgentSocket, WelcomesCountsAndAcknowledges) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  Plugin plugin(path_);
  const auto welcome = plugin.greet(9);
  ASSERT_TRUE(welcome);
  EXPECT_NE(welcome->agent_instance, 0u);
  ASSERT_TRUE(plugin.send(PacketBuilder()
                              .init(make_init(1, 0xa, 0, 2))
                              .operations(500, {.communicator = 1})
                              .finish(1)));
  const auto ack = plugin.await<wire::Ack>(RecordType::kAck);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->index, 500u);
  const SnapshotPtr s = agent.snapshot();
  ASSERT_EQ(s->jobs.size(), 1u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "7");
  EXPECT_EQ(s->jobs[0].identity.uid, static_cast<std::int64_t>(::getuid()));
  EXPECT_EQ(s->jobs[0].communicators.at(0).ranks.at(0).pid, ::getpid()) << "from the kernel";
  EXPECT_EQ(s->jobs[0].communicators[0].sums.at(0).operations_by_timing[1], 500u);
}

TEST_F(AgentSocket, GoesOnWithOthersWhileBadPeersComeAndGo) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  Plugin good(path_);
  ASSERT_TRUE(good.greet(9));
  ASSERT_TRUE(good.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finish()));
  std::uint64_t index = 1;
  const auto still_good = [&] {
    if (!good.send(PacketBuilder().operations(10).finish(index))) return false;
    index += 10;
    return eventually([&] { return agent.records_of(9) == index - 1; });
  };

  Packet version = PacketBuilder().hello(make_hello(50)).finish();
  version[4] = std::byte{3};
  Packet truncated = PacketBuilder().hello(make_hello(51)).finish();
  truncated.resize(truncated.size() - 16);
  Packet long_packet(wire::kMaxFrameBytes + 64);
  const std::vector<std::pair<Packet, wire::RefuseReason>> bad = {
      {version, wire::RefuseReason::kVersion},
      {truncated, wire::RefuseReason::kMalformed},
      {Packet(5, std::byte{7}), wire::RefuseReason::kMalformed},
      {Packet(wire::kMaxFrameBytes, std::byte{0xFF}), wire::RefuseReason::kMalformed},
      {long_packet, wire::RefuseReason::kMalformed},
      {PacketBuilder().operation().finish(1), wire::RefuseReason::kNoHello},
      {PacketBuilder().hello(make_hello(0)).finish(), wire::RefuseReason::kMalformed},
  };
  for (const auto& [packet, reason] : bad) {
    Plugin peer(path_);
    ASSERT_TRUE(peer.send(packet));
    const auto refuse = peer.await<wire::Refuse>(RecordType::kRefuse);
    ASSERT_TRUE(refuse);
    EXPECT_EQ(refuse->reason, static_cast<std::uint16_t>(reason));
    EXPECT_TRUE(peer.await_end());
    EXPECT_TRUE(still_good());
  }
  const SnapshotPtr s = agent.snapshot();
  EXPECT_EQ(decode_errors(*s, "bad_version"), 1u);
  EXPECT_EQ(decode_errors(*s, "bad_length"), 1u + 0u) << "the truncated one";
  EXPECT_EQ(decode_errors(*s, "too_short"), 1u);
  EXPECT_EQ(decode_errors(*s, "bad_magic"), 2u);
  EXPECT_EQ(decode_errors(*s, "no_hello"), 1u);
  EXPECT_EQ(s->agent.refused_connections, bad.size());
  EXPECT_TRUE(eventually([&] { return agent.snapshot()->agent.connections_open == 1; }));
}

TEST_F(AgentSocket, IsNotHeldUpByPeersThatAreSilentHalfOpenOrDoNotRead) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  Plugin silent(path_);
  Plugin half_open(path_);
  ASSERT_TRUE(half_open.greet(20));
  ::shutdown(half_open.fd(), SHUT_WR);
  Plugin deaf(path_);  // sends for ever, reads nothing
  ASSERT_TRUE(
      deaf.send(PacketBuilder().hello(make_hello(21)).init(make_init(0, 0xb, 0, 2)).finish()));
  std::uint64_t index = 1;
  for (int i = 0; i < 200; ++i, index += 500) {
    ASSERT_TRUE(deaf.send(PacketBuilder().operations(500).finish(index)));
  }
  Plugin good(path_);
  ASSERT_TRUE(good.greet(22));
  ASSERT_TRUE(good.send(PacketBuilder().init(make_init(0, 0xc, 0, 2)).operations(3).finish(1)));
  EXPECT_TRUE(eventually([&] { return agent.records_of(22) == 3; }));
  EXPECT_TRUE(eventually([&] { return agent.records_of(21) == 100'000; }));
  EXPECT_TRUE(half_open.await_end()) << "its session ended with its end of stream";
}

TEST_F(AgentSocket, CountsWhatAPluginSentBeforeItDiedWithUnreadAnswers) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  {
    Plugin plugin(path_);
    // Welcome stays unread: closing then resets the connection, with frames still queued at the
    // agent.
    plugin.send(PacketBuilder().hello(make_hello(9)).init(make_init(0, 0xa, 0, 2)).finish());
    pollfd answered{plugin.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&answered, 1, 20'000), 1);
    for (std::uint64_t i = 0; i < 5; ++i)
      plugin.send(PacketBuilder().operations(100).finish(1 + i * 100));
  }
  EXPECT_TRUE(eventually([&] { return agent.records_of(9) == 500; }));
  EXPECT_TRUE(eventually([&] { return agent.snapshot()->agent.connections_open == 0; }));
}

TEST_F(AgentSocket, ResumesASessionAfterAReconnect) {
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  Plugin first(path_);
  ASSERT_TRUE(first.greet(9));
  first.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(50).finish(1));
  ASSERT_TRUE(first.await<wire::Ack>(RecordType::kAck));
  first.close();
  Plugin second(path_);
  const auto welcome = second.greet(9);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->highest_index, 50u);
  second.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(50).finish(41));
  EXPECT_TRUE(eventually([&] { return agent.records_of(9) == 90; }));
  const SnapshotPtr s = agent.snapshot();
  EXPECT_EQ(s->jobs.at(0).processes.at(0).records_duplicate, 10u);
  EXPECT_EQ(s->jobs[0].communicators.at(0).sums.at(0).operations_by_timing[1], 90u);
}

TEST_F(AgentSocket, ANewAgentTakesUpWhereTheOldOneAcknowledged) {
  std::uint64_t acknowledged = 0;
  std::uint64_t instance = 0;
  {
    RunningAgent agent(path_);
    Plugin plugin(path_);
    instance = plugin.greet(9)->agent_instance;
    plugin.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(50).finish(1));
    acknowledged = plugin.await<wire::Ack>(RecordType::kAck)->index;
    agent.stop();
    EXPECT_FALSE(std::filesystem::exists(path_)) << "the socket is removed";
  }
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  Plugin plugin(path_);
  const auto welcome = plugin.greet(9, "7", acknowledged);
  ASSERT_TRUE(welcome);
  EXPECT_NE(welcome->agent_instance, instance);
  EXPECT_EQ(welcome->highest_index, 50u);
  plugin.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(5).finish(51));
  EXPECT_TRUE(eventually([&] { return agent.records_of(9) == 5; }));
  EXPECT_EQ(agent.snapshot()->jobs.at(0).processes.at(0).records_before, 50u);
  EXPECT_EQ(agent.snapshot()->jobs.at(0).processes.at(0).records_lost, 0u);
}

TEST_F(AgentSocket, DrainsWhatIsQueuedWhenItStops) {
  RunningAgent agent(path_);
  Plugin plugin(path_);
  ASSERT_TRUE(plugin.greet(9));
  plugin.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finish());
  // Several turns of the reactor's worth, then stop at once.
  agent->detail().set_detail({});  // the reactor is up
  int frames = 0;
  for (std::uint64_t index = 1; frames < 5; ++frames, index += 100) {
    ASSERT_TRUE(plugin.send(PacketBuilder().operations(100).finish(index)));
  }
  agent.stop();
  const SnapshotPtr s = agent->snapshots().get();
  EXPECT_EQ(s->jobs.at(0).processes.at(0).records_received, 500u);
  std::uint64_t last = 0;
  while (const auto ack = plugin.await<wire::Ack>(RecordType::kAck)) {
    last = ack->index;
    if (last == 500) break;
  }
  EXPECT_EQ(last, 500u) << "the sender knows that they were counted";
}

TEST_F(AgentSocket, ReplacesAStaleSocketButNotALivingAgentsNorAFile) {
  {
    // A socket file whose owner is gone.
    const ScopedFd dead(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(std::filesystem::exists(path_));
  RunningAgent agent(path_);
  ASSERT_EQ(agent.error(), "");
  RunningAgent second(path_);
  EXPECT_NE(second.error().find("somebody listens"), std::string::npos) << second.error();
  EXPECT_TRUE(Plugin(path_).connected()) << "the living one is still there";
  const std::string file = directory_ / "file";
  std::ofstream(file) << "precious";
  RunningAgent third(file);
  EXPECT_NE(third.error().find("not a socket"), std::string::npos) << third.error();
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST_F(AgentSocket, RefusesADirectoryInWhichOthersCouldPutASocket) {
  const std::string run = directory_ / "run";
  std::filesystem::create_directory(run);
  const auto error = [&](const std::string& path) {
    RunningAgent agent(path);
    return agent.error();
  };
  for (const mode_t mode : {0777u, 01777u, 0775u}) {
    ASSERT_EQ(::chmod(run.c_str(), mode), 0);
    EXPECT_NE(error(path_).find("others can write to " + run), std::string::npos) << error(path_);
  }
  // Nor in one whose place others could take.
  ASSERT_EQ(::chmod(run.c_str(), 0777), 0);
  EXPECT_NE(error(run + "/below/agent.sock").find("others can write to " + run), std::string::npos);
  ASSERT_EQ(::chmod(run.c_str(), 01777), 0);
  EXPECT_EQ(error(run + "/below/agent.sock"), "") << "a sticky one protects what is ours";
  ASSERT_EQ(::chmod(run.c_str(), 0755), 0);
  EXPECT_EQ(error(path_), "");
}

TEST_F(AgentSocket, RefusesWhatBelongsToSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files away";
  const std::string run = directory_ / "run";
  std::filesystem::create_directory(run);
  ASSERT_EQ(::chown(run.c_str(), 65534, 65534), 0);
  {
    RunningAgent agent(path_);
    EXPECT_NE(agent.error().find(run + " belongs to uid 65534"), std::string::npos)
        << agent.error();
  }
  ASSERT_EQ(::chown(run.c_str(), 0, 0), 0);
  // A link that its owner could turn elsewhere.
  const std::string link = directory_ / "link";
  std::filesystem::create_symlink(run, link);
  ASSERT_EQ(::lchown(link.c_str(), 65534, 65534), 0);
  {
    RunningAgent agent(link + "/agent.sock");
    EXPECT_NE(agent.error().find(link + " belongs to uid 65534"), std::string::npos)
        << agent.error();
  }
  // A stale socket that is not ours.
  {
    RunningAgent agent(path_);
    ASSERT_EQ(agent.error(), "");
  }
  {
    const ScopedFd dead(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
    RunningAgent agent(path_);
    EXPECT_NE(agent.error().find("belongs to uid 65534, not to the agent"), std::string::npos)
        << agent.error();
  }
  // A link in the socket's place is not followed.
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(directory_ / "elsewhere", path_);
  RunningAgent agent(path_);
  EXPECT_NE(agent.error().find("is not a socket"), std::string::npos) << agent.error();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "elsewhere"));
}

TEST_F(AgentSocket, BoundsConnections) {
  RunningAgent agent(path_, [](Config& c) { c.quota_connections = 2; });
  Plugin a(path_);
  Plugin b(path_);
  ASSERT_TRUE(a.greet(1));
  ASSERT_TRUE(b.greet(2));
  Plugin c(path_);
  EXPECT_TRUE(c.await_end());
  EXPECT_EQ(decode_errors(*agent.snapshot(), "limit"), 1u);
  EXPECT_EQ(agent.snapshot()->agent.quota_exceeded[static_cast<std::size_t>(Quota::kConnections)],
            1u);
  a.close();
  EXPECT_TRUE(eventually([&] { return Plugin(path_).greet(3).has_value(); }));
}

TEST_F(AgentSocket, CarriesTwoJobsAtOnce) {
  RunningAgent agent(path_);
  Plugin a(path_);
  Plugin b(path_);
  ASSERT_TRUE(a.greet(1, "100"));
  ASSERT_TRUE(b.greet(2, "200_3"));
  a.send(PacketBuilder()
             .init(make_init(0, 0xa, 0, 2))
             .init(make_init(1, 0xb, 0, 8))
             .operations(4, {.communicator = 1})
             .finish(1));
  b.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).operations(6).finish(1));
  EXPECT_TRUE(eventually([&] { return agent.records_of(1) == 4 && agent.records_of(2) == 6; }));
  const SnapshotPtr s = agent.snapshot();
  ASSERT_EQ(s->jobs.size(), 2u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "100");
  EXPECT_EQ(s->jobs[0].communicators.size(), 2u);
  EXPECT_EQ(s->jobs[1].identity.job_id, "200_3");
}

TEST_F(AgentSocket, TellsDetailFromOtherThreads) {
  RunningAgent agent(path_);
  Plugin plugin(path_);
  ASSERT_TRUE(plugin.greet(9));
  DetailRequest request;
  request.job_id = "7";
  request.level = 2;
  request.duration_ms = 1000;
  EXPECT_EQ(agent->detail().set_detail(request), 1u);
  const auto told = plugin.await<wire::SetDetail>(RecordType::kSetDetail);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->level, 2u);
  agent.stop();
  EXPECT_EQ(agent->detail().set_detail(request), 0u) << "after the end nobody is told";
}

std::string text(const Packet& p) {
  return {reinterpret_cast<const char*>(p.data()), p.size()};
}
Packet bytes(const std::string& s) {
  const auto b = std::as_bytes(std::span(s));
  return {b.begin(), b.end()};
}

TEST_F(AgentSocket, TakesClaimedSessionsThroughTheGateway) {
  RunningAgent agent(path_);
  auto channel = agent->gateway().open("test", -1);
  ASSERT_NE(channel, nullptr);
  auto response = channel->submit(
      text(PacketBuilder().hello(make_hello(9)).init(make_init(0, 0xa, 0, 2)).finish()));
  ASSERT_EQ(response.frames.size(), 1u);
  EXPECT_EQ(testing::reply_type(bytes(response.frames[0])), RecordType::kWelcome);
  response = channel->submit(text(PacketBuilder().operations(7).finish(1)));
  ASSERT_EQ(response.frames.size(), 1u);
  EXPECT_EQ(testing::reply<wire::Ack>(bytes(response.frames[0])).index, 7u);
  const SnapshotPtr s = agent.snapshot();
  EXPECT_TRUE(s->jobs.at(0).processes.at(0).claimed);
  EXPECT_EQ(agent->detail().set_detail({}), 1u);
  response = channel->take(std::chrono::seconds(20));
  ASSERT_EQ(response.frames.size(), 1u);
  EXPECT_EQ(testing::reply_type(bytes(response.frames[0])), RecordType::kSetDetail);
  response = channel->submit("nonsense");
  EXPECT_TRUE(response.closed);
  ASSERT_EQ(response.frames.size(), 1u);
  EXPECT_EQ(testing::reply_type(bytes(response.frames[0])), RecordType::kRefuse);
  EXPECT_TRUE(channel->submit("more").closed);
  channel.reset();
  EXPECT_TRUE(eventually([&] { return agent.snapshot()->agent.connections_open == 0; }));
}

TEST_F(AgentSocket, ReadsStreamsOfOnePrincipalAtItsBytesPerSecond) {
  const FakeClock started;
  FakeClock clock;
  constexpr std::uint64_t kRate = 10'000;
  RunningAgent agent(
      path_, [](Config& c) { c.quota_bytes_per_second = kRate; }, &clock);
  ASSERT_EQ(agent.error(), "");
  const auto hello = [](std::uint64_t session) {
    return text(PacketBuilder().hello(make_hello(session)).init(make_init(0, 0xa, 0, 2)).finish());
  };
  auto channel = agent->gateway().open("grpc uid:1000", 1000);
  ASSERT_NE(channel, nullptr);
  std::uint64_t taken = hello(9).size();
  EXPECT_EQ(channel->submit(hello(9)).retry_after.count(), 0);
  std::uint64_t index = 1;
  const std::string operations = text(PacketBuilder().operations(50).finish());
  const auto submit = [&](IngestChannel& c) {
    return c.submit(text(PacketBuilder().operations(50).finish(index)));
  };
  const auto fill = [&] {
    for (int i = 0; i < 100; ++i) {
      const IngestChannel::Response response = submit(*channel);
      EXPECT_FALSE(response.closed);
      if (response.retry_after.count() > 0) return response.retry_after;
      taken += operations.size();
      index += 50;
    }
    ADD_FAILURE() << "a hundred frames without a limit";
    return std::chrono::milliseconds(0);
  };
  // A second's worth at first, and one frame more.
  const auto wait = fill();
  EXPECT_GE(taken, kRate);
  EXPECT_LE(taken, kRate + operations.size());
  EXPECT_LE(wait.count(), 1000.0 * static_cast<double>(operations.size()) / kRate + 1);
  EXPECT_EQ(agent.records_of(9), index - 1) << "what was not taken was not counted";

  // A second stream of the same user waits too, even opened anew; others' do not.
  auto same = agent->gateway().open("grpc uid:1000", 1000);
  EXPECT_GT(same->submit(hello(10)).retry_after.count(), 0);
  auto other = agent->gateway().open("grpc uid:1001", 1001);
  EXPECT_EQ(other->submit(hello(11)).retry_after.count(), 0);

  clock.advance_ms(static_cast<std::uint64_t>(wait.count()) + 1);
  EXPECT_EQ(submit(*channel).retry_after.count(), 0) << "after the wait it was told";
  taken += operations.size();
  index += 50;
  for (int second = 0; second < 20; ++second) {
    clock.advance_ms(1000);
    fill();
  }
  const double seconds = static_cast<double>(clock.monotonic_ns() - started.monotonic_ns()) * 1e-9;
  EXPECT_LE(static_cast<double>(taken),
            kRate * (seconds + 1) + static_cast<double>(operations.size()));
  EXPECT_GE(static_cast<double>(taken), 0.9 * kRate * seconds);
  EXPECT_EQ(agent.records_of(9), index - 1);
  const SnapshotPtr s = agent.snapshot();
  EXPECT_EQ(s->agent.quota_exceeded[static_cast<std::size_t>(Quota::kBytes)], 22u);
}

TEST_F(AgentSocket, EndsGatewayChannelsWhenItStops) {
  RunningAgent agent(path_);
  auto a = agent->gateway().open("a", -1);
  auto b = agent->gateway().open("b", -1);
  ASSERT_NE(a, nullptr);
  agent.stop();
  EXPECT_TRUE(a->submit("x").closed);
  EXPECT_TRUE(b->take(std::chrono::milliseconds(0)).closed);
  EXPECT_EQ(agent->gateway().open("c", -1), nullptr);
  std::thread other([&] { a.reset(); });
  b.reset();
  other.join();
}

TEST_F(AgentSocket, HandsSnapshotsToReadersWhileItWorks) {
  RunningAgent agent(path_, [](Config& c) { c.snapshot_interval_ms = 10; });
  Plugin plugin(path_);
  ASSERT_TRUE(plugin.greet(9));
  plugin.send(PacketBuilder().init(make_init(0, 0xa, 0, 2)).finish());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    std::vector<TailRecord> records;
    std::uint64_t next = 0;
    std::uint64_t generation = 0;
    while (!stop) {
      const SnapshotPtr s = agent->snapshots().get();
      EXPECT_GE(s->generation, generation);
      generation = s->generation;
      records.clear();
      next = agent->tail().read(next, 1000, records).next;
      for (const auto& r : records) EXPECT_EQ(r.source->comm, "000000000000000a");
    }
  });
  for (std::uint64_t i = 0; i < 50; ++i)
    plugin.send(PacketBuilder().operations(100).finish(1 + i * 100));
  EXPECT_TRUE(eventually([&] { return agent->tail().end() == 5000; }));
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace ncclscope::agent
