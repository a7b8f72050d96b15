// SPDX-License-Identifier: Apache-2.0
// What the plugin must never do on a thread that it does not own: system calls and allocation,
// counted, not timed.
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "tests/support/plugin_test.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

namespace {

// Counts on the calling thread only, and only inside a Watched section.
thread_local bool watched = false;
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> system_calls{0};
thread_local volatile char selector = 0;  // 0 allow, 1 block

// A blocked system call arrives here instead of in the kernel: count it, let the rest of the
// section run freely.
void on_sigsys(int, siginfo_t*, void*) {
  system_calls.fetch_add(1);
  selector = 0;
}

/// Watches the calling thread for its lifetime.
class Watched {
 public:
  Watched() {
    watched = true;
    selector = 1;
  }
  ~Watched() {
    selector = 0;
    watched = false;
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
};

/// Turns the kernel's system call dispatch on for this thread; false where the kernel has none.
bool watch_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = on_sigsys;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  return prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector) == 0;
}

}  // namespace

// Every allocation of the process passes here: the plugin's calls resolve to the executable's
// functions first.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t n) {
  if (watched) allocations.fetch_add(1);
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t m) {
  if (watched) allocations.fetch_add(1);
  return __libc_calloc(n, m);
}
void* realloc(void* p, size_t n) {
  if (watched) allocations.fetch_add(1);
  return __libc_realloc(p, n);
}
}

namespace ncclscope::tests {
namespace {

class Manners : public PluginTest {
 protected:
  void SetUp() override {
    if (!watch_system_calls()) GTEST_SKIP() << "this kernel has no system call user dispatch";
  }
  void everything(const DrivenCommunicator& c, unsigned n) {
    for (unsigned i = 0; i < n; ++i) {
      gpu_ += 10'000;
      void* task = c.launch("AllReduce", 1000, "ncclFloat32", 4, i);
      void* op = c.start_proxy_op(task, pid_, 0, 1, true);
      void* step = c.start_proxy_step(op, 0);
      c.record_bytes(step, nccl::kProxyStepSendGpuWait, 0);
      c.record_bytes(step, nccl::kProxyStepSendPeerWait, 0);
      c.record_bytes(step, nccl::kProxyStepSendWait, 100);
      c.stop(step);
      c.complete(task, 4, gpu_, gpu_ + 5'000);
      c.stop(op);
      void* plan = c.start_plan();
      void* send = c.start_p2p(c.start_p2p_api(nullptr, "Send", 10, "ncclFloat32"), plan, "Send",
                               10, "ncclFloat32", 1, 1);
      c.stop(send);
      c.stop(plan);
      c.complete(send, 1, gpu_ + 6'000, gpu_ + 7'000);
    }
  }
  std::uint64_t gpu_ = gpu_now_ns() + 3'600'000'000'000;
  int pid_ = getpid();
};

TEST_F(Manners, TheWatcherSeesASystemCallAndAnAllocation) {
  system_calls = 0;
  {
    const Watched w;
    (void)syscall(SYS_getppid);
  }
  EXPECT_EQ(system_calls.load(), 1u);
  allocations = 0;
  void* p = nullptr;
  {
    const Watched w;
    p = malloc(10);
  }
  free(p);
  EXPECT_GE(allocations.load(), 1u);
}

TEST_F(Manners, NoSystemCallAndNoAllocationWithAnAgent) {
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  everything(c, 100);
  allocations = system_calls = 0;
  for (int round = 0; round < 50; ++round) {
    {
      const Watched w;
      everything(c, 100);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  {
    const Watched w;
    c.finalize();
  }
  EXPECT_EQ(system_calls.load(), 0u);
  EXPECT_EQ(allocations.load(), 0u);
  EXPECT_TRUE(agent().wait_for_operations(10'200));
}

TEST_F(Manners, NoSystemCallAndNoAllocationWithoutOneOrWithOneThatStopped) {
  DrivenCommunicator c(table(), 1, 2, 0);
  allocations = system_calls = 0;
  {
    const Watched w;
    everything(c, 10'000);  // far more than the ring holds
  }
  start_agent();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  {
    const Watched w;
    everything(c, 100);
  }
  stop_agent();
  {
    const Watched w;
    everything(c, 1'000);
  }
  EXPECT_EQ(system_calls.load(), 0u);
  EXPECT_EQ(allocations.load(), 0u);
}

TEST_F(Manners, OneThreadOfItsOwnWithAllSignalsBlocked) {
  const auto names = [] {
    std::vector<std::string> found;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name == "ncclscope") found.push_back(task.path());
    }
    return found;
  };
  EXPECT_TRUE(names().empty());
  DrivenCommunicator a(table(), 1, 2, 0), b(table(), 2, 2, 0);
  ASSERT_TRUE(StubAgent::wait_for([&] { return names().size() == 1; }));
  std::ifstream status(names()[0] + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("SigBlk:")) {
      // All but the two that the C library keeps for itself and the two that cannot be blocked.
      const auto blocked = std::stoull(line.substr(7), nullptr, 16);
      EXPECT_EQ(blocked | 0x180000000ull | (1ull << (SIGKILL - 1)) | (1ull << (SIGSTOP - 1)),
                ~0ull);
    }
  }
}

TEST_F(Manners, EveryCallReturnsSuccessAndWritesTheHandle) {
  const auto* t = table();
  void* context = nullptr;
  int mask = 0;
  EXPECT_EQ(t->init(&context, 1, &mask, nullptr, 1, 2, 0, nullptr), nccl::kSuccess);
  EXPECT_NE(context, nullptr);
  for (unsigned bit = 0; bit < 20; ++bit) {
    auto d = DrivenCommunicator::blank(static_cast<nccl::EventType>(1u << bit), nullptr);
    void* handle = reinterpret_cast<void*>(0x55);
    EXPECT_EQ(t->start_event(context, &handle, &d), nccl::kSuccess);
    EXPECT_NE(handle, reinterpret_cast<void*>(0x55));
    EXPECT_EQ(t->record_event_state(handle, static_cast<nccl::EventState>(bit), nullptr),
              nccl::kSuccess);
    EXPECT_EQ(t->stop_event(handle), nccl::kSuccess);
    EXPECT_EQ(t->start_event(nullptr, &handle, &d), nccl::kSuccess);
  }
  EXPECT_EQ(t->finalize(context), nccl::kSuccess);
  EXPECT_EQ(t->finalize(nullptr), nccl::kSuccess);
}

}  // namespace
}  // namespace ncclscope::tests
