// SPDX-License-Identifier: Apache-2.0
#include "topology/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/topology/machines.h"

namespace ncclscope::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Findings check(const std::vector<std::string>& environment, const std::string& machine = "rail8") {
  return check_settings(settings_of(environment), machine_of(machine));
}

/// The level of the one finding on one variable.
void expect(const std::string& setting, Level level, const std::string& reason,
            const std::string& machine = "rail8") {
  const Findings findings = check({setting}, machine);
  ASSERT_EQ(findings.size(), 1U) << setting;
  EXPECT_EQ(findings[0].level, level) << setting;
  EXPECT_EQ(findings[0].subject, setting.substr(0, setting.find('=')));
  EXPECT_THAT(findings[0].reason, HasSubstr(reason));
  EXPECT_THAT(findings[0].evidence, HasSubstr(setting));
  EXPECT_FALSE(findings[0].fix.empty());
}

TEST(NcclEnvironment, WithoutSettingsIsOk) {
  const Findings findings = check({"PATH=/bin", "NCCLSCOPE_DETAIL=full"});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
}

TEST(NcclEnvironment, NamesWhatMakesItSlow) {
  expect("NCCL_IB_DISABLE=1", Level::kProblem, "sockets");
  expect("NCCL_IB_DISABLE=1", Level::kWarning, "switched off", "nonic");
  expect("NCCL_P2P_DISABLE=1", Level::kProblem, "NVLink too");
  expect("NCCL_SHM_DISABLE=1", Level::kWarning, "shared memory");
  expect("NCCL_ALGO=Ring", Level::kWarning, "forced");
  expect("NCCL_PROTO=LL128", Level::kProblem, "corrupted");
  expect("NCCL_PROTO=LL", Level::kWarning, "half");
  expect("NCCL_NET_GDR_LEVEL=LOC", Level::kProblem, "switched off");
  expect("NCCL_NET_GDR_LEVEL=SYS", Level::kWarning, "between sockets");
  expect("NCCL_NET=Socket", Level::kProblem, "sockets are forced");
  expect("NCCL_P2P_LEVEL=NVL", Level::kWarning, "there is none", "onesided");
  expect("NCCL_BUFFSIZE=4M", Level::kProblem, "tiny");
  expect("NCCL_MAX_NCHANNELS=1", Level::kWarning, "cannot fill");
  expect("NCCL_IB_TIMEOUT=24", Level::kWarning, "exponent");
  expect("NCCL_IB_GID_INDEX=3", Level::kWarning, "RoCE only");
  expect("NCCL_IB_GID_INDEX=3", Level::kWarning, "fixed index", "roce");
  expect("NCCL_DEBUG=INFO", Level::kWarning, "debugging");
  expect("NCCL_TOPO_FILE=/nonexistent.xml", Level::kProblem, "in silence");
}

TEST(NcclEnvironment, NamesWhatDoesNothing) {
  expect("NCCL_P2P_LEVEL=pxb", Level::kProblem, "ignored in silence");
  expect("NCCL_IB_DISABLE=true", Level::kProblem, "NCCL reads 0");
  expect("NCCL_DEBUG_SUBSYS=NET", Level::kWarning, "nothing without NCCL_DEBUG");
  expect("NCCL_SOCKET_IFNAME=e", Level::kWarning, "one character");
  expect("NCCL_CHECKS_DISABLE=1", Level::kWarning, "any more");
}

TEST(NcclEnvironment, LeavesAloneWhatIsWell) {
  for (const char* setting :
       {"NCCL_IB_DISABLE=0", "NCCL_NET_GDR_LEVEL=PHB", "NCCL_NET_MERGE_LEVEL=PORT",
        "NCCL_DEBUG=WARN", "NCCL_IB_HCA==mlx5_0,mlx5_1", "NCCL_IB_HCA=mlx5", "NCCL_IB_TIMEOUT=22",
        "NCCL_IB_HCA=^mlx5_7", "NCCL_BUFFSIZE=8388608", "NCCL_SOCKET_IFNAME=ib0"})
    EXPECT_EQ(check({setting})[0].level, Level::kOk) << setting;
}

