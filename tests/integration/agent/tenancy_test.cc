// SPDX-License-Identifier: Apache-2.0
//
// Hostile tenants beside polite ones on a real socket. Fairness is shown by counting frames, never
// by time: the reactor is turned by the test, the clock stands still.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <map>

#include "agent/base/reactor.h"
#include "agent/ingest/listener.h"
#include "tests/integration/agent/running_agent.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using testing::make_hello;
using testing::Packet;
using testing::PacketBuilder;
using testing::Plugin;
using tests::TemporaryDirectory;

/// Writes down whose frames were taken, in order.
class FrameLog final : public RecordSink {
 public:
  bool session_opened(SessionState& state) override {
    state.process = reinterpret_cast<SinkProcess*>(this);
    return true;
  }
  void session_closed(SessionState&) override {}
  void session_expired(SessionState&) override {}
  void communicator_init(SessionState&, const wire::CommunicatorInit&,
                         const CommunicatorStrings&) override {}
  void books(SessionState&, const wire::Books&) override {}
  bool progress(SessionState&, const wire::Progress&) override { return true; }
  bool neighbours(SessionState&, const wire::Neighbours&, std::span<const std::byte>) override {
    return true;
  }
  bool operation(SessionState&, const wire::Operation&, std::uint64_t) override { return true; }
  bool network(SessionState&, const wire::NetworkPhases&, std::uint64_t) override { return true; }
  bool channel(SessionState&, const wire::ChannelDetail&, std::uint64_t) override { return true; }
  bool finalize(SessionState&, const wire::CommunicatorFinalize&, std::uint64_t) override {
    return true;
  }
  void frame_begin(SessionState& state, std::uint64_t) override {
    frames.push_back(state.session_id);
  }
  void frame_end(SessionState&) override {}

  std::vector<std::uint64_t> frames;  // session ids
};

constexpr std::uint64_t kFlooder = 1000;  // session ids from here on
constexpr std::uint64_t kPolite = 1;

/// A listener whose peers are who the test says, in the order in which they connect.
class Fairness : public ::testing::Test {
 protected:
  void start(Listener::Options options = {}) {
    options.path = directory_ / "agent.sock";
    auto reactor = Reactor::create();
    ASSERT_TRUE(reactor.ok());
    reactor_ = std::move(reactor).value();
    auto listener = Listener::create(*reactor_, ingest_, options, [this](int, std::uint64_t) {
      PeerIdentity peer;
      peer.pid = ++accepted_;
      peer.uid = static_cast<std::int64_t>(principal_);
      peer.principal = "uid:" + std::to_string(principal_);
      return Result<PeerIdentity>(peer);
    });
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_ = std::move(listener).value();
  }
  void TearDown() override {
    plugins_.clear();
    listener_.reset();
  }
  void turn(int times = 1) {
    for (int i = 0; i < times; ++i) reactor_->run_once(std::chrono::milliseconds(0));
  }
  /// Connects and says Hello; it is accepted before the next one.
  void join(std::uint64_t session, unsigned principal) {
    principal_ = principal;
    auto plugin = std::make_unique<Plugin>(directory_ / "agent.sock");
    ASSERT_TRUE(plugin->connected());
    ASSERT_TRUE(plugin->send(PacketBuilder().hello(make_hello(session)).finish()));
    plugins_[session] = std::move(plugin);
    for (int i = 0; i < 100 && ingest_.find(session) == nullptr; ++i) turn();
    ASSERT_NE(ingest_.find(session), nullptr);
  }
  /// Queues `count` frames of one operation each.
  void queue(std::uint64_t session, int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(
          plugins_.at(session)->send(PacketBuilder().operation().finish(++indexes_[session])));
    }
  }
  [[nodiscard]] std::size_t frames_of(std::uint64_t session) const {
    return static_cast<std::size_t>(std::count(sink_.frames.begin(), sink_.frames.end(), session));
  }
  /// How many frames of flooders were taken before the last polite session had its first one.
  [[nodiscard]] std::size_t flood_before_all_polite(std::size_t polite) const {
    std::size_t flood = 0;
    std::map<std::uint64_t, int> seen;
    for (const std::uint64_t session : sink_.frames) {
      if (session >= kFlooder) {
        ++flood;
      } else if (++seen[session] == 1 && seen.size() == polite) {
        return flood;
      }
    }
    return ~std::size_t{0};
  }

  static constexpr auto kTurn = static_cast<std::size_t>(Listener::kFramesPerTurn);
  TemporaryDirectory directory_;
  FakeClock clock_;
  FrameLog sink_;
  Ingest ingest_{sink_, clock_, {}};
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint64_t, std::unique_ptr<Plugin>> plugins_;
  std::map<std::uint64_t, std::uint64_t> indexes_;
  unsigned principal_ = 0;
  int accepted_ = 0;
};

