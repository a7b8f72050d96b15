// SPDX-License-Identifier: Apache-2.0
// The emulated process over all releases: which calls a plugin sees, on which threads, and every
// hazard that can be switched on. All in virtual time, plugin inside this program.
#include "sim/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/unit/sim/probe_plugin.h"

namespace ncclscope::sim {
namespace {

using testing::IsEmpty;

constexpr std::int64_t kMs = 1000000;

struct Scene {
  Release release;
  int ranks = 2;
  int nodes = 1;
  Tuning tuning;
  HardwareModel hardware;
  Hazards hazards;
  std::vector<GpuClock> clocks = {GpuClock{}};
  int queue_depth = 1024;
  bool blocking = true;
  Pace pace = Pace::kAsFastAsPossible;

  Scene() {
    tuning.channels = 2;
    tuning.p2p_channels = 2;
    tuning.force_algo = static_cast<int>(Algo::kRing);
    tuning.force_proto = static_cast<int>(Proto::kSimple);
    tuning.ring_threads = 256;
    hardware.fixed_kernel_ns = 100000;
    hardware.noise = 0;
  }
};

Release release(const char* text) {
  std::string error;
  const Release r = parse_release(text, &error);
  EXPECT_EQ(error, "");
  return r;
}

struct RankView {
  Host* host;
  Comm* comm;
  Stream* stream;
  int rank;
  bool destroyed = true;  ///< cleared: the body has ended the communicator itself
};

/// Runs `body` on every rank, each a Host of its own on a thread of its own.
void run_ranks(const Scene& scene, const std::function<void(RankView&)>& body) {
  std::shared_ptr<World> world = World::create(scene.pace);
  world->adopt_actor(world->reserve_actor(1000));
  static std::uint64_t hash = 100;
  const std::uint64_t comm_hash = ++hash;
  std::vector<SimThread> threads;
  for (int rank = 0; rank < scene.ranks; ++rank) {
    threads.emplace_back(world, rank, "main", [&, rank] {
      HostOptions options;
      options.world = world;
      options.owner = rank;
      options.profiler.release = scene.release;
      options.profiler.plugin = "STATIC_PLUGIN";
      options.tuning = scene.tuning;
      options.hardware = scene.hardware;
      options.hazards = scene.hazards;
      options.gpu_clocks = scene.clocks;
      options.launch_queue_depth = scene.queue_depth;
      Host host(options);
      CommConfig config;
      config.hash = comm_hash;
      config.name = "dp_group";
      config.blocking = scene.blocking;
      config.shape.n_ranks = scene.ranks;
      config.shape.n_nodes = scene.nodes;
      config.shape.rank = rank;
      config.shape.max_local_ranks = scene.ranks / scene.nodes;
      for (int r = 0; r < scene.ranks; ++r) {
        config.shape.node_of_rank.push_back(r / (scene.ranks / scene.nodes));
      }
      Comm* comm = host.comm_init_rank(config);
      ASSERT_NE(comm, nullptr);
      host.comm_wait_ready(comm);
      RankView view{&host, comm, host.stream_create(), rank};
      body(view);
      if (view.destroyed) {
        host.stream_synchronize(view.stream);
        host.comm_destroy(comm);
      }
    });
  }
  for (SimThread& thread : threads) thread.join();
  world->release_actor();
}

Call all_reduce(std::size_t count = 1000) {
  Call call;
  call.count = count;
  return call;
}

const char* const kReleases[] = {"2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.26.6",
                                 "2.27.5", "2.27.7", "2.28.3", "2.28.9", "2.29.2",
                                 "2.29.7", "2.30.3", "2.30.7", "2.31.2", "2.32.1"};

class EveryRelease : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Releases, EveryRelease, testing::ValuesIn(kReleases),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_P(EveryRelease, TakesItsNativeTableAndReportsOneTaskPerCall) {
  Scene scene;
  scene.release = release(GetParam());
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    for (int i = 0; i < 3; ++i) r.host->call(r.comm, r.stream, all_reduce());
  });
  for (const ProbeCall& call : probe_calls()) {
    ASSERT_EQ(call.interface, scene.release.native_interface());
  }
  EXPECT_EQ(probe_count("start", nccl::kColl), 6u);
  EXPECT_EQ(probe_count("stop", nccl::kColl), 6u);
  EXPECT_EQ(probe_count("start", nccl::kCollApi), scene.release.has_api_events() ? 6u : 0u);
  EXPECT_EQ(probe_count("start", nccl::kGroupApi), scene.release.has_api_events() ? 6u : 0u);
  EXPECT_EQ(probe_count("start", nccl::kKernelLaunch), scene.release.has_api_events() ? 6u : 0u);
  EXPECT_EQ(probe_count("start", nccl::kKernelCh), scene.release.has_kernel_channel() ? 6u : 0u);
  EXPECT_EQ(probe_count("stop", nccl::kKernelCh), scene.release.has_kernel_channel() ? 6u : 0u);
  EXPECT_EQ(probe_count("init", 0), 2u);
  EXPECT_EQ(probe_count("finalize", 0), 2u);
}

