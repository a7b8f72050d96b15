// SPDX-License-Identifier: Apache-2.0
//
// The program `ncclscope` as users run it, against an API server in this process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/api/api_server.h"
#include "tests/support/recording_services.h"
#include "tests/support/run_command.h"
#include "tests/support/spawn.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

using tests::Outcome;
using tests::run_command;

/// Runs `ncclscope <arguments>` through the shell; standard error goes to `out` too where asked
/// for.
Outcome run(const std::string& arguments, bool with_errors = false) {
  return run_command(std::string(NCCLSCOPE_PROGRAM) + " " + arguments +
                     (with_errors ? " 2>&1" : " 2>/dev/null"));
}

class Cli : public ::testing::Test {
 protected:
  Cli() : tail_(1024) {
    options_.socket = directory_ / "api.sock";
    balance();
    publish();
    auto server =
        start_api_server(options_, {&store_, &tail_, nullptr, &detail_, nullptr, &throughput_});
    EXPECT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    agent_ = " --agent unix:" + options_.socket;
  }
  ~Cli() override {
    tail_.close();
    server_.reset();
  }

  void balance() {
    for (JobSnapshot& job : snapshot_.jobs) {
      for (ProcessSnapshot& p : job.processes) {
        p.said_goodbye = false;
        p.books.recorded = p.books.seen - p.books.open - p.books.dropped[0];
        p.books.records_overwritten = p.records_lost = 3;
        p.records_received = p.highest_index - p.records_before - p.records_lost;
      }
    }
  }
  void publish() { store_.publish(std::make_shared<const Snapshot>(snapshot_)); }

  void append_operations(std::uint32_t count) {
    TailSource source;
    source.job_id = "4711";
    source.uid = 1001;
    source.comm = "00c0ffee12345678";
    source.nranks = 4;
    source.rank = 1;
    const OperationTail::SourceId id = tail_.add_source(source);
    std::vector<OperationTail::Entry> entries;
    for (std::uint32_t i = 0; i < count; ++i) {
      wire::Operation o{};
      o.function = static_cast<std::uint8_t>(model::Function::kAllGather);
      o.datatype = static_cast<std::uint8_t>(model::DataType::kBfloat16);
      o.flags = 1 | wire::operation_flags::kComplete;
      o.root_or_peer = -1;
      o.index = i;
      o.count_plan = wire::pack_count_plan(1 << 20, 0);
      o.api_time_ns = 5'000;
      o.duration_enqueue = wire::pack_duration_enqueue(1'000'000, 2);
      OperationTail::Entry& entry = entries.emplace_back();
      entry.source = id;
      entry.type = wire::RecordType::kOperation;
      entry.record_index = i + 1;
      std::memcpy(entry.bytes, &o, sizeof o);
    }
    tail_.append(entries);
  }

  const tests::TemporaryDirectory directory_;
  std::string agent_;
  ApiServerOptions options_;
  Snapshot snapshot_ = golden_snapshot();
  SnapshotStore store_;
  OperationTail tail_;
  std::atomic<std::uint32_t> told_ = 8;  // processes, of a change of detail
  tests::RecordingDetail detail_{[this](const DetailRequest&) { return told_.load(); }};
  tests::RecordingThroughput throughput_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(Cli, BooksBalanceIsTheExitStatus) {
  const Outcome good = run("books" + agent_);
  EXPECT_EQ(good.status, 0) << good.out;
  EXPECT_NE(good.out.find("BALANCED"), std::string::npos);
  EXPECT_NE(good.out.find("4 (no_operation_slot 1, overwritten 3)"), std::string::npos) << good.out;
  ++snapshot_.jobs[0].processes[0].records_received;
  publish();
  const Outcome bad = run("books" + agent_);
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.out.find("1 of 4 processes do not balance"), std::string::npos) << bad.out;
}

