// SPDX-License-Identifier: Apache-2.0
//
// Job identity from the kernel's proof and from the environment that a process reported.
#include "agent/identity/job_resolver.h"

#include <pwd.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "agent/base/result.h"
#include "agent/identity/label_value.h"

namespace ncclscope::agent {
namespace {

template <typename Number>
bool parse(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool all_of_alphabet(std::string_view text, std::string_view alphabet) {
  return !text.empty() && text.find_first_not_of(alphabet) == std::string_view::npos;
}

/// Cuts "-<last>" off `name` if `accept(last)` and something is left.
template <typename Accept>
bool cut_last(std::string_view& name, Accept&& accept) {
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || dash == 0 || !accept(name.substr(dash + 1))) return false;
  name = name.substr(0, dash);
  return true;
}

using wire::StringKey;

std::string claim(const HelloClaims& claims, StringKey key) {
  return label_value(claims.get(key));
}

bool is_number(std::string_view text) {
  std::uint32_t value = 0;
  return parse(text, value);
}

/// Id of the heterogeneous job that the process says it belongs to; empty: it says nothing of one.
/// Its steps are told only how many components there are, and the leader's id for their own.
std::string_view claimed_het_leader(const HelloClaims& claims) {
  const std::string_view leader = claims.get(StringKey::kSlurmHetJobId);
  if (!leader.empty() || claims.get(StringKey::kSlurmHetSize).empty()) return leader;
  return claims.get(StringKey::kSlurmJobId);
}

/// Whether what a process says of its SLURM job is said of the job `proved`.
bool claims_are_of(std::string_view proved, const HelloClaims& claims) {
  if (claims.get(StringKey::kSlurmJobId) == proved) return true;
  // The components of a heterogeneous job go by ids of their own, which follow the leader's without
  // a gap.
  constexpr std::uint64_t kMaxComponents = 128;  // MAX_HET_JOB_COMPS
  std::uint64_t leader = 0, own = 0, offset = 0, size = 0;
  if (!parse(claimed_het_leader(claims), leader) || !parse(proved, own) || own < leader) {
    return false;
  }
  if (parse(claims.get(StringKey::kSlurmHetJobOffset), offset)) return own - leader == offset;
  return parse(claims.get(StringKey::kSlurmHetSize), size) &&
         own - leader < std::min(size, kMaxComponents);
}

/// What only the process can say: its place in its job.
ProcessIdentity place_of(const HelloClaims& claims, const std::string& cluster) {
  const auto first_of = [&](StringKey first, StringKey second) {
    std::string text = claim(claims, first);
    return text.empty() ? claim(claims, second) : text;
  };
  ProcessIdentity identity;
  identity.job.cluster = cluster.empty() ? claim(claims, StringKey::kSlurmClusterName) : cluster;
  identity.global_rank = first_of(StringKey::kRank, StringKey::kSlurmProcId);
  identity.local_rank = first_of(StringKey::kLocalRank, StringKey::kSlurmLocalId);
  if (std::int32_t n = 0; parse(std::string_view(identity.local_rank), n) && n >= 0 && n < 1024) {
    identity.local_index = n;
  }
  return identity;
}

}  // namespace

std::string_view without_replica_suffix(std::string_view pod) {
  // Kubernetes' random suffixes leave out vowels and digits that look like letters.
  constexpr std::string_view kRandom = "bcdfghjklmnpqrstvwxz2456789";
  constexpr std::string_view kDigits = "0123456789";
  std::string_view name = pod;
  const bool random = cut_last(
      name, [&](std::string_view s) { return s.size() == 5 && all_of_alphabet(s, kRandom); });
  if (random) {
    // A ReplicaSet's template hash has digits; a word of a name that has some is rare enough.
    cut_last(name, [&](std::string_view s) {
      return s.size() >= 8 && s.size() <= 10 && all_of_alphabet(s, kRandom) &&
             s.find_first_of(kDigits) != std::string_view::npos;
    });
  }
  const bool indexed =
      cut_last(name, [&](std::string_view s) { return all_of_alphabet(s, kDigits); });
  if (indexed) {
    cut_last(name, [](std::string_view s) {
      return s == "worker" || s == "master" || s == "launcher" || s == "chief" || s == "ps";
    });
  } else {
    cut_last(name, [](std::string_view s) { return s == "launcher"; });
  }
  return name;
}

std::string UserNames::name(std::int64_t uid) {
  if (uid < 0) return {};
  if (const auto it = names_.find(uid); it != names_.end()) return it->second;
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  std::string text = std::to_string(uid);
  if (getpwuid_r(static_cast<uid_t>(uid), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    text = label_value(found->pw_name);
  }
  constexpr std::size_t kRemembered = 4096;
  if (names_.size() < kRemembered) names_.emplace(uid, text);
  return text;
}

ProcessIdentity ClaimsResolver::resolve(const PeerIdentity& peer, const HelloClaims& claims) {
  ProcessIdentity identity = place_of(claims, cluster_);
  JobIdentity& job = identity.job;
  job.uid = peer.uid;
  job.user = users_.name(peer.uid);

  const std::string slurm_job = claim(claims, StringKey::kSlurmJobId);
  const std::string pod_namespace = claim(claims, StringKey::kPodNamespace);
  const std::string pod = claim(claims, StringKey::kPodName);
  const std::string job_name = claim(claims, StringKey::kJobName);
  job.identity_source = "claimed";
  if (!slurm_job.empty()) {
    const std::string array_job = claim(claims, StringKey::kSlurmArrayJobId);
    const std::string array_task = claim(claims, StringKey::kSlurmArrayTaskId);
    const std::string het_job = claim(claims, StringKey::kSlurmHetJobId);
    if (!array_job.empty() && !array_task.empty()) {
      job.job_id = label_value(concat(array_job, "_", array_task));
      job.array_task = array_task;
    } else {
      job.job_id = het_job.empty() ? slurm_job : het_job;
    }
    job.job_name = claim(claims, StringKey::kSlurmJobName);
    job.partition = claim(claims, StringKey::kSlurmJobPartition);
    job.account = claim(claims, StringKey::kSlurmJobAccount);
    if (job.user.empty()) job.user = claim(claims, StringKey::kSlurmJobUser);
    parse(claims.get(StringKey::kSlurmRestartCount), job.run);
  } else if (!pod_namespace.empty() && (!pod.empty() || !job_name.empty())) {
    job.kubernetes_namespace = pod_namespace;
    job.pod = pod;
    job.job_name = job_name.empty() ? std::string(without_replica_suffix(pod)) : job_name;
    job.job_id = label_value(concat(pod_namespace, "/", job.job_name));
  } else if (!job_name.empty()) {
    job.job_id = job_name;
    job.job_name = job_name;
  } else {
    job.job_id = "unknown";
    job.identity_source = "unknown";
  }
  return identity;
}

void ProofResolver::describe_slurm_job(const PeerIdentity& peer, const HelloClaims& claims,
                                       ProcessIdentity& identity) {
  const PeerProof& proof = peer.proof;
  JobIdentity& job = identity.job;
  JobFacts facts = jobs_.find(proof.slurm_job).value_or(JobFacts{});
  // An id that has been given to somebody else since, or another cluster's: not this job.
  // Inside a pod, whose root may call anything a job, the owner must at least be the user who runs.
  const std::int64_t owner = proof.slurm_uid >= 0 ? proof.slurm_uid
                             : proof.in_pod()     ? peer.uid
                                                  : -1;
  if (owner >= 0 && facts.uid >= 0 && facts.uid != owner) facts = {};
  const bool ours = claims_are_of(proof.slurm_job, claims);
  identity.mismatch = !ours && !claims.get(StringKey::kSlurmJobId).empty();
  const auto known = [&](const std::string& fact, StringKey key) {
    if (!fact.empty()) return label_value(fact);
    return ours ? claim(claims, key) : std::string();
  };

  job.uid = proof.slurm_uid >= 0 ? proof.slurm_uid : facts.uid >= 0 ? facts.uid : peer.uid;
  job.user = facts.user.empty() ? users_.name(job.uid) : label_value(facts.user);
  if (job.user.empty() && ours) job.user = claim(claims, StringKey::kSlurmJobUser);
  job.job_name = known(facts.job_name, StringKey::kSlurmJobName);
  job.partition = known(facts.partition, StringKey::kSlurmJobPartition);
  job.account = known(facts.account, StringKey::kSlurmJobAccount);
  if (facts.restarts) {
    job.run = *facts.restarts;
  } else if (ours) {
    parse(claims.get(StringKey::kSlurmRestartCount), job.run);
  }

  const std::string array_job = known(facts.array_job_id, StringKey::kSlurmArrayJobId);
  const std::string array_task = known(facts.array_task, StringKey::kSlurmArrayTaskId);
  std::string het_job = facts.het_job_id;
  if (het_job.empty() && ours) het_job = claimed_het_leader(claims);
  if (is_number(array_job) && is_number(array_task)) {
    job.job_id = concat(array_job, "_", array_task);
    job.array_task = array_task;
  } else {
    job.job_id = is_number(het_job) ? het_job : proof.slurm_job;
  }
}

ProcessIdentity ProofResolver::resolve(const PeerIdentity& peer, const HelloClaims& claims) {
  const PeerProof& proof = peer.proof;
  if (!proof.in_slurm() && !proof.in_pod()) return claims_resolver_.resolve(peer, claims);

  ProcessIdentity identity = place_of(claims, cluster_);
  JobIdentity& job = identity.job;
  job.identity_source = "cgroup";
  job.kubernetes_namespace = proof.pod_namespace;
  job.pod = label_value(proof.pod_name);
  const std::string_view claimed_namespace = claims.get(StringKey::kPodNamespace);
  const bool foreign = !claimed_namespace.empty() && claimed_namespace != proof.pod_namespace &&
                       (proof.in_slurm() || !proof.pod_namespace.empty());
  if (proof.in_slurm()) {
    describe_slurm_job(peer, claims, identity);
  } else {
    // In a pod a uid names nobody: it may be anything the pod's author has written.
    identity.mismatch = !claims.get(StringKey::kSlurmJobId).empty();
    if (proof.pod_name.empty()) {
      job.job_id = concat("pod:", proof.pod_uid);
    } else {
      if (!foreign) job.job_name = claim(claims, StringKey::kJobName);
      if (job.job_name.empty()) job.job_name = without_replica_suffix(job.pod);
      job.job_id = label_value(concat(proof.pod_namespace, "/", job.job_name));
    }
  }
  if (foreign) identity.mismatch = true;
  return identity;
}

}  // namespace ncclscope::agent
