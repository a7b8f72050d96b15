// SPDX-License-Identifier: Apache-2.0
//
// The program as init systems and people use it: settings, signals, exit codes, its ready file.
#include <fcntl.h>
#include <sys/wait.h>
#include <csignal>

#include <fstream>
#include <map>
#include <sstream>

#include "agent/app/config.h"
#include "tests/integration/agent/running_agent.h"
#include "tests/support/spawn.h"

namespace ncclscope::agent {
namespace {

using testing::eventually;
using testing::make_init;
using testing::PacketBuilder;
using testing::Plugin;
using testing::TemporaryDirectory;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The agent as a child process. Standard output and error go to a file.
class Program {
 public:
  Program(const TemporaryDirectory& directory, const std::vector<std::string>& arguments)
      : log_(directory / "log") {
    const int fd = ::open(log_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    std::vector<std::string> all{NCCLSCOPE_AGENT_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    pid_ = tests::spawn(all, {.fd = fd, .with_error = true});
    ::close(fd);
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Exit code, or 1000 + signal; -1 if it does not end within 20 s.
  int wait() {
    int status = 0;
    if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) != 0; })) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  [[nodiscard]] std::string log() const { return read_file(log_); }

 private:
  pid_t pid_ = -1;
  std::string log_;
};

class AgentProgram : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> more = {}) {
    std::vector<std::string> out = {
        "--socket", socket_,       "--api-socket", directory_ / "api.sock",
        "--listen", "127.0.0.1:0", "--ready-file", ready_};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  bool ready() {
    return eventually([&] { return std::filesystem::exists(ready_); });
  }
  int run(const std::vector<std::string>& args) {
    Program program(directory_, args);
    const int code = program.wait();
    output_ = program.log();
    return code;
  }
  void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  TemporaryDirectory directory_;
  std::string socket_ = directory_ / "agent.sock";
  std::string ready_ = directory_ / "ready";
  std::string file_ = directory_ / "agent.toml";
  std::string output_;
};

TEST_F(AgentProgram, SaysWhereItListensAndStopsCleanlyOnSigterm) {
  Program program(directory_, arguments());
  ASSERT_TRUE(ready()) << program.log();
  const std::string text = read_file(ready_);
  EXPECT_NE(text.find("http=127.0.0.1:"), std::string::npos) << text;
  EXPECT_EQ(text.find("http=127.0.0.1:0\n"), std::string::npos) << "the actual port";
  Plugin plugin(socket_);
  ASSERT_TRUE(plugin.greet(9));
  plugin.send(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(10).finish(1));
  program.signal(SIGTERM);
  EXPECT_EQ(plugin.await<wire::Ack>(wire::RecordType::kAck)->index, 10u);
  EXPECT_EQ(program.wait(), 0) << program.log();
  EXPECT_FALSE(std::filesystem::exists(socket_));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "api.sock"));
}

TEST_F(AgentProgram, StopsOnSigintToo) {
  Program program(directory_, arguments());
  ASSERT_TRUE(ready()) << program.log();
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 0);
}

TEST_F(AgentProgram, ReplacesTheSocketOfAKilledAgent) {
  {
    Program killed(directory_, arguments());
    ASSERT_TRUE(ready()) << killed.log();
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.wait(), 1000 + SIGKILL);
  }
  ASSERT_TRUE(std::filesystem::exists(socket_));
  std::filesystem::remove(ready_);
  Program program(directory_, arguments());
  EXPECT_TRUE(ready()) << program.log();
}

TEST_F(AgentProgram, AppliesWhatCanBeReloadedOnSighup) {
  write(file_, "log_level = \"info\"\ngrace_seconds = 300\n");
  Program program(directory_, arguments({"--config", file_}));
  ASSERT_TRUE(ready()) << program.log();
  const auto logged = [&](const char* text) {
    return eventually([&] { return program.log().find(text) != std::string::npos; });
  };
  write(file_, "grace_seconds = 60\nmax_jobs = 9\n");
  program.signal(SIGHUP);
  EXPECT_TRUE(logged("the new value of grace_seconds is in force"));
  EXPECT_TRUE(logged("the new value of max_jobs needs a restart"));
  write(file_, "grace_secconds = 60\n");
  program.signal(SIGHUP);
  EXPECT_TRUE(logged("the settings are left as they are"));
  Plugin plugin(socket_);
  EXPECT_TRUE(plugin.greet(9)) << "it goes on";
}

TEST_F(AgentProgram, RefusesToStartBesideAnother) {
  Program first(directory_, arguments());
  ASSERT_TRUE(ready()) << first.log();
  TemporaryDirectory elsewhere;
  Program second(elsewhere, arguments());
  EXPECT_EQ(second.wait(), 1);
  EXPECT_NE(second.log().find("somebody listens"), std::string::npos) << second.log();
  EXPECT_TRUE(Plugin(socket_).connected());
}

