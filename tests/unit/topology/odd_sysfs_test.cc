// SPDX-License-Identifier: Apache-2.0
//
// A /sys in which things are missing, strange or malicious: nothing crashes, nothing is "ok" that
// was not seen.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"
#include "topology/checks.h"
#include "topology/machine.h"
#include "topology/matrix.h"
#include "topology/paths.h"

namespace ncclscope::topology {
namespace {

namespace fs = std::filesystem;

class OddSysfs : public ::testing::Test {
 protected:
  OddSysfs() { fs::create_directories(root_ / "bus/pci/devices"); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void gpu(const std::string& address) {
    const std::string path = "devices/pci0000:00/" + address;
    write(path + "/class", "0x030200\n");
    write(path + "/vendor", "0x10de\n");
    fs::create_symlink("../../../" + path, root_ / "bus/pci/devices" / address);
  }
  Machine read() { return read_machine({FileTree(root_), FileTree(root_ / "proc")}); }

  const tests::TemporaryDirectory temporary_;
  const fs::path root_ = temporary_.path();
};

TEST_F(OddSysfs, ThatIsEmptyHasNothingOk) {
  const Machine machine = read();
  EXPECT_TRUE(machine.gpus.empty());
  for (const Finding& f : check_topology(machine, Paths(machine))) EXPECT_NE(f.level, Level::kOk);
  EXPECT_EQ(smi_matrix(machine, Paths(machine)), "\n");
}

TEST_F(OddSysfs, ThatIsMissingIsEmpty) {
  const Machine machine = read_machine({FileTree("/nonexistent/sys"), FileTree("/nonexistent")});
  EXPECT_TRUE(machine.devices.empty());
}

TEST_F(OddSysfs, WithoutAttributesCountsAsUnknown) {
  gpu("0000:00:05.0");
  gpu("0000:00:06.0");
  const Machine machine = read();
  ASSERT_EQ(machine.gpus.size(), 2U);
  const Paths paths(machine);
  EXPECT_EQ(paths.gpu_gpu(0, 1).type, PathType::kPhb);
  EXPECT_DOUBLE_EQ(paths.gpu_gpu(0, 1).gigabytes, 12);
  for (const Finding& f : check_pcie_links(machine)) EXPECT_EQ(f.level, Level::kUnknown);
}

TEST_F(OddSysfs, WithNonsenseInsteadOfNumbersCountsAsUnknown) {
  gpu("0000:00:05.0");
  const std::string path = "devices/pci0000:00/0000:00:05.0/";
  write(path + "numa_node", "many\n");
  write(path + "max_link_width", "99999999999999999999\n");
  write(path + "max_link_speed", "-5 GT/s\n");
  write(path + "current_link_width", "255\n");
  write(path + "current_link_speed", std::string(200'000, '9'));
  const Machine machine = read();
  ASSERT_EQ(machine.gpus.size(), 1U);
  EXPECT_EQ(machine.device(0)->numa_node, -1);
  EXPECT_EQ(machine.device(0)->maximum.lanes, 0U);
  EXPECT_EQ(machine.device(0)->maximum.gigatransfers, 0);
  EXPECT_EQ(machine.device(0)->now.lanes, 0U);
  for (const Finding& f : check_pcie_links(machine)) EXPECT_EQ(f.level, Level::kUnknown);
}

TEST_F(OddSysfs, DoesNotLeadOutOfItsRootOrIntoPipes) {
  fs::create_symlink("/etc", root_ / "bus/pci/devices/0000:00:01.0");
  fs::create_symlink("nowhere", root_ / "bus/pci/devices/0000:00:02.0");
  fs::create_symlink("0000:00:03.0", root_ / "bus/pci/devices/0000:00:03.0");
  gpu("0000:00:05.0");
  const std::string path = "devices/pci0000:00/0000:00:05.0/";
  ASSERT_EQ(::mkfifo((root_ / (path + "numa_node")).c_str(), 0600), 0);
  fs::create_directories(root_ / (path + "max_link_speed"));
  const Machine machine = read();
  EXPECT_EQ(machine.devices.size(), 1U);
  EXPECT_EQ(machine.device(0)->numa_text, "");
}

TEST_F(OddSysfs, WithAnRdmaDeviceWithoutPortsHasNoActiveNic) {
  gpu("0000:00:05.0");
  fs::create_directories(root_ / "class/infiniband/rxe0");
  const Machine machine = read();
  ASSERT_EQ(machine.nics.size(), 1U);
  EXPECT_FALSE(machine.nics[0].active());
  EXPECT_EQ(Paths(machine).rail(0).nic, -1);
  for (const Finding& f : check_rails(machine, Paths(machine))) EXPECT_NE(f.level, Level::kOk);
}

}  // namespace
}  // namespace ncclscope::topology
