// SPDX-License-Identifier: Apache-2.0
//
// Who a process is, from whole trees of procfs and log directories: one test for each directory of
// tests/data/identity. Its expected.json says what the kernel and the process say, and what the
// agent must make of it. What it does not mention must be empty.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/identity/job_resolver.h"
#include "agent/identity/peer_prover.h"

namespace ncclscope::agent {
namespace {

using nlohmann::json;
using wire::StringKey;

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(NCCLSCOPE_IDENTITY_CASES)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

StringKey key_of(const std::string& variable) {
  static const std::map<std::string, StringKey> kKeys = {
      {"SLURM_JOB_ID", StringKey::kSlurmJobId},
      {"SLURM_ARRAY_JOB_ID", StringKey::kSlurmArrayJobId},
      {"SLURM_ARRAY_TASK_ID", StringKey::kSlurmArrayTaskId},
      {"SLURM_HET_JOB_ID", StringKey::kSlurmHetJobId},
      {"SLURM_HET_JOB_OFFSET", StringKey::kSlurmHetJobOffset},
      {"SLURM_HET_SIZE", StringKey::kSlurmHetSize},
      {"SLURM_JOB_NAME", StringKey::kSlurmJobName},
      {"SLURM_JOB_PARTITION", StringKey::kSlurmJobPartition},
      {"SLURM_JOB_ACCOUNT", StringKey::kSlurmJobAccount},
      {"SLURM_CLUSTER_NAME", StringKey::kSlurmClusterName},
      {"SLURM_RESTART_COUNT", StringKey::kSlurmRestartCount},
      {"RANK", StringKey::kRank},
      {"NCCLSCOPE_JOB_NAME", StringKey::kJobName},
      {"NCCLSCOPE_POD_NAME", StringKey::kPodName},
      {"NCCLSCOPE_POD_NAMESPACE", StringKey::kPodNamespace},
  };
  return kKeys.at(variable);
}

const char* name_of(PeerProof::Outcome outcome) {
  using Outcome = PeerProof::Outcome;
  switch (outcome) {
    case Outcome::kNotAsked:
      return "not_asked";
    case Outcome::kRead:
      return "read";
    case Outcome::kNotVisible:
      return "not_visible";
    case Outcome::kGone:
      return "gone";
    case Outcome::kMayBeReused:
      return "may_be_reused";
    case Outcome::kUnreadable:
      return "unreadable";
    case Outcome::kContradictory:
      return "contradictory";
  }
  return "";
}

class Directory final : public JobDirectory {
 public:
  explicit Directory(const json& facts) : facts_(facts) {}
  [[nodiscard]] std::optional<JobFacts> find(std::string_view slurm_job_id) const override {
    const auto it = facts_.find(std::string(slurm_job_id));
    if (it == facts_.end()) return std::nullopt;
    JobFacts facts;
    facts.user = it->value("user", "");
    facts.uid = it->value("uid", std::int64_t{-1});
    facts.job_name = it->value("job_name", "");
    facts.partition = it->value("partition", "");
    facts.account = it->value("account", "");
    facts.array_job_id = it->value("array_job_id", "");
    facts.array_task = it->value("array_task", "");
    if (it->contains("restarts")) facts.restarts = it->at("restarts").get<std::uint32_t>();
    return facts;
  }

 private:
  json facts_;
};

/// What is set in `found`, as expected.json writes it.
json without_empty(const json& found) {
  json out = json::object();
  for (const auto& [key, value] : found.items()) {
    if (value != "" && value != json(0) && !(key == "slurm_uid" && value == -1)) out[key] = value;
  }
  return out;
}

class IdentityCase : public ::testing::TestWithParam<std::string> {};

TEST_P(IdentityCase, IsResolvedAsExpected) {
  const std::string root = std::string(NCCLSCOPE_IDENTITY_CASES) + "/" + GetParam();
  const json expected = json::parse(std::ifstream(root + "/expected.json"));
  SCOPED_TRACE(expected.at("about").get<std::string>());
  const FakeClock clock;
  const Directory facts(expected.value("facts", json::object()));
  PeerProver prover({.proc_root = root + "/proc", .pods_log_root = root + "/var/log/pods"}, facts,
                    clock);
  ProofResolver resolver("", facts);

  const json& said = expected.at("peer");
  PeerProver::Peer peer;
  peer.pid = said.at("pid");
  peer.uid = said.at("uid");
  std::size_t asked = 0;
  if (said.contains("pidfd")) {
    peer.alive = [&] { return said.at("pidfd").at(std::min<std::size_t>(asked++, 1)).get<bool>(); };
  }
  const auto ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  const std::uint64_t queue_empty = expected.value("queue_empty_ticks", std::uint64_t{0});
  const PeerIdentity identity = prover.prove(peer, queue_empty * (1'000'000'000 / ticks));
  HelloClaims claims;
  const json claimed = expected.value("claims", json::object());
  for (const auto& [variable, value] : claimed.items()) {
    claims.strings.emplace_back(key_of(variable), value.get<std::string>());
  }
  const ProcessIdentity process = resolver.resolve(identity, claims);

  const PeerProof& proof = identity.proof;
  EXPECT_EQ(without_empty({{"outcome", name_of(proof.outcome)},
                           {"slurm_job", proof.slurm_job},
                           {"slurm_step", proof.slurm_step},
                           {"slurm_task", proof.slurm_task},
                           {"slurm_uid", proof.slurm_uid},
                           {"pod_uid", proof.pod_uid},
                           {"pod_namespace", proof.pod_namespace},
                           {"pod_name", proof.pod_name},
                           {"container_id", proof.container_id},
                           {"runtime", proof.runtime}}),
            expected.at("proof"));
  json labels = without_empty({{"job_id", process.job.job_id},
                               {"identity_source", process.job.identity_source},
                               {"principal", identity.principal},
                               {"user", process.job.user},
                               {"cluster", process.job.cluster},
                               {"partition", process.job.partition},
                               {"account", process.job.account},
                               {"job_name", process.job.job_name},
                               {"array_task", process.job.array_task},
                               {"run", process.job.run},
                               {"kubernetes_namespace", process.job.kubernetes_namespace},
                               {"pod", process.job.pod},
                               {"global_rank", process.global_rank}});
  labels["mismatch"] = process.mismatch;
  labels["uid"] = process.job.uid;
  json wanted = without_empty(expected.at("identity"));
  wanted["mismatch"] = expected.at("identity").at("mismatch");
  wanted["uid"] = expected.at("identity").at("uid");
  if (wanted.contains("user") && wanted["user"] == "*") labels["user"] = "*";  // the system's name
  EXPECT_EQ(labels, wanted);
}

INSTANTIATE_TEST_SUITE_P(Trees, IdentityCase, ::testing::ValuesIn(cases()),
                         [](const auto& tree) { return tree.param; });

}  // namespace
}  // namespace ncclscope::agent
