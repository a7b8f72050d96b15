// SPDX-License-Identifier: Apache-2.0
// What becomes of NCCL's callbacks: one record per operation, right in every field.
#include <unistd.h>

#include <algorithm>

#include "proto/model/operation.h"
#include "tests/support/plugin_test.h"

extern "C" int ncclGetVersion(int* version) {
  *version = ncclscope_test_nccl_version;
  return 0;
}

namespace ncclscope::tests {
namespace {

namespace of = wire::operation_flags;
using wire::TimingSource;
using wire::UntimedReason;

class Operations : public PluginTest {
 protected:
  std::vector<wire::Operation> wait_operations(std::uint64_t n) {
    EXPECT_TRUE(agent().wait_for_operations(n))
        << agent().operation_count() << " of " << n << " operations came";
    return agent().operations();
  }
  /// Of rank 2.
  static void send_to_itself(const DrivenCommunicator& c, std::uint8_t channels) {
    void* plan = c.start_plan();
    c.stop(c.start_p2p(nullptr, plan, "Send", 100, "ncclFloat32", 2, channels));
    c.stop(plan);
  }
  static UntimedReason reason(const wire::Operation& o) {
    return static_cast<UntimedReason>(o.untimed_reason);
  }
};

TEST_F(Operations, CarryEveryFieldOfACollective) {
  start_agent();
  DrivenCommunicator c(table(), 0xABCDEF0123456789u, 8, 3, "dp_group", 2);
  const std::uint64_t start = gpu_now_ns() + 1000;
  c.complete(c.launch("AllReduce", 1'000'000, "ncclBfloat16", 4, 17), 4, start, start + 123'456);
  const auto ops = wait_operations(1);
  ASSERT_EQ(ops.size(), 1u);
  const auto& o = ops[0];
  EXPECT_EQ(o.function, static_cast<std::uint8_t>(model::Function::kAllReduce));
  EXPECT_EQ(o.datatype, static_cast<std::uint8_t>(model::DataType::kBfloat16));
  EXPECT_EQ(o.algorithm_protocol & 0xF, static_cast<int>(model::Algorithm::kRing));
  EXPECT_EQ(o.algorithm_protocol >> 4, static_cast<int>(model::Protocol::kSimple));
  EXPECT_EQ(wire::count_of(o), 1'000'000u);
  EXPECT_EQ(o.channels, 4);
  EXPECT_EQ(o.channels_seen, 4);
  EXPECT_EQ(o.sequence, 17u);
  EXPECT_EQ(o.index, 0u);
  EXPECT_EQ(o.root_or_peer, -1);
  EXPECT_EQ(wire::timing_of(o), TimingSource::kGpu);
  EXPECT_EQ(o.gpu_start_ns, start);
  EXPECT_EQ(wire::duration_ns_of(o), 123'456u);
  EXPECT_EQ(
      o.flags & (of::kComplete | of::kApiSeen | of::kTaskSeen | of::kWarmup | of::kSequenceKnown),
      of::kComplete | of::kApiSeen | of::kTaskSeen | of::kWarmup | of::kSequenceKnown);
  EXPECT_NE(wire::plan_of(o), 0);

  const auto comms = agent().communicators();
  ASSERT_EQ(comms.size(), 1u);
  const auto& init = comms.begin()->second;
  EXPECT_EQ(init.hash, 0xABCDEF0123456789u);
  EXPECT_EQ(init.nranks, 8u);
  EXPECT_EQ(init.nnodes, 2u);
  EXPECT_EQ(init.rank, 3);
  EXPECT_EQ(agent().communicator_names().begin()->second, "dp_group");
  EXPECT_EQ(o.communicator, init.communicator);
}

TEST_F(Operations, SayHelloWithReleaseAndClaims) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().hellos().empty(); }));
  const auto h = agent().hellos()[0];
  EXPECT_EQ(h.nccl_version, 22809u);
  EXPECT_EQ(h.interface_version, 5);
  EXPECT_EQ(h.pid, static_cast<std::uint32_t>(getpid()));
  EXPECT_NE(h.session_id, 0u);
  const auto strings = agent().strings();
  EXPECT_EQ(strings.at(static_cast<std::uint16_t>(wire::StringKey::kSlurmJobId)), "4242");
  EXPECT_EQ(strings.at(static_cast<std::uint16_t>(wire::StringKey::kSlurmProcId)), "3");
  EXPECT_FALSE(strings.at(static_cast<std::uint16_t>(wire::StringKey::kPluginVersion)).empty());
}