TEST_P(EveryRelease, GivesEveryStopAHandleThatIsOpen) {
  Scene scene;
  scene.release = release(GetParam());
  scene.ranks = 4;
  scene.nodes = 2;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    for (int i = 0; i < 4; ++i) r.host->call(r.comm, r.stream, all_reduce(100000));
    r.host->group_start();
    for (const Func func : {Func::kSend, Func::kRecv}) {
      Call call;
      call.func = func;
      call.count = 5000;
      call.peer = r.rank ^ 1;
      r.host->call(r.comm, r.stream, call);
    }
    r.host->group_end();
  });
  std::set<void*> open;
  for (const ProbeCall& call : probe_calls()) {
    if (call.kind == "start" && call.handle != nullptr) {
      EXPECT_TRUE(open.insert(call.handle).second);
    } else if (call.kind == "stop") {
      EXPECT_EQ(open.erase(call.handle), 1u) << "type " << call.type;
    } else if (call.kind == "record") {
      EXPECT_EQ(open.count(call.handle), 1u) << "state " << call.state;
    }
  }
  EXPECT_THAT(open, IsEmpty());
}

TEST_P(EveryRelease, UsesTheThreadsOfThatRelease) {
  Scene scene;
  scene.release = release(GetParam());
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  const std::string kernel_thread =
      scene.release.has_profiler_thread() ? "NCCL Profiler" : "NCCL Progress 2";
  for (const ProbeCall& call : probe_calls("start", nccl::kKernelCh)) {
    EXPECT_EQ(call.thread, kernel_thread);
  }
  for (const ProbeCall& call : probe_calls("init", 0)) {
    EXPECT_EQ(call.thread, scene.release.always_init_on_helper() ? "app" : "main");
  }
  for (const ProbeCall& call : probe_calls("start", nccl::kColl)) EXPECT_EQ(call.thread, "main");
}

TEST_P(EveryRelease, RecordsStatesOfNetworkTransfersAsThatReleaseDoes) {
  Scene scene;
  scene.release = release(GetParam());
  scene.nodes = 2;
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  std::set<int> states;
  for (const ProbeCall& call : probe_calls("record", nccl::kProxyOp)) states.insert(call.state);
  if (scene.release.has_old_proxy_states()) {
    EXPECT_EQ(states, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  } else {
    EXPECT_EQ(states, (std::set<int>{19}));
  }
  std::set<int> steps;
  for (const ProbeCall& call : probe_calls("record", nccl::kProxyStep)) steps.insert(call.state);
  std::set<int> expected{8, 9, 10, 11, 12};
  if (!scene.release.has_old_proxy_states()) expected.insert(20);
  EXPECT_EQ(steps, expected);
}

TEST_P(EveryRelease, LeavesSingleRanksAndEmptyCollectivesOut) {
  Scene scene;
  scene.release = release(GetParam());
  scene.ranks = 1;
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  scene.ranks = 2;
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce(0)); });
  for (const ProbeCall& call : probe_calls())
    EXPECT_TRUE(call.kind == "init" || call.kind == "finalize");
  EXPECT_EQ(probe_count("init", 0), 3u);
}

TEST(Masks, BelongToTheCallThatWasMadeUnderThem) {
  Scene scene;
  probe_reset(asking(0));
  run_ranks(scene, [](RankView& r) {
    r.host->call(r.comm, r.stream, all_reduce());
    r.host->stream_synchronize(r.stream);
  });
  EXPECT_EQ(probe_count("start", nccl::kColl), 0u);
}