TEST_F(AgentProgram, ChecksAndPrintsItsSettings) {
  write(file_, "cluster = \"alps\"\n");
  EXPECT_EQ(run({"--config", file_, "--check-config"}), 0);
  EXPECT_EQ(run({"--config", file_, "--print-config", "--node", "n7"}), 0);
  EXPECT_NE(output_.find("cluster = \"alps\""), std::string::npos);
  EXPECT_NE(output_.find("node = \"n7\""), std::string::npos);
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_EQ(output_.rfind("ncclscope-agent ", 0), 0u);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_NE(output_.find("--grace-seconds"), std::string::npos);
}

TEST_F(AgentProgram, NamesWhatIsWrongWithItsSettings) {
  write(file_, "# comment\n\ngrace = 5\n");
  EXPECT_EQ(run({"--config", file_, "--check-config"}), 2);
  EXPECT_NE(output_.find("agent.toml:3: unknown key 'grace'"), std::string::npos) << output_;
  EXPECT_EQ(run({"--no-such-flag"}), 2);
  EXPECT_EQ(run({"--config", directory_ / "missing.toml", "--check-config"}), 2);
  EXPECT_NE(output_.find("missing.toml"), std::string::npos) << output_;
}

// ---- the same without a process
// ------------------------------------------------------------------

Result<Config> load(const std::string& file, std::map<std::string, std::string> environment,
                    std::map<std::string, std::string> flags = {}) {
  ConfigSources sources;
  sources.file = file;
  sources.flags = std::move(flags);
  sources.environment = [environment = std::move(environment)](const std::string& name) {
    const auto it = environment.find(name);
    return it == environment.end() ? std::nullopt : std::optional(it->second);
  };
  return load_config(sources);
}

TEST_F(AgentProgram, PrefersFlagsOverEnvironmentOverFileOverDefault) {
  write(file_, "cluster = \"file\"\nnode = \"file\"\nlisten = \"127.0.0.1:1\"\n");
  const Result<Config> c = load(
      file_, {{"NCCLSCOPE_AGENT_CLUSTER", "environment"}, {"NCCLSCOPE_AGENT_NODE", "environment"}},
      {{"cluster", "flag"}});
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c.value().cluster, "flag");
  EXPECT_EQ(c.value().node, "environment");
  EXPECT_EQ(c.value().listen, "127.0.0.1:1");
  EXPECT_EQ(c.value().socket, "/run/ncclscope/agent.sock");
}

TEST_F(AgentProgram, ExplainsEveryBadValue) {
  const auto error = [&](const std::string& text) {
    write(file_, text);
    const Result<Config> c = load(file_, {});
    return c.ok() ? "no error" : c.status().message();
  };
  EXPECT_NE(error("grace_seconds = 0\n").find("grace_seconds = 0"), std::string::npos);
  EXPECT_NE(error("grace_seconds = -1\n").find("agent.toml:1"), std::string::npos);
  EXPECT_NE(error("grace_seconds = \"5\"\n").find("whole number"), std::string::npos);
  EXPECT_NE(error("cluster = 5\n").find("must be a string"), std::string::npos);
  EXPECT_NE(error("\ncluster = \n").find("agent.toml:2"), std::string::npos);
  EXPECT_NE(error("log_level = \"loud\"\n").find("'loud'"), std::string::npos);
  EXPECT_NE(error("listen = \"9464\"\n").find("address:port"), std::string::npos);
  EXPECT_NE(error("socket = \"" + std::string(200, 's') + "\"\n").find("107"), std::string::npos);
  EXPECT_NE(error("socket = \"\"\n").find("empty"), std::string::npos);
  const Result<Config> c = load("", {{"NCCLSCOPE_AGENT_MAX_JOBS", "many"}});
  ASSERT_FALSE(c.ok());
  EXPECT_NE(c.status().message().find("NCCLSCOPE_AGENT_MAX_JOBS"), std::string::npos);
}

TEST_F(AgentProgram, IgnoresVariablesThatKubernetesInvents) {
  EXPECT_TRUE(load("", {{"NCCLSCOPE_AGENT_PORT", "tcp://10.0.0.1:9464"}}).ok());
}

TEST_F(AgentProgram, ReadsBackWhatItPrints) {
  Config config;
  config.cluster = "a \"b\" \\c";
  config.max_jobs = 12;
  write(file_, to_toml(config));
  const Result<Config> again = load(file_, {});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value(), config);
}

TEST(HostPort, TakesBothAddressFamilies) {
  EXPECT_EQ(parse_host_port("127.0.0.1:0").value().host, "127.0.0.1");
  EXPECT_EQ(parse_host_port("[::1]:9464").value().host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:9464").value().port, 9464);
  for (const char* bad : {"", ":1", "1", "::1:9464", "a:", "a:65536", "a:-1", "[]:1"}) {
    EXPECT_FALSE(parse_host_port(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace ncclscope::agent
