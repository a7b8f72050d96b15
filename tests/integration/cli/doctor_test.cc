// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope doctor` as users run it: on copies of machines, with the commands of docs/doctor.md,
// and on this machine, whatever that is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using tests::Outcome;

class Doctor : public ::testing::Test {
 protected:
  /// Standard output and error.
  static Outcome shell(const std::string& command) { return tests::run_command(command + " 2>&1"); }
  /// With no setting of NCCL but those in `environment`.
  static Outcome doctor(const std::string& arguments, const std::string& environment = "") {
    return shell("env -i PATH=/usr/bin:/bin " + environment + " " NCCLSCOPE_PROGRAM " doctor " +
                 arguments);
  }
  static std::string root(const std::string& machine) {
    return " --root " NCCLSCOPE_MACHINES "/" + machine;
  }
  std::string file(const std::string& name) const { return directory_ / name; }

  const tests::TemporaryDirectory directory_;
};

TEST_F(Doctor, ExitsByTheWorstFinding) {
  EXPECT_EQ(
      doctor("--nvidia-smi " NCCLSCOPE_MACHINE_DATA "/onesided.smi" + root("onesided")).status, 1);
  EXPECT_EQ(doctor("--fail-on never" + root("onesided")).status, 0);
  EXPECT_EQ(doctor(root("mig")).status, 0);
  EXPECT_EQ(doctor("--fail-on warning" + root("mig")).status, 1);
  EXPECT_EQ(doctor("--fail-on sometimes").status, 2);
  EXPECT_EQ(doctor("--nvidia-smi /nonexistent" + root("mig")).status, 2);
  EXPECT_EQ(doctor("--window never").status, 2);
  EXPECT_EQ(doctor("topology --from x" + root("mig")).status, 2);
}

TEST_F(Doctor, GivesScriptsJson) {
  const Outcome outcome = doctor("--json" + root("flatvm"));
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_GE(json["summary"]["problem"].get<int>(), 4);
  EXPECT_EQ(json["findings"][0]["level"], "problem");
  EXPECT_EQ(json["topology"]["gpus"].size(), 2U);
  EXPECT_EQ(json["topology"]["virtualised"], true);
}

TEST_F(Doctor, ReadsTheEnvironmentOfItsJob) {
  const Outcome outcome = doctor(root("rail8"), "NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx4");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("nccl-env: NCCL_IB_DISABLE: InfiniBand and RoCE are switched "
                                     "off although"));
  EXPECT_THAT(outcome.out, HasSubstr("called mlx4"));
}

TEST_F(Doctor, DescribesWritesAndChecksATopology) {
  EXPECT_EQ(
      shell(NCCLSCOPE_PROGRAM " doctor topology --describe" + root("flatvm") + " > " + file("m"))
          .status,
      0);
  Outcome outcome =
      doctor("topology --write " + file("t.xml") + " --from " + file("m") + root("flatvm"));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("NCCL_IB_MERGE_VFS=0"));
  EXPECT_EQ(doctor("topology --check " + file("t.xml") + root("flatvm")).status, 0);
  outcome = doctor("topology --check " + file("t.xml") + root("rail8"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("GPU0 is not in it"));
  outcome = doctor(root("rail8"), "NCCL_TOPO_FILE=" + file("t.xml"));
  EXPECT_THAT(outcome.out, HasSubstr("topology-file"));

  std::ofstream(file("m")) << "cpu 0\n  gpu five\n";
  outcome = doctor("topology --write " + file("u.xml") + " --from " + file("m") + root("flatvm"));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.out, HasSubstr("line 2"));
  EXPECT_FALSE(fs::exists(file("u.xml")));
  EXPECT_EQ(doctor("topology --write /nonexistent/t.xml" + root("rail8")).status, 2);
  EXPECT_EQ(doctor("topology --check /nonexistent/t.xml" + root("rail8")).status, 2);
}

TEST_F(Doctor, NamesAnInstallationThatIsNotThere) {
  const Outcome outcome = doctor("--agent unix:/nonexistent/api.sock --nccl libnccl-not-there.so",
                                 "NCCLSCOPE_SOCKET=" + file("none/agent.sock") +
                                     " NCCL_PROFILER_PLUGIN=libnccl-profiler-not-there.so");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("the socket's directory is missing"));
  EXPECT_THAT(outcome.out, HasSubstr("the plugin is not on the loader's path"));
  EXPECT_THAT(outcome.out, HasSubstr("the agent does not answer"));
  EXPECT_THAT(outcome.out, HasSubstr("which release jobs use is not known"));
}

}  // namespace
}  // namespace ncclscope::cli