TEST(Masks, PointToPointBitAloneIsNotEnoughUpTo225) {
  for (const char* text : {"2.23.4", "2.25.1", "2.26.2"}) {
    const Release r = release(text);
    EXPECT_EQ(mask_emits(nccl::kP2p, nccl::kP2p, r), r.at_least(26)) << text;
    EXPECT_TRUE(mask_emits(nccl::kP2p, nccl::kP2p | nccl::kColl, r)) << text;
  }
}

TEST(Masks, FollowTheClosureOfTheirRelease) {
  const Release r28 = release("2.28.9");
  const Release r30 = release("2.30.7");
  const Release r31 = release("2.31.2");
  EXPECT_FALSE(mask_emits(nccl::kGroupApi, nccl::kProxyCtrl, r28));
  EXPECT_FALSE(mask_emits(nccl::kGroupApi, nccl::kCeColl, r28));
  EXPECT_TRUE(mask_emits(nccl::kGroupApi, nccl::kCeColl, r30));
  EXPECT_FALSE(mask_emits(nccl::kCollApi, nccl::kKernelLaunch, r28));
  EXPECT_FALSE(mask_emits(nccl::kCollApi, nccl::kGroup, r28));
  EXPECT_TRUE(mask_emits(nccl::kColl, nccl::kNetPlugin, r28));
  EXPECT_FALSE(mask_emits(nccl::kKernelLaunch, 0xf7ff, r28));
  EXPECT_FALSE(mask_emits(nccl::kKernelCh, nccl::kKernelPhase, r30));
  EXPECT_TRUE(mask_emits(nccl::kKernelCh, nccl::kKernelPhase, r31));
}

TEST(NullHandles, NullGroupHidesTasksUpTo227ButNotTheirKernels) {
  for (const char* text : {"2.26.6", "2.27.7", "2.28.9", "2.30.7"}) {
    Scene scene;
    scene.release = release(text);
    probe_reset(asking(0x46, nccl::kGroup));
    run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
    EXPECT_EQ(probe_count("start", nccl::kColl), scene.release.needs_group_handle() ? 0u : 2u)
        << text;
    EXPECT_EQ(probe_count("start", nccl::kKernelCh), 2u) << text;
    if (scene.release.needs_group_handle()) {
      EXPECT_EQ(probe_calls("start", nccl::kKernelCh).front().parent, nullptr) << text;
    }
  }
}

TEST(NullHandles, ChildrenOfANullTaskStillComeWithoutAParent) {
  Scene scene;
  scene.nodes = 2;
  probe_reset(asking(0xffff, nccl::kColl));
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  EXPECT_EQ(probe_count("stop", nccl::kColl), 0u);
  for (const ProbeCall& call : probe_calls("start", nccl::kProxyOp))
    EXPECT_EQ(call.parent, nullptr);
  EXPECT_EQ(probe_count("start", nccl::kProxyOp), 4u);
}

TEST(StaleHandles, CollApiHandleIsUsedAndStoppedAgainWhenItsStartIsNotWritten) {
  Scene scene;
  scene.ranks = 2;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    r.host->call(r.comm, r.stream, all_reduce());
    r.host->stream_synchronize(r.stream);
    // From here on the API is not in the mask any more, only the launch is.
    if (r.rank == 0) probe_mask(nccl::kKernelLaunch);
    r.host->profiler().set_mask(nccl::kKernelLaunch);
    r.host->call(r.comm, r.stream, all_reduce());
  });
  // The second call did not start a CollApi event, and still stopped the first one's handle.
  EXPECT_EQ(probe_count("start", nccl::kCollApi), 2u);
  EXPECT_EQ(probe_count("stop", nccl::kCollApi), 4u);
}

