// SPDX-License-Identifier: Apache-2.0
//
// What differs between the ranks of a job, and how it is told.
#include "cli/diagnose/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ncclscope::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::vector<std::pair<std::string, std::string>>;

/// A job's processes on one node, of which some share an environment.
class Node {
 public:
  Node& processes(int first, int last, const Variables& variables, std::uint32_t nccl = 22809,
                  const std::string& state = "connected") {
    v1::ProcessEnvironment* e = job_.add_environments();
    e->set_known(true);
    e->set_judged(true);
    for (const auto& [name, value] : variables) {
      v1::Variable* v = e->add_variables();
      v->set_name(name);
      v->set_value(value);
    }
    for (int rank = first; rank <= last; ++rank) {
      v1::Process* p = e->add_processes();
      p->set_pid(1000 + rank);
      p->set_session_id(static_cast<std::uint64_t>(rank) + 1);
      p->set_state(state);
      p->set_global_rank(std::to_string(rank));
      p->set_plugin_version("0.1.0");
      p->set_nccl_version(nccl);
    }
    return *this;
  }
  Node& finding(const std::string& level, const std::string& evidence) {
    v1::SettingFinding* f = job_.mutable_environments(job_.environments_size() - 1)->add_findings();
    f->set_level(level);
    f->set_variable(evidence.substr(0, evidence.find('=')));
    f->set_evidence(evidence);
    f->set_reason("it harms");
    f->set_fix("unset it");
    return *this;
  }
  v1::JobSnapshot& job() { return job_; }

 private:
  v1::JobSnapshot job_;
};

Configuration collect(std::vector<std::pair<std::string, Node>> nodes) {
  ConfigurationCollector collector;
  for (auto& [name, node] : nodes) collector.add(node.job(), name);
  return collector.finish();
}

