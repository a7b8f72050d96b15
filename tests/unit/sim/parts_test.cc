// SPDX-License-Identifier: Apache-2.0
// The emulator's parts that need no plugin: time, meeting places, planner, texts of layouts and
// faults, configuration handed to ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "sim/config_text.h"
#include "sim/fault.h"
#include "sim/planner.h"
#include "sim/simulation.h"
#include "sim/workload.h"
#include "sim/world.h"

namespace ncclscope::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(VirtualTime, JumpsToTheEarliestWakeUpAndKeepsItsOrder) {
  auto world = World::create(Pace::kAsFastAsPossible);
  world->adopt_actor(world->reserve_actor(0));
  const std::int64_t begin = world->now();
  std::vector<std::int64_t> order;
  std::vector<SimThread> threads;
  for (const std::int64_t delay : {3000000000LL, 1000000000LL, 2000000000LL}) {
    threads.emplace_back(world, 0, "sleeper", [&, delay] {
      world->sleep_until(begin + delay);
      order.push_back(delay);  // one at a time: the others wait
      EXPECT_EQ(world->now(), begin + delay);
    });
  }
  for (SimThread& thread : threads) thread.join();
  EXPECT_THAT(order, ElementsAre(1000000000, 2000000000, 3000000000));
  world->release_actor();
}

TEST(VirtualTime, DoesNotMoveWhileAnActorRuns) {
  auto world = World::create(Pace::kAsFastAsPossible);
  world->adopt_actor(world->reserve_actor(0));
  const std::int64_t begin = world->now();
  SimThread sleeper(world, 0, "sleeper", [&] { world->sleep_until(begin + 1000); });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(world->now(), begin);
  sleeper.join();
  EXPECT_EQ(world->now(), begin + 1000);
  world->release_actor();
}

TEST(VirtualTime, GoesOnWithoutTheActorsOfADeadProcess) {
  auto world = World::create(Pace::kAsFastAsPossible);
  world->adopt_actor(world->reserve_actor(0));
  world->reserve_actor(7);  // never adopted: its process died
  const std::int64_t begin = world->now();
  world->drop_owner(7);
  world->sleep_until(begin + 500);
  EXPECT_EQ(world->now(), begin + 500);
  world->release_actor();
}

TEST(Meeting, TellsStartsToAllAndHoldsBackTheFast) {
  auto world = World::create(Pace::kAsFastAsPossible);
  world->adopt_actor(world->reserve_actor(0));
  std::vector<SimThread> threads;
  const auto never = [] { return false; };
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back(world, rank, "rank", [&, rank] {
      Meeting meeting(world, 42, 3, rank);
      for (std::uint64_t i = 0; i < 100; ++i) {
        Meeting::Arrival mine;
        mine.start = static_cast<std::int64_t>(i * 10) + rank;
        ASSERT_TRUE(meeting.post(i, mine, never));
        for (int other = 0; other < 3; ++other) {
          Meeting::Arrival theirs;
          ASSERT_TRUE(meeting.await(other, i, &theirs, never));
          ASSERT_EQ(theirs.start, static_cast<std::int64_t>(i * 10) + other);
        }
      }
    });
  }
  for (SimThread& thread : threads) thread.join();
  world->release_actor();
}

TEST(Meeting, GivesUpWhenToldTo) {
  auto world = World::create(Pace::kRealTime);
  std::atomic<bool> stop{false};
  Meeting meeting(world, 43, 2, 0);
  std::thread waiter([&] {
    Meeting::Arrival arrival;
    EXPECT_FALSE(meeting.await(1, 0, &arrival, [&] { return stop.load(); }));
  });
  stop.store(true);
  meeting.wake();
  waiter.join();
}

TEST(World, RefusesMemoryThatIsNotASimulations) {
  EXPECT_THROW(World::open("/proc/self/fd/none"), std::system_error);
  EXPECT_THROW(World::open("/proc/self/exe"), std::system_error);
}

TEST(World, IsSeenByWhoOpensItsPath) {
  auto world = World::create(Pace::kRealTime);
  auto other = World::open(world->path());
  const std::uint32_t word = world->new_word();
  const std::uint32_t before = other->version(word);
  world->notify(word);
  EXPECT_NE(other->version(word), before);
}

TEST(Steps, EndTogetherOnceTimeIsUp) {
  auto world = World::create(Pace::kRealTime);
  const std::int64_t past = world->now() - 1;
  std::int64_t last = 0;
  while (world->begin_step(last, past, INT64_MAX)) ++last;
  EXPECT_LE(last, 4);
  EXPECT_TRUE(world->begin_step(last - 1, kNever, INT64_MAX));
  EXPECT_FALSE(world->begin_step(last, kNever, INT64_MAX));
}