TEST(StaleHandles, KernelStopComesWithoutStartWhereTheHazardIsOn) {
  for (const char* text : {"2.28.9", "2.31.2"}) {
    Scene scene;
    scene.release = release(text);
    scene.hazards.stale_kernel_stop_every = 2;
    // Both counters must have passed between two looks of the proxy thread.
    scene.hazards.proxy_delay_ns = 5 * kMs;
    probe_reset({});
    run_ranks(scene, [](RankView& r) {
      for (int i = 0; i < 20; ++i) r.host->call(r.comm, r.stream, all_reduce());
    });
    const std::size_t starts = probe_count("start", nccl::kKernelCh);
    const std::size_t stops = probe_count("stop", nccl::kKernelCh);
    if (scene.release.has_profiler_thread()) {
      EXPECT_EQ(starts, 40u);
    } else {
      EXPECT_LT(starts, 40u);
    }
    EXPECT_LE(stops, 40u);
    std::set<void*> open;
    std::size_t unmatched = 0;
    for (const ProbeCall& call : probe_calls()) {
      if (call.type != nccl::kKernelCh) continue;
      if (call.kind == "start") open.insert(call.handle);
      if (call.kind == "stop" && open.erase(call.handle) == 0) ++unmatched;
    }
    EXPECT_EQ(unmatched > 0, !scene.release.has_profiler_thread()) << text;
  }
}

TEST(Counters, SlowProxyThreadReportsTimesOfLaterWork) {
  Scene scene;
  scene.hardware.fixed_kernel_ns = 10000;
  scene.hazards.proxy_delay_ns = 50 * kMs;  // more than 64 kernels
  probe_reset(asking(0x46));
  run_ranks(scene, [](RankView& r) {
    for (int i = 0; i < 200; ++i) r.host->call(r.comm, r.stream, all_reduce());
  });
  const auto starts = probe_calls("start", nccl::kKernelCh);
  ASSERT_EQ(starts.size(), 400u);
  std::set<std::uint64_t> times;
  for (const ProbeCall& call : starts) times.insert(call.timer);
  EXPECT_LT(times.size(), 300u);  // the same slot was read for several operations
}

TEST(Counters, SendToSelfMakesLaterTimesThoseOfOlderWork) {
  Scene scene;
  probe_reset(asking(0x46));
  run_ranks(scene, [](RankView& r) {
    const auto wait = [&] { r.host->stream_synchronize(r.stream); };
    r.host->call(r.comm, r.stream, all_reduce());
    wait();
    r.host->group_start();
    for (const Func func : {Func::kSend, Func::kRecv}) {
      Call call;
      call.func = func;
      call.count = 1000;
      call.peer = r.rank;
      r.host->call(r.comm, r.stream, call);
    }
    r.host->group_end();
    wait();
    r.host->call(r.comm, r.stream, all_reduce());
    wait();
  });
  // A self copy has a P2p event with one channel and no kernel of its own.
  EXPECT_EQ(probe_count("start", nccl::kP2p), 4u);
  EXPECT_EQ(probe_count("start", nccl::kKernelCh), 4u);
}

TEST(GroupedBroadcasts, StallKernelEventsOn230AndDestroyNeverReturns) {
  for (const char* text : {"2.28.9", "2.30.7"}) {
    Scene scene;
    scene.release = release(text);
    probe_reset(asking(0x46));
    run_ranks(scene, [&](RankView& r) {
      r.host->call(r.comm, r.stream, all_reduce());
      r.host->stream_synchronize(r.stream);
      r.host->group_start();
      for (int root = 0; root < 2; ++root) {
        Call call;
        call.func = Func::kBroadcast;
        call.count = 1000;
        call.root = root;
        r.host->call(r.comm, r.stream, call);
      }
      r.host->group_end();
      r.host->call(r.comm, r.stream, all_reduce());
      r.host->stream_synchronize(r.stream);
      r.destroyed = false;
      EXPECT_EQ(r.host->comm_destroy(r.comm, 1000 * kMs), !scene.release.has_allgatherv()) << text;
    });
    if (scene.release.has_allgatherv()) {
      EXPECT_EQ(probe_count("start", nccl::kKernelCh), 2u);  // only those before
      EXPECT_EQ(probe_count("start", nccl::kColl), 4u);
    } else {
      EXPECT_EQ(probe_count("start", nccl::kColl), 8u);
    }
  }
}