TEST(Ranges, AreShort) {
  EXPECT_EQ(format_ranges({}), "");
  EXPECT_EQ(format_ranges({7}), "7");
  EXPECT_EQ(format_ranges({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(JobConfiguration, NamesVariablesThatDifferWithValuesAndRanks) {
  const Configuration c = collect(
      {{"gpu1", Node().processes(0, 7, {{"NCCL_IB_HCA", "mlx5_0"}, {"NCCL_DEBUG", "WARN"}})},
       {"gpu2", Node().processes(8, 15, {{"NCCL_DEBUG", "WARN"}})}});
  ASSERT_EQ(c.differences.size(), 1u);
  EXPECT_EQ(difference_text(c.differences[0]),
            "NCCL_IB_HCA: mlx5_0 on ranks 0-7 (gpu1); unset on ranks 8-15 (gpu2)");
  EXPECT_TRUE(c.untold.empty());
  EXPECT_EQ(c.told.ranks.size(), 16u);
}

TEST(JobConfiguration, TellsAnEmptyValueFromAnUnsetOne) {
  const Configuration c = collect({{"a", Node().processes(0, 0, {{"NCCL_ALGO", ""}})},
                                   {"b", Node().processes(1, 1, {})},
                                   {"c", Node().processes(2, 2, {})}});
  ASSERT_EQ(c.differences.size(), 1u);
  EXPECT_EQ(difference_text(c.differences[0]),
            "NCCL_ALGO: empty on rank 0 (a); unset on ranks 1-2 (b, c)");
  const auto json = configuration_json(c);
  EXPECT_EQ(json["differences"][0]["values"][0]["value"], "");
  EXPECT_TRUE(json["differences"][0]["values"][1]["value"].is_null());
}

TEST(JobConfiguration, NamesReleasesThatDiffer) {
  Node mixed;
  mixed.processes(0, 1, {}, 22809).processes(2, 3, {}, 22705);
  mixed.job().mutable_environments(1)->mutable_processes(1)->set_plugin_version("0.2.0");
  const Configuration c = collect({{"a", mixed}});
  ASSERT_EQ(c.differences.size(), 2u);
  EXPECT_EQ(difference_text(c.differences[0]),
            "NCCL: 2.28.9 on ranks 0-1 (a); 2.27.5 on ranks 2-3 (a)");
  EXPECT_EQ(difference_text(c.differences[1]),
            "plugin: 0.1.0 on ranks 0-2 (a); 0.2.0 on rank 3 (a)");
}

TEST(JobConfiguration, ComparesOnlyWhatIsKnownAndConnected) {
  Node silent;
  silent.processes(2, 3, {});
  silent.job().mutable_environments(0)->set_known(false);
  Node earlier;
  earlier.processes(0, 0, {{"NCCL_ALGO", "Tree"}}, 22705, "gone");
  const Configuration c = collect(
      {{"a", Node().processes(0, 1, {{"NCCL_ALGO", "Ring"}})}, {"b", silent}, {"c", earlier}});
  EXPECT_TRUE(c.differences.empty());
  EXPECT_EQ(c.untold.text(), "ranks 2-3 (b)");
  EXPECT_EQ(configuration_text(c, 10), "") << "nothing to tell";
}

TEST(JobConfiguration, LeavesOutWhatIsMeantToDiffer) {
  const Configuration c = collect({{"a", Node().processes(0, 0, {{"NCCL_HOSTID", "a"}})},
                                   {"b", Node().processes(1, 1, {{"NCCL_HOSTID", "b"}})}});
  EXPECT_TRUE(c.differences.empty());
}

TEST(JobConfiguration, TakesTheRankOfTheLargestCommunicatorWhereNoneIsClaimed) {
  Node node;
  node.processes(0, 1, {});
  for (v1::Process& p : *node.job().mutable_environments(0)->mutable_processes())
    p.clear_global_rank();
  const auto communicator = [&](const std::string& comm, std::uint32_t nranks, std::int32_t rank) {
    v1::Communicator* c = node.job().add_communicators();
    c->set_comm(comm);
    c->set_nranks(nranks);
    v1::RankProgress* p = node.job().add_progress();
    p->set_comm(comm);
    p->set_session_id(1);
    p->set_rank(rank);
  };
  communicator("tp", 2, 0);
  communicator("world", 64, 17);
  EXPECT_EQ(collect({{"a", node}}).told.text(), "rank 17 and pid 1001 of a (a)");
}

TEST(JobConfiguration, PutsEqualFindingsOfNodesTogetherWorstFirst) {
  const Configuration c = collect(
      {{"a",
        Node().processes(0, 1, {{"NCCL_DEBUG", "INFO"}}).finding("warning", "NCCL_DEBUG=INFO")},
       {"b", Node()
                 .processes(2, 3, {{"NCCL_DEBUG", "INFO"}, {"NCCL_IB_HCA", "x"}})
                 .finding("warning", "NCCL_DEBUG=INFO")
                 .finding("problem", "NCCL_IB_HCA=x")}});
  ASSERT_EQ(c.problems.size(), 2u);
  EXPECT_EQ(c.problems[0].variable, "NCCL_IB_HCA");
  EXPECT_EQ(c.problems[1].holders.text(), "ranks 0-3 (a, b)");
  const std::string text = configuration_text(c, 10);
  EXPECT_THAT(text, HasSubstr("Configuration differs between ranks:\n  NCCL_IB_HCA: unset on ranks "
                              "0-1 (a); x on ranks 2-3 (b)\n"));
  EXPECT_THAT(text, HasSubstr("  problem: NCCL_IB_HCA=x on ranks 2-3 (b): it harms; unset it\n"));
  EXPECT_THAT(configuration_text(c, 1), HasSubstr("and 1 more"));
}

TEST(JobConfiguration, DoesNotSteerTerminalsAndKeepsLinesShort) {
  const Configuration c =
      collect({{"a", Node().processes(0, 0, {{"NCCL_X", "a\x1b[2J" + std::string(300, 'v')}})},
               {"b", Node().processes(1, 1, {})}});
  const std::string text = configuration_text(c, 10);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_LT(text.size(), 250u);
}

}  // namespace
}  // namespace ncclscope::cli