CommShape shape(int ranks, int nodes, int rank = 0) {
  CommShape s;
  s.n_ranks = ranks;
  s.n_nodes = nodes;
  s.rank = rank;
  s.max_local_ranks = ranks / nodes;
  for (int r = 0; r < ranks; ++r) s.node_of_rank.push_back(r / (ranks / nodes));
  return s;
}

TaskPtr task(Func func, std::size_t count, int peer = 0) {
  auto t = std::make_shared<Task>();
  t->func = func;
  t->count = count;
  t->peer = peer;
  return t;
}

TEST(Planner, MovesExactlyTheBytesOfARing) {
  for (const std::size_t count :
       {std::size_t{7}, std::size_t{1000}, std::size_t{100000}, std::size_t{30000001}}) {
    Tuning tuning;
    tuning.force_algo = static_cast<int>(Algo::kRing);
    tuning.force_proto = static_cast<int>(Proto::kSimple);
    std::size_t sent = 0;
    std::size_t received = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const auto planned =
          plan_collectives({task(Func::kAllReduce, count)}, shape(4, 4, rank), tuning);
      for (const NetOp& op : planned.front()->net_ops) {
        (op.send ? sent : received) +=
            std::accumulate(op.bytes.begin(), op.bytes.end(), std::size_t{0});
      }
    }
    // Every byte goes round the ring twice, less one hop each.
    EXPECT_EQ(sent, count * 4 * 2 * 3) << count;
    EXPECT_EQ(received, sent);
  }
}

TEST(Planner, SendAndReceiveSidesOfARingAgreeStepByStep) {
  Tuning tuning;
  tuning.force_algo = static_cast<int>(Algo::kRing);
  tuning.force_proto = static_cast<int>(Proto::kSimple);
  for (const Func func : {Func::kAllReduce, Func::kAllGather, Func::kReduceScatter}) {
    std::vector<std::vector<NetOp>> ops;
    for (int rank = 0; rank < 3; ++rank) {
      ops.push_back(
          plan_collectives({task(func, 12345)}, shape(3, 3, rank), tuning).front()->net_ops);
    }
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (const NetOp& send : ops[rank]) {
        if (!send.send) continue;
        const auto& there = ops[(rank + 1) % 3];
        const auto recv = std::find_if(there.begin(), there.end(), [&](const NetOp& op) {
          return !op.send && op.channel == send.channel;
        });
        ASSERT_NE(recv, there.end());
        EXPECT_EQ(recv->bytes, send.bytes) << func_name(func);
      }
    }
  }
}

TEST(Planner, CoversAllElementsWhateverTheGroup) {
  Tuning tuning;
  tuning.channels = 8;
  tuning.force_algo = static_cast<int>(Algo::kRing);
  tuning.force_proto = static_cast<int>(Proto::kSimple);
  std::vector<TaskPtr> group;
  for (const std::size_t count : std::vector<std::size_t>{1, 17, 1000, 65536, 1000000, 33333333})
    group.push_back(task(Func::kAllReduce, count));
  const auto planned = plan_collectives(group, shape(2, 2), tuning);
  ASSERT_EQ(planned.size(), group.size());
  for (const TaskPtr& t : planned) {
    std::size_t sent = 0;
    for (const NetOp& op : t->net_ops) {
      if (op.send) sent += std::accumulate(op.bytes.begin(), op.bytes.end(), std::size_t{0});
    }
    EXPECT_LE(t->channel_lo + t->n_channels, 8);
    EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(t->bytes), 64.0 * t->n_channels)
        << t->count;
  }
}

TEST(Planner, PointToPointRoundsMeetEachOther) {
  // In every plan the order of rounds is such that a send and its receive stand in the same round.
  const int n = 6;
  std::map<std::pair<int, int>, int> round_of_send;
  std::map<std::pair<int, int>, int> round_of_recv;
  for (int rank = 0; rank < n; ++rank) {
    std::vector<TaskPtr> tasks;
    for (int peer = 0; peer < n; ++peer) {
      tasks.push_back(task(Func::kSend, 1000, peer));
      tasks.push_back(task(Func::kRecv, 1000, peer));
    }
    for (const TaskPtr& t : plan_p2p(tasks, shape(n, 2, rank), {})) {
      if (t->func == Func::kSend) {
        round_of_send[{rank, t->peer}] = t->p2p_round;
      } else {
        round_of_recv[{t->peer, rank}] = t->p2p_round;
      }
    }
  }
  EXPECT_EQ(round_of_send.size(), static_cast<std::size_t>(n * n));
  EXPECT_EQ(round_of_send, round_of_recv);
}

