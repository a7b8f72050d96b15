// SPDX-License-Identifier: Apache-2.0
//
// Job identity from the environment that a process reported.
#include "agent/identity/job_resolver.h"

#include <pwd.h>
#include <sys/types.h>

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
  using wire::StringKey;
  const auto get = [&](StringKey key) { return label_value(claims.get(key)); };
  const auto first_of = [&](std::initializer_list<StringKey> keys) {
    for (const StringKey key : keys) {
      if (std::string text = get(key); !text.empty()) return text;
    }
    return std::string();
  };

  ProcessIdentity identity;
  JobIdentity& job = identity.job;
  job.uid = peer.uid;
  job.user = users_.name(peer.uid);
  job.cluster = cluster_.empty() ? get(StringKey::kSlurmClusterName) : cluster_;
  identity.global_rank = first_of({StringKey::kRank, StringKey::kSlurmProcId});
  identity.local_rank = first_of({StringKey::kLocalRank, StringKey::kSlurmLocalId});
  if (std::int32_t n = 0; parse(std::string_view(identity.local_rank), n) && n >= 0 && n < 1024) {
    identity.local_index = n;
  }

  const std::string slurm_job = get(StringKey::kSlurmJobId);
  const std::string pod_namespace = get(StringKey::kPodNamespace);
  const std::string pod = get(StringKey::kPodName);
  const std::string job_name = get(StringKey::kJobName);
  job.identity_source = "claimed";
  if (!slurm_job.empty()) {
    const std::string array_job = get(StringKey::kSlurmArrayJobId);
    const std::string array_task = get(StringKey::kSlurmArrayTaskId);
    const std::string het_job = get(StringKey::kSlurmHetJobId);
    if (!array_job.empty() && !array_task.empty()) {
      job.job_id = label_value(concat(array_job, "_", array_task));
      job.array_task = array_task;
    } else {
      job.job_id = het_job.empty() ? slurm_job : het_job;
    }
    job.job_name = get(StringKey::kSlurmJobName);
    job.partition = get(StringKey::kSlurmJobPartition);
    job.account = get(StringKey::kSlurmJobAccount);
    if (job.user.empty()) job.user = get(StringKey::kSlurmJobUser);
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

}  // namespace ncclscope::agent