TEST_F(Operations, TellNcclsVariablesOfTheFirstInit) {
  setenv("NCCL_IB_HCA", "mlx5_0,mlx5_1", 1);
  setenv("NCCL_SECRET_TOKEN", "x", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  ASSERT_TRUE(StubAgent::wait_for([&] { return agent().environment_flags().has_value(); }));
  EXPECT_EQ(*agent().environment_flags(), wire::kEnvironmentEnd | wire::kEnvironmentCut);
  const auto variables = agent().variables();
  EXPECT_NE(std::find(variables.begin(), variables.end(), "NCCL_IB_HCA=mlx5_0,mlx5_1"),
            variables.end());
  for (const std::string& variable : variables)
    EXPECT_TRUE(variable.starts_with("NCCL_") && !variable.starts_with("NCCL_SECRET")) << variable;
  // A restarted agent is told again.
  stop_agent();
  start_agent();
  ASSERT_TRUE(StubAgent::wait_for([&] { return agent().environment_flags().has_value(); }));
  EXPECT_EQ(agent().variables(), variables);
  EXPECT_EQ(agent().malformed(), 0u);
}

TEST_F(Operations, TellNoVariablesWhereTheUserWantsItSo) {
  setenv("NCCL_IB_HCA", "mlx5_0", 1);
  setenv("NCCLSCOPE_ENVIRONMENT", "0", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().books().empty(); }));
  EXPECT_FALSE(agent().environment_flags().has_value());
}