TEST(Broadcast, LosesItsTaskOn229And230UnlessAllGatherVIsOff) {
  for (const bool enabled : {true, false}) {
    Scene scene;
    scene.release = release("2.29.7");
    scene.hazards.allgatherv = enabled;
    probe_reset({});
    run_ranks(scene, [](RankView& r) {
      Call call;
      call.func = Func::kBroadcast;
      call.count = 1000;
      r.host->call(r.comm, r.stream, call);
    });
    EXPECT_EQ(probe_count("start", nccl::kCollApi), 2u);
    for (const std::uint64_t type :
         {std::uint64_t{nccl::kColl}, std::uint64_t{nccl::kGroup},
          std::uint64_t{nccl::kKernelLaunch}, std::uint64_t{nccl::kKernelCh}}) {
      EXPECT_EQ(probe_count("start", type), enabled ? 0u : 2u) << type;
    }
  }
}

TEST(SymmetricKernels, AreSeenAsThatReleaseShowsThem) {
  struct Expect {
    const char* release;
    std::size_t api;
    std::size_t coll;
  };
  for (const Expect& e : {Expect{"2.27.7", 0, 0}, Expect{"2.28.9", 2, 0}, Expect{"2.30.7", 2, 0},
                          Expect{"2.31.2", 2, 2}}) {
    Scene scene;
    scene.release = release(e.release);
    probe_reset({});
    run_ranks(scene, [](RankView& r) {
      Call call = all_reduce();
      call.symmetric = true;
      r.host->call(r.comm, r.stream, call);
    });
    EXPECT_EQ(probe_count("start", nccl::kCollApi), e.api) << e.release;
    EXPECT_EQ(probe_count("start", nccl::kColl), e.coll) << e.release;
    EXPECT_EQ(probe_count("start", nccl::kKernelCh), e.coll) << e.release;
    for (const ProbeCall& call : probe_calls("start", nccl::kColl)) EXPECT_TRUE(call.symmetric);
  }
}

TEST(CopyEngines, AreSeenAsThatReleaseShowsThem) {
  for (const char* text : {"2.28.9", "2.30.7", "2.31.2"}) {
    Scene scene;
    scene.release = release(text);
    probe_reset({});
    run_ranks(scene, [](RankView& r) {
      for (int i = 0; i < 3; ++i) {
        Call call;
        call.func = Func::kAllGather;
        call.count = 1000;
        call.copy_engine = true;
        r.host->call(r.comm, r.stream, call);
      }
    });
    const std::size_t seen = scene.release.has_copy_engine_events() ? 6u : 0u;
    EXPECT_EQ(probe_count("start", nccl::kCollApi), seen) << text;
    EXPECT_EQ(probe_count("start", nccl::kCeColl), seen) << text;
    EXPECT_EQ(probe_count("start", nccl::kCeSync), seen * 2) << text;
    EXPECT_EQ(probe_count("start", nccl::kCeBatch), seen) << text;
    EXPECT_EQ(probe_count("start", nccl::kColl), 0u) << text;
    if (seen > 0) {
      EXPECT_EQ(probe_calls("start", nccl::kCeColl).back().sequence, 4u);
    }
  }
}

TEST(Algorithms, CollNetReportsNoChannelsButItsKernelsCome) {
  Scene scene;
  scene.nodes = 2;
  scene.tuning.force_algo = static_cast<int>(Algo::kCollnetChain);
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce(1000000)); });
  const auto colls = probe_calls("start", nccl::kColl);
  ASSERT_EQ(colls.size(), 2u);
  EXPECT_EQ(colls.front().channels, 0);
  EXPECT_EQ(colls.front().algo, "COLLNET_CHAIN");
  EXPECT_EQ(probe_count("start", nccl::kKernelCh), 4u);
}

TEST(Algorithms, ChannelRangesOfAGroupNeedNotBeginAtZero) {
  Scene scene;
  scene.tuning.channels = 8;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    r.host->group_start();
    for (const std::size_t count : {std::size_t{100000}, std::size_t{700000}, std::size_t{50}}) {
      r.host->call(r.comm, r.stream, all_reduce(count));
    }
    r.host->group_end();
  });
  std::map<void*, std::set<int>> channels;
  for (const ProbeCall& call : probe_calls("start", nccl::kKernelCh)) {
    channels[call.parent].insert(call.channel);
  }
  bool shifted = false;
  for (const ProbeCall& coll : probe_calls("start", nccl::kColl)) {
    const std::set<int>& used = channels[coll.handle];
    EXPECT_EQ(static_cast<int>(used.size()), coll.channels);
    EXPECT_EQ(*used.rbegin() - *used.begin() + 1, coll.channels);
    shifted = shifted || *used.begin() > 0;
  }
  EXPECT_TRUE(shifted);
}

