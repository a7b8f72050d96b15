// SPDX-License-Identifier: Apache-2.0
//
// Parts of identity that whole trees do not show: when the pods' directories are listed again, and
// the edges of the small parsers.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "agent/identity/cgroup_text.h"
#include "agent/identity/pod_listing.h"
#include "agent/identity/proc_text.h"
#include "tests/support/temporary_directory.h"

namespace ncclscope::agent {
namespace {

const std::string kFirst = "0d7ff6d7-1f9a-4c5e-9a55-3f8f6ed2b0c4";
const std::string kSecond = "b8bffafc-562c-4c01-976f-d1eccfd17ec7";

class PodListingTest : public ::testing::Test {
 protected:
  void add(const std::string& name) { std::filesystem::create_directory(root_ + "/" + name); }
  /// As if the directory had last been changed `seconds` after some fixed time.
  void set_changed(int seconds) {
    std::filesystem::last_write_time(
        root_, std::filesystem::file_time_type() + std::chrono::seconds(seconds));
  }

  const tests::TemporaryDirectory temporary_;
  const std::string root_ = temporary_.path();
  FakeClock clock_;
};

TEST_F(PodListingTest, ListsOnceForAllPodsThatAreThere) {
  add("team-a_llm-0_" + kFirst);
  add("team-a_llm-1_" + kSecond);
  PodListing pods(root_, clock_);
  EXPECT_EQ(pods.find(kFirst), (PodName{"team-a", "llm-0"}));
  EXPECT_EQ(pods.find(kSecond), (PodName{"team-a", "llm-1"}));
  EXPECT_EQ(pods.listings(), 1u);
}

TEST_F(PodListingTest, ListsAgainForANewPodAtOnceButForAMissOnlyOnceASecond) {
  set_changed(1);
  PodListing pods(root_, clock_);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pods.find(kFirst), std::nullopt);
  EXPECT_EQ(pods.listings(), 1u) << "nothing has changed";
  add("team-a_llm-0_" + kFirst);
  set_changed(2);
  EXPECT_TRUE(pods.find(kFirst));
  EXPECT_EQ(pods.listings(), 2u);
  add("team-a_llm-1_" + kSecond);
  set_changed(2);  // a time stamp too coarse to tell
  EXPECT_FALSE(pods.find(kSecond));
  clock_.advance_ms(1001);
  EXPECT_TRUE(pods.find(kSecond));
  EXPECT_EQ(pods.listings(), 3u);
}

TEST_F(PodListingTest, IsEmptyWithoutADirectory) {
  PodListing pods(root_ + "/absent", clock_);
  EXPECT_EQ(pods.find(kFirst), std::nullopt);
  EXPECT_EQ(pods.find(kFirst), std::nullopt);
  EXPECT_EQ(pods.listings(), 1u);
}

TEST(ProcText, FindsTheStartBehindAnyName) {
  const std::string tail = " S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 1 1\n";
  EXPECT_EQ(parse_proc_stat("5 (a b) c)" + tail), (ProcessStart{'S', 777}));
  EXPECT_EQ(parse_proc_stat("5 (x\n9 (y) R 1)" + tail), (ProcessStart{'S', 777}));
  for (const char* bad : {"", "5", "5 (a)", "5 (a) S 1 2 3",
                          "5 (a) SS 1 1 1 0 -1 0 0 0 0 0 0 0 0 0"
                          " 20 0 1 0 777 1",
                          "5 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 -7 1"}) {
    EXPECT_EQ(parse_proc_stat(bad), std::nullopt) << bad;
  }
}

TEST(ProcText, KnowsWhichUidsANamespaceHas) {
  EXPECT_TRUE(maps_uid("         0          0 4294967295\n", 65534));
  EXPECT_FALSE(maps_uid("         0     100000      65534\n", 65534));
  EXPECT_TRUE(maps_uid("0 100000 1000\n65534 200000 1", 65534));
  EXPECT_FALSE(maps_uid("", 0));
  EXPECT_FALSE(maps_uid("x y z\n0\n0 0\n0 0 -1\n", 0));
}

TEST(CgroupText, KeepsUidsApartFromWhatOnlyLooksLikeOne) {
  EXPECT_EQ(normal_pod_uid("0d7ff6d7_1f9a_4c5e_9a55_3f8f6ed2b0c4"), kFirst);
  EXPECT_EQ(normal_pod_uid(kFirst), kFirst);
  EXPECT_EQ(normal_pod_uid("a8712c005851ee6b29cff91b9ab4b9c6"), "a8712c005851ee6b29cff91b9ab4b9c6");
  for (const char* bad :
       {"", "..", "0d7ff6d7-1f9a_4c5e-9a55-3f8f6ed2b0c4", "0D7FF6D7-1F9A-4C5E-9A55-3F8F6ED2B0C4",
        "0d7ff6d71f9a4c5e", "0d7ff6d7-1f9a-4c5e-9a55-3f8f6ed2b0c4-"}) {
    EXPECT_EQ(normal_pod_uid(bad), "") << bad;
  }
}

}  // namespace
}  // namespace ncclscope::agent
