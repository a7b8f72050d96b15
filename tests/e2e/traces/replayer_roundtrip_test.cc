// SPDX-License-Identifier: Apache-2.0
//
// The replayer checked against itself: every recording is replayed into a plugin that records,
// under the mask and with the NULL answers of the recording; what comes out must be the recording
// again, line by line, field by field, time by time. That proves order, threads, handles,
// descriptors of v1-v6, the mask rules and recorded time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/verify_trace/trace.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Runs the replayer on one file; returns the recorder's lines.
std::vector<json> replay_and_record(const fs::path& file, const TraceHeader& header,
                                    const fs::path& dir) {
  const fs::path out = dir / "lines";
  fs::remove(out);
  std::array<int, 2> input{};
  EXPECT_EQ(pipe(input.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(input[0], STDIN_FILENO);
    close(input[0]);
    close(input[1]);
    setenv("RECORDER_OUTPUT", out.c_str(), 1);
    setenv("RECORDER_MASK", std::to_string(header.mask).c_str(), 1);
    setenv("RECORDER_NULL", std::to_string(header.null_handle_types).c_str(), 1);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    execl(NCCLSCOPE_REPLAY, NCCLSCOPE_REPLAY, file.c_str(), "--plugin", NCCLSCOPE_RECORDER_PLUGIN,
          "--report", (dir / "report").c_str(), "--pause-ms", "0", nullptr);
    _exit(127);
  }
  close(input[0]);
  close(input[1]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file << " status " << status;
  std::vector<json> lines;
  std::ifstream in(out);
  for (std::string text; std::getline(in, text);) {
    lines.push_back(json::parse(text, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << text;
  }
  return lines;
}

/// Numbers that the recorder gives anew, as the recording numbers them.
class Renumbering {
 public:
  void learn(const json& got, const json& expected) { map_[got.get<std::int64_t>()] = expected; }
  [[nodiscard]] json operator()(const json& got) const {
    const auto v = got.get<std::int64_t>();
    if (v == 0) return nullptr;
    const auto it = map_.find(v);
    return it == map_.end() ? json("unknown number " + std::to_string(v)) : it->second;
  }

 private:
  std::map<std::int64_t, json> map_;
};

const std::set<std::string> kAddresses = {"sendBuff", "recvBuff", "buff", "stream"};
const std::set<std::string> kHandles = {"parent", "parentGroup"};
/// Compared apart, or names of what is compared as a number.
const std::set<std::string> kApart = {"t", "thread", "type", "state", "args", "h", "ctx", "pid"};

void expect_equal(const TraceHeader& header, const TraceLine& line, const json& got,
                  Renumbering& handles, Renumbering& contexts, const std::string& where) {
  const json& want = line.fields;
  ASSERT_EQ(got.at("cb"), want.at("cb")) << where;
  EXPECT_EQ(got.at("t").get<std::int64_t>(), header.t0_monotonic_ns + line.t_ns) << where;
  if (line.callback == Callback::kInit) contexts.learn(got.at("ctx"), want.at("ctx"));
  if (line.callback == Callback::kStart && !want.at("h").is_null())
    handles.learn(got.at("h"), want.at("h"));
  if (want.contains("ctx")) {
    EXPECT_EQ(contexts(got.at("ctx")), want.at("ctx")) << where;
  }
  if (want.contains("h")) {
    EXPECT_EQ(handles(got.at("h")), want.at("h")) << where;
  }
  for (const auto& [key, value] : want.items()) {
    if (kApart.contains(key) || value.is_object()) continue;
    if (kAddresses.contains(key)) {
      EXPECT_EQ(got.at(key).get<std::int64_t>(), 0x100000000000 + value.get<std::int64_t>() * 4096)
          << where << key;
    } else if (kHandles.contains(key)) {
      EXPECT_EQ(handles(got.at(key)), value) << where << key;
    } else {
      ASSERT_TRUE(got.contains(key)) << where << key;
      EXPECT_EQ(got.at(key), value) << where << key;
    }
  }
  if (line.callback == Callback::kRecord) {
    const json& args = want.at("args");
    EXPECT_EQ(got.at("argsNull").get<bool>(), args.is_null()) << where;
    if (args.is_object()) {
      for (const auto& [key, value] : args.items()) {
        if (key == "garbage") continue;
        EXPECT_EQ(got.at(key), value) << where << key;
      }
    }
  }
}

TEST(Replayer, GivesEveryRecordingBackToARecorderLineByLine) {
  const fs::path root = NCCLSCOPE_TRACES;
  const tests::TemporaryDirectory dir;
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    const std::vector<fs::path> ranks = trace_files(entry.path());
    ASSERT_FALSE(ranks.empty()) << entry.path();
    // One process of a folder is enough: its neighbours differ in numbers, not in kind.
    const fs::path& file = ranks[files % ranks.size()];
    ++files;
    const Trace trace = load_trace(file);
    const std::vector<json> got = replay_and_record(file, trace.header, dir.path());
    Renumbering handles;
    Renumbering contexts;
    std::map<std::int64_t, int> threads;
    std::size_t next = 0;
    for (const TraceLine& line : trace.lines) {
      if (line.callback == Callback::kLoad || line.callback == Callback::kUnload) continue;
      const std::string where = file.string() + " t " + std::to_string(line.t_ns) + " ";
      ASSERT_LT(next, got.size()) << where << "is missing";
      expect_equal(trace.header, line, got[next], handles, contexts, where);
      const auto tid = threads.emplace(got[next].at("tid").get<std::int64_t>(), line.thread).first;
      EXPECT_EQ(tid->second, line.thread) << where << "comes on another thread";
      ++next;
      if (testing::Test::HasFailure()) break;
    }
    EXPECT_EQ(next, got.size()) << file << ": callbacks that the recording does not hold";
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GE(files, 249U);
}

}  // namespace
}  // namespace ncclscope::cli
