// SPDX-License-Identifier: Apache-2.0
//
// An agent whose squeue_command fails or hangs: plugins are served as ever, and it stops in time.
// (That answers reach the labels of jobs is shown with a real SLURM in tests/e2e/slurm.)
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <string>

#include "tests/integration/agent/running_agent.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using testing::eventually;
using testing::Plugin;
using testing::RunningAgent;
using tests::TemporaryDirectory;

class SlurmAgent : public ::testing::Test {
 protected:
  std::string script(const std::string& body) {
    std::string path = directory_ / "squeue";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }
  std::function<void(Config&)> with_command(const std::string& command) {
    return [command](Config& config) {
      config.squeue_command = command;
      config.squeue_interval_seconds = 1;
      config.log_level = "off";
    };
  }
  TemporaryDirectory directory_;
};

TEST_F(SlurmAgent, HangingCommandDelaysNothing) {
  const std::string begun = directory_ / "begun";
  RunningAgent agent(directory_ / "agent.sock",
                     with_command(script("echo >" + begun + "; exec sleep 1000")));
  ASSERT_EQ(agent.error(), "");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(begun); }));
  Plugin plugin(directory_ / "agent.sock");
  EXPECT_TRUE(plugin.greet(1));
  EXPECT_EQ(agent.snapshot()->jobs.size(), 1u);
  agent.stop();
}

TEST_F(SlurmAgent, FailuresAreCounted) {
  RunningAgent agent(directory_ / "agent.sock", with_command(script("exit 1")));
  ASSERT_EQ(agent.error(), "");
  EXPECT_TRUE(eventually([&] { return agent.snapshot()->agent.squeue_failures >= 1; }));
  Plugin plugin(directory_ / "agent.sock");
  EXPECT_TRUE(plugin.greet(1));
}

TEST(SqueueSettings, CommandIsAFullPath) {
  ConfigSources sources;
  sources.environment = [](const std::string&) { return std::nullopt; };
  sources.flags["squeue_command"] = "squeue --json";
  const auto relative = load_config(sources);
  ASSERT_FALSE(relative.ok());
  EXPECT_NE(relative.status().message().find("full path, such as /usr/bin/squeue"),
            std::string::npos)
      << relative.status().message();
  sources.flags["squeue_command"] = "/usr/bin/squeue --json --nodelist=%N";
  EXPECT_TRUE(load_config(sources).ok());
  sources.flags["squeue_interval_seconds"] = "0";
  EXPECT_FALSE(load_config(sources).ok());
}

}  // namespace
}  // namespace ncclscope::agent
