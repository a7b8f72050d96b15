// SPDX-License-Identifier: Apache-2.0
// What is recorded, under the governor and at the levels that an agent asks for: the real plugin,
// called as NCCL would with the mask in force.
#include <algorithm>
#include <chrono>
#include <set>

#include "plugin/process.h"
#include "tests/support/plugin_test.h"

namespace ncclscope::tests {
namespace {

using wire::DetailLevel;
using wire::UntimedReason;

class Detail : public PluginTest {
 protected:
  static unsigned mask() {
    return static_cast<unsigned>(__atomic_load_n(&DrivenCommunicator::mask(), __ATOMIC_RELAXED));
  }
  static bool mask_has(nccl::EventType bit) { return (mask() & bit) != 0; }

  /// An AllReduce as NCCL reports it with the mask that is in force when it is called. Every event
  /// brings its ancestors.
  void all_reduce(const DrivenCommunicator& c, unsigned channels = 2) {
    const unsigned asked = mask();
    // Never behind the host's clock by more than the distance of the two: stamps older than the
    // call are refused.
    gpu_ = std::max(gpu_ + 10'000, gpu_now_ns() + kGpuAheadNs);
    void* group = c.start_group_api();
    void* api = c.start_coll_api(group, "AllReduce", 1000, "ncclFloat32");
    c.stop(api);
    if ((asked & (nccl::kColl | nccl::kKernelCh | nccl::kProxyStep)) != 0) {
      void* plan = c.start_plan();
      void* task = c.start_coll(api, plan, "AllReduce", 1000, "ncclFloat32",
                                static_cast<std::uint8_t>(channels));
      c.stop(task);
      c.stop(plan);
      if ((asked & nccl::kKernelCh) != 0) c.complete(task, channels, gpu_, gpu_ + 5'000);
    }
    c.stop(group);
  }
  void ask(DetailLevel level, std::uint32_t duration_ms, bool network = false) {
    wire::SetDetail detail{};
    detail.header = {static_cast<std::uint8_t>(wire::RecordType::kSetDetail), sizeof detail / 8};
    detail.level = static_cast<std::uint8_t>(level);
    detail.network = network ? 1 : 0;
    detail.duration_ms = duration_ms;
    // Connected and welcomed: before, nobody would hear it.
    ASSERT_TRUE(StubAgent::wait_for([&] { return !agent().books().empty(); }));
    agent().send(detail);
  }
  wire::Books books() {
    const auto all = agent().books();
    return all.empty() ? wire::Books{} : all.begin()->second;
  }
  static std::uint64_t untimed(const wire::Books& b, UntimedReason reason) {
    return b.untimed[static_cast<std::size_t>(reason)];
  }
  static bool has_gpu_time(const wire::Operation& o) {
    return wire::timing_of(o) == wire::TimingSource::kGpu;
  }

  // For what ends by itself: long enough to be seen from a thread that waits for a processor.
  static constexpr std::uint32_t kShortMs = 1'500;
  static constexpr std::uint64_t kGpuAheadNs = 3'600'000'000'000;
  std::uint64_t gpu_ = gpu_now_ns() + kGpuAheadNs;
};

/// Calls as fast as it can until `until` holds; bounded in number and time. Returns the calls made.
template <typename Call, typename Condition>
std::uint64_t flood(const Call& call, const Condition& until) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  std::uint64_t calls = 0;
  while (calls < 20'000'000 && std::chrono::steady_clock::now() < end && !until()) {
    for (int i = 0; i < 200; ++i) call();
    calls += 200;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return calls;
}

TEST_F(Detail, AFloodLowersItToCountersAndCalmRestoresIt) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer slows the flood more than the callbacks";
  setenv("NCCLSCOPE_OVERHEAD_BUDGET", "0.0001", 1);
  setenv("NCCLSCOPE_CALM_MS", "200", 1);
  start_agent({.keep_records = false});
  DrivenCommunicator c(table(), 1, 2, 0);
  const unsigned whole = mask();
  std::uint64_t calls = flood([&] { all_reduce(c); }, [&] { return books().governor == 3; });
  ASSERT_EQ(books().governor, 3) << "after " << calls << " operations";
  EXPECT_EQ(mask() & (nccl::kColl | nccl::kKernelCh), 0u);
  for (int i = 0; i < 1000; ++i) all_reduce(c);
  calls += 1000;

  ASSERT_TRUE(StubAgent::wait_for([&] { return books().governor == 0; }));
  wire::Books b = settled_books(calls);
  EXPECT_EQ(b.seen, calls);
  EXPECT_EQ(b.recorded, calls) << "counted at every step";
  EXPECT_EQ(dropped_operations(b), 0u);
  EXPECT_GE(untimed(b, UntimedReason::kNotAsked), 1000u);
  EXPECT_GE(b.governor_changes, 8u);
  EXPECT_NE(b.governor_since_ns, 0u);
  EXPECT_GT(b.governor_trigger_ratio, b.budget_ratio);
  EXPECT_DOUBLE_EQ(b.budget_ratio, 0.0001);
  EXPECT_EQ(b.kernel_slice, 1u);
  EXPECT_EQ(mask() & (nccl::kColl | nccl::kKernelCh), whole & (nccl::kColl | nccl::kKernelCh));
  const std::uint64_t not_asked = untimed(b, UntimedReason::kNotAsked);
  for (int i = 0; i < 10; ++i) all_reduce(c);
  b = settled_books(calls + 10);
  EXPECT_EQ(b.recorded, calls + 10);
  EXPECT_EQ(untimed(b, UntimedReason::kNotAsked), not_asked) << "GPU times are back";
  // What the ring could not hold in the flood was recorded all the same, and is accounted for.
  const auto lost = b.dropped[static_cast<std::size_t>(wire::DropReason::kOverwritten)];
  EXPECT_TRUE(agent().wait_for_operations(calls + 10 - lost));
  EXPECT_EQ(agent().operation_count(), calls + 10 - lost);
}

TEST_F(Detail, NobodyCanAskForMoreThanTheBudget) {
  setenv("NCCLSCOPE_OVERHEAD_BUDGET", "0.0001", 1);
  start_agent({.keep_records = false});
  DrivenCommunicator c(table(), 1, 2, 0);
  flood([&] { all_reduce(c); }, [&] { return books().governor >= 2; });
  ASSERT_GE(books().governor, 2);
  ask(DetailLevel::kFull, 60'000, true);
  ASSERT_TRUE(StubAgent::wait_for(
      [&] { return books().detail_asked == static_cast<std::uint8_t>(DetailLevel::kFull); }));
  EXPECT_EQ(books().detail, static_cast<std::uint8_t>(DetailLevel::kLow));
  EXPECT_EQ(books().network, 0);
  EXPECT_FALSE(mask_has(nccl::kProxyStep));
}

TEST_F(Detail, LowCountsAllAndTimesTheSameBlocksOfEveryCommunicator) {
  start_agent();
  DrivenCommunicator a(table(), 1, 2, 0), b(table(), 2, 2, 0);
  ask(DetailLevel::kLow, 60'000);
  ASSERT_TRUE(StubAgent::wait_for(
      [&] { return books().detail == static_cast<std::uint8_t>(DetailLevel::kLow); }));
  EXPECT_EQ(books().kernel_slice, 16u);
  // One communicator is ahead of the other by half a block: the mask is on for longer than either
  // wants.
  for (int i = 0; i < 8; ++i) all_reduce(a);
  for (int i = 0; i < 600; ++i) {
    all_reduce(a);
    all_reduce(b);
  }
  ASSERT_TRUE(agent().wait_for_operations(1208));
  for (const wire::Operation& o : agent().operations()) {
    // Where the machine took the driver's thread away between its two clocks, stamps that were
    // asked for are refused: no matter here.
    const bool asked = o.untimed_reason != static_cast<std::uint8_t>(UntimedReason::kNotAsked);
    EXPECT_EQ(asked, plugin::in_block(o.index, 16))
        << "operation " << o.index << ", reason " << static_cast<int>(o.untimed_reason);
    EXPECT_TRUE(asked || !has_gpu_time(o));
    EXPECT_TRUE((o.flags & wire::operation_flags::kComplete) != 0);
  }
}

TEST_F(Detail, LowEndsByItself) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  for (int i = 0; i < 20; ++i) all_reduce(c);
  ask(DetailLevel::kLow, kShortMs);
  ASSERT_TRUE(StubAgent::wait_for([] { return !mask_has(nccl::kKernelCh); }));
  ASSERT_TRUE(StubAgent::wait_for([] { return mask_has(nccl::kKernelCh); }));
  ASSERT_TRUE(StubAgent::wait_for([&] { return books().detail == 0; }));
  EXPECT_EQ(books().detail_asked, 0);
}

TEST_F(Detail, FullEndsWhenTheAgentHasDied) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  for (int i = 0; i < 20; ++i) all_reduce(c);
  ASSERT_TRUE(agent().wait_for_operations(20));
  ask(DetailLevel::kFull, kShortMs);
  ASSERT_TRUE(StubAgent::wait_for([] { return mask_has(nccl::kProxyStep); }));
  stop_agent();
  EXPECT_TRUE(StubAgent::wait_for([] { return !mask_has(nccl::kProxyStep); }));
}

TEST_F(Detail, ANewRequestReplacesTheOneBefore) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  for (int i = 0; i < 20; ++i) all_reduce(c);
  ASSERT_TRUE(agent().wait_for_operations(20));
  ask(DetailLevel::kFull, 60'000);
  ASSERT_TRUE(StubAgent::wait_for([] { return mask_has(nccl::kProxyStep); }));
  ask(DetailLevel::kNormal, 0);
  EXPECT_TRUE(StubAgent::wait_for([] { return !mask_has(nccl::kProxyStep); }));
}

// The mask that a graph was captured with stays that of its replays.
TEST_F(Detail, GraphsKeepTheMaskOfTheirCapture) {
  setenv("NCCLSCOPE_DETAIL", "low", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  for (int i = 0; i < 16; ++i) all_reduce(c);
  ASSERT_FALSE(mask_has(nccl::kKernelCh));
  void* api = c.start_coll_api(c.start_group_api(), "AllReduce", 1000, "ncclFloat32", 0, true);
  c.stop(api);
  ask(DetailLevel::kNormal, 0);
  ASSERT_TRUE(StubAgent::wait_for([] { return mask_has(nccl::kKernelCh); }));
  for (std::uint64_t i = 0; i < 5; ++i) {
    void* plan = c.start_plan();
    c.stop(c.start_coll(api, plan, "AllReduce", 1000, "ncclFloat32", 2));
    c.stop(plan);
  }
  const wire::Books b = settled_books(21);
  EXPECT_EQ(b.recorded, 21u) << "nobody waits for reports that the graph never gives";
}

}  // namespace
}  // namespace ncclscope::tests