TEST(Graphs, EmitApiEventsAtCaptureAndTasksAtEveryReplay) {
  for (const char* text : {"2.28.9", "2.30.7", "2.31.2"}) {
    Scene scene;
    scene.release = release(text);
    probe_reset(asking(0xffff));
    run_ranks(scene, [](RankView& r) {
      r.host->graph_begin_capture(r.stream);
      r.host->call(r.comm, r.stream, all_reduce());
      Graph* graph = r.host->graph_end_capture(r.stream);
      for (int i = 0; i < 3; ++i) r.host->graph_launch(graph, r.stream);
      r.host->stream_synchronize(r.stream);
    });
    EXPECT_EQ(probe_count("start", nccl::kCollApi), 2u) << text;
    EXPECT_EQ(probe_count("start", nccl::kKernelLaunch), 2u) << text;
    EXPECT_TRUE(probe_calls("start", nccl::kCollApi).front().captured);
    const auto colls = probe_calls("start", nccl::kColl);
    ASSERT_EQ(colls.size(), 6u) << text;
    std::set<void*> parents;
    std::set<std::uint64_t> sequences;
    for (const ProbeCall& coll : colls) {
      EXPECT_EQ(coll.thread, "cuda-EvtHandlr");
      parents.insert(coll.parent);
      sequences.insert(coll.sequence);
    }
    EXPECT_EQ(parents.size(), 2u);    // the CollApi of the capture, one per rank
    EXPECT_EQ(sequences.size(), 3u);  // KernelCh is in the mask and handles are not NULL
    EXPECT_EQ(probe_count("stop", nccl::kKernelCh), 6u) << text;
  }
}

TEST(Graphs, EmitTasksOnceAtCaptureWhereNothingNeedsTheProxy) {
  Scene scene;
  probe_reset(asking(nccl::kColl));
  run_ranks(scene, [](RankView& r) {
    r.host->graph_begin_capture(r.stream);
    r.host->call(r.comm, r.stream, all_reduce());
    Graph* graph = r.host->graph_end_capture(r.stream);
    for (int i = 0; i < 3; ++i) r.host->graph_launch(graph, r.stream);
    r.host->stream_synchronize(r.stream);
  });
  EXPECT_EQ(probe_count("start", nccl::kColl), 2u);
}

TEST(Graphs, UnwrittenTaskHandleOfAReplayIsStoppedAgainUpTo230) {
  for (const char* text : {"2.30.7", "2.31.2"}) {
    Scene scene;
    scene.release = release(text);
    scene.ranks = 2;
    int replays = 0;
    probe_reset({});
    run_ranks(scene, [&](RankView& r) {
      r.host->graph_begin_capture(r.stream);
      r.host->call(r.comm, r.stream, all_reduce());
      Graph* graph = r.host->graph_end_capture(r.stream);
      r.host->graph_launch(graph, r.stream);
      r.host->stream_synchronize(r.stream);
      // Both ranks are through their first replay before the plugin stops writing handles.
      r.host->world().sleep_until(r.host->world().now() + 10 * kMs);
      if (r.rank == 0) {
        replays = static_cast<int>(probe_count("stop", nccl::kColl));
        probe_reset({.mask = 0xffff,
                     .null_types = 0,
                     .unwritten_types = nccl::kColl,
                     .fail_init = 0,
                     .hook = {}});
      }
      r.host->world().sleep_until(r.host->world().now() + 10 * kMs);
      r.host->graph_launch(graph, r.stream);
      r.host->stream_synchronize(r.stream);
    });
    EXPECT_EQ(replays, 2);
    // probe_reset forgot the types of handles: a stop of an old one has type 0.
    std::size_t stale = 0;
    for (const ProbeCall& call : probe_calls("stop", 0)) stale += call.handle != nullptr ? 1 : 0;
    EXPECT_EQ(stale > 0, !scene.release.clears_task_handles()) << text;
  }
}

TEST(NonBlocking, LaunchesOnFreshThreads) {
  Scene scene;
  scene.blocking = false;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    for (int i = 0; i < 3; ++i) {
      r.host->call(r.comm, r.stream, all_reduce());
      r.host->comm_wait_ready(r.comm);
    }
  });
  std::set<long> threads;
  for (const ProbeCall& call : probe_calls("start", nccl::kColl)) {
    EXPECT_EQ(call.thread, "app");
    threads.insert(call.thread_id);
  }
  EXPECT_EQ(threads.size(), 6u);
}

