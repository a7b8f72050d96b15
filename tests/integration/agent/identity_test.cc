// SPDX-License-Identifier: Apache-2.0
//
// Real processes on a real socket, with a procfs whose cgroup files the test writes: who the agent
// says they are, also when they have ended or their pid means somebody else.
#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "agent/export/metrics_endpoint.h"
#include "agent/identity/peer_prover.h"
#include "agent/ingest/listener.h"
#include "tests/integration/agent/running_agent.h"
#include "tests/support/spawn.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using testing::eventually;
using testing::make_hello;
using testing::PacketBuilder;
using testing::Plugin;
using testing::RunningAgent;
using tests::spawn;
using tests::TemporaryDirectory;

constexpr const char* kJob99 = "0::/system.slice/slurmstepd.scope/job_99/step_0/user/task_0\n";
constexpr std::uint64_t kLongAgo = 0, kNow = ~std::uint64_t{0};

/// A child that is ended with the test, if it has not been waited for.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments) : pid_(spawn(arguments)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (waited_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Leaves a zombie if `options` has WNOWAIT.
  int wait_exited(int options = 0) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | options) != 0) return -1;
    waited_ = (options & WNOWAIT) == 0;
    return info.si_status;
  }

 private:
  pid_t pid_;
  bool waited_ = false;
};

class AgentIdentity : public ::testing::Test {
 protected:
  void write_cgroup(pid_t pid, const std::string& text, const std::string& stat = "") {
    const std::string folder = proc_ + "/" + std::to_string(pid);
    std::filesystem::create_directories(folder);
    if (!stat.empty()) std::ofstream(folder + "/stat") << stat;
    std::ofstream(folder + "/.cgroup") << text;
    std::filesystem::rename(folder + "/.cgroup", folder + "/cgroup");  // whole when it appears
  }
  void configure(Config& config) const {
    config.proc_root = proc_;
    config.pods_log_root = pods_;
  }

  TemporaryDirectory directory_;
  std::string socket_ = directory_ / "run/agent.sock";
  std::string proc_ = directory_ / "proc";
  std::string pods_ = directory_ / "pods";
  std::string go_ = directory_ / "go";
  JobDirectory no_facts_;
  SystemClock clock_;
};

std::string metrics_of(Agent& agent) {
  MetricsEndpoint endpoint(agent.snapshots());
  return endpoint.metrics({.method = "GET", .path = "/metrics", .headers = {}}).content();
}

TEST_F(AgentIdentity, LabelsAProcessByItsCgroupWhateverItClaims) {
  RunningAgent agent(socket_, [&](Config& c) { configure(c); });
  ASSERT_EQ(agent.error(), "");
  Child child({NCCLSCOPE_IDENTITY_PEER, "greet", socket_, go_, "7"});
  write_cgroup(child.pid(), kJob99);
  std::ofstream(go_) << "go";
  ASSERT_TRUE(eventually([&] { return !agent.snapshot()->jobs.empty(); }));
  const SnapshotPtr s = agent.snapshot();
  ASSERT_EQ(s->jobs.size(), 1u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "99");
  EXPECT_EQ(s->jobs[0].identity.identity_source, "cgroup");
  EXPECT_EQ(s->agent.identity_mismatches, 1u);
  const std::string metrics = metrics_of(*agent);
  EXPECT_NE(metrics.find("job_id=\"99\""), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("identity_source=\"cgroup\""), std::string::npos);
  EXPECT_EQ(metrics.find("job_id=\"7\""), std::string::npos);
  EXPECT_NE(metrics.find("ncclscope_agent_identity_mismatches_total 1"), std::string::npos);
}

TEST_F(AgentIdentity, NamesAPodByItsLogDirectory) {
  const std::string uid = "0d7ff6d7-1f9a-4c5e-9a55-3f8f6ed2b0c4";
  std::filesystem::create_directories(pods_ + "/team-a_llm-worker-3_" + uid);
  RunningAgent agent(socket_, [&](Config& c) { configure(c); });
  ASSERT_EQ(agent.error(), "");
  Child child({NCCLSCOPE_IDENTITY_PEER, "greet", socket_, go_, ""});
  write_cgroup(child.pid(), "0::/kubepods/pod" + uid + "/" + std::string(64, 'a') + "\n");
  std::ofstream(go_) << "go";
  ASSERT_TRUE(eventually([&] { return !agent.snapshot()->jobs.empty(); }));
  const JobIdentity identity = agent.snapshot()->jobs.at(0).identity;
  EXPECT_EQ(identity.job_id, "team-a/llm");
  EXPECT_EQ(identity.pod, "llm-worker-3");
  EXPECT_EQ(identity.kubernetes_namespace, "team-a");
}

TEST_F(AgentIdentity, KeepsAJobOfThatIdInsideAPodApart) {
  const std::string uid = "0d7ff6d7-1f9a-4c5e-9a55-3f8f6ed2b0c4";
  const std::string unknown_uid = "b8bffafc-562c-4c01-976f-d1eccfd17ec7";
  const std::string slurm = "/system.slice/slurmstepd.scope/job_99/step_0/user/task_0\n";
  RunningAgent agent(socket_, [&](Config& c) { configure(c); });
  ASSERT_EQ(agent.error(), "");
  Child on_node({NCCLSCOPE_IDENTITY_PEER, "greet", socket_, go_, "99"});
  Child in_pod({NCCLSCOPE_IDENTITY_PEER, "greet", socket_, go_, "99"});
  Child in_unknown_pod({NCCLSCOPE_IDENTITY_PEER, "greet", socket_, go_, "99"});
  write_cgroup(on_node.pid(), kJob99);
  write_cgroup(in_pod.pid(), "0::/kubepods/pod" + uid + slurm);
  write_cgroup(in_unknown_pod.pid(), "0::/kubepods/pod" + unknown_uid + slurm);
  std::filesystem::create_directories(pods_ + "/team-b_x_" + uid);
  std::ofstream(go_) << "go";
  ASSERT_TRUE(eventually([&] { return agent.snapshot()->jobs.size() == 3; }));
  EXPECT_EQ(agent.snapshot()->agent.identity_mismatches, 0u);
}