TEST_F(Operations, SpanAllChannelsFromFirstStartToLastStop) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  void* task = c.launch("AllReduce", 1000, "ncclFloat32", 2);
  const std::uint64_t t = gpu_now_ns() + 1000;
  void* a = c.start_kernel(task, 5, t + 500);
  void* b = c.start_kernel(task, 6, t);
  c.stop_kernel(b, t + 2'000);
  c.stop_kernel(a, t + 9'000);
  const auto ops = wait_operations(1);
  EXPECT_EQ(ops[0].gpu_start_ns, t);
  EXPECT_EQ(wire::duration_ns_of(ops[0]), 9'000u);
}

TEST_F(Operations, KeepTheCallersTypeWhereNcclReportsBytes) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* group = c.start_group_api();
  void* api = c.start_coll_api(group, "AllGather", 250, "ncclFloat32");
  c.stop(api);
  void* plan = c.start_plan();
  void* task = c.start_coll(api, plan, "AllGather", 1000, "ncclInt8", 1);
  c.stop(task);
  c.stop(plan);
  c.stop(group);
  const std::uint64_t t = gpu_now_ns() + 1000;
  c.complete(task, 1, t, t + 10);
  const auto ops = wait_operations(1);
  EXPECT_EQ(ops[0].datatype, static_cast<std::uint8_t>(model::DataType::kFloat32));
  EXPECT_EQ(wire::count_of(ops[0]), 250u);
}

TEST_F(Operations, CompleteCollnetWhoseChannelsAreNotPromised) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  const std::uint64_t t = gpu_now_ns() + 1000;
  c.complete(c.launch("AllReduce", 1000, "ncclFloat32", 0), 3, t, t + 50'000);
  const auto ops = wait_operations(1);
  EXPECT_EQ(ops[0].channels_seen, 3);
  EXPECT_EQ(wire::duration_ns_of(ops[0]), 50'000u);
  EXPECT_NE(ops[0].flags & of::kChannelsUnknown, 0);
  EXPECT_NE(ops[0].flags & of::kComplete, 0);
}

TEST_F(Operations, CountWhatOnlyTheApiReported) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  c.all_reduce(10, 1, gpu_now_ns() + 1000, gpu_now_ns() + 9000);
  void* group = c.start_group_api();
  void* api = c.start_coll_api(group, "AllReduce", 777, "ncclFloat32");
  c.stop(api);
  c.stop(group);
  const auto ops = wait_operations(2);
  ASSERT_EQ(ops.size(), 2u);
  EXPECT_EQ(reason(ops[1]), UntimedReason::kApiOnly);
  EXPECT_EQ(wire::timing_of(ops[1]), TimingSource::kNone);
  EXPECT_EQ(wire::count_of(ops[1]), 777u);
  EXPECT_EQ(ops[1].index, 1u);
}

TEST_F(Operations, DoNotGiveUpAnApiCallWhileItsGroupIsOpen) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  c.all_reduce(10, 1, gpu_now_ns() + 1000, gpu_now_ns() + 9000);
  void* group = c.start_group_api();
  void* api = c.start_coll_api(group, "AllReduce", 777, "ncclFloat32");
  c.stop(api);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  void* plan = c.start_plan();
  void* task = c.start_coll(api, plan, "AllReduce", 777, "ncclFloat32", 1);
  c.stop(task);
  c.stop(plan);
  c.stop(group);
  const std::uint64_t t = gpu_now_ns() + 1000;
  c.complete(task, 1, t, t + 70);
  const auto ops = wait_operations(2);
  ASSERT_EQ(ops.size(), 2u);
  EXPECT_EQ(wire::duration_ns_of(ops[1]), 70u);
}

TEST_F(Operations, CloseASendToItselfWithoutWaitingForAKernel) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 2);
  void* plan = c.start_plan();
  void* api = c.start_p2p_api(nullptr, "Send", 100, "ncclFloat32");
  c.stop(api);
  void* task = c.start_p2p(api, plan, "Send", 100, "ncclFloat32", 2, 1);
  c.stop(task);
  c.stop(plan);
  const auto ops = wait_operations(1);
  EXPECT_EQ(reason(ops[0]), UntimedReason::kSelf);
  EXPECT_EQ(ops[0].root_or_peer, 2);
}

TEST_F(Operations, RejectStampsOfOlderWorkAfterASendToItself) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 2);
  const std::uint64_t t = gpu_now_ns() + 1'000;
  c.all_reduce(10, 1, t, t + 100'000);
  send_to_itself(c, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  // The host is one work item behind: the next operation shows the stamps of the one before it.
  c.all_reduce(10, 1, t, t + 100'000);
  const auto ops = wait_operations(3);
  std::size_t rejected = 0;
  for (const auto& o : ops) rejected += reason(o) == UntimedReason::kCounterDrift ? 1u : 0u;
  EXPECT_EQ(rejected, 1u);
}

TEST_F(Operations, TakeTheOtherChannelsAfterASendToItself) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 2);
  const std::uint64_t t = gpu_now_ns() - 1'000;
  c.all_reduce(10, 2, t, t + 1'000);
  send_to_itself(c, 1);
  // Of the first channel come the stamps of older work, even such whose stop is before its start.
  void* task = c.launch("AllReduce", 20, "ncclFloat32", 3);
  const std::uint64_t now = gpu_now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  c.complete(task, 1, t + 1'000, t);
  c.complete(task, 1, now, now + 300, 1);
  c.complete(task, 1, now + 50, now + 400, 2);
  const auto ops = wait_operations(3);
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(reason(ops[2]), UntimedReason::kNone);
  EXPECT_EQ(ops[2].gpu_start_ns, now);
  EXPECT_EQ(wire::duration_ns_of(ops[2]), 400u);
}

TEST_F(Operations, NeverTakeTheFirstChannelAfterASendToItself) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 2);
  const std::uint64_t t = gpu_now_ns() + 1'000;
  c.all_reduce(10, 1, t, t + 100);
  send_to_itself(c, 1);
  // Where the host runs ahead, older work starts after the call as well.
  void* task = c.launch("AllReduce", 20, "ncclFloat32", 1);
  const std::uint64_t later = gpu_now_ns() + 1'000;
  c.complete(task, 1, later, later + 100);
  const auto ops = wait_operations(3);
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(reason(ops[2]), UntimedReason::kCounterDrift);
}