TEST_F(Fairness, AFloodingConnectionDelaysOthersByOneTurnAtMost) {
  start();
  join(kFlooder, 1);
  for (std::uint64_t p = 0; p < 8; ++p) join(kPolite + p, 2 + static_cast<unsigned>(p));
  queue(kFlooder, 100);
  sink_.frames.clear();
  turn();  // the flooder is in the middle of its flood
  for (std::uint64_t p = 0; p < 8; ++p) queue(kPolite + p, 1);
  sink_.frames.clear();
  turn();
  EXPECT_LE(flood_before_all_polite(8), kTurn);
  for (std::uint64_t p = 0; p < 8; ++p) EXPECT_EQ(frames_of(kPolite + p), 1u);
  turn(20);
  EXPECT_EQ(indexes_[kFlooder], ingest_.find(kFlooder)->highest_index) << "nothing is lost";
}

TEST_F(Fairness, WhatAProcessSentBeforeItEndedIsReadToTheEnd) {
  start();
  join(kPolite, 1);
  for (std::uint64_t round = 0; round < 8; ++round) {
    join(kFlooder + round, 2);
    queue(kFlooder + round, 100);
    turn(1 + static_cast<int>(round % 4));
    plugins_.erase(kFlooder + round);  // gone, with most of what it sent unread
    clock_.advance_ns(Ingest::kAckPeriodNs);
    ingest_.tick();  // nobody takes the acknowledgement
    turn(20);
    EXPECT_EQ(ingest_.find(kFlooder + round)->highest_index, 100u);
  }
  queue(kPolite, 1);
  turn(2);
  EXPECT_EQ(ingest_.find(kPolite)->highest_index, 1u);
}

TEST_F(Fairness, ConnectionsOfOnePrincipalShareItsTurn) {
  start();
  join(kFlooder, 1);
  for (std::uint64_t p = 0; p < 8; ++p) join(kPolite + p, 1);  // the flooder's own ranks
  queue(kFlooder, 100);
  turn();
  for (std::uint64_t p = 0; p < 8; ++p) queue(kPolite + p, 1);
  sink_.frames.clear();
  turn();
  EXPECT_LE(sink_.frames.size(), kTurn);
  for (std::uint64_t p = 0; p < 8; ++p) EXPECT_EQ(frames_of(kPolite + p), 1u);
}

TEST_F(Fairness, ManyFloodingConnectionsOfOnePrincipalWeighAsMuchAsOne) {
  start();
  constexpr std::uint64_t kFlooders = 200;
  for (std::uint64_t f = 0; f < kFlooders; ++f) join(kFlooder + f, 1);
  for (std::uint64_t p = 0; p < 4; ++p) join(kPolite + p, 2 + static_cast<unsigned>(p));
  for (std::uint64_t f = 0; f < kFlooders; ++f) queue(kFlooder + f, 5);
  turn(8);  // the reactor has seen all of them
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t p = 0; p < 4; ++p) queue(kPolite + p, 1);
    sink_.frames.clear();
    // epoll hands out 64 events at a time, and a turn follows each.
    turn(2);
    EXPECT_LE(flood_before_all_polite(4), 2 * kTurn) << "in round " << round;
    for (std::uint64_t p = 0; p < 4; ++p) EXPECT_EQ(frames_of(kPolite + p), 1u);
  }
  turn(100);
  for (std::uint64_t f = 0; f < kFlooders; ++f) {
    EXPECT_EQ(ingest_.find(kFlooder + f)->highest_index, 5u) << "and each has its turn";
  }
}

