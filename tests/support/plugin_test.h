// SPDX-License-Identifier: Apache-2.0
//
// Fixture: a private directory with an agent's socket path, the plugin's environment, the plugin's
// table v5.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/plugin_driver.h"
#include "tests/support/stub_agent.h"
#include "tests/support/temporary_directory.h"

// The plugin asks the process for NCCL's release; the tests are an NCCL of this release unless they
// say otherwise.
inline int ncclscope_test_nccl_version = 22809;

namespace ncclscope::tests {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() {
    static bool used = false;
    // The plugin reads its environment once: it would look for the first test's agent for ever.
    if (std::exchange(used, true))
      throw std::logic_error("one test per process, as ctest runs them: use --gtest_filter");
    std::filesystem::permissions(home_.path(), std::filesystem::perms(0755));
    // Not in the temporary directory itself, where everybody may take a name.
    directory_ = home_ / "run";
    std::filesystem::create_directory(directory_);
    socket_ = directory_ + "/agent.sock";
    setenv("NCCLSCOPE_SOCKET", socket_.c_str(), 1);
    setenv("NCCLSCOPE_SENDER_INTERVAL_MS", "5", 1);
    // Tests drive more than any job: the governor would lower what they look at.
    setenv("NCCLSCOPE_OVERHEAD_BUDGET", "1", 1);
    // Nor shall blocks without GPU times come in between.
    setenv("NCCLSCOPE_COST_SAMPLE", "0", 1);
    setenv("SLURM_JOB_ID", "4242", 1);
    setenv("SLURM_PROCID", "3", 1);
  }

  const nccl::ProfilerV5* table() {
    if (table_ == nullptr) table_ = load_table<nccl::ProfilerV5>(NCCLSCOPE_PLUGIN_PATH, 5);
    return table_;
  }
  StubAgent& start_agent(StubAgent::Behaviour behaviour = {}) {
    agent_.emplace(socket_, behaviour);
    return *agent_;
  }
  void stop_agent() { agent_.reset(); }
  StubAgent& agent() { return *agent_; }

  /// The newest books of the only session, once they have settled at `seen` operations.
  wire::Books settled_books(std::uint64_t seen) {
    wire::Books b{};
    StubAgent::wait_for([&] {
      const auto all = agent().books();
      if (all.size() != 1) return false;
      b = all.begin()->second;
      return b.seen == seen && b.open == 0 && b.flags == 0;
    });
    return b;
  }
  static std::uint64_t dropped_operations(const wire::Books& b) {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < wire::kDropReasonCount; ++i) {
      if (i != static_cast<std::size_t>(wire::DropReason::kOverwritten)) n += b.dropped[i];
    }
    return n;
  }

  const TemporaryDirectory home_;
  std::string directory_, socket_;
  const nccl::ProfilerV5* table_ = nullptr;
  std::optional<StubAgent> agent_;
};

}  // namespace ncclscope::tests
