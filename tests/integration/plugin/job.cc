// SPDX-License-Identifier: Apache-2.0
// A job with the plugin, in a process of its own:
//   exit   20 operations and one that never completes, then exit() without finalize
//   fork   10 operations; a child that goes on with the parent's communicator (5, which must not
//          count) and its own (7), then 10 more in the parent. Ends with the child's status.
//   flood N   N operations as fast as they can be called, then finalize.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/support/plugin_driver.h"

extern "C" int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

namespace {

using ncclscope::tests::DrivenCommunicator;
using std::chrono::milliseconds;

void run(const DrivenCommunicator& c, unsigned n) {
  // The GPU's clock goes on with the host's: stamps that fall behind it are not believed.
  constexpr std::uint64_t kAhead = 3'600'000'000'000;
  static std::uint64_t gpu = 0;
  for (unsigned i = 0; i < n; ++i) {
    void* task = c.launch("AllReduce", 100, "ncclFloat32", 1);
    gpu = std::max(gpu + 1000, ncclscope::tests::gpu_now_ns() + kAhead);
    c.complete(task, 1, gpu, gpu + 500);
  }
}

int exit_without_finalize(const ncclscope::nccl::ProfilerV5* table) {
  const DrivenCommunicator c(table, 1, 2, 0);
  std::this_thread::sleep_for(milliseconds(120));
  run(c, 20);
  c.launch("AllReduce", 10, "ncclFloat32", 1);
  return 0;
}

int fork_in_the_middle(const ncclscope::nccl::ProfilerV5* table) {
  DrivenCommunicator c(table, 1, 2, 0);
  run(c, 10);
  std::this_thread::sleep_for(milliseconds(100));
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    run(c, 5);
    DrivenCommunicator mine(table, 2, 2, 1);
    run(mine, 7);
    mine.finalize();
    std::this_thread::sleep_for(milliseconds(300));
    _exit(c.start_plan() == nullptr ? 2 : 0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 3;
  run(c, 10);
  c.finalize();
  return 0;
}

int flood(const ncclscope::nccl::ProfilerV5* table, unsigned operations) {
  DrivenCommunicator c(table, 1, 2, 0);
  run(c, operations);
  c.finalize();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc >= 2 ? argv[1] : "";
  const long operations = mode == "flood" && argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  if (mode != "exit" && mode != "fork" && (operations <= 0 || operations > 100'000'000)) {
    std::fprintf(stderr, "usage: %s exit | fork | flood N   (N up to 100,000,000)\n", argv[0]);
    return 64;
  }
  const auto* table =
      ncclscope::tests::load_table<ncclscope::nccl::ProfilerV5>(NCCLSCOPE_PLUGIN_PATH, 5);
  if (mode == "flood") return flood(table, static_cast<unsigned>(operations));
  return mode == "exit" ? exit_without_finalize(table) : fork_in_the_middle(table);
}