TEST_F(Fairness, APrincipalOverItsBytesIsReadLaterAndLosesNothing) {
  Listener::Options options;
  options.bytes_per_second_per_principal = 1000;  // about eleven frames
  start(options);
  join(kFlooder, 1);
  join(kPolite, 2);
  queue(kFlooder, 60);
  turn(10);
  const std::size_t taken = frames_of(kFlooder);
  EXPECT_LT(taken, 20u);
  EXPECT_EQ(ingest_.quotas().count(Quota::kBytes), 1u);
  queue(kPolite, 1);
  turn(2);
  EXPECT_EQ(frames_of(kPolite), 1u) << "it pays for itself only";
  EXPECT_EQ(frames_of(kFlooder), taken) << "time stands still";
  ASSERT_TRUE(testing::eventually([&] {
    clock_.advance_ms(1000);
    turn(2);
    return frames_of(kFlooder) == 60;
  }));
  EXPECT_EQ(ingest_.find(kFlooder)->records_lost, 0u);
  EXPECT_GT(ingest_.quotas().count(Quota::kBytes), 1u);
  EXPECT_FALSE(plugins_.at(kFlooder)->receive().empty()) << "still connected";
}

TEST_F(Fairness, ReconnectingDoesNotRefillTheBucket) {
  Listener::Options options;
  options.bytes_per_second_per_principal = 1000;
  start(options);
  join(kFlooder, 1);
  queue(kFlooder, 30);
  turn(10);
  const std::size_t taken = sink_.frames.size();
  plugins_.clear();
  turn(3);
  principal_ = 1;
  Plugin again(directory_ / "agent.sock");
  ASSERT_TRUE(again.send(PacketBuilder().hello(make_hello(kFlooder + 1)).finish()));
  principal_ = 1;
  turn(5);
  EXPECT_EQ(ingest_.find(kFlooder + 1), nullptr) << "not even its Hello is read";
  EXPECT_EQ(sink_.frames.size(), taken);
}

TEST_F(Fairness, OnePrincipalsConnectionsLeaveRoomForOthers) {
  Listener::Options options;
  options.max_connections = 6;
  options.connections_per_principal = 3;
  start(options);
  for (std::uint64_t f = 0; f < 3; ++f) join(kFlooder + f, 1);
  principal_ = 1;
  Plugin fourth(directory_ / "agent.sock");
  turn(3);
  EXPECT_TRUE(fourth.receive().empty());
  EXPECT_EQ(ingest_.quotas().count(Quota::kConnections), 1u);
  EXPECT_EQ(ingest_.stats().error(IngestError::kLimit), 1u);
  join(kPolite, 2);
  EXPECT_EQ(listener_->connections(), 4u);
  plugins_.erase(kFlooder);
  turn(3);
  join(kFlooder + 9, 1);
  EXPECT_EQ(listener_->connections(), 4u);
}

TEST_F(Fairness, WithoutDescriptorsItWaitsInsteadOfSpinning) {
  start();
  join(kPolite, 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  principal_ = 2;
  Plugin late(directory_ / "agent.sock");
  ASSERT_TRUE(late.connected()) << "the kernel keeps it in the backlog";
  ASSERT_TRUE(late.send(PacketBuilder().hello(make_hello(2)).finish()));
  rlimit none = before;
  none.rlim_cur = 3;  // what is open stays open
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int i = 0; i < 1000; ++i) turn();
  const std::uint64_t failures = ingest_.stats().error(IngestError::kAcceptFailed);
  queue(kPolite, 1);
  turn(2);
  EXPECT_EQ(frames_of(kPolite), 1u) << "those who are connected are served";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GE(failures, 1u);
  EXPECT_LT(failures, 100u) << "it does not ask at every turn";
  EXPECT_TRUE(testing::eventually([&] {
    turn();
    return ingest_.find(2) != nullptr;
  })) << "accepted once there are descriptors again";
  EXPECT_FALSE(listener_->accept_paused());
}

TEST_F(Fairness, SilentConnectionsEndAfterTheHelloTimeoutAndOthersDoNot) {
  start();
  join(kPolite, 1);
  principal_ = 2;
  std::vector<std::unique_ptr<Plugin>> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(std::make_unique<Plugin>(directory_ / "agent.sock"));
    turn();
  }
  EXPECT_EQ(listener_->connections(), 51u);
  clock_.advance_ms(4900);
  ingest_.tick();
  turn(2);
  EXPECT_EQ(listener_->connections(), 51u);
  clock_.advance_ms(200);
  ingest_.tick();
  turn(2);
  EXPECT_EQ(listener_->connections(), 1u);
  EXPECT_EQ(ingest_.stats().error(IngestError::kNoHello), 50u);
}

}  // namespace
}  // namespace ncclscope::agent
