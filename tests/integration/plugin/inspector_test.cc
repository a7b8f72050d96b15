// SPDX-License-Identifier: Apache-2.0
// The files that NCCL Inspector would have written: what is in them, when, and what becomes of the
// job when they hang.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/plugin_test.h"
#include "tests/support/spawn.h"

extern "C" int ncclGetVersion(int* version) {
  *version = ncclscope_test_nccl_version;
  return 0;
}

namespace {
std::atomic<bool> writes_hang{false};
std::atomic<int> writes_that_hang{0};
}  // namespace

// The plugin's calls come here first: a file system that does not answer. Only lines are held up.
extern "C" ssize_t write(int fd, const void* data, size_t bytes) {
  if (bytes > 100 && writes_hang) {
    ++writes_that_hang;
    while (writes_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --writes_that_hang;
  }
  return syscall(SYS_write, fd, data, bytes);
}

namespace ncclscope::tests {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class InspectorFiles : public PluginTest {
 protected:
  InspectorFiles() {
    files_ = directory_ + "/inspector";
    setenv("NCCL_INSPECTOR_DUMP_DIR", files_.c_str(), 1);
    char host[65] = {};
    gethostname(host, sizeof host - 1);
    name_ = std::string(host) + "-pid" + std::to_string(getpid()) + ".log";
  }
  ~InspectorFiles() override { writes_hang = false; }

  std::string text() const {
    std::ifstream file(files_ + "/" + name_);
    std::stringstream out;
    out << file.rdbuf();
    return out.str();
  }
  std::vector<json> lines() const {
    std::vector<json> out;
    std::istringstream all(text());
    for (std::string line; std::getline(all, line);) out.push_back(json::parse(line));
    return out;
  }
  std::vector<json> wait_lines(std::size_t n) const {
    EXPECT_TRUE(StubAgent::wait_for([&] {
      const std::string t = text();
      return static_cast<std::size_t>(std::count(t.begin(), t.end(), '\n')) >= n;
    })) << text();
    return lines();
  }
  /// n complete operations of 64 KiB on two channels.
  void run(const DrivenCommunicator& c, unsigned n) {
    for (unsigned i = 0; i < n; ++i) run_one(c, 16'384, 2);
  }
  /// Stamped after the call, however long this thread was kept from the processor in between.
  void run_one(const DrivenCommunicator& c, std::size_t count, std::uint8_t channels) {
    finish(c, c.launch("AllReduce", count, "ncclFloat32", channels, sequence_++), channels);
  }
  /// A Send to that rank, or a Recv from it, of 64 KiB.
  void transfer(const DrivenCommunicator& c, const char* function, int peer) {
    void* plan = c.start_plan();
    void* task = c.start_p2p(c.start_p2p_api(nullptr, function, 16'384, "ncclFloat32"), plan,
                             function, 16'384, "ncclFloat32", peer, 1);
    c.stop(task);
    c.stop(plan);
    finish(c, task, 1);
  }
  void finish(const DrivenCommunicator& c, void* task, unsigned channels) {
    next_stamp();
    c.complete(task, channels, gpu_, gpu_ + 5'000);
  }
  /// The GPU's clock goes on with the host's: stamps that fall behind it, or behind how far it was
  /// ahead once, are not believed.
  void next_stamp() {
    const std::uint64_t earliest = gpu_ + 10'000;
    do gpu_ = gpu_now_ns() + kAhead;
    while (gpu_ < earliest);
  }
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(files_)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(files_))
      names.push_back(entry.path().filename());
    return names;
  }

  std::string files_, name_;
  static constexpr std::uint64_t kAhead = 3'600'000'000'000;
  std::uint64_t gpu_ = gpu_now_ns() + kAhead;
  std::uint64_t sequence_ = 0;
};

TEST_F(InspectorFiles, AreWrittenAtTheEndOfACommunicatorWithoutAnAgent) {
  DrivenCommunicator c(table(), 0xAB, 4, 1, "tp/0", 1);
  void* task = c.launch("AllReduce", 16'384, "ncclFloat32", 2, 7);
  next_stamp();
  // Two channels that do not run at the same time: the span counts, not the longer one.
  void* a = c.start_kernel(task, 3, gpu_);
  void* b = c.start_kernel(task, 4, gpu_ + 30'000);
  c.stop_kernel(a, gpu_ + 40'000);
  c.stop_kernel(b, gpu_ + 65'536);
  const auto before = static_cast<std::int64_t>(gpu_now_ns() / 1000);
  run(c, 4);
  c.finalize();
  const auto got = wait_lines(5);
  ASSERT_EQ(got.size(), 5u);
  const json& line = got[0];
  EXPECT_EQ(line["header"], json::parse(R"({"id":"0xab","comm_name":"tp/0","rank":1,"n_ranks":4,)"
                                        R"("nnodes":1})"));
  EXPECT_EQ(line["metadata"]["pid"], getpid());
  // When it was done, by the clock on the wall: between the call and now.
  EXPECT_LE(line["metadata"]["dump_timestamp_us"].get<std::int64_t>(), before + 1'000'000);
  EXPECT_GE(line["metadata"]["dump_timestamp_us"].get<std::int64_t>(), before - 60'000'000);
  const json& perf = line["coll_perf"];
  EXPECT_EQ(perf["coll"], "AllReduce");
  EXPECT_EQ(perf["coll_sn"], 7);
  EXPECT_EQ(perf["coll_msg_size_bytes"], 65'536);
  EXPECT_EQ(perf["coll_exec_time_us"], 66);
  EXPECT_EQ(perf["coll_timing_source"], "kernel_gpu");
  EXPECT_DOUBLE_EQ(perf["coll_algobw_gbs"], 1.0);
  EXPECT_DOUBLE_EQ(perf["coll_busbw_gbs"], 1.5);
  EXPECT_EQ(perf.size(), 7u);
  struct stat file {};
  ASSERT_EQ(stat((files_ + "/" + name_).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0133u, 0u) << "writable for others, or executable";
}

TEST_F(InspectorFiles, AreNotThereUnlessTheyAreAskedFor) {
  setenv("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "0", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 10);
  c.finalize();
  ASSERT_TRUE(agent().wait_for_operations(10));
  EXPECT_TRUE(StubAgent::wait_for([&] { return agent().finalized().size() == 1; }));
  EXPECT_TRUE(listing().empty());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    EXPECT_NE(name, "ncclscope-files");
  }
}

TEST_F(InspectorFiles, LeaveOutSmallTransferredAndUntimedOperations) {
  DrivenCommunicator c(table(), 1, 4, 0);
  run(c, 1);
  run_one(c, 2'047, 1);  // 8188 bytes
  run_one(c, 2'048, 1);
  void* backwards = c.launch("AllReduce", 16'384, "ncclFloat32", 1, sequence_++);
  next_stamp();
  c.complete(backwards, 1, gpu_ + 10'000, gpu_);  // stops before it starts
  transfer(c, "Send", 1);
  c.finalize();
  const auto got = wait_lines(2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1]["coll_perf"]["coll_msg_size_bytes"], 8192);
}

TEST_F(InspectorFiles, TakeTransfersAndWhatWasLostInV42AndHostTimesOnRequest) {
  setenv("NCCLSCOPE_INSPECTOR_FORMAT", "v4.2", 1);
  setenv("NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", "0", 1);
  setenv("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "0", 1);
  DrivenCommunicator c(table(), 1, 4, 0);
  run(c, 1);
  // Stops before it starts: only the host's times are left.
  void* task = c.launch("AllReduce", 1, "ncclFloat32", 1, 1);
  next_stamp();
  void* kernel = c.start_kernel(task, 0, gpu_ + 10'000);
  std::this_thread::sleep_for(milliseconds(2));
  c.stop_kernel(kernel, gpu_);
  transfer(c, "Recv", 3);
  c.finalize();
  const auto got = wait_lines(4);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[0]["coll_perf"]["coll_algo"], "RING");
  EXPECT_EQ(got[1]["coll_perf"]["coll_timing_source"], "kernel_cpu");
  EXPECT_GE(got[1]["coll_perf"]["coll_exec_time_us"], 2'000);
  EXPECT_EQ(got[2]["p2p_perf"]["p2p"], "Recv");
  EXPECT_EQ(got[2]["p2p_perf"]["p2p_sn"], 1);
  EXPECT_EQ(got[2]["p2p_perf"]["p2p_peer"], 3);
  EXPECT_EQ(got[3]["dump_stats"]["coll_records"], 2);
  EXPECT_EQ(got[3]["dump_stats"]["p2p_records"], 1);
  EXPECT_EQ(got[3]["dump_stats"]["coll_dropped_total"], 0);
}

TEST_F(InspectorFiles, PutTransfersIntoADirectoryOfTheirOwnInV40) {
  const std::string apart = directory_ + "/p2p";
  setenv("NCCLSCOPE_INSPECTOR_P2P_DIR", apart.c_str(), 1);
  DrivenCommunicator c(table(), 1, 4, 0);
  transfer(c, "Send", 1);
  run(c, 1);
  c.finalize();
  const auto got = wait_lines(1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(got[0].contains("coll_perf"));
  std::string line;
  std::getline(std::ifstream(apart + "/" + name_), line);
  EXPECT_EQ(json::parse(line)["p2p_perf"]["p2p"], "Send");
}

TEST_F(InspectorFiles, TraceEveryChannelWhenVerbose) {
  setenv("NCCL_INSPECTOR_DUMP_VERBOSE", "1", 1);
  DrivenCommunicator c(table(), 1, 4, 0);
  run(c, 3);
  c.finalize();
  const auto got = wait_lines(3);
  ASSERT_EQ(got.size(), 3u);
  for (const json& line : got) {
    const json& sn = line["coll_perf"]["event_trace_sn"];
    const json& ts = line["coll_perf"]["event_trace_ts"];
    EXPECT_EQ(sn["coll_start_sn"], 1);
    EXPECT_EQ(sn["coll_stop_sn"], 2);
    ASSERT_EQ(sn["kernel_events"].size(), 2u);
    ASSERT_EQ(ts["kernel_events"].size(), 2u);
    EXPECT_EQ(sn["kernel_events"][0], json::parse(R"({"channel_id":0,"kernel_start_sn":3,)"
                                                  R"("kernel_stop_sn":6,"kernel_record_sn":5})"));
    for (const json& channel : ts["kernel_events"]) {
      EXPECT_GE(channel["kernel_start_ts"], ts["coll_start_ts"]);
      EXPECT_GE(channel["kernel_stop_ts"], channel["kernel_start_ts"]);
      EXPECT_LE(channel["kernel_stop_ts"],
                line["metadata"]["dump_timestamp_us"].get<std::int64_t>() + 1'000'000);
    }
  }
}

TEST_F(InspectorFiles, GoOnInTheSameFileAndEndALineThatWasCutShort) {
  std::filesystem::create_directory(files_);
  std::ofstream(files_ + "/" + name_) << "{\"header\":{\"id\":\"0x1\"";
  for (int life = 0; life < 2; ++life) {
    DrivenCommunicator c(table(), 1 + static_cast<std::uint64_t>(life), 2, 0);
    run(c, 2);
    c.finalize();
    ASSERT_TRUE(StubAgent::wait_for([&] {
      const std::string t = text();
      return std::count(t.begin(), t.end(), '\n') == 3 + 2 * life;
    })) << text();
  }
  std::istringstream all(text());
  std::string line;
  std::getline(all, line);
  EXPECT_EQ(line, "{\"header\":{\"id\":\"0x1\"");
  while (std::getline(all, line)) EXPECT_TRUE(json::accept(line)) << line;
}

TEST_F(InspectorFiles, AreWrittenOncePerIntervalAndAtExit) {
  setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500", 1);  // raised to a second
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 5);
  (void)wait_lines(5);
  run(c, 5);
  EXPECT_EQ(wait_lines(10).size(), 10u);
}

TEST_F(InspectorFiles, ThatHangLoseLinesAndNothingElse) {
  start_agent();
  setenv("NCCLSCOPE_INSPECTOR_FORMAT", "v4.2", 1);
  DrivenCommunicator first(table(), 1, 2, 0), c(table(), 2, 2, 0);
  writes_hang = true;
  run(first, 10);
  first.finalize();
  ASSERT_TRUE(StubAgent::wait_for([&] { return writes_that_hang > 0; }));
  // More than the queue holds, at a pace that the ring bears: the agent gets all of them.
  constexpr unsigned kOperations = 20'000;
  for (unsigned i = 0; i < kOperations; i += 1'000) {
    run(c, 1'000);
    ASSERT_TRUE(agent().wait_for_operations(i + 1'010)) << "the sender is held up";
  }
  EXPECT_EQ(agent().lost(), 0u);
  EXPECT_EQ(writes_that_hang, 1);
  writes_hang = false;
  c.finalize();
  std::uint64_t written = 0;
  std::uint64_t lost = 0;
  ASSERT_TRUE(StubAgent::wait_for([&] {
    written = lost = 0;
    std::istringstream all(text());
    for (std::string line; std::getline(all, line);) {
      const json statistics =
          line.find("dump_stats") == std::string::npos ? json() : json::parse(line, nullptr, false);
      if (statistics.is_null()) {
        ++written;
      } else if (!statistics.is_discarded()) {
        lost += statistics["dump_stats"]["coll_dropped_since_last_dump"].get<std::uint64_t>();
      }
    }
    return written + lost == kOperations + 10;
  })) << written
      << " written, " << lost << " lost";
  EXPECT_GT(lost, 0u);
  EXPECT_GE(written, 16'000u);
}

TEST_F(InspectorFiles, DoNotFollowLinksNorWaitForPipes) {
  start_agent();
  std::filesystem::create_directory(files_);
  ASSERT_EQ(mkfifo((files_ + "/" + name_).c_str(), 0600), 0);
  DrivenCommunicator a(table(), 1, 2, 0);
  run(a, 10);
  a.finalize();
  ASSERT_TRUE(agent().wait_for_operations(10));
  std::this_thread::sleep_for(milliseconds(50));
  std::filesystem::remove(files_ + "/" + name_);
  const std::string target = directory_ + "/target";
  std::ofstream(target) << "mine";
  std::filesystem::create_symlink(target, files_ + "/" + name_);
  DrivenCommunicator b(table(), 2, 2, 0);
  run(b, 10);
  b.finalize();
  ASSERT_TRUE(agent().wait_for_operations(20));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(std::filesystem::file_size(target), 4u);
  // Once the way is clear, lines come again.
  std::filesystem::remove(files_ + "/" + name_);
  DrivenCommunicator c(table(), 3, 2, 0);
  run(c, 3);
  c.finalize();
  EXPECT_TRUE(StubAgent::wait_for([&] {
    const std::string t = text();
    return std::count(t.begin(), t.end(), '\n') >= 3;
  }));
}

TEST_F(InspectorFiles, ShowTheLastWindowInATextfileAndNothingOnceThereIsNothing) {
  setenv("NCCL_INSPECTOR_PROM_DUMP", "1", 1);
  setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "1000000", 1);
  setenv("LOCAL_RANK", "3", 1);
  const std::string file =
      files_ + "/nccl_inspector_metrics_pid" + std::to_string(getpid()) + ".prom";
  DrivenCommunicator c(table(), 1, 2, 0, "dp");
  run(c, 10);
  std::string shown;
  ASSERT_TRUE(StubAgent::wait_for([&] {
    std::stringstream out;
    out << std::ifstream(file).rdbuf();
    shown = out.str();
    return !shown.empty();
  }));
  EXPECT_NE(shown.find(R"(slurm_job_id="4242",)"), std::string::npos) << shown;
  // 64 KiB in 5 us.
  EXPECT_NE(shown.find(R"(gpu="GPU3",comm_name="dp",n_nodes="2",nranks="2",)"
                       R"(collective="AllReduce",message_size="64-65KB",)"
                       R"(algo_proto="RING_SIMPLE"} 13.1072)"),
            std::string::npos)
      << shown;
  for (const std::string& name : listing()) EXPECT_TRUE(name.ends_with(".prom")) << name;
  EXPECT_TRUE(StubAgent::wait_for([&] { return !std::filesystem::exists(file); }))
      << "a window without operations";
  run(c, 10);
  EXPECT_TRUE(StubAgent::wait_for([&] { return std::filesystem::exists(file); }));
  c.finalize();
  EXPECT_TRUE(StubAgent::wait_for([&] { return listing().empty(); })) << "nobody communicates";
}

TEST_F(InspectorFiles, OfAProcessThatExitsAndOfItsForks) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer forbids new threads after a fork";
  setenv("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "0", 1);
  const auto count = [&] {
    std::vector<std::size_t> lines;
    for (const std::string& name : listing()) {
      std::ifstream file(files_ + "/" + name);
      std::size_t n = 0;
      for (std::string line; std::getline(file, line);) n += json::accept(line) ? 1u : 1000u;
      lines.push_back(n);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  int status = -1;
  pid_t job = spawn({NCCLSCOPE_PLUGIN_JOB, "exit"});
  ASSERT_EQ(waitpid(job, &status, 0), job);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(count(), std::vector<std::size_t>{20}) << "without finalize";
  std::filesystem::remove_all(files_);
  job = spawn({NCCLSCOPE_PLUGIN_JOB, "fork"});
  ASSERT_EQ(waitpid(job, &status, 0), job);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(count(), (std::vector<std::size_t>{7, 20})) << "the child's, and the parent's";
}

TEST_F(InspectorFiles, SwitchedOffWithInspector) {
  setenv("NCCL_INSPECTOR_ENABLE", "0", 1);
  start_agent();
  DrivenCommunicator c(table(), 1, 2, 0);
  EXPECT_EQ(DrivenCommunicator::mask(), 0);
  run(c, 1);
  c.finalize();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(agent().hellos().empty());
  EXPECT_TRUE(listing().empty());
}

TEST_F(InspectorFiles, OurOwnSwitchCountsMore) {
  setenv("NCCL_INSPECTOR_ENABLE", "0", 1);
  setenv("NCCLSCOPE_DISABLE", "0", 1);
  DrivenCommunicator c(table(), 1, 2, 0);
  run(c, 2);
  c.finalize();
  EXPECT_EQ(wait_lines(2).size(), 2u);
}

}  // namespace
}  // namespace ncclscope::tests