TEST(LayoutText, IsReadBackAndRefusedWithReasons) {
  std::string error;
  for (const char* text : {"ddp", "fsdp", "megatron:tp=2,pp=4", "megatron:tp=2,pp=2,dp=2",
                           "moe:ep=8", "moe", "moe:ep=4,hot=50", "moe:hot=20", "moe:ep=4,copy=1"}) {
    EXPECT_EQ(to_text(parse_layout(text, &error)), text);
    EXPECT_EQ(error, "");
  }
  for (const char* bad : {"", "dpp", "megatron:tp=0", "megatron:tp", "megatron:xx=2", "ddp:tp=2",
                          "ddp:ep=2", "megatron:tp=2x", "fsdp:hot=20"}) {
    parse_layout(bad, &error);
    EXPECT_NE(error, "") << bad;
  }
  resolve_layout(parse_layout("megatron:tp=2,pp=2,dp=3", &error), 8, 4, &error);
  EXPECT_THAT(error, HasSubstr("12 GPUs"));
}

TEST(Layouts, EveryMemberOfAGroupSeesTheSameGroup) {
  std::string error;
  for (const char* text : {"ddp", "fsdp", "megatron:tp=2,pp=2", "moe:ep=4"}) {
    JobShape job;
    job.nodes = 2;
    job.gpus_per_node = 8;
    job.layout = resolve_layout(parse_layout(text, &error), 16, 8, &error);
    ASSERT_EQ(error, "");
    std::map<std::uint64_t, std::vector<int>> seen;
    for (int rank = 0; rank < 16; ++rank) {
      for (const GroupPlan& group : groups_of(job, rank)) {
        EXPECT_THAT(group.members, testing::Contains(rank)) << text << " " << group.name;
        const auto [it, fresh] = seen.emplace(group.hash, group.members);
        EXPECT_EQ(it->second, group.members) << text << " " << group.name;
      }
    }
  }
}

TEST(FaultText, IsReadBackAndRefusedWithReasons) {
  std::string error;
  for (const char* text :
       {"late:rank=3,ms=40", "slow-gpu:rank=2,factor=1.5,from=10,until=20",
        "slow-link:node=1,factor=4", "slow-nic:rank=1,factor=2", "missing:rank=5,step=20",
        "stuck:node=0", "mismatch:rank=1,step=4", "crash:rank=0", "abort:step=3",
        "pause:rank=0,ms=500", "slow-kernel:rank=1,us=100"}) {
    const Fault fault = parse_fault(text, &error);
    EXPECT_EQ(error, "") << text;
    const std::string again = to_text(fault);
    EXPECT_EQ(to_text(parse_fault(again, &error)), again);
    EXPECT_EQ(error, "") << again;
  }
  for (const char* bad :
       {"", "slow", "late:rank=1", "late:ms=3", "late:rank=x,ms=3", "slow-gpu:rank=1",
        "slow-gpu:rank=1,factor=0.5", "late:rank=1,node=1,ms=2", "late:rank=-1,ms=2",
        "crash:rank=1,from=5,until=5", "crash:rank=1.5", "late:rank=1,ms=2,color=3"}) {
    parse_fault(bad, &error);
    EXPECT_THAT(error, HasSubstr("known are")) << bad;
  }
}

TEST(RankConfiguration, SurvivesItsTextForm) {
  SimulationConfig config;
  config.nodes = 3;
  config.gpus_per_node = 5;
  std::string error;
  config.layout = parse_layout("megatron:tp=5", &error);
  config.release = parse_release("2.30.3", &error);
  config.faults = {parse_fault("late:rank=3,ms=40,from=2", &error)};
  config.hardware.noise = 0.0125;
  config.hazards.pxn = true;
  config.seed = 1234567890123456789u;
  RankOrders orders{"/shm", 7, 11, 123456789012345, 223456789012345};
  SimulationConfig read;
  RankOrders read_orders;
  ASSERT_EQ(read_config(write_config(config, orders), &read, &read_orders), "");
  EXPECT_EQ(write_config(read, read_orders), write_config(config, orders));
  EXPECT_EQ(read.seed, config.seed);
  EXPECT_EQ(read_orders.hard_end, orders.hard_end);
  EXPECT_NE(read_config("nodes x\n", &read, &read_orders), "");
  EXPECT_NE(read_config("nonsense 1\n", &read, &read_orders), "");
}

TEST(SimulationCheck, NamesWhatIsWrong) {
  SimulationConfig config;
  EXPECT_EQ(check(config), "");
  config.nodes = 0;
  EXPECT_THAT(check(config), HasSubstr("at least 1 node"));
  config.nodes = 2;
  std::string error;
  config.faults = {parse_fault("late:rank=4,ms=1", &error)};
  EXPECT_THAT(check(config), HasSubstr("ranks are 0 to 3"));
  config.faults = {parse_fault("stuck:node=2", &error)};
  EXPECT_THAT(check(config), HasSubstr("nodes are 0 to 1"));
  config.faults.clear();
  config.gpus_per_node = 1000;
  EXPECT_THAT(check(config), HasSubstr("1024"));
}

}  // namespace
}  // namespace ncclscope::sim
