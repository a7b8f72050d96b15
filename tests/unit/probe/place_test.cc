// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace ncclscope::cli::probe {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Place place_of(const Variables& variables, const PlaceOptions& options = {}) {
  return find_place(options, [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  });
}

const Variables kSrun{{"SLURM_JOB_ID", "4711"},
                      {"SLURM_STEP_ID", "2"},
                      {"SLURM_PROCID", "9"},
                      {"SLURM_STEP_NUM_TASKS", "16"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_JOB_NODELIST", "n[007-008]"},
                      {"SLURM_STEP_NODELIST", "n[007-008]"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(Place, IsOneProcessWithAllGpusWhereNobodySaysOtherwise) {
  const Place place = place_of({});
  EXPECT_EQ(place.error, "");
  EXPECT_EQ(place.processes, 1U);
  EXPECT_TRUE(place.alone_on_node);
}

TEST(Place, IsOneProcessInAPrologAndInABatchScript) {
  EXPECT_EQ(place_of({{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NODELIST", "n[1-4]"}}).processes, 1U);
  const Place batch = place_of({{"SLURM_JOB_ID", "4711"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "32"},
                                {"SLURM_JOB_NODELIST", "n[1-4]"}});
  EXPECT_EQ(batch.processes, 1U);
  EXPECT_TRUE(batch.alone_on_node);
}

TEST(Place, TakesAGpuForEachTaskOfSrun) {
  const Place place = place_of(kSrun);
  EXPECT_EQ(place.error, "");
  EXPECT_EQ(place.process, 9U);
  EXPECT_EQ(place.processes, 16U);
  EXPECT_EQ(place.local, 1U);
  EXPECT_FALSE(place.alone_on_node);
  EXPECT_FALSE(place.one_node);
  EXPECT_EQ(place.root_host, "n007");
  EXPECT_EQ(place.source, "SLURM");
}

TEST(Place, TakesAllGpusForTheOnlyTaskOfEachNode) {
  const Place place = place_of(with(kSrun, {{"SLURM_STEP_NUM_TASKS", "2"},

                                            {"SLURM_PROCID", "1"},
                                            {"SLURM_LOCALID", "0"}}));
  EXPECT_TRUE(place.alone_on_node);
  EXPECT_EQ(place.processes, 2U);
}

TEST(Place, TakesAGpuForEachTaskWhereOnlySomeNodesHaveSeveral) {
  const Place place = place_of(
      with(kSrun, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_FALSE(place.alone_on_node);
}

TEST(Place, MeetsAtLoopbackWhereAllTasksAreOnOneNode) {
  const Place place = place_of(with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_TRUE(place.one_node);
  EXPECT_EQ(place.root_host, "127.0.0.1");
}

TEST(Place, BelongsToAStepOfAJobAndNoOther) {
  const std::string key = place_of(kSrun).key;
  EXPECT_EQ(place_of(with(kSrun, {{"SLURM_PROCID", "3"}})).key, key);
  EXPECT_NE(place_of(with(kSrun, {{"SLURM_STEP_ID", "3"}})).key, key);
  EXPECT_NE(place_of(with(kSrun, {{"SLURM_RESTART_COUNT", "1"}})).key, key);
  EXPECT_EQ(place_of(with(kSrun, {{"NCCLSCOPE_PROBE_KEY", "secret"}})).key, "secret");
}

TEST(Place, BelievesTheLauncherThatStartedUsLast) {
  const Variables torchrun{{"RANK", "3"},           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
  Place place = place_of(with(kSrun, torchrun));
  EXPECT_EQ(place.source, "torchrun");
  EXPECT_EQ(place.process, 3U);
  EXPECT_EQ(place.root_host, "head");
  EXPECT_EQ(place.local, 1U);
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "5"},
                      {"OMPI_COMM_WORLD_SIZE", "6"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  place = place_of(with(kSrun, mpi));
  EXPECT_EQ(place.source, "Open MPI");
  EXPECT_EQ(place.processes, 6U);
  EXPECT_TRUE(place.alone_on_node);
  EXPECT_EQ(place.root_host, "n007");
  EXPECT_EQ(place_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, {-1, -1, -1, "a:7", ""}).source,
            "PMI");
}

TEST(Place, WantsToKnowWhereProcess0Is) {
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_THAT(place_of(mpi).error, HasSubstr("--rendezvous"));
  PlaceOptions options;
  options.rendezvous = "/shared";
  EXPECT_EQ(place_of(mpi, options).error, "");
  options = {};
  options.root = "[fe80::1]:777";
  EXPECT_EQ(place_of(mpi, options).root_host, "fe80::1");
  EXPECT_EQ(place_of(mpi, options).root_port, 777);
  options.root = "head";
  EXPECT_EQ(place_of(mpi, options).root_host, "head");
  EXPECT_EQ(place_of(mpi, options).root_port, 0);
  for (const char* bad : {"head:", "head:0", "head:70000", ":5", "[::1", "[::1]x"}) {
    options.root = bad;
    EXPECT_THAT(place_of(mpi, options).error, HasSubstr("HOST:PORT")) << bad;
  }
}

TEST(Place, DoesWhatOptionsSayBeforeAllElse) {
  PlaceOptions options;
  options.process = 2;
  options.processes = 3;
  options.root = "head:5000";
  Place place = place_of(kSrun, options);
  EXPECT_EQ(place.process, 2U);
  EXPECT_EQ(place.processes, 3U);
  EXPECT_EQ(place.root_port, 5000);
  EXPECT_TRUE(place.alone_on_node);
  options.local = 1;
  place = place_of(kSrun, options);
  EXPECT_FALSE(place.alone_on_node);
  EXPECT_EQ(place.local, 1U);
}

TEST(Place, RefusesNumbersThatCannotBe) {
  PlaceOptions options;
  options.process = 3;
  options.processes = 3;
  EXPECT_THAT(place_of({}, options).error, HasSubstr("process 3 of 3"));
  options.processes = -1;
  EXPECT_NE(place_of({}, options).error, "");
  EXPECT_NE(place_of(with(kSrun, {{"SLURM_PROCID", "16"}})).error, "");
  EXPECT_EQ(place_of(with(kSrun, {{"SLURM_PROCID", "x"}})).processes, 1U);
}

TEST(Place, ReadsTheFirstNameOfSlurmsLists) {
  EXPECT_EQ(first_host("login"), "login");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("n[008-010,12],login"), "n008");
  EXPECT_EQ(first_host("n[3,5]"), "n3");
  EXPECT_EQ(first_host("rack[1-2]n[05-09]"), "rack1n05");
  EXPECT_EQ(first_host("n[1-2]-ib,x"), "n1-ib");
  EXPECT_EQ(first_host("a,n[1-2]"), "a");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("n[1"), "");
}

TEST(Place, TriesPortsBelowThoseOfOutgoingConnections) {
  std::set<std::uint16_t> all;
  for (const char* key : {"4711.0", "4712.0", "x"}) {
    const auto ports = candidate_ports(key);
    EXPECT_EQ(ports, candidate_ports(key));
    EXPECT_EQ(std::set<std::uint16_t>(ports.begin(), ports.end()).size(), ports.size());
    for (const std::uint16_t port : ports) {
      EXPECT_GE(port, 20'000);
      EXPECT_LT(port, 32'000);
      all.insert(port);
    }
  }
  EXPECT_GT(all.size(), 16U);
}

}  // namespace
}  // namespace ncclscope::cli::probe
