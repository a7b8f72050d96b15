// SPDX-License-Identifier: Apache-2.0
// What the sender may call complete while the job's threads call NCCL. The plugin's tables are the
// real ones, one set per process: the calls of this file leave nothing open.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "plugin/process.h"
#include "plugin/recorder.h"

namespace ncclscope::plugin {
namespace {

/// A communicator of an interface without API events, and no agent.
class OldestOperationTest : public ::testing::Test {
 protected:
  OldestOperationTest() {
    setenv("NCCLSCOPE_SOCKET", "/nonexistent/agent.sock", 1);
    setenv("NCCLSCOPE_OVERHEAD_BUDGET", "1", 1);  // no governor
    InitArguments arguments;
    arguments.interface_version = 4;
    arguments.described = true;
    arguments.hash = 7;
    arguments.nranks = 2;
    arguments.nnodes = 1;
    arguments.rank = 0;
    static int mask = 0;  // NCCL's, which the plugin writes to as long as the process runs
    init_communicator(&context_, &mask, arguments);
    for (auto& entry : process().communicators) {
      Communicator* c = entry.load();
      if (c != nullptr && c->status.load() == CommunicatorStatus::kLive) communicator_ = c;
    }
  }
  ~OldestOperationTest() override { finalize_communicator(context_); }

  void* begin() {
    Task task;
    task.function = model::Function::kAllReduce;
    task.datatype = model::DataType::kFloat32;
    task.count = 1;
    return start_task(context_, task);
  }
  Lane& lane() { return *process().lanes[communicator_->lane].load(); }

  void* context_ = nullptr;
  Communicator* communicator_ = nullptr;
};

TEST_F(OldestOperationTest, IsTheOneThatBeganFirst) {
  ASSERT_NE(communicator_, nullptr);
  void* first = begin();
  void* second = begin();
  const OldestOperation oldest = oldest_operation(lane(), *communicator_, false);
  EXPECT_EQ(oldest.index, communicator_->next_collective.load() - 2);
  EXPECT_EQ(oldest.open, 2u);
  EXPECT_TRUE(oldest.certain);
  EXPECT_EQ(oldest_operation(lane(), *communicator_, true).index, ~std::uint64_t{0});
  stop(first);
  stop(second);
  EXPECT_EQ(oldest_operation(lane(), *communicator_, false).open, 0u);
}

TEST_F(OldestOperationTest, IsNotKnownWhileOneIsAboutToBegin) {
  ASSERT_NE(communicator_, nullptr);
  OperationSlot& slot = lane().operations[kOperationSlots - 1];
  const std::uint64_t state = slot.state.load();
  slot.state.store(state | operation_state::kClaimed);
  EXPECT_FALSE(oldest_operation(lane(), *communicator_, false).certain);
  slot.state.store(state);
  EXPECT_TRUE(oldest_operation(lane(), *communicator_, false).certain);
}

TEST_F(OldestOperationTest, NeverLetsAnOperationPassThatIsNotRecorded) {
  ASSERT_NE(communicator_, nullptr);
  std::atomic<bool> ended{false};
  std::thread job([&] {
    for (int i = 0; i < 300'000; ++i) stop(begin());
    ended.store(true);
  });
  std::uint64_t looks = 0, wrong = 0;
  while (!ended.load()) {
    const std::uint64_t called = communicator_->next_collective.load(kAcquire);
    const OldestOperation oldest = oldest_operation(lane(), *communicator_, false);
    if (!oldest.certain) continue;
    ++looks;
    // One after the other: as many have ended as are below the oldest, or more by now.
    const std::uint64_t complete = std::min(oldest.index, called);
    const std::uint64_t closed =
        communicator_->recorded.load(kAcquire) + communicator_->dropped.load(kAcquire);
    if (closed < complete) ++wrong;
  }
  job.join();
  EXPECT_GT(looks, 0u);
  EXPECT_EQ(wrong, 0u) << "of " << looks << " looks";
}

}  // namespace
}  // namespace ncclscope::plugin