TEST(LaunchQueue, BlocksTheCallerAtItsDepth) {
  Scene scene;
  scene.queue_depth = 16;
  scene.hardware.fixed_kernel_ns = kMs;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    const std::int64_t begin = r.host->world().now();
    for (int i = 0; i < 16; ++i) r.host->call(r.comm, r.stream, all_reduce());
    EXPECT_LT(r.host->world().now() - begin, kMs);
    for (int i = 0; i < 16; ++i) {
      r.host->call(r.comm, r.stream, all_reduce());
      EXPECT_LE(r.host->stream_pending(r.stream), 16u);
    }
    EXPECT_GT(r.host->world().now() - begin, 14 * kMs);
  });
}

TEST(GpuClock, HasOffsetAndDriftOfItsOwn) {
  Scene scene;
  GpuClock clock;
  clock.offset_ns = 5000 * kMs;
  clock.drift_ppm = 1000;
  clock.step_ns = 1;
  scene.clocks = {clock};
  probe_reset({});
  std::int64_t first = 0;
  run_ranks(scene, [&](RankView& r) {
    if (r.rank != 0) return;
    const std::int64_t now = r.host->world().now();
    first = r.host->gpu_time(0, now) - now - r.host->world().epoch_offset();
    const std::int64_t later =
        r.host->gpu_time(0, now + 1000 * kMs) - (now + 1000 * kMs) - r.host->world().epoch_offset();
    EXPECT_NEAR(static_cast<double>(later - first), 1e6, 1e3);  // 1000 ppm of a second
  });
  EXPECT_GT(first, 5000 * kMs);
}

TEST(Hazards, RepeatStatesAndStepsAsTheNetworkDoes) {
  Scene scene;
  scene.nodes = 2;
  scene.hazards.repeat_peer_wait = 3;
  scene.hazards.repeat_step_start = 2;
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  std::size_t waits = 0;
  std::size_t sends = 0;
  for (const ProbeCall& call : probe_calls("record", nccl::kProxyStep)) {
    waits += call.state == 20 ? 1 : 0;
    sends += call.state == 9 ? 1 : 0;
  }
  EXPECT_EQ(waits, 4 * sends);
  EXPECT_GT(probe_count("start", nccl::kProxyStep), probe_count("stop", nccl::kProxyStep));
}

TEST(Hazards, ProxyOperationsOfOtherProcessesComeWithForeignPointers) {
  Scene scene;
  scene.nodes = 2;
  scene.hazards.pxn = true;
  probe_reset({});
  run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
  std::size_t foreign = 0;
  std::set<void*> contexts;
  for (const ProbeCall& call : probe_calls("init", 0)) contexts.insert(call.context);
  for (const ProbeCall& call : probe_calls("start", nccl::kProxyOp)) {
    if (call.pid == ::getpid()) continue;
    ++foreign;
    EXPECT_EQ(contexts.count(call.context), 0u);
  }
  EXPECT_EQ(foreign, 2u);
}

TEST(Hazards, NetworkPluginEventsComeWhereNcclWasBuiltWithThem) {
  for (const bool on : {false, true}) {
    Scene scene;
    scene.nodes = 2;
    scene.hazards.net_plugin = on;
    probe_reset({});
    run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
    EXPECT_EQ(probe_count("start", nccl::kNetPlugin) > 0, on);
  }
}

TEST(Phases, ComeInsideTheirKernelFrom231) {
  for (const char* text : {"2.30.7", "2.31.2"}) {
    Scene scene;
    scene.release = release(text);
    probe_reset(asking(nccl::kKernelPhase));
    run_ranks(scene, [](RankView& r) { r.host->call(r.comm, r.stream, all_reduce()); });
    const std::size_t kernels = scene.release.has_profiler_thread() ? 2u : 0u;
    EXPECT_EQ(probe_count("start", nccl::kKernelCh), kernels) << text;
    EXPECT_EQ(probe_count("start", nccl::kKernelPhase), 3 * kernels) << text;
    EXPECT_EQ(probe_count("stop", nccl::kKernelPhase), 3 * kernels) << text;
  }
}

