// SPDX-License-Identifier: Apache-2.0
//
// The socket's directory in every wrong state, and libraries that are missing, cut off or of
// somebody else.
#include "cli/doctor/installation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "cli/doctor/nvml.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/topology/machines.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using topology::Finding;
using topology::Findings;
using topology::Level;

class Installation : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::chmod(root_.c_str(), 0755), 0); }
  void TearDown() override {
    if (listener_ >= 0) ::close(listener_);
  }
  std::string socket_path() const { return (root_ / "agent.sock").string(); }
  void bind_socket() {
    listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_path().c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::chmod(socket_path().c_str(), 0666), 0);
  }
  Finding socket() const {
    const Findings findings = check_socket(socket_path());
    EXPECT_EQ(findings.size(), 1U);
    return findings[0];
  }
  void expect_problem(const std::string& reason) const {
    const Finding f = socket();
    EXPECT_EQ(f.level, Level::kProblem);
    EXPECT_THAT(f.reason, HasSubstr(reason));
    EXPECT_FALSE(f.fix.empty());
  }

  const tests::TemporaryDirectory temporary_;
  const fs::path root_ = temporary_.path();
  int listener_ = -1;
};

TEST_F(Installation, WithAnAgentThatListensIsOk) {
  bind_socket();
  ASSERT_EQ(::listen(listener_, 4), 0);
  EXPECT_EQ(socket().level, Level::kOk);
}

TEST_F(Installation, IsNamedWithItsCureInEachWrongState) {
  expect_problem("no socket");
  std::ofstream(socket_path()) << "x";
  expect_problem("no socket");
  fs::remove(socket_path());
  bind_socket();
  expect_problem("nobody listens");
  ASSERT_EQ(::listen(listener_, 4), 0);
  ASSERT_EQ(::chmod(socket_path().c_str(), 0600), 0);
  expect_problem("cannot write to the socket");
  ASSERT_EQ(::chmod(socket_path().c_str(), 0666), 0);
  ASSERT_EQ(::chmod(root_.c_str(), 0777), 0);
  expect_problem("others can write");
  ASSERT_EQ(::chmod(root_.c_str(), 0700), 0);
  expect_problem("closed");
  fs::remove_all(root_);
  expect_problem("directory is missing");
}

TEST_F(Installation, WithoutThePluginOnTheLoadersPathIsAProblem) {
  const Findings findings = check_plugin("libnccl-profiler-not-there.so");
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_THAT(findings[0].reason, HasSubstr("not on the loader's path"));
}

TEST_F(Installation, WithAPluginThatIsCutOffIsAProblemAndDoesNotEndUs) {
  const std::string whole = topology::file_text(NCCLSCOPE_PLUGIN);
  ASSERT_GT(whole.size(), 10'000U);
  for (const std::size_t kept : {std::size_t{0}, std::size_t{100}, whole.size() / 3}) {
    const std::string path = (root_ / "libcut.so").string();
    std::ofstream(path, std::ios::trunc) << whole.substr(0, kept);
    const Findings findings = check_plugin(path);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].level, Level::kProblem) << kept;
    EXPECT_THAT(findings[0].reason, HasSubstr("cannot be loaded")) << findings[0].evidence;
  }
}

TEST_F(Installation, KnowsThePluginByWhatItExports) {
  Findings findings = check_plugin(NCCLSCOPE_PLUGIN);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kWarning);  // a path, which 2.27.3 does not take
  findings = check_plugin(NCCLSCOPE_FAKE_NVML);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_THAT(findings[0].reason, HasSubstr("no profiler plugin"));
}

TEST_F(Installation, KnowsNcclByItsRelease) {
  const Findings findings = check_nccl(NCCLSCOPE_FAKE_NVML);  // it has an ncclGetVersion, too
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_THAT(findings[0].reason, HasSubstr("NCCL 2.28.9 speaks version 5"));
  EXPECT_EQ(check_nccl("libnccl-not-there.so")[0].level, Level::kUnknown);
  EXPECT_EQ(check_nccl(NCCLSCOPE_PLUGIN)[0].level, Level::kProblem);
}

TEST(NcclRelease, IsReadFromItsNumber) {
  EXPECT_EQ(nccl_release(22809), "2.28.9");
  EXPECT_EQ(nccl_release(21805), "2.18.5");
  EXPECT_EQ(nccl_release(2804), "2.8.4");
  EXPECT_EQ(profiler_interface(22304), 1);
  EXPECT_EQ(profiler_interface(22501), 2);
  EXPECT_EQ(profiler_interface(22602), 3);
  EXPECT_EQ(profiler_interface(22707), 4);
  EXPECT_EQ(profiler_interface(22907), 6);
  EXPECT_EQ(profiler_interface(23102), 7);
  EXPECT_EQ(profiler_interface(22105), 0);
}

TEST(Nvml, TellsNvlinksCapabilityAndC2c) {
  topology::Machine machine = topology::read_machine(topology::roots_of("rail8"));
  ASSERT_EQ(add_nvml(machine, NCCLSCOPE_FAKE_NVML), "");
  EXPECT_TRUE(machine.nvlinks_known);
  EXPECT_EQ(machine.gpus[0].capability, 90);
  EXPECT_EQ(machine.gpus[0].nvlinks_active, 18);
  EXPECT_EQ(machine.gpus[3].nvlinks_active, 16);  // the fourth has lost two
  EXPECT_EQ(machine.gpus[0].nvlinks[3], 16);
  EXPECT_EQ(machine.gpus[0].nvlinks[1], 18);
  EXPECT_EQ(machine.gpus[0].c2c_links, 2);
  EXPECT_DOUBLE_EQ(machine.gpus[0].c2c_megabytes, 44'712);
}

TEST(Nvml, ThatIsMissingOrOfAnotherMachineLeavesEverythingAsItWas) {
  topology::Machine machine = topology::read_machine(topology::roots_of("rail8"));
  EXPECT_NE(add_nvml(machine, "libnvidia-ml-not-there.so.1"), "");
  EXPECT_THAT(add_nvml(machine, NCCLSCOPE_PLUGIN), HasSubstr("lacks nvmlInit_v2"));
  topology::Machine other = topology::read_machine(topology::roots_of("onesided"));
  EXPECT_THAT(add_nvml(other, NCCLSCOPE_FAKE_NVML), HasSubstr("does not know the GPU"));
  EXPECT_FALSE(machine.nvlinks_known);
  EXPECT_FALSE(other.nvlinks_known);
}

}  // namespace
}  // namespace ncclscope::cli
