// SPDX-License-Identifier: Apache-2.0
// NCCL Inspector's environment variables: what each means here, and what NCCL's log says of it.
#include "plugin/inspector/options.h"

#include <gmock/gmock.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace ncclscope::plugin::inspector {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSecond = 1'000'000'000;

std::vector<std::string> said;  // NCCL's logger takes no context

void remember(nccl::LogLevel, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  said.emplace_back(text);
}

class InspectorOptions : public ::testing::Test {
 protected:
  ~InspectorOptions() override { clear(); }

  /// With these variables and no others of Inspector's and the launchers'.
  Options read(const std::vector<std::pair<std::string, std::string>>& environment) {
    clear();
    for (const auto& [name, value] : environment) {
      ::setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
    said.clear();
    Options options;
    read_options(options, &remember);
    return options;
  }

 private:
  void clear() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID",
                             "SLURM_CLUSTER_NAME", "LOCAL_RANK", "SLURM_LOCALID"})
      ::unsetenv(name);
    set_.clear();
  }
  std::vector<std::string> set_;
};

constexpr const char* kDirectory = "NCCL_INSPECTOR_DUMP_DIR";
constexpr const char* kInterval = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";

TEST_F(InspectorOptions, WriteNothingUnlessADirectoryIsSet) {
  EXPECT_FALSE(read({}).enabled);
  EXPECT_TRUE(said.empty());
  EXPECT_FALSE(read({{"NCCL_INSPECTOR_ENABLE", "1"}, {kInterval, "500"}}).enabled);
  EXPECT_TRUE(said.empty());
  EXPECT_FALSE(read({{kDirectory, ""}}).enabled);
}

TEST_F(InspectorOptions, HaveInspectorsDefaults) {
  const Options options = read({{kDirectory, "/scratch/x"}});
  EXPECT_TRUE(options.enabled);
  EXPECT_STREQ(options.directory, "/scratch/x");
  EXPECT_EQ(options.format, Format::kV40);
  EXPECT_FALSE(options.prometheus || options.verbose || options.wants_channels());
  EXPECT_TRUE(options.p2p && options.gpu_times_only);
  EXPECT_EQ(options.min_bytes, 8192u);
  EXPECT_EQ(options.interval_ns, 0u);
  EXPECT_STREQ(options.cluster, "unknown");
  EXPECT_STREQ(options.job_id, "unknown");
  EXPECT_THAT(said, ElementsAre(HasSubstr(
                        "Inspector's lines (v4.0) go to /scratch/x, at the end of communicators")));
}

TEST_F(InspectorOptions, AreWhatAnInspectorUsersScriptSays) {
  const Options options = read({{kDirectory, "/d"},
                                {"NCCL_INSPECTOR_PROM_DUMP", "1"},
                                {"NCCL_INSPECTOR_ENABLE_P2P", "0"},
                                {"NCCL_INSPECTOR_DUMP_VERBOSE", "1"},
                                {"NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", "0"},
                                {"NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "0x10"},
                                {kInterval, "30000000"}});
  EXPECT_TRUE(options.prometheus && options.verbose);
  EXPECT_FALSE(options.p2p || options.gpu_times_only);
  EXPECT_EQ(options.min_bytes, 16u);
  EXPECT_EQ(options.interval_ns, 30 * kSecond);
  EXPECT_TRUE(read({{kDirectory, "/d"}, {"NCCL_INSPECTOR_DUMP_VERBOSE", "1"}}).wants_channels());
}

TEST_F(InspectorOptions, RaiseIntervalsBelowASecondAndSaySoOnce) {
  for (const char* microseconds : {"0", "500", "999999"}) {
    EXPECT_EQ(read({{kDirectory, "/d"}, {kInterval, microseconds}}).interval_ns, kSecond);
    EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr(std::string(kInterval) + "=" + microseconds),
                                        HasSubstr("raised to 1000000 (one second)")),
                                  HasSubstr("once per interval")));
  }
  EXPECT_EQ(read({{kDirectory, "/d"}, {kInterval, "1000000"}}).interval_ns, kSecond);
  EXPECT_EQ(said.size(), 1u);
  EXPECT_EQ(read({{kDirectory, "/d"}, {kInterval, "-1"}}).interval_ns, 0u);
  // Textfiles are there to be read while the job runs, and have no floor of 30 s.
  EXPECT_EQ(read({{kDirectory, "/d"}, {"NCCL_INSPECTOR_PROM_DUMP", "1"}}).interval_ns,
            30 * kSecond);
  EXPECT_EQ(read({{kDirectory, "/d"}, {"NCCL_INSPECTOR_PROM_DUMP", "1"}, {kInterval, "3000000"}})
                .interval_ns,
            3 * kSecond);
}