TEST_F(Operations, TakeNoChannelAfterASendToItselfOverSeveral) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 2);
  const std::uint64_t t = gpu_now_ns() + 1'000;
  c.all_reduce(10, 2, t, t + 100);
  send_to_itself(c, 2);
  void* task = c.launch("AllReduce", 20, "ncclFloat32", 2);
  const std::uint64_t later = gpu_now_ns() + 1'000;
  c.complete(task, 2, later, later + 100);
  const auto ops = wait_operations(3);
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(reason(ops[2]), UntimedReason::kCounterDrift);
}

TEST_F(Operations, NeverTrustTimesAfterGroupedBroadcastsOf230) {
  ncclscope_test_nccl_version = 23007;
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* group = c.start_group_api();
  for (int root = 0; root < 3; ++root)
    c.stop(c.start_coll_api(group, "Broadcast", 100, "ncclFloat32", root));
  c.stop(group);
  const std::uint64_t t = gpu_now_ns() + 1'000'000;
  c.all_reduce(10, 1, t, t + 100'000);
  c.launch("AllReduce", 10, "ncclFloat32", 1);  // its kernel reports never come
  const auto ops = wait_operations(2);
  for (const auto& o : ops) {
    if (o.function == static_cast<std::uint8_t>(model::Function::kAllReduce)) {
      EXPECT_EQ(reason(o), UntimedReason::kCounterDrift);
    }
  }
  c.finalize();
  EXPECT_TRUE(agent().wait_for_operations(5));
}

TEST_F(Operations, TrustTimesWhereGroupedBroadcastsComeAsTasks) {
  ncclscope_test_nccl_version = 23007;
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* group = c.start_group_api();
  void* apis[3];
  for (int root = 0; root < 3; ++root)
    c.stop(apis[root] = c.start_coll_api(group, "Broadcast", 100, "ncclFloat32", root));
  void* plan = c.start_plan();
  void* tasks[3];
  for (int root = 0; root < 3; ++root) {
    c.stop(tasks[root] = c.start_coll(apis[root], plan, "Broadcast", 400, "ncclInt8", 1, 0, "RING",
                                      "SIMPLE", root));
  }
  c.stop(plan);
  c.stop(group);
  std::uint64_t t = gpu_now_ns() + 1'000'000;
  for (void* task : tasks) {
    c.complete(task, 1, t, t + 500);
    t += 1000;
  }
  for (const auto& o : wait_operations(3)) EXPECT_EQ(wire::timing_of(o), TimingSource::kGpu);
}

TEST_F(Operations, RefuseAStopThatIsNotAfterItsStart) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  const std::uint64_t t = gpu_now_ns() + 1'000;
  c.all_reduce(10, 1, t + 500, t + 400);
  EXPECT_EQ(reason(wait_operations(1)[0]), UntimedReason::kTimingRejected);
}

TEST_F(Operations, RefuseWorkThatBeginsBeforeEarlierWorkOfItsChannelEnded) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  const std::uint64_t t = gpu_now_ns() + 1'000'000;
  c.all_reduce(10, 1, t, t + 500'000);
  c.all_reduce(10, 1, t + 100'000, t + 900'000);
  const auto ops = wait_operations(2);
  EXPECT_EQ(wire::timing_of(ops[0]), TimingSource::kGpu);
  EXPECT_EQ(reason(ops[1]), UntimedReason::kTimingRejected);
}