TEST_F(AgentIdentity, CountsAMismatchOncePerSession) {
  write_cgroup(::getpid(), kJob99);
  RunningAgent agent(socket_, [&](Config& c) { configure(c); });
  ASSERT_EQ(agent.error(), "");
  for (int connection = 0; connection < 3; ++connection) {
    Plugin plugin(socket_);
    ASSERT_TRUE(plugin.greet(5, "7"));
  }
  EXPECT_EQ(agent.snapshot()->agent.identity_mismatches, 1u);
}

/// A socket that a process has connected which has ended before anybody looked.
class EndedPeer : public AgentIdentity {
 protected:
  void SetUp() override {
    ours_.reset(::socket(AF_UNIX, SOCK_SEQPACKET, 0));  // inherited by the child
    ASSERT_TRUE(ours_.valid());
  }
  Child connect() {
    return Child({NCCLSCOPE_IDENTITY_PEER, "connect", socket_, std::to_string(ours_.get())});
  }
  ScopedFd ours_;
};

TEST_F(EndedPeer, IsNotTakenForTheProcessThatHasItsPidNow) {
  SystemClock clock;
  Config config;
  config.socket = socket_;
  config.api_socket.clear();
  config.listen.clear();
  config.log_level = "error";
  configure(config);
  Result<std::unique_ptr<Agent>> agent = Agent::create(config, clock);  // listens, does not serve
  ASSERT_TRUE(agent.ok()) << agent.status().message();
  {
    Child child = connect();
    ASSERT_EQ(child.wait_exited(), 0);
    write_cgroup(child.pid(), kJob99);
  }
  std::thread serving([&] { agent.value()->run(); });
  const auto packet =
      PacketBuilder().hello(make_hello(3), {{wire::StringKey::kSlurmJobId, "7"}}).finish();
  EXPECT_EQ(::send(ours_.get(), packet.data(), packet.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(packet.size()));
  EXPECT_TRUE(eventually([&] {
    agent.value()->publish_now();
    return !agent.value()->snapshots().get()->jobs.empty();
  }));
  const SnapshotPtr s = agent.value()->snapshots().get();
  agent.value()->stop();
  serving.join();
  ASSERT_EQ(s->jobs.size(), 1u);
  EXPECT_EQ(s->jobs[0].identity.job_id, "7");
  EXPECT_EQ(s->jobs[0].identity.identity_source, "claimed");
}

TEST_F(EndedPeer, IsGoneAlsoWhileItIsAZombie) {
  Result<ScopedFd> listening = listen_seqpacket(socket_, 0666);
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  Child child = connect();
  ASSERT_EQ(child.wait_exited(WNOWAIT), 0);
  write_cgroup(child.pid(), kJob99);
  const ScopedFd accepted(::accept4(listening.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
  PeerProver prover({.proc_root = proc_, .pods_log_root = pods_}, no_facts_, clock_);
  const Result<PeerIdentity> peer = prover.identify(accepted.get(), kLongAgo);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer.value().pid, child.pid());
  EXPECT_EQ(peer.value().proof.slurm_job, "");
}

TEST_F(EndedPeer, IsNotBelievedByAKernelWithoutPidfdEither) {
  Result<ScopedFd> listening = listen_seqpacket(socket_, 0666);
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  Child child = connect();
  ASSERT_EQ(child.wait_exited(), 0);
  const ScopedFd accepted(::accept4(listening.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
  PeerProver prover({.proc_root = "/proc", .pods_log_root = pods_, .use_pidfd = false}, no_facts_,
                    clock_);
  const Result<PeerIdentity> gone = prover.identify(accepted.get(), kNow);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(gone.value().proof.outcome, PeerProof::Outcome::kGone);

  // Somebody else has the pid now. He started after the queue was last seen empty.
  write_cgroup(child.pid(), kJob99,
               std::to_string(child.pid()) +
                   " (other) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5000 1 1 1\n");
  PeerProver fooled({.proc_root = proc_, .pods_log_root = pods_, .use_pidfd = false}, no_facts_,
                    clock_);
  const Result<PeerIdentity> reused = fooled.identify(accepted.get(), kLongAgo);
  ASSERT_TRUE(reused.ok());
  EXPECT_EQ(reused.value().proof.outcome, PeerProof::Outcome::kMayBeReused);
}

TEST_F(AgentIdentity, ReadsTheRealProcfs) {
  if (!std::ifstream("/proc/self/cgroup")) GTEST_SKIP() << "no procfs with cgroups here";
  Result<ScopedFd> listening = listen_seqpacket(socket_, 0666);
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  Plugin plugin(socket_);
  const ScopedFd accepted(::accept4(listening.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
  for (const bool use_pidfd : {true, false}) {
    PeerProver prover({.pods_log_root = pods_, .use_pidfd = use_pidfd}, no_facts_, clock_);
    const Result<PeerIdentity> peer = prover.identify(accepted.get(), kNow);
    ASSERT_TRUE(peer.ok());
    EXPECT_EQ(peer.value().pid, ::getpid());
    EXPECT_EQ(peer.value().uid, static_cast<std::int64_t>(::getuid()));
    EXPECT_EQ(peer.value().proof.outcome, PeerProof::Outcome::kRead) << use_pidfd;
  }
}

}  // namespace
}  // namespace ncclscope::agent