TEST_F(Cli, BooksAsJson) {
  const Outcome outcome = run("books --json --job 4711" + agent_);
  EXPECT_EQ(outcome.status, 0);
  const auto json = nlohmann::json::parse(outcome.out);
  const auto& processes = json["processes"];
  ASSERT_EQ(processes.size(), 3u);
  EXPECT_EQ(processes[0]["node"], "nid001");
  EXPECT_EQ(processes[0]["pid"], 5001);
  EXPECT_EQ(processes[0]["balanced"], true);
  ASSERT_FALSE(json["ranks"].empty());
  EXPECT_EQ(json["ranks"][0]["node"], "nid001");
  EXPECT_EQ(json["ranks"][0]["missing"], 0);
}

TEST_F(Cli, AgentsThatAnswerAreShownAndTheOthersReported) {
  const Outcome outcome = run("books --agent /nonexistent/api.sock" + agent_, true);
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.out.find("/nonexistent/api.sock: cannot be reached: No such file"),
            std::string::npos);
  EXPECT_NE(outcome.out.find("5001"), std::string::npos) << "the other agent's books are missing";
}

TEST_F(Cli, AnAgentThatIsGoneIsReported) {
  server_.reset();
  for (const char* command : {"books", "tail --once", "top --once --interval 0.1"}) {
    const Outcome outcome = run(command + agent_, true);
    EXPECT_EQ(outcome.status, 3) << command;
    EXPECT_NE(outcome.out.find(options_.socket), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("systemctl start ncclscope-agent"), std::string::npos)
        << outcome.out;
  }
}

TEST_F(Cli, DoctorNamesReleasesThatDoNotFitAndJobsThatAreOnlyClaimed) {
  snapshot_.agent_version = "0.0.7";
  publish();
  const Outcome outcome = run("doctor --json --window 0s --root /nonexistent" + agent_);
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  const auto find = [&](const std::string& check) {
    for (const auto& finding : json["findings"])
      if (finding["check"] == check) return finding;
    return nlohmann::json();
  };
  EXPECT_EQ(find("agent-version")["level"], "warning") << outcome.out;
  EXPECT_NE(find("agent-version")["reason"].get<std::string>().find("release 0.0.7"),
            std::string::npos);
  EXPECT_EQ(find("agent-version")["fix"], "install both from one release, and restart the agent");
  EXPECT_EQ(find("plugin-version")["level"], "warning") << "plugins of 0.1.0, the agent of 0.0.7";
  EXPECT_EQ(find("identity")["subject"], "job ml-team/bert");
  EXPECT_NE(find("identity")["fix"].get<std::string>().find("hostPID: true"), std::string::npos);
}