TEST_F(Operations, AcceptEqualStampsInsideOnePlan) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* plan = c.start_plan();
  void* a = c.start_coll(nullptr, plan, "AllReduce", 10, "ncclFloat32", 1, 0);
  void* b = c.start_coll(nullptr, plan, "AllReduce", 20, "ncclFloat32", 1, 1);
  c.stop(a);
  c.stop(b);
  c.stop(plan);
  const std::uint64_t t = gpu_now_ns() + 1'000'000;
  c.complete(a, 1, t, t + 5000);
  c.complete(b, 1, t + 20, t + 5000);
  const auto ops = wait_operations(2);
  EXPECT_EQ(wire::timing_of(ops[0]), TimingSource::kGpu);
  EXPECT_EQ(wire::timing_of(ops[1]), TimingSource::kGpu);
  EXPECT_EQ(wire::plan_of(ops[0]), wire::plan_of(ops[1]));
}

TEST_F(Operations, LoseNothingButTheTimeWhenAReportIsLost) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  const std::uint64_t t = gpu_now_ns() + 1'000'000;
  void* task = c.launch("AllReduce", 10, "ncclFloat32", 2);
  c.complete(task, 1, t, t + 10);  // the second channel's report never comes
  for (std::uint64_t i = 1; i <= 2; ++i) c.all_reduce(10, 2, t + i * 1000, t + i * 1000 + 10, i);
  const auto ops = wait_operations(3);
  std::size_t lost = 0;
  for (const auto& o : ops) lost += reason(o) == UntimedReason::kLost ? 1u : 0u;
  EXPECT_EQ(lost, 1u);
}

TEST_F(Operations, OfACapturedGraphAreItsReplays) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* group = c.start_group_api();
  void* api = c.start_coll_api(group, "AllReduce", 10, "ncclFloat32", 0, true);
  c.stop(api);
  c.stop(group);
  for (std::uint64_t replay = 0; replay < 3; ++replay) {
    void* plan = c.start_plan();
    void* task = c.start_coll(api, plan, "AllReduce", 10, "ncclFloat32", 1, 0);
    c.stop(task);
    c.stop(plan);
    const std::uint64_t t = gpu_now_ns() + 1'000;
    c.complete(task, 1, t, t + 10);
  }
  const auto ops = wait_operations(3);
  ASSERT_EQ(ops.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ops[i].index, i);
    EXPECT_NE(ops[i].flags & of::kGraph, 0);
    EXPECT_EQ(wire::timing_of(ops[i]), TimingSource::kGpu);
  }
}

TEST_F(Operations, StayOpenWhileTheGpuWorksAndAreSeenInProgress) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* task = c.launch("AllReduce", 10, "ncclFloat32", 2);
  void* kernel = c.start_kernel(task, 0, gpu_now_ns() + 1000);
  ASSERT_TRUE(StubAgent::wait_for([&] {
    const auto all = agent().progress();
    return !all.empty() && all.begin()->second.collectives_started == 1 &&
           (all.begin()->second.flags & wire::kProgressOldestStarted) != 0;
  }));
  auto p = agent().progress().begin()->second;
  EXPECT_EQ(p.collectives_enqueued, 1u);
  EXPECT_EQ(p.collectives_completed, 0u);
  EXPECT_EQ(p.oldest_index, 0u);
  EXPECT_NE(p.oldest_time_ns, 0u);
  EXPECT_NE(p.oldest_signature, 0u);
  EXPECT_NE(p.flags & wire::kProgressOldestStarted, 0);
  EXPECT_EQ(agent().operation_count(), 0u);
  c.stop_kernel(kernel, gpu_now_ns() + 5000);
  c.complete(task, 1, gpu_now_ns() + 1000, gpu_now_ns() + 5000, 1);
  ASSERT_TRUE(StubAgent::wait_for(
      [&] { return agent().progress().begin()->second.collectives_completed == 1; }));
  EXPECT_EQ(agent().progress().begin()->second.oldest_index, ~std::uint64_t{0});
}

