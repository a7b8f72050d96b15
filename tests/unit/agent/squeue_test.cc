// SPDX-License-Identifier: Apache-2.0
//
// Reading squeue's answers of several SLURM versions, running commands within limits, and the
// poller that does both. Commands are small shell scripts in a directory of the test.
#include "agent/identity/squeue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/command.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""h;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string fixture(const char* name) {
  return read_file(std::string(NCCLSCOPE_SQUEUE_ANSWERS "/") + name);
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

// ---- what squeue prints ---------------------------------------------------------------------

TEST(Squeue, ReadsPlainNumbers) {
  const auto jobs = parse_squeue(fixture("slurm-22.05.json"));
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  ASSERT_EQ(jobs.value().size(), 3u) << "those that wait or are over are left out";
  const QueuedJob& requeued = jobs.value()[0];
  EXPECT_EQ(requeued.slurm_job_id, "2");
  EXPECT_EQ(requeued.facts.user, "root");
  EXPECT_EQ(requeued.facts.uid, 0);
  EXPECT_EQ(requeued.facts.job_name, "req");
  EXPECT_EQ(requeued.facts.partition, "main");
  EXPECT_EQ(requeued.facts.account, "");
  EXPECT_EQ(requeued.facts.restarts, 1u);
  EXPECT_EQ(requeued.facts.array_job_id, "");
  EXPECT_EQ(requeued.facts.het_job_id, "");
  const QueuedJob& task = jobs.value()[1];
  EXPECT_EQ(task.slurm_job_id, "8");
  EXPECT_EQ(task.facts.account, "physics");
  EXPECT_EQ(task.facts.array_job_id, "1");
  EXPECT_EQ(task.facts.array_task, "0");
  const QueuedJob& component = jobs.value()[2];
  EXPECT_EQ(component.slurm_job_id, "7");
  EXPECT_EQ(component.facts.het_job_id, "6");
  EXPECT_EQ(component.facts.het_offset, "1");
}

TEST(Squeue, ReadsNumbersThatMayBeUnset) {
  const auto jobs = parse_squeue(fixture("set-number.json"));
  ASSERT_TRUE(jobs.ok()) << jobs.status().message();
  ASSERT_EQ(jobs.value().size(), 2u);
  const QueuedJob& task = jobs.value()[0];
  EXPECT_EQ(task.slurm_job_id, "43");
  EXPECT_EQ(task.facts.array_job_id, "40");
  EXPECT_EQ(task.facts.array_task, "3");
  EXPECT_EQ(task.facts.restarts, 2u);
  const QueuedJob& component = jobs.value()[1];
  EXPECT_EQ(component.facts.array_job_id, "");
  EXPECT_EQ(component.facts.het_job_id, "50");
  EXPECT_EQ(component.facts.het_offset, "1");
  EXPECT_EQ(component.facts.restarts, std::nullopt);
}

TEST(Squeue, FieldsOfUnexpectedTypesAreUnknown) {
  const auto jobs = parse_squeue(
      R"({"jobs": [7, null, {}, {"job_id": "8"}, {"job_id": -1}, {"job_id": 0}, [],
          {"job_id": 9, "name": 3, "user_id": "x", "user_name": ["a"], "array_task_id": {"set": 1},
           "array_job_id": {}, "restart_cnt": 4294967294, "job_state": 3, "het_job_id": 1.5},
          {"job_id": 10, "user_name": "a\u0000b\u001b"}]})");
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs.value().size(), 2u);
  JobFacts nothing;
  EXPECT_EQ(jobs.value()[0].facts, nothing);
  EXPECT_EQ(jobs.value()[1].facts.user, "a?b?");
}