TEST_F(Cli, DetailTellsTheProcessesOfAJob) {
  const Outcome full = run("detail --job 4711 --level full --for 5m --network" + agent_);
  EXPECT_EQ(full.status, 0) << full.out;
  EXPECT_NE(
      full.out.find("8 processes of job 4711 told: detail full and all network phases for 5m"),
      std::string::npos)
      << full.out;
  EXPECT_EQ(detail_.last().job_id, "4711");
  EXPECT_EQ(detail_.last().level, static_cast<std::uint8_t>(wire::DetailLevel::kFull));
  EXPECT_TRUE(detail_.last().network_phases);
  EXPECT_EQ(detail_.last().duration_ms, 300'000u);
  const auto json = nlohmann::json::parse(run("detail --job 4711 --level low --json" + agent_).out);
  EXPECT_EQ(json["processes"], 8);
  EXPECT_EQ(detail_.last().level, static_cast<std::uint8_t>(wire::DetailLevel::kLow));
  EXPECT_EQ(detail_.last().duration_ms, 30'000u);
  told_ = 0;
  EXPECT_EQ(run("detail --job 4711" + agent_).status, 1) << "nobody was told";
}

TEST_F(Cli, DetailRefusesUnknownJobsAndTimesWithoutEnd) {
  const Outcome unknown = run("detail --job 99999" + agent_, true);
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.out.find("no job \"99999\""), std::string::npos) << unknown.out;
  for (const char* wrong : {"detail", "detail --job 4711 --for 2h", "detail --job 4711 --for 0",
                            "detail --job 4711 --for soon", "detail --job 4711 --level most",
                            "detail --job 4711 --level low --network"}) {
    EXPECT_EQ(run(wrong + agent_).status, 2) << wrong;
  }
  EXPECT_EQ(run("detail --job 4711 --agent /nonexistent/api.sock").status, 3);
}

TEST_F(Cli, ThroughputIsToldToTheAgent) {
  EXPECT_EQ(run("throughput --job 4711 --unit steps --for 10s 0.25" + agent_).status, 0);
  EXPECT_EQ(throughput_.last().job_id, "4711");
  EXPECT_EQ(throughput_.last().unit, ThroughputUnit::kSteps);
  EXPECT_EQ(throughput_.last().per_second, 0.25);
  EXPECT_EQ(throughput_.last().valid_ns, 10'000'000'000u);
  EXPECT_EQ(run("throughput --job 4711 91000" + agent_).status, 0);
  EXPECT_EQ(throughput_.last().unit, ThroughputUnit::kTokens);
  EXPECT_EQ(run("throughput --job 99999 1" + agent_).status, 1);
  for (const char* wrong :
       {"throughput --job 4711", "throughput 5", "throughput --job 4711 --unit cakes 5",
        "throughput --job 4711 -- -5", "throughput --job 4711 --for 2h 5"}) {
    EXPECT_EQ(run(wrong + agent_).status, 2) << wrong;
  }
  EXPECT_EQ(run("throughput --job 4711 5 --agent /nonexistent/api.sock").status, 3);
}

TEST_F(Cli, TailOnceShowsHeldOperations) {
  append_operations(3);
  const Outcome text = run("tail --once" + agent_);
  EXPECT_EQ(text.status, 0);
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 3) << text.out;
  EXPECT_NE(text.out.find("nid001  4711  00c0ffee12345678 r1  #2 AllGather  8 MiB bfloat16  1.00 "
                          "ms  busbw 6.29 GB/s"),
            std::string::npos)
      << text.out;
  EXPECT_EQ(run("tail --once --job 9999" + agent_).out, "");
}

TEST_F(Cli, TailAsJsonHasOneObjectPerLine) {
  append_operations(2);
  std::istringstream lines(run("tail --once --json" + agent_).out);
  std::uint64_t index = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["node"], "nid001");
    EXPECT_EQ(json["operation"]["index"], index++);
    EXPECT_EQ(json["operation"]["collective"], "AllGather");
  }
  EXPECT_EQ(index, 2u);
}

TEST_F(Cli, TailFollowsUntilInterrupted) {
  append_operations(1);
  int out[2];
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  const pid_t child = tests::spawn(
      {NCCLSCOPE_PROGRAM, "tail", "--agent", "unix:" + options_.socket}, {.fd = out[1]});
  ::close(out[1]);
  FILE* lines = ::fdopen(out[0], "r");
  std::array<char, 512> line{};
  ASSERT_NE(std::fgets(line.data(), line.size(), lines), nullptr);
  EXPECT_NE(std::strstr(line.data(), "#0 AllGather"), nullptr) << line.data();
  append_operations(1);
  ASSERT_NE(std::fgets(line.data(), line.size(), lines), nullptr) << "it does not follow";
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::fclose(lines);
}

