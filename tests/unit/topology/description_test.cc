// SPDX-License-Identifier: Apache-2.0
#include "topology/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/topology/machines.h"

namespace ncclscope::topology {
namespace {

using ::testing::HasSubstr;

TEST(Description, OfAFlatVirtualMachineListsWhatIsToBeOrdered) {
  const std::string text = describe(machine_of("flatvm"));
  EXPECT_THAT(text, HasSubstr("cpu 0 cpus=0-31\n  gpu 0000:00:05.0\n  gpu 0000:00:06.0\n"
                              "  nic 0000:00:07.0\n  nic 0000:00:08.0\n"));
}

TEST(Description, BecomesATopologyFile) {
  const Description description = parse_description(
      "cpu 0 cpus=0-31  # the only one\n"
      "  switch speed=16 width=16\n"
      "    gpu 0000:00:05.0\n"
      "    nic 0000:00:07.0 speed=32 width=8\n"
      "\n"
      "  switch\n"
      "    gpu 0000:00:06.0\n"
      "    nic 0000:00:08.0\n");
  ASSERT_EQ(description.error, "");
  const std::string xml = write_xml(topology_file(description, machine_of("flatvm")));
  EXPECT_EQ(xml,
            R"(<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:00:05.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:00:07.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="8"/>
    </pci>
    <pci busid="ffff:02:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:00:06.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:00:08.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
</system>
)");
}

TEST(Description, OfEveryMachineGivesAFileThatNcclCanRead) {
  for (const std::string& name : machine_names()) {
    const Machine machine = machine_of(name);
    const Description description = parse_description(describe(machine));
    ASSERT_EQ(description.error, "") << name;
    const std::string xml = write_xml(topology_file(description, machine));
    for (const Finding& f : check_topology_file(name, xml, machine, Paths(machine)))
      EXPECT_LE(f.level, name == "flatvm" ? Level::kWarning : Level::kOk)
          << name << ": " << f.reason << " " << f.evidence << "\n"
          << xml;
  }
}

TEST(Description, NamesTheLineThatIsWrong) {
  const auto error = [](const std::string& text) { return parse_description(text).error; };
  EXPECT_THAT(error(""), HasSubstr("no line with a cpu"));
  EXPECT_THAT(error("gpu 0000:00:05.0\n"), HasSubstr("line 1: this stands below no cpu"));
  EXPECT_THAT(error("cpu 0\n  disk x\n"), HasSubstr("line 2: 'disk'"));
  EXPECT_THAT(error("cpu 0\n  gpu 5\n"), HasSubstr("PCI address"));
  EXPECT_THAT(error("cpu x\n"), HasSubstr("NUMA node"));
  EXPECT_THAT(error("cpu 0\n  cpu 1\n"), HasSubstr("below something"));
  EXPECT_THAT(error("cpu 0\n  gpu 0000:00:05.0\n    nic 0000:00:06.0\n"), HasSubstr("below a GPU"));
  EXPECT_THAT(error("cpu 0\n  switch speed=12\n"), HasSubstr("GT/s per lane"));
  EXPECT_THAT(error("cpu 0\n  switch width=64\n"), HasSubstr("1 to 32 lanes"));
  EXPECT_THAT(error("cpu 0 cpus=5-2\n"), HasSubstr("wanted a list"));
  EXPECT_THAT(error("cpu 0\n\tgpu 0000:00:05.0\n"), HasSubstr("indent by blanks"));
}

TEST(CpuMask, IsWrittenAsTheKernelWritesIt) {
  EXPECT_EQ(cpu_mask("0-3,8"), "0000010f");
  EXPECT_EQ(cpu_mask("32-33"), "00000003,00000000");
  EXPECT_EQ(cpu_mask(""), "");
  EXPECT_EQ(cpu_mask("1-"), "");
  EXPECT_EQ(cpu_mask("9999999"), "");
}

}  // namespace
}  // namespace ncclscope::topology