TEST(Squeue, AnythingElseIsAnError) {
  for (const char* text : {"", "{", "[]", "{}", "null", "squeue: error: x", R"({"jobs": 3})",
                           R"({"jobs": {}})", "{\"jobs\": [}", "\xff\xfe"}) {
    EXPECT_FALSE(parse_squeue(text).ok()) << text;
  }
  const std::string deep = "{\"jobs\": " + std::string(200'000, '[');
  EXPECT_FALSE(parse_squeue(deep).ok());
}

TEST(Squeue, CommandIsSplitAtBlanksAndNamesTheNode) {
  EXPECT_THAT(command_words("/usr/bin/squeue --json  --nodelist=%N", "n7"),
              ElementsAre("/usr/bin/squeue", "--json", "--nodelist=n7"));
  EXPECT_THAT(command_words(" /a %%N\t%x %", "n7"), ElementsAre("/a", "%N", "%x", "%"));
  EXPECT_THAT(command_words("", "n7"), ElementsAre());
}

// ---- commands ---------------------------------------------------------------------------------

class Command : public ::testing::Test {
 protected:
  /// A shell script; returns its path.
  std::string script(const std::string& body, unsigned mode = 0755) {
    std::string path = directory_ + "/command" + std::to_string(++scripts_);
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    ::chmod(path.c_str(), mode);
    return path;
  }
  /// The number of a process that the command wrote to a file has gone.
  [[nodiscard]] bool gone(const std::string& pid_file) const {
    const std::string text = read_file(directory_ + "/" + pid_file);
    if (text.empty()) return false;
    const auto pid = static_cast<pid_t>(std::stol(text));
    // A zombie that waits for init to reap it does nothing any more.
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return ::kill(pid, 0) != 0 || stat.find(") Z ") != std::string::npos;
  }
  static CommandLimits limits(std::chrono::milliseconds timeout = 20s) {
    CommandLimits out;
    out.timeout = timeout;
    return out;
  }

  const tests::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
  int scripts_ = 0;
};

TEST_F(Command, GivesWhatItPrints) {
  const auto out = run_command({script("echo \"$1\"; echo no >&2; cat"), "a b"}, limits());
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(out.value(), "a b\n");
}

TEST_F(Command, SaysWhyItFailed) {
  const auto exits = run_command({script("echo x; exit 3")}, limits());
  EXPECT_THAT(exits.status().message(), HasSubstr("exited with 3"));
  const auto killed = run_command({script("kill -SEGV $$")}, limits());
  EXPECT_THAT(killed.status().message(), HasSubstr("signal 11"));
  const auto absent = run_command({directory_ + "/absent"}, limits());
  EXPECT_THAT(absent.status().message(), HasSubstr("No such file"));
  const auto plain = run_command({script("echo x", 0644)}, limits());
  EXPECT_THAT(plain.status().message(), HasSubstr("Permission denied"));
  EXPECT_FALSE(run_command({}, limits()).ok());
}

TEST_F(Command, EndsOneThatHangsWithAllItStarted) {
  const auto out = run_command(
      {script("echo $$ >" + directory_ + "/a; sleep 1000 & echo $! >" + directory_ + "/b; wait")},
      limits(500ms));
  EXPECT_THAT(out.status().message(), HasSubstr("did not end within 500 ms"));
  EXPECT_TRUE(eventually([&] { return gone("a") && gone("b"); }));
}

TEST_F(Command, EndsOneThatClosesItsOutputAndHangs) {
  const auto out = run_command({script("exec >&-; sleep 1000")}, limits(300ms));
  EXPECT_THAT(out.status().message(), HasSubstr("did not end within 300 ms"));
}

TEST_F(Command, LeavesNobodyBehindThatHoldsItsOutput) {
  const auto out =
      run_command({script("sleep 1000 & echo $! >" + directory_ + "/b")}, limits(500ms));
  EXPECT_FALSE(out.ok()) << "its child could still print";
  EXPECT_TRUE(eventually([&] { return gone("b"); }));
}

TEST_F(Command, EndsOneThatPrintsTooMuch) {
  CommandLimits small = limits();
  small.max_output_bytes = 100'000;
  const auto out = run_command({script("yes")}, small);
  EXPECT_THAT(out.status().message(), HasSubstr("printed more than 100000 bytes"));
  const auto fits = run_command({script("yes | head -c 100000")}, small);
  ASSERT_TRUE(fits.ok()) << fits.status().message();
  EXPECT_EQ(fits.value().size(), 100'000u);
}

TEST_F(Command, EndsWhenCancelled) {
  const int cancel = ::eventfd(1, EFD_CLOEXEC);
  CommandLimits cancelled = limits();
  cancelled.cancel_fd = cancel;
  EXPECT_THAT(run_command({script("sleep 1000")}, cancelled).status().message(),
              HasSubstr("stopping"));
  EXPECT_THAT(run_command({script("exec >&-; sleep 1000")}, cancelled).status().message(),
              HasSubstr("stopping"));
  ::close(cancel);
}

// ---- the poller -------------------------------------------------------------------------------

class Poller : public Command {
 protected:
  Poller() { set_log_level(LogLevel::kOff); }
  ~Poller() override {
    poller_.reset();
    set_log_level(LogLevel::kInfo);
  }
  void start(std::vector<std::string> command, std::chrono::milliseconds interval = 1h,
             std::chrono::milliseconds timeout = 20s) {
    SqueuePoller::Options options;
    options.command = std::move(command);
    options.interval = interval;
    options.minimum_pause = 1ms;
    options.timeout = timeout;
    poller_ = std::make_unique<SqueuePoller>(clock_, options, [this](std::vector<QueuedJob> jobs) {
      const std::lock_guard lock(mutex_);
      last_ = std::move(jobs);
      ++answers_;
    });
  }
  int answers() {
    const std::lock_guard lock(mutex_);
    return answers_;
  }

  SystemClock clock_;
  std::mutex mutex_;
  std::vector<QueuedJob> last_;
  int answers_ = 0;
  std::unique_ptr<SqueuePoller> poller_;
};

TEST_F(Poller, HandsOverWhatTheCommandSays) {
  start({script("cat " NCCLSCOPE_SQUEUE_ANSWERS "/slurm-22.05.json")});
  ASSERT_TRUE(eventually([&] { return answers() == 1; }));
  EXPECT_EQ(last_.size(), 3u);
  EXPECT_EQ(poller_->failures(), 0u);
}

TEST_F(Poller, RunsAgainAfterTheIntervalAndWhenAsked) {
  start({script("echo '{\"jobs\": []}'")}, 20ms);
  EXPECT_TRUE(eventually([&] { return answers() >= 3; }));
  poller_.reset();
  answers_ = 0;
  start({script("echo '{\"jobs\": []}'")});
  ASSERT_TRUE(eventually([&] { return answers() == 1; }));
  poller_->ask();
  EXPECT_TRUE(eventually([&] { return answers() == 2; }));
}

TEST_F(Poller, CountsEveryFailureAndGoesOn) {
  for (const std::string& command :
       {script("echo nonsense"),
        script("cat " NCCLSCOPE_SQUEUE_ANSWERS "/slurm-22.05.json; exit 1"), script("sleep 1000"),
        script("echo x", 0644), directory_ + "/absent"}) {
    start({command}, 20ms, 100ms);
    EXPECT_TRUE(eventually([&] { return poller_->failures() >= 2; })) << command;
    poller_.reset();
  }
  EXPECT_EQ(answers(), 0);
}

TEST_F(Poller, EndsAtOnceWhileItsCommandHangs) {
  start({script("echo $$ >" + directory_ + "/a; sleep 1000")}, 1h, 1h);
  ASSERT_TRUE(eventually([&] { return !read_file(directory_ + "/a").empty(); }));
  poller_.reset();
  EXPECT_TRUE(eventually([&] { return gone("a"); }));
}

}  // namespace
}  // namespace ncclscope::agent
