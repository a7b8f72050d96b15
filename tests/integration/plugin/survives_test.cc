// SPDX-License-Identifier: Apache-2.0
// Agents that are absent, gone, stuck, hostile or foreign; processes that fork, reload, exit,
// abort. The job never notices, and the books balance.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "tests/support/plugin_test.h"
#include "tests/support/spawn.h"

extern "C" int ncclGetVersion(int* version) {
  *version = ncclscope_test_nccl_version;
  return 0;
}

namespace ncclscope::tests {
namespace {

using std::chrono::milliseconds;

class Survives : public PluginTest {
 protected:
  /// n complete one-channel operations, stamps in order.
  void run(const DrivenCommunicator& c, unsigned n) {
    for (unsigned i = 0; i < n; ++i) {
      gpu_ += 1000;
      c.all_reduce(100, 1, gpu_, gpu_ + 500);
    }
  }
  /// A process of its own that does what integration/plugin/job.cc says; its wait status.
  static int run_job(const std::string& mode) {
    int status = -1;
    const pid_t job = spawn({NCCLSCOPE_PLUGIN_JOB, mode});
    return waitpid(job, &status, 0) == job ? status : -1;
  }
  std::uint64_t gpu_ = gpu_now_ns() + 3'600'000'000'000;
};

TEST_F(Survives, AnAgentThatComesLate) {
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 5'000);
  std::this_thread::sleep_for(milliseconds(50));
  start_agent();
  ASSERT_TRUE(agent().wait_for_operations(5'000));
  const auto b = settled_books(5'000);
  EXPECT_EQ(b.recorded, 5'000u);
  EXPECT_EQ(dropped_operations(b), 0u);
  EXPECT_EQ(b.records_overwritten, 0u);
  EXPECT_EQ(agent().lost(), 0u);
}

TEST_F(Survives, ARestartWithAllThatTenSecondsAtAThousandOperationsBring) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 1'000);
  ASSERT_TRUE(agent().wait_for_operations(1'000));
  const std::uint64_t before = agent().operation_count();
  stop_agent();
  run(c, 10'000);
  std::this_thread::sleep_for(milliseconds(20));
  start_agent();
  ASSERT_TRUE(agent().wait_for_operations(10'000));
  run(c, 10);
  ASSERT_TRUE(StubAgent::wait_for([&] { return settled_books(11'010).seen == 11'010; }));
  // What the first agent had counted but not yet acknowledged may come again: never less, and
  // indexes tell them apart.
  EXPECT_GE(agent().operation_count() + before, 11'010u);
  EXPECT_EQ(agent().lost(), 0u);
  EXPECT_EQ(settled_books(11'010).records_overwritten, 0u);
}

TEST_F(Survives, ReconnectingToTheSameAgentWithoutCountingTwice) {
  StubAgent::Behaviour mute;
  mute.acknowledge = false;
  start_agent(mute);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 300);
  ASSERT_TRUE(agent().wait_for_operations(300));
  stop_agent();
  start_agent();  // another instance that holds nothing: everything unacknowledged comes again
  ASSERT_TRUE(agent().wait_for_operations(300));
  EXPECT_EQ(agent().lost(), 0u);
  EXPECT_EQ(agent().duplicates(), 0u);
}

TEST_F(Survives, AFullRingByDroppingTheOldestAndCountingThem) {
  // The soak asks for millions.
  const char* flood = std::getenv("NCCLSCOPE_TEST_FLOOD");
  const std::uint64_t operations = flood == nullptr ? 50'000 : std::strtoull(flood, nullptr, 10);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, static_cast<unsigned>(operations));
  start_agent();
  ASSERT_TRUE(agent().wait_for_operations(10'000));
  const auto b = settled_books(operations);
  EXPECT_EQ(b.recorded, operations);
  EXPECT_EQ(b.records_written, operations);
  ASSERT_TRUE(StubAgent::wait_for([&] {
    const auto now = agent().books().begin()->second;
    return now.records_overwritten + agent().operation_count() == operations &&
           now.dropped[static_cast<std::size_t>(wire::DropReason::kOverwritten)] ==
               now.records_overwritten;
  }));
  EXPECT_EQ(agent().lost(), agent().books().begin()->second.records_overwritten);
}

TEST_F(Survives, AnAgentThatNeverReads) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 10);
  ASSERT_TRUE(agent().wait_for_operations(10));
  stop_agent();
  // A listener that accepts nothing and reads nothing, like a stopped process.
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  run(c, 5'000);
  std::this_thread::sleep_for(milliseconds(300));
  close(listener);
  unlink(socket_.c_str());
  start_agent();
  ASSERT_TRUE(agent().wait_for_operations(5'000));
  EXPECT_EQ(agent().lost(), 0u);
}

TEST_F(Survives, GarbageARefusalAnotherVersionAndImpossibleClaims) {
  StubAgent::Behaviour bad[4];
  bad[0].garbage = true;
  bad[1].refuse = true;
  bad[2].major = 9;
  bad[3].claim_too_much = true;
  DrivenCommunicator c(table(), 1, 2, 0);
  for (const auto& behaviour : bad) {
    start_agent(behaviour);
    run(c, 100);
    std::this_thread::sleep_for(milliseconds(150));
    stop_agent();
  }
  start_agent();
  // The impossible claims of the last one must not have made the plugin forget what it never sent.
  ASSERT_TRUE(StubAgent::wait_for([&] { return settled_books(400).seen == 400; }, 15));
  EXPECT_EQ(agent().lost(), 0u);
}

TEST_F(Survives, ASocketInSomebodyElsesDirectory) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give the directory away";
  constexpr uid_t kAgent = 65534, kOther = 65533;
  ASSERT_EQ(chown(directory_.c_str(), kAgent, kAgent), 0);
  ASSERT_EQ(seteuid(kAgent), 0);
  start_agent();
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_EQ(chown(directory_.c_str(), kOther, kOther), 0);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 100);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_TRUE(agent().hellos().empty());
  ASSERT_EQ(chown(directory_.c_str(), kAgent, kAgent), 0);
  EXPECT_TRUE(agent().wait_for_operations(100));
}

TEST_F(Survives, ASocketThatRootHoldsForTheAgent) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give the directory away";
  start_agent();
  ASSERT_EQ(chown(directory_.c_str(), 65534, 65534), 0);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 100);
  EXPECT_TRUE(agent().wait_for_operations(100));
}

TEST_F(Survives, ADirectoryThatOthersCanWriteTo) {
  start_agent();
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 100);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_TRUE(agent().hellos().empty()) << "anybody could have put a socket there";
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  EXPECT_TRUE(agent().wait_for_operations(100));
}

TEST_F(Survives, ReloadsOfTheLibrary) {
  start_agent();
  for (int life = 0; life < 3; ++life) {
    void* library = dlopen(NCCLSCOPE_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    const auto* t = static_cast<const nccl::ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
    DrivenCommunicator c(t, 10 + static_cast<std::uint64_t>(life), 2, 0);
    run(c, 10);
    c.finalize();
    dlclose(library);
  }
  EXPECT_TRUE(agent().wait_for_operations(30));
  EXPECT_TRUE(StubAgent::wait_for([&] { return agent().finalized().size() == 3; }));
}

TEST_F(Survives, AForkInTheMiddle) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer forbids new threads after a fork";
  start_agent();
  EXPECT_EQ(run_job("fork"), 0);
  EXPECT_TRUE(agent().wait_for_operations(27));
  ASSERT_TRUE(StubAgent::wait_for([&] { return agent().hellos().size() == 2; }));
  EXPECT_NE(agent().hellos()[0].session_id, agent().hellos()[1].session_id);
  EXPECT_NE(agent().hellos()[0].pid, agent().hellos()[1].pid);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(agent().operation_count(), 27u);
}

TEST_F(Survives, ExitWithoutFinalizeAndStillReports) {
  start_agent();
  setenv("NCCLSCOPE_SENDER_INTERVAL_MS", "50", 1);
  EXPECT_EQ(run_job("exit"), 0);
  ASSERT_TRUE(agent().wait_for_operations(21));
  EXPECT_TRUE(StubAgent::wait_for([&] { return agent().goodbyes() == 1; }));
  EXPECT_EQ(agent().operations().back().untimed_reason,
            static_cast<std::uint8_t>(wire::UntimedReason::kUnfinished));
}

TEST_F(Survives, AHundredThousandLaunchesEachOnAFreshThread) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  constexpr unsigned kLaunches = 100'000;
  for (unsigned i = 0; i < kLaunches; ++i) {
    gpu_ += 1000;
    void* task = nullptr;
    std::thread([&] { task = c.launch("AllReduce", 100, "ncclFloat32", 1); }).join();
    c.complete(task, 1, gpu_, gpu_ + 500);
    // Pace: the ring bridges ten seconds at a thousand operations per second, not a flood.
    if (i % 5'000 == 4'999) {
      ASSERT_TRUE(agent().wait_for_operations(i + 1));
    }
  }
  ASSERT_TRUE(agent().wait_for_operations(kLaunches));
  const auto b = settled_books(kLaunches);
  EXPECT_EQ(b.recorded, kLaunches);
  EXPECT_EQ(dropped_operations(b), 0u);
  EXPECT_EQ(agent().lost(), 0u);
}

TEST_F(Survives, EightThreadsOnOneCommunicator) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  constexpr unsigned kThreads = 8, kEach = 1'000;
  std::vector<std::thread> threads;
  for (unsigned w = 0; w < kThreads; ++w) {
    threads.emplace_back([&, w] {
      for (unsigned i = 0; i < kEach; ++i) {
        // A channel for each thread: reports of one channel come from one thread, as in NCCL.
        void* task = c.launch("AllReduce", 100, "ncclFloat32", 1);
        const std::uint64_t t = gpu_ + i * 1000;
        c.complete(task, 1, t, t + 500, w);
      }
    });
  }
  for (auto& t : threads) t.join();
  ASSERT_TRUE(agent().wait_for_operations(kThreads * kEach));
  const auto b = settled_books(kThreads * kEach);
  EXPECT_EQ(b.recorded, kThreads * kEach);
  EXPECT_EQ(dropped_operations(b), 0u);
  std::vector<bool> seen(kThreads * kEach);
  for (const auto& o : agent().operations()) {
    ASSERT_LT(o.index, seen.size());
    EXPECT_FALSE(seen[o.index]) << "index " << o.index << " twice";
    seen[o.index] = true;
  }
}

TEST_F(Survives, MoreOperationsInFlightThanItHasSlots) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  std::vector<void*> tasks;
  for (int i = 0; i < 1'500; ++i) tasks.push_back(c.launch("AllReduce", 100, "ncclFloat32", 1));
  for (void* task : tasks) {
    gpu_ += 1000;
    c.complete(task, 1, gpu_, gpu_ + 500);
  }
  const auto b = settled_books(1'500);
  EXPECT_EQ(b.seen, 1'500u);
  EXPECT_EQ(b.recorded + b.dropped[static_cast<std::size_t>(wire::DropReason::kNoOperationSlot)],
            1'500u);
  EXPECT_GE(b.recorded, 1'024u);
}

TEST_F(Survives, TwoRanksOfACommunicatorInOneProcess) {
  start_agent();
  DrivenCommunicator a(table(), 1, 2, 0), b(table(), 1, 2, 1);
  run(a, 10);
  run(b, 12);
  ASSERT_TRUE(agent().wait_for_operations(22));
  ASSERT_TRUE(StubAgent::wait_for([&] { return agent().hellos().size() == 2; }));
  EXPECT_NE(agent().hellos()[0].session_id, agent().hellos()[1].session_id);
}

TEST_F(Survives, MoreCommunicatorsThanItsTable) {
  start_agent();
  for (int round = 0; round < 4; ++round) {
    std::vector<DrivenCommunicator> comms;
    for (int i = 0; i < 400; ++i) {
      // Entries come back once the sender has reported the finalize, whenever it gets to run.
      ASSERT_TRUE(StubAgent::wait_for([&] {
        DrivenCommunicator c(table(), static_cast<std::uint64_t>(round * 1000 + i + 1), 2, 0);
        void* group = c.start_group_api();
        if (group == nullptr) return false;
        c.stop(group);
        comms.push_back(c);
        return true;
      }));
    }
    for (auto& c : comms) run(c, 1);
    for (auto& c : comms) c.finalize();
    ASSERT_TRUE(agent().wait_for_operations(static_cast<std::uint64_t>(round + 1) * 400));
  }
  EXPECT_EQ(agent().malformed(), 0u);
}

TEST_F(Survives, RandomHandlesContextsAndOrders) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  std::mt19937_64 random(12345);
  std::vector<void*> handles{nullptr, reinterpret_cast<void*>(8),
                             reinterpret_cast<void*>(~std::uintptr_t{0})};
  constexpr std::uint64_t kTypes[] = {1,   2,    4,    8,    16,   32,    64,    128,   256,
                                      512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 0};
  for (int i = 0; i < 300'000; ++i) {
    auto any = [&] {
      return random() % 8 == 0 ? reinterpret_cast<void*>(random())
                               : handles[random() % handles.size()];
    };
    nccl::DescrV5 d;
    std::memset(&d, 0, sizeof d);
    switch (random() % 4) {
      case 0: {
        d.type = kTypes[random() % std::size(kTypes)];
        d.parent_obj = any();
        d.rank = static_cast<int>(random() % 4);
        if (d.type == nccl::kColl || d.type == nccl::kP2p || d.type == nccl::kCollApi ||
            d.type == nccl::kP2pApi) {
          // Strings are the one thing that NCCL guarantees.
          if (d.type == nccl::kColl) {
            d.coll.func = "AllReduce";
            d.coll.n_channels = static_cast<std::uint8_t>(random());
            d.coll.parent_group = any();
          }
          if (d.type == nccl::kP2p) {
            d.p2p.func = random() % 2 != 0 ? "Send" : "Recv";
            d.p2p.peer = static_cast<int>(random() % 3);
            d.p2p.parent_group = any();
          }
          if (d.type == nccl::kCollApi) d.coll_api.func = "Broadcast";
        } else if (d.type == nccl::kKernelCh) {
          d.kernel_ch.channel_id = static_cast<std::uint8_t>(random());
          d.kernel_ch.p_timer = random();
        } else if (d.type == nccl::kProxyOp) {
          d.proxy_op.pid = random() % 2 != 0 ? getpid() : static_cast<int>(random());
          d.proxy_op.channel_id = static_cast<std::uint8_t>(random());
          d.proxy_op.peer = static_cast<int>(random());
        }
        void* h = reinterpret_cast<void*>(0x77);
        table()->start_event(random() % 8 == 0 ? any() : c.context(), &h, &d);
        ASSERT_NE(h, reinterpret_cast<void*>(0x77)) << "the handle was left unwritten";
        if (handles.size() < 2'000) {
          handles.push_back(h);
        } else {
          handles[random() % handles.size()] = h;
        }
        break;
      }
      case 1:
        table()->stop_event(any());
        break;
      case 2: {
        nccl::StateArgsV5 args;
        args.kernel_ch.p_timer = random();
        table()->record_event_state(any(), static_cast<nccl::EventState>(random() % 40),
                                    random() % 4 == 0 ? nullptr : &args);
        break;
      }
      default:
        if (random() % 1000 == 0) table()->finalize(any());
        break;
    }
  }
  c.finalize();
  wire::Books b{};
  EXPECT_TRUE(StubAgent::wait_for([&] {
    if (agent().books().empty()) return false;
    b = agent().books().begin()->second;
    return b.flags == 0 && b.open == 0 && b.seen == b.recorded + dropped_operations(b);
  })) << b.seen
      << " seen, " << b.recorded << " recorded, " << dropped_operations(b) << " dropped, " << b.open
      << " open";
  EXPECT_EQ(agent().malformed(), 0u);
}

TEST_F(Survives, DisableLeavesNcclAlone) {
  setenv("NCCLSCOPE_DISABLE", "1", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  EXPECT_NE(c.context(), nullptr);
  EXPECT_EQ(DrivenCommunicator::mask(), 0);
  EXPECT_EQ(c.launch("AllReduce", 1, "ncclFloat32", 1), nullptr);
  c.finalize();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(agent().hellos().empty());
}

}  // namespace
}  // namespace ncclscope::tests