/// Publishes a snapshot every 50 ms in which rank 0 and 1 do ten more AllReduces.
class CliTop : public Cli {
 protected:
  CliTop() {
    working_ = std::thread([this] {
      while (!done_) {
        snapshot_.realtime_ns += 50'000'000;
        CommunicatorSnapshot& world = snapshot_.jobs[0].communicators[0];
        OperationSumsRow& row = world.sums[0];
        row.operations_by_timing[1] += 20;
        row.bytes_by_timing[1] += 20ull << 20;
        row.timed_operations += 20;
        row.bus_bytes += 20.0 * 1.5e6;
        row.busy_seconds += 20 * 0.001;
        for (RankSumsRow& rank : world.rank_sums) {
          rank.operations += 10;
          rank.seconds += rank.rank == 1 ? 0.005 : 0.015;
        }
        publish();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    });
  }
  ~CliTop() override {
    done_ = true;
    working_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread working_;
};

TEST_F(CliTop, OnceAsJsonGivesRates) {
  const Outcome outcome = run("top --once --json --interval 0.3" + agent_);
  EXPECT_EQ(outcome.status, 0);
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["jobs"], 2);
  ASSERT_EQ(json["rows"].size(), 1u) << outcome.out;
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["job_id"], "4711");
  EXPECT_EQ(row["comm_name"], "default_pg");
  EXPECT_NEAR(row["operations_per_second_per_rank"].get<double>(), 200, 1e-6);
  EXPECT_NEAR(row["busbw_bytes_per_second"].get<double>(), 1.5e9, 1);
  EXPECT_EQ(row["slowest_rank"], 1);
  EXPECT_NEAR(row["others_waited_seconds"].get<double>(), 0.001, 1e-9);
}