TEST_F(InspectorOptions, WithoutADumpThreadThereAreNoFiles) {
  EXPECT_FALSE(read({{kDirectory, "/d"}, {"NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "0"}}).enabled);
  EXPECT_THAT(said, ElementsAre(HasSubstr("NCCL_INSPECTOR_DUMP_THREAD_ENABLE=0: no files")));
}

TEST_F(InspectorOptions, NameOnceWhatHasNoEffect) {
  EXPECT_TRUE(read({{kDirectory, "/d"},
                    {"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE", "4096"},
                    {"NCCL_INSPECTOR_DUMP_P2P_RING_SIZE", "4096"},
                    {"NCCL_INSPECTOR_COLL_POOL_SIZE", "1"},
                    {"NCCL_INSPECTOR_P2P_POOL_SIZE", "1"},
                    {"NCCL_INSPECTOR_COMM_POOL_SIZE", "1"},
                    {"NCCL_INSPECTOR_POOL_GROW", "0"}})
                  .enabled);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_THAT(said[0], AllOf(HasSubstr("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, "),
                             HasSubstr("NCCL_INSPECTOR_POOL_GROW: accepted, without effect")));
}

TEST_F(InspectorOptions, TakeJobAndClusterInTheirOrder) {
  const auto job = [&](const std::vector<std::pair<std::string, std::string>>& environment) {
    auto all = environment;
    all.emplace_back(kDirectory, "/d");
    return std::string(read(all).job_id);
  };
  EXPECT_EQ(job({{"SLURM_JOB_ID", "1"}, {"SLURM_JOBID", "2"}, {"PBS_JOBID", "3"}}), "1");
  EXPECT_EQ(job({{"SLURM_JOBID", "2"}, {"PBS_JOBID", "3"}}), "2");
  EXPECT_EQ(job({{"PBS_JOBID", "3"}, {"LSB_JOBID", "4"}}), "3");
  EXPECT_EQ(job({{"LSB_JOBID", "4"}}), "4");
  EXPECT_STREQ(
      read({{kDirectory, "/d"}, {"NCCL_INSPECTOR_CLUSTER", "a"}, {"SLURM_CLUSTER_NAME", "b"}})
          .cluster,
      "a");
  EXPECT_STREQ(read({{kDirectory, "/d"}, {"SLURM_CLUSTER_NAME", "b"}}).cluster, "b");
}

TEST_F(InspectorOptions, SayWhatIsBadAndKeepTheDefault) {
  const Options options = read({{kDirectory, "/d"},
                                {kInterval, "1s"},
                                {"NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "8K"},
                                {"NCCLSCOPE_INSPECTOR_FORMAT", "v4.1"}});
  EXPECT_EQ(options.interval_ns, 0u);
  EXPECT_EQ(options.min_bytes, 8192u);
  EXPECT_EQ(options.format, Format::kV40);
  EXPECT_THAT(said, ElementsAre(HasSubstr("=\"1s\" ignored: wanted a whole number"),
                                HasSubstr("=\"8K\" ignored: wanted a whole number"),
                                HasSubstr("\"v4.1\" ignored: wanted v4.0 or v4.2"),
                                HasSubstr("Inspector's lines (v4.0)")));
  EXPECT_FALSE(read({{kDirectory, std::string(kMaxPathBytes, 'x')}}).enabled);
  EXPECT_THAT(said, ElementsAre(HasSubstr("wanted a directory of at most")));
}

TEST_F(InspectorOptions, SwitchOffOnlyWhereInspectorIsSwitchedOff) {
  (void)read({});
  EXPECT_FALSE(switched_off());
  (void)read({{"NCCL_INSPECTOR_ENABLE", "1"}});
  EXPECT_FALSE(switched_off());
  (void)read({{"NCCL_INSPECTOR_ENABLE", "0"}});
  EXPECT_TRUE(switched_off());
}

}  // namespace
}  // namespace ncclscope::plugin::inspector