TEST_F(Operations, AreSaidToHaveNoKnownEndWhereNoKernelsAreReported) {
  setenv("NCCLSCOPE_MASK", "0x606", 1);  // no kernel events
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  for (int i = 0; i < 3; ++i) c.launch("AllReduce", 10, "ncclFloat32", 0);
  const auto now = [&] { return agent().progress().begin()->second; };
  ASSERT_TRUE(StubAgent::wait_for(
      [&] { return !agent().progress().empty() && now().collectives_completed == 3; }));
  EXPECT_NE(now().flags & wire::kProgressCollectiveEndsUnknown, 0);
  EXPECT_EQ(now().flags & wire::kProgressP2pEndsUnknown, 0);
}

TEST_F(Operations, HaveEndedWhenALaterOneHas) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* task = c.launch("AllReduce", 10, "ncclFloat32", 1);
  const auto now = [&] { return agent().progress().begin()->second; };
  c.complete(task, 1, gpu_now_ns() + 1'000, gpu_now_ns() + 5'000);
  ASSERT_TRUE(StubAgent::wait_for(
      [&] { return !agent().progress().empty() && now().collectives_completed == 1; }));
  EXPECT_EQ(now().flags & wire::kProgressCollectiveEndsUnknown, 0);
}

TEST_F(Operations, AreClosedByFinalizeAsUnfinished) {
  start_agent();
  DrivenCommunicator c(table(), 1, 4, 0);
  void* task = c.launch("AllReduce", 10, "ncclFloat32", 2);
  void* kernel = c.start_kernel(task, 0, gpu_now_ns());
  c.finalize();
  const auto ops = wait_operations(1);
  EXPECT_EQ(reason(ops[0]), UntimedReason::kUnfinished);
  EXPECT_EQ(ops[0].flags & of::kComplete, 0);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().finalized().empty(); }));
  const auto f = agent().finalized()[0];
  EXPECT_EQ(f.unfinished, 1u);
  EXPECT_EQ(f.collectives_enqueued, 1u);
  EXPECT_EQ(f.collectives_completed, 0u);
  // After finalize everything is ignored.
  c.stop_kernel(kernel, gpu_now_ns());
  EXPECT_EQ(c.start_coll(nullptr, nullptr, "AllReduce", 1, "ncclFloat32", 1), nullptr);
  const auto books = settled_books(1);
  EXPECT_EQ(books.seen, 1u);
  EXPECT_EQ(books.recorded, 1u);
}

TEST_F(Operations, ShowPlentyOfCommunicatorsInOrder) {
  start_agent();
  std::vector<DrivenCommunicator> comms;
  for (int i = 0; i < 64; ++i)
    comms.emplace_back(table(), 100 + i, 4, 0, ("c" + std::to_string(i)).c_str());
  for (int round = 0; round < 5; ++round) {
    for (auto& c : comms) {
      const std::uint64_t t = gpu_now_ns() + 1000;
      c.all_reduce(10, 2, t, t + 10, static_cast<std::uint64_t>(round));
    }
  }
  const auto ops = wait_operations(320);
  EXPECT_EQ(agent().communicators().size(), 64u);
  std::map<std::uint16_t, std::uint32_t> next;
  for (const auto& o : ops) EXPECT_EQ(o.index, next[o.communicator]++);
  for (auto& c : comms) c.finalize();
  EXPECT_TRUE(StubAgent::wait_for([&] { return agent().finalized().size() == 64; }));
}

}  // namespace
}  // namespace ncclscope::tests
