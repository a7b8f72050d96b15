// SPDX-License-Identifier: Apache-2.0
#include "topology/prerequisites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/support/temporary_directory.h"
#include "tests/unit/topology/machines.h"

namespace ncclscope::topology {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A copy of one of the machines, to be changed.
class Prerequisites : public ::testing::Test {
 protected:
  void take(const std::string& machine) {
    fs::copy(fs::path(NCCLSCOPE_MACHINES) / machine, root_,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Roots roots() { return {FileTree(root_ / "sys"), FileTree(root_ / "proc")}; }
  Machine machine() { return read_machine(roots()); }
  Finding only(const Findings& findings) {
    EXPECT_EQ(findings.size(), 1U);
    return findings.empty() ? Finding{} : findings[0];
  }
  Finding access_control() {
    const Machine m = machine();
    return only(check_access_control(m, Paths(m), roots()));
  }

  const tests::TemporaryDirectory temporary_;
  const fs::path root_ = temporary_.path();
};

TEST_F(Prerequisites, OfGpudirectAreADriverModuleOrDmaBuf) {
  take("rail8");
  EXPECT_EQ(only(check_gpudirect(machine(), roots())).level, Level::kUnknown);
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1\n");
  write("proc/sys/kernel/osrelease", "5.15.0-105-generic\n");
  EXPECT_EQ(only(check_gpudirect(machine(), roots())).level, Level::kProblem);
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  570.1\n");
  EXPECT_EQ(only(check_gpudirect(machine(), roots())).level, Level::kOk);
  write("proc/sys/kernel/osrelease", "5.4.0\n");
  EXPECT_EQ(only(check_gpudirect(machine(), roots())).level, Level::kProblem);
  write("sys/module/nvidia_peermem/version", "570.1\n");
  EXPECT_THAT(only(check_gpudirect(machine(), roots())).reason, HasSubstr("nvidia-peermem"));
}

TEST_F(Prerequisites, IncludeBridgesThatDoNotRedirect) {
  take("rail8");
  EXPECT_EQ(access_control().level, Level::kOk);
  const Machine m = machine();
  const std::string bridge = m.device(m.find_device("0000:12:00.0"))->path;
  std::string config(4096, '\0');
  config[0x100] = 0x0d;
  config[0x102] = 0x01;
  config[0x106] = 0x1d;  // source validation, request and completion redirect, upstream forwarding
  write("sys" + bridge + "/config", config);
  const Finding redirecting = access_control();
  EXPECT_EQ(redirecting.level, Level::kProblem);
  EXPECT_THAT(redirecting.evidence, HasSubstr("0000:12:00.0"));
  // A capability list that runs in circles ends.
  config[0x100] = 0x01;
  config[0x102] = 0x01;
  config[0x103] = 0x10;  // next: 0x100
  write("sys" + bridge + "/config", config);
  EXPECT_EQ(access_control().level, Level::kOk);
}

TEST_F(Prerequisites, ThatOnlyRootSeesAreUnknownToOthers) {
  take("rail8");
  const Machine m = machine();
  write("sys" + m.device(m.find_device("0000:12:00.0"))->path + "/config", std::string(64, '\0'));
  const Finding f = access_control();
  EXPECT_EQ(f.level, Level::kUnknown);
  EXPECT_EQ(f.fix, "run as root");
}

TEST_F(Prerequisites, IncludeAnIommuThatPassesAddressesThrough) {
  take("rail8");
  EXPECT_EQ(only(check_iommu(machine(), roots())).level, Level::kOk);
  const Machine m = machine();
  const std::string gpu = m.device(m.gpus[0].pci)->path;
  write("sys" + gpu + "/iommu_group/type", "identity\n");
  EXPECT_EQ(only(check_iommu(machine(), roots())).level, Level::kOk);
  write("sys" + gpu + "/iommu_group/type", "DMA-FQ\n");
  EXPECT_EQ(only(check_iommu(machine(), roots())).level, Level::kWarning);
  fs::remove(root_ / ("sys" + gpu + "/iommu_group/type"));
  EXPECT_EQ(only(check_iommu(machine(), roots())).level, Level::kUnknown);
}

TEST_F(Prerequisites, AreNotJudgedInAVirtualMachine) {
  take("flatvm");
  const Machine m = machine();
  EXPECT_TRUE(check_access_control(m, Paths(m), roots()).empty());
  EXPECT_TRUE(check_iommu(m, roots()).empty());
}

TEST_F(Prerequisites, IncludeRoomInSharedMemory) {
  take("rail8");
  constexpr std::uint64_t kMiB = 1024 * 1024;
  ProcessLimits limits;
  EXPECT_EQ(only(check_shared_memory(machine(), limits)).level, Level::kProblem);
  limits.shm_bytes = 64 * kMiB;
  EXPECT_EQ(only(check_shared_memory(machine(), limits)).level, Level::kProblem);
  limits.shm_bytes = 512 * kMiB;
  EXPECT_EQ(only(check_shared_memory(machine(), limits)).level, Level::kWarning);
  limits.shm_bytes = 4096 * kMiB;
  EXPECT_EQ(only(check_shared_memory(machine(), limits)).level, Level::kOk);
}

TEST_F(Prerequisites, IncludeLockedMemory) {
  take("rail8");
  ProcessLimits limits;
  EXPECT_EQ(only(check_locked_memory(machine(), limits)).level, Level::kUnknown);
  limits.memlock_bytes = 65'536;
  EXPECT_EQ(only(check_locked_memory(machine(), limits)).level, Level::kProblem);
  limits.memlock_bytes = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(only(check_locked_memory(machine(), limits)).level, Level::kOk);
}

TEST_F(Prerequisites, IncludeDeviceFilesThatCanBeOpened) {
  take("mig");
  write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
  write("sys/class/infiniband_verbs/abi_version", "6\n");
  ProcessLimits limits;
  int gpu = 0, nic = 0;
  limits.open_error = [&](const std::string& path) {
    return path == "/dev/nvidia0" ? gpu : path == "/dev/infiniband/uverbs0" ? nic : ENXIO;
  };
  EXPECT_EQ(only(check_devices(machine(), roots(), limits)).level, Level::kOk);
  nic = ENOENT;
  Finding f = only(check_devices(machine(), roots(), limits));
  EXPECT_EQ(f.level, Level::kProblem);
  EXPECT_EQ(f.subject, "mlx5_0");
  nic = 0;
  gpu = EPERM;
  f = only(check_devices(machine(), roots(), limits));
  EXPECT_EQ(f.subject, "GPU0");
  EXPECT_THAT(f.reason, HasSubstr("control group"));
}

}  // namespace
}  // namespace ncclscope::topology
