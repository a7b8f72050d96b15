// SPDX-License-Identifier: Apache-2.0
//
// The program as init systems and people use it: settings, signals, exit codes, its ready file.
#include <sys/stat.h>
#include <csignal>

#include <fstream>
#include <map>

#include "agent/app/config.h"
#include "tests/integration/agent/agent_program.h"
#include "tests/integration/agent/running_agent.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using testing::eventually;
using testing::make_init;
using testing::PacketBuilder;
using testing::Plugin;
using testing::Program;
using testing::read_file;
using tests::TemporaryDirectory;

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

TEST_F(AgentProgram, GivesUpRootForItsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  // The account needs a way to its directories; the socket's own is made for it.
  ASSERT_EQ(::chmod((directory_ / "").c_str(), 0755), 0);
  const std::string state = directory_ / "state";
  std::filesystem::create_directory(state);
  ASSERT_EQ(::chown(state.c_str(), 65534, 65534), 0);
  socket_ = directory_ / "run/agent.sock";
  ready_ = state + "/ready";
  const std::vector<std::string> args = {
      "--socket", socket_,       "--api-socket", directory_ / "run/api.sock",
      "--listen", "127.0.0.1:0", "--ready-file", ready_,
      "--user",   "65534"};
  for (int start = 0; start < 2; ++start) {
    Program program(directory_, args);
    ASSERT_TRUE(ready()) << program.log();
    const std::string status = program.proc("status");
    EXPECT_NE(status.find("\nUid:\t65534\t65534\t65534\t65534\n"), std::string::npos) << status;
    EXPECT_NE(status.find("\nCapPrm:\t0000000000000000\n"), std::string::npos) << status;
    EXPECT_NE(status.find("\nCapEff:\t0000000000000000\n"), std::string::npos) << status;
    EXPECT_NE(status.find("\nNoNewPrivs:\t1\n"), std::string::npos) << status;
    EXPECT_EQ(program.log().find("running as root"), std::string::npos) << program.log();
    // As plugins see it: the directory's owner is who answers.
    struct stat info {};
    ASSERT_EQ(::stat((directory_ / "run").c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, 65534u);
    EXPECT_EQ(info.st_mode & 0777u, 0755u);
    Plugin plugin(socket_);
    ucred peer{};
    socklen_t size = sizeof peer;
    ASSERT_EQ(::getsockopt(plugin.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
    EXPECT_EQ(peer.uid, 65534u);
    ASSERT_TRUE(plugin.greet(9)) << "processes of other users are served";
    plugin.send(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(10).finish(1));
    program.signal(SIGTERM);
    EXPECT_EQ(plugin.await<wire::Ack>(wire::RecordType::kAck)->index, 10u);
    EXPECT_EQ(program.wait(), 0) << program.log();
    EXPECT_FALSE(std::filesystem::exists(socket_)) << "it may remove what it made";
    std::filesystem::remove(ready_);
  }
  // A directory of another user's is not taken away from it.
  ASSERT_EQ(::chown((directory_ / "run").c_str(), 0, 0), 0);
  EXPECT_EQ(run(args), 1);
  EXPECT_NE(output_.find("belongs to uid 0, but must belong to the user of the agent, uid 65534"),
            std::string::npos)
      << output_;
}

TEST_F(AgentProgram, NamesWhatIsWrongWithItsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "ignored when not started as root";
  EXPECT_EQ(run(arguments({"--user", "no-such-account"})), 1);
  EXPECT_NE(output_.find("no such account"), std::string::npos) << output_;
  EXPECT_EQ(run(arguments({"--user", "root"})), 1);
  EXPECT_NE(output_.find("is root"), std::string::npos) << output_;
}

TEST_F(AgentProgram, StaysWithinItsMemoryWhileOneTenantTakesAllItCan) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  constexpr std::uint64_t kLimitMb = 64;
  Program program(directory_,
                  arguments({"--memory-limit-mb", std::to_string(kLimitMb), "--quota-communicators",
                             "1000000", "--max-communicators", "1000000"}));
  ASSERT_TRUE(ready()) << program.log();
  Plugin victim(socket_);
  ASSERT_TRUE(victim.greet(9, "victim"));
  victim.send(PacketBuilder().init(make_init(0, 5, 0, 2)).operations(10).finish(1));
  ASSERT_EQ(victim.await<wire::Ack>(wire::RecordType::kAck)->index, 10u);
  std::vector<std::unique_ptr<Plugin>> attackers;
  std::uint64_t session = 100;
  for (int i = 0; i < 100; ++i, ++session) {
    attackers.push_back(std::make_unique<Plugin>(socket_));
    if (!attackers.back()->greet(session, "job-" + std::to_string(i % 50))) continue;  // refused
    std::uint64_t index = 1;
    for (std::uint16_t id = 0; id < 1000; id = static_cast<std::uint16_t>(id + 100)) {
      PacketBuilder packet;
      for (std::uint16_t n = 0; n < 100; ++n) {
        packet.init(make_init(static_cast<std::uint16_t>(id + n), session * 10'000 + id + n, 0, 8));
        packet.operation({.communicator = static_cast<std::uint16_t>(id + n)});
      }
      if (!attackers.back()->send(packet.finish(index))) break;
      index += 100;
    }
  }
  // It answers still, and the victim's records are counted.
  victim.send(PacketBuilder().operations(10).finish(11));
  EXPECT_EQ(victim.await<wire::Ack>(wire::RecordType::kAck)->index, 20u) << program.log();
  std::istringstream statm(program.proc("statm"));
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  statm >> total >> resident;
  const std::uint64_t resident_mb =
      resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) >> 20;
  std::printf("resident: %llu MiB of %llu\n", static_cast<unsigned long long>(resident_mb),
              static_cast<unsigned long long>(kLimitMb));
  EXPECT_LT(resident_mb, 2 * kLimitMb) << "looked at four times a second, with snapshots on top";
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0) << program.log();
}

TEST_F(AgentProgram, TakesNoNewSessionsAboveItsMemoryLimit) {
  Program program(directory_, arguments({"--memory-limit-mb", "1"}));
  ASSERT_TRUE(ready()) << program.log();
  ASSERT_TRUE(eventually([&] {
    return program.log().find("no new sessions and communicators for now") != std::string::npos;
  })) << program.log();
  Plugin plugin(socket_);
  ASSERT_TRUE(plugin.send(PacketBuilder().hello(testing::make_hello(9)).finish()));
  const auto refuse = plugin.await<wire::Refuse>(wire::RecordType::kRefuse);
  ASSERT_TRUE(refuse);
  EXPECT_EQ(refuse->reason, static_cast<std::uint16_t>(wire::RefuseReason::kQuota));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0) << "and goes on otherwise";
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