TEST(NcclEnvironment, NamesRdmaDevicesThatAreNotThere) {
  expect("NCCL_IB_HCA=mlx4", Level::kProblem, "called mlx4 or begins so");
  expect("NCCL_IB_HCA==mlx5", Level::kProblem, "called mlx5");
  expect("NCCL_IB_HCA==^mlx5_0", Level::kProblem, "'^' must come first");
  const Findings several = check({"NCCL_IB_HCA=mlx5_1"}, "roce");
  ASSERT_EQ(several.size(), 2U);
  EXPECT_THAT(several[0].reason, HasSubstr("mlx5_1, mlx5_10 are all meant"));
  EXPECT_THAT(several[1].reason, HasSubstr("mlx5_10 is named, but has no active port"));
  expect("NCCL_IB_HCA==mlx5_10:1", Level::kProblem, "no active port", "roce");
}

TEST(NcclEnvironment, NamesInterfacesThatAreSlowOrNotThere) {
  expect("NCCL_SOCKET_IFNAME=eth9", Level::kProblem, "no network interface");
  auto machine = machine_of("nonic");
  machine.interfaces.push_back({"eth1", -1, true, false, 100'000, "", {}});
  const Findings findings = check_settings(settings_of({"NCCL_SOCKET_IFNAME=eth0"}), machine);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].reason, HasSubstr("10000 Mbit/s, eth1 has 100000"));
}

TEST(NcclEnvironment, NamesWordsThatEndInAnError) {
  const Findings findings = check({"NCCL_ALGO=allreduce:tree,rong;^nvls"});
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[0].reason, HasSubstr("'rong' is not known"));
}

TEST(NcclEnvironment, OfAnotherContainerIsNotJudgedByFilesAndInterfacesOfThisOne) {
  const auto outside = [](const std::string& setting) {
    return check_settings(settings_of({setting}), machine_of("rail8"), Viewpoint::kOutside);
  };
  EXPECT_EQ(outside("NCCL_TOPO_FILE=/nonexistent.xml").at(0).level, Level::kOk);
  const Findings interface = outside("NCCL_SOCKET_IFNAME=bond7");
  EXPECT_EQ(interface.at(0).level, Level::kUnknown);
  EXPECT_THAT(interface.at(0).reason, HasSubstr("a network namespace of its own"));
  EXPECT_EQ(outside("NCCL_IB_HCA=mlx5_99").at(0).level, Level::kProblem);
}

TEST(NcclConf, GivesWayToTheEnvironmentAndToEarlierFiles) {
  Settings settings = settings_of({"NCCL_ALGO=Tree"});
  EXPECT_THAT(add_conf_file(settings, "/users/u/.nccl.conf",
                            "# a comment\nNCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n"),
              IsEmpty());
  EXPECT_THAT(add_conf_file(settings, "/etc/nccl.conf", "NCCL_DEBUG=INFO\nNCCL_IB_TC=106\n"),
              IsEmpty());
  EXPECT_EQ(settings["NCCL_ALGO"].value, "Tree");
  EXPECT_EQ(settings["NCCL_DEBUG"].source, "/users/u/.nccl.conf");
  EXPECT_EQ(settings["NCCL_IB_TC"].value, "106");
}

TEST(NcclConf, NamesLinesThatDoNotDoWhatTheyLookLike) {
  Settings settings;
  const Findings findings = add_conf_file(settings, "/etc/nccl.conf",
                                          "NCCL_DEBUG = WARN\n"
                                          "NCCL_PROTO=\"Simple\"\n"
                                          "NCCL_IB_TC=106\r\n"
                                          "NCCL_IB_SL=1 # lossless\n"
                                          "export everything\n"
                                          "\n");
  ASSERT_EQ(findings.size(), 5U);
  EXPECT_THAT(findings[0].reason, HasSubstr("blank in it"));
  EXPECT_THAT(findings[1].reason, HasSubstr("quotes"));
  EXPECT_THAT(findings[2].reason, HasSubstr("carriage return"));
  EXPECT_THAT(findings[3].reason, HasSubstr("comment"));
  EXPECT_THAT(findings[4].reason, HasSubstr("ignored"));
  EXPECT_THAT(findings[4].evidence, HasSubstr("line 5"));
}

TEST(NcclConf, OfAnyBytesIsRead) {
  Settings settings;
  std::string text(5000, '=');
  text += std::string("NCCL_\0=\0\n", 9) + std::string(3000, 'N') + "=x";
  (void)add_conf_file(settings, "conf", text);
  EXPECT_LE(settings.size(), 1U);
}

}  // namespace
}  // namespace ncclscope::topology