TEST(Abort, LeavesOpenEventsOpenAndFinalizes) {
  Scene scene;
  scene.nodes = 2;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    if (r.rank == 0) r.host->call(r.comm, r.stream, all_reduce(50000));
    r.host->world().sleep_until(r.host->world().now() + 100 * kMs);
    r.host->comm_abort(r.comm);
    r.destroyed = false;
  });
  EXPECT_GT(probe_count("start", nccl::kKernelCh), probe_count("stop", nccl::kKernelCh));
  EXPECT_GT(probe_count("start", nccl::kProxyOp), probe_count("stop", nccl::kProxyOp));
  EXPECT_EQ(probe_count("finalize", 0), 2u);
}

TEST(RootedOperations, LetTheRootLeaveWithoutTheOthers) {
  Scene scene;
  scene.ranks = 3;
  probe_reset(asking(0x46));
  run_ranks(scene, [](RankView& r) {
    Call call;
    call.func = Func::kBroadcast;
    call.count = 1000;
    call.root = 0;
    if (r.rank == 2) r.host->world().sleep_until(r.host->world().now() + 50 * kMs);
    const std::int64_t begin = r.host->world().now();
    r.host->call(r.comm, r.stream, call);
    r.host->stream_synchronize(r.stream);
    // Rank 2 comes 50 ms late; root and the rank between do not wait for it.
    EXPECT_LT(r.host->world().now() - begin, 5 * kMs) << r.rank;
  });
}

TEST(PointToPoint, SmallSendsDoNotWaitForTheirReceiver) {
  Scene scene;
  probe_reset({});
  run_ranks(scene, [](RankView& r) {
    Call call;
    call.func = r.rank == 0 ? Func::kSend : Func::kRecv;
    call.count = 1000;
    call.peer = 1 - r.rank;
    if (r.rank == 1) r.host->world().sleep_until(r.host->world().now() + 50 * kMs);
    const std::int64_t begin = r.host->world().now();
    r.host->call(r.comm, r.stream, call);
    r.host->stream_synchronize(r.stream);
    EXPECT_LT(r.host->world().now() - begin, 5 * kMs) << r.rank;
  });
}

TEST(SharedResources, ChildUsesTheProxyThreadOfItsParent) {
  for (const bool share : {false, true}) {
    Scene scene;
    scene.nodes = 2;
    probe_reset({});
    run_ranks(scene, [&](RankView& r) {
      r.host->call(r.comm, r.stream, all_reduce());
      CommConfig config;
      config.hash = share ? 5001 : 5002;
      config.shape.n_ranks = 2;
      config.shape.n_nodes = 2;
      config.shape.rank = r.rank;
      config.shape.node_of_rank = {0, 1};
      Comm* child = r.host->comm_split(r.comm, config, share);
      r.host->call(child, r.stream, all_reduce());
      r.host->stream_synchronize(r.stream);
      r.host->comm_destroy(child);
      r.host->call(r.comm, r.stream, all_reduce());
    });
    std::map<void*, std::set<long>> threads;
    std::set<long> all;
    for (const ProbeCall& call : probe_calls("start", nccl::kProxyOp)) all.insert(call.thread_id);
    EXPECT_EQ(all.size(), share ? 2u : 4u);
  }
}

TEST(Clock, PluginReadsVirtualTimeInVirtualTime) {
  Scene scene;
  probe_reset({});
  std::int64_t begin = 0;
  std::int64_t end = 0;
  run_ranks(scene, [&](RankView& r) {
    if (r.rank == 0) begin = r.host->world().now();
    r.host->call(r.comm, r.stream, all_reduce());
    r.host->compute(r.stream, 3600 * 1000 * kMs);
    r.host->stream_synchronize(r.stream);
    r.host->call(r.comm, r.stream, all_reduce());
    if (r.rank == 0) end = r.host->world().now();
  });
  EXPECT_GE(end - begin, 3600 * 1000 * kMs);
  const auto colls = probe_calls("start", nccl::kColl);
  ASSERT_EQ(colls.size(), 4u);
  EXPECT_GE(colls.front().clock, begin);
  EXPECT_GE(colls.back().clock - colls.front().clock, 3600 * 1000 * kMs);
}

}  // namespace
}  // namespace ncclscope::sim