TEST_F(CliTop, OnceAsTextHasUnitsAndTheStalledRank) {
  const Outcome outcome = run("top --once --interval 0.3" + agent_);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("200/s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1.50 GB/s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("r1 on nid001, +1.00 ms"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\x1B'), std::string::npos) << "no terminal codes into a pipe";
}

/// Keeps what it is told.
class RecordingReports final : public JobReports {
 public:
  std::optional<std::uint32_t> start(std::string_view slurm_job_id,
                                     const JobFacts& facts) override {
    const std::lock_guard lock(mutex_);
    started_[std::string(slurm_job_id)] = facts;
    return facts.restarts.value_or(0);
  }
  std::optional<bool> end(std::string_view slurm_job_id) override {
    const std::lock_guard lock(mutex_);
    return started_.erase(std::string(slurm_job_id)) > 0;
  }
  std::map<std::string, JobFacts> started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, JobFacts> started_;
};

/// The agent's API with a job table behind it.
class CliJob : public Cli {
 protected:
  CliJob() {
    server_.reset();
    auto server = start_api_server(options_, {&store_, &tail_, nullptr, nullptr, &reports_});
    EXPECT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  static Outcome with_environment(const std::string& environment, const std::string& arguments) {
    return run_command("env " + environment + " " NCCLSCOPE_PROGRAM " " + arguments + " 2>&1");
  }
  RecordingReports reports_;
};

TEST_F(CliJob, PrologReportsWhatItsEnvironmentSays) {
  const Outcome outcome = with_environment(
      "SLURM_JOB_ID=4711 SLURM_JOB_USER=ada SLURM_JOB_UID=1000 SLURM_JOB_PARTITION=gpu "
      "SLURM_JOB_ACCOUNT=physics SLURM_ARRAY_JOB_ID=4700 SLURM_ARRAY_TASK_ID=11 "
      "SLURM_JOB_RESTART_COUNT=2",
      "job start --strict --name train" + agent_);
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_EQ(outcome.out, "");
  const auto jobs = reports_.started();
  ASSERT_EQ(jobs.count("4711"), 1u);
  const JobFacts& facts = jobs.at("4711");
  EXPECT_EQ(facts.user, "ada");
  EXPECT_EQ(facts.uid, 1000);
  EXPECT_EQ(facts.partition, "gpu");
  EXPECT_EQ(facts.account, "physics");
  EXPECT_EQ(facts.job_name, "train");
  EXPECT_EQ(facts.array_job_id, "4700");
  EXPECT_EQ(facts.array_task, "11");
  EXPECT_EQ(facts.restarts, 2u);

  EXPECT_EQ(with_environment("SLURM_JOB_ID=4711", "job end --strict" + agent_).status, 0);
  EXPECT_TRUE(reports_.started().empty());
  const Outcome again = with_environment("SLURM_JOB_ID=4711", "job end --strict" + agent_);
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.out.find("does not know job 4711"), std::string::npos) << again.out;
}

TEST_F(CliJob, NeverFailsAPrologUnlessStrict) {
  const std::string nowhere = " --agent /nonexistent/api.sock";
  for (const auto& [arguments, strict_status] :
       {std::pair<std::string, int>("job start --id 7" + nowhere, 3),
        {"job end --id 7" + nowhere, 3},
        {"job start" + agent_, 2},
        {"job start --id 7 --uid ada" + agent_, 2},
        {"job start --id seven" + agent_, 2},
        {"job start --id 7 --array-job 3 --array-task x" + agent_, 2}}) {
    const Outcome outcome = with_environment("-u SLURM_JOB_ID", arguments);
    EXPECT_EQ(outcome.status, 0) << arguments;
    EXPECT_NE(outcome.out.find("warning (the job goes on): "), std::string::npos) << outcome.out;
    const Outcome strict = with_environment("-u SLURM_JOB_ID", arguments + " --strict");
    EXPECT_EQ(strict.status, strict_status) << arguments << ": " << strict.out;
    EXPECT_EQ(strict.out.find("warning"), std::string::npos) << strict.out;
  }
  EXPECT_TRUE(reports_.started().empty());
}

TEST_F(CliJob, DoesNotWaitForAnAgentThatDoesNotAnswer) {
  // Somebody listens, but nobody ever accepts.
  const std::string path = directory_ / "silent.sock";
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  const Outcome outcome =
      run("job start --strict --id 7 --timeout 0.2 --agent " + path, /*with_errors=*/true);
  ::close(fd);
  EXPECT_EQ(outcome.status, 3);
  EXPECT_NE(outcome.out.find("no answer in time"), std::string::npos) << outcome.out;
}

TEST_F(CliJob, OtherUsersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  // As a user of that number the program must be readable: tests may lie below a closed folder.
  const std::string copy = directory_ / "ncclscope";
  std::filesystem::copy_file(NCCLSCOPE_PROGRAM, copy);
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  const std::string as_other = "setpriv --reuid=4321 --regid=4321 --clear-groups " + copy;
  const Outcome refused = run_command(as_other + " job start --strict --id 7" + agent_ + " 2>&1");
  EXPECT_EQ(refused.status, 2) << refused.out;
  EXPECT_NE(refused.out.find("uid 4321 may not report jobs; root, the agent's own user and members "
                             "of the administrators' group (ncclscope-admin) may"),
            std::string::npos)
      << refused.out;
  EXPECT_EQ(run_command(as_other + " job start --id 7" + agent_ + " 2>/dev/null").status, 0);
  EXPECT_TRUE(reports_.started().empty());
}

TEST_F(CliJob, HelpNamesVariablesAndExitStatuses) {
  const Outcome help = run("job start --help");
  EXPECT_EQ(help.status, 0);
  for (const char* text :
       {"[SLURM_JOB_ID]", "[SLURM_ARRAY_TASK_ID]", "--strict", "Exit status: 0", "ncclscope-admin"})
    EXPECT_NE(help.out.find(text), std::string::npos) << text;
  EXPECT_EQ(run("job").status, 2);
  EXPECT_EQ(run("job start --nonsense").status, 2);
}

TEST(CliArguments, AreChecked) {
  EXPECT_EQ(run("").status, 2);
  EXPECT_EQ(run("nonsense").status, 2);
  EXPECT_EQ(run("top --interval 0").status, 2);
  EXPECT_EQ(run("tail --once --follow").status, 2);
  const Outcome help = run("books --help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("Exit status: 0 all books balance; 1 some do not"), std::string::npos);
  EXPECT_TRUE(run("version").out.starts_with("ncclscope "));
}

}  // namespace
}  // namespace ncclscope::agent
