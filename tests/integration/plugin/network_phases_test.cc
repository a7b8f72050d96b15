// SPDX-License-Identifier: Apache-2.0
// Network phases and bytes of operations, with NCCL's repetitions and foreign operations.
#include <unistd.h>

#include "plugin/process.h"
#include "tests/support/plugin_test.h"

namespace ncclscope::tests {
namespace {

using std::chrono::milliseconds;

class Network : public PluginTest {
 protected:
  static bool mask_has(nccl::EventType bit) {
    return (static_cast<unsigned>(__atomic_load_n(&DrivenCommunicator::mask(), __ATOMIC_RELAXED)) &
            bit) != 0;
  }
  void send_step(const DrivenCommunicator& c, void* op, int step, std::size_t bytes,
                 int repeats_of_20 = 1) {
    void* s = c.start_proxy_step(op, step);
    ASSERT_NE(s, nullptr);
    c.record_bytes(s, nccl::kProxyStepSendGpuWait, 0);
    std::this_thread::sleep_for(milliseconds(2));
    for (int i = 0; i < repeats_of_20; ++i) c.record_bytes(s, nccl::kProxyStepSendPeerWait, 0);
    c.record_bytes(s, nccl::kProxyStepSendWait, bytes);
    std::this_thread::sleep_for(milliseconds(1));
    c.stop(s);
  }
};

TEST_F(Network, PhasesAreSummedOverStepsAndChannels) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  void* task = c.launch("AllReduce", 1000, "ncclFloat32", 2);
  void* ops[2] = {c.start_proxy_op(task, getpid(), 0, 1, true),
                  c.start_proxy_op(task, getpid(), 1, 1, true)};
  for (void* op : ops) {
    ASSERT_NE(op, nullptr);
    c.record(op, nccl::kProxyOpInProgress, nullptr);
    send_step(c, op, 0, 500);
    send_step(c, op, 1, 250, 3);
  }
  for (void* op : ops) c.stop(op);
  const std::uint64_t t = gpu_now_ns() + 1000;
  c.complete(task, 2, t, t + 10);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().network().empty(); }));
  const auto n = agent().network()[0];
  EXPECT_EQ(n.bytes, 1500u);
  EXPECT_EQ(n.steps, 4u);
  EXPECT_EQ(n.steps_incomplete, 0u);
  EXPECT_EQ(n.channels, 2);
  EXPECT_EQ(n.is_send, 1);
  EXPECT_EQ(n.peer, 1);
  EXPECT_EQ(n.index, 0u);
  EXPECT_GE(n.phase_ns[0], 4 * 2'000'000u);
  EXPECT_GE(n.phase_ns[2], 4 * 1'000'000u);
  EXPECT_LT(n.phase_ns[1], n.phase_ns[0]);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().neighbours().empty(); }));
  EXPECT_EQ(agent().neighbours()[0].peer, 1);
  EXPECT_EQ(agent().neighbours()[0].is_send, 1);
}

TEST_F(Network, AReceiveThatIsStartedAgainCountsOnceAndItsFirstStartAsIncomplete) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  void* task = c.launch("AllReduce", 1000, "ncclFloat32", 1);
  void* op = c.start_proxy_op(task, getpid(), 0, 1, false);
  (void)c.start_proxy_step(op, 0);  // refused by the network, never stopped
  void* s = c.start_proxy_step(op, 0);
  c.record_bytes(s, nccl::kProxyStepRecvWait, 0);
  c.record_bytes(s, nccl::kProxyStepRecvFlushWait, 800);
  c.record_bytes(s, nccl::kProxyStepRecvGpuWait, 800);
  c.stop(s);
  c.stop(op);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().network().empty(); }));
  const auto n = agent().network()[0];
  EXPECT_EQ(n.bytes, 800u);
  EXPECT_EQ(n.steps, 1u);
  EXPECT_EQ(n.steps_incomplete, 1u);
}

TEST_F(Network, OperationsOfAnotherProcessNeverTouchItsPointers) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  // PXN: pid, context and parent are another process's; here they would crash if they were
  // followed.
  auto d = DrivenCommunicator::blank(nccl::kProxyOp, reinterpret_cast<void*>(0xDEAD0000), 1);
  d.proxy_op.pid = getpid() + 1;
  d.proxy_op.peer = 1;
  d.proxy_op.is_send = 1;
  void* op = nullptr;
  table()->start_event(reinterpret_cast<void*>(0xBEEF0000), &op, &d);
  ASSERT_NE(op, nullptr);
  auto s = DrivenCommunicator::blank(nccl::kProxyStep, op, 1);
  void* step = nullptr;
  table()->start_event(reinterpret_cast<void*>(0xBEEF0000), &step, &s);
  c.record_bytes(step, nccl::kProxyStepSendGpuWait, 0);
  c.record_bytes(step, nccl::kProxyStepSendWait, 4096);
  c.stop(step);
  c.stop(op);
  ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().network().empty(); }));
  EXPECT_EQ(agent().network()[0].communicator, wire::kNoCommunicator);
  EXPECT_EQ(agent().network()[0].bytes, 4096u);
}

TEST_F(Network, SamplingTakesTheSameBlocksOfOperationsEverywhere) {
  setenv("NCCLSCOPE_NETWORK_SAMPLE", "4", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  std::vector<bool> on;
  for (int i = 0; i < 160; ++i) {
    on.push_back(mask_has(nccl::kProxyStep));
    const std::uint64_t t = gpu_now_ns() + 1000;
    c.all_reduce(10, 1, t, t + 10);
  }
  for (std::size_t i = 0; i < on.size(); ++i)
    EXPECT_EQ(on[i], plugin::in_block(i, 4)) << "operation " << i;
}

TEST_F(Network, DetailFullTurnsPhasesAndChannelTimesOnAndEndsByItself) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  const std::uint64_t t = gpu_now_ns() + 1000;
  for (unsigned i = 0; i < 20; ++i) c.all_reduce(10, 1, t + i * 100, t + i * 100 + 10);
  ASSERT_TRUE(agent().wait_for_operations(20));
  EXPECT_FALSE(mask_has(nccl::kProxyStep));
  wire::SetDetail detail{};
  detail.header = {static_cast<std::uint8_t>(wire::RecordType::kSetDetail), sizeof detail / 8};
  detail.level = static_cast<std::uint8_t>(wire::DetailLevel::kFull);
  detail.duration_ms = 200;
  agent().send(detail);
  ASSERT_TRUE(StubAgent::wait_for([] { return mask_has(nccl::kProxyStep); }));
  c.all_reduce(10, 2, gpu_now_ns() + 100'000, gpu_now_ns() + 200'000);
  ASSERT_TRUE(StubAgent::wait_for([&] { return agent().channels().size() == 2; }));
  ASSERT_TRUE(StubAgent::wait_for([] { return !mask_has(nccl::kProxyStep); }));
}

}  // namespace
}  // namespace ncclscope::tests
