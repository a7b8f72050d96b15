// SPDX-License-Identifier: Apache-2.0
//
// Finds out which job a process belongs to. ClaimsResolver believes what the process says of itself
// (its job is then "claimed"); a resolver that reads cgroups proves it and implements the same
// interface.
//   Thread: reactor.   Never fails: a process of which nothing is known belongs to the job
//   "unknown".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "agent/identity/job_identity.h"
#include "agent/ingest/session_state.h"

namespace ncclscope::agent {

class JobResolver {
 public:
  virtual ~JobResolver() = default;
  [[nodiscard]] virtual ProcessIdentity resolve(const PeerIdentity& peer,
                                                const HelloClaims& claims) = 0;
};

/// Names of users, remembered. A uid without a name is shown as its number.
class UserNames {
 public:
  [[nodiscard]] std::string name(std::int64_t uid);

 private:
  std::unordered_map<std::int64_t, std::string> names_;
};

class ClaimsResolver final : public JobResolver {
 public:
  /// `cluster` overrides SLURM_CLUSTER_NAME where it is not empty.
  explicit ClaimsResolver(std::string cluster) : cluster_(std::move(cluster)) {}
  [[nodiscard]] ProcessIdentity resolve(const PeerIdentity& peer,
                                        const HelloClaims& claims) override;

 private:
  std::string cluster_;
  UserNames users_;
};

/// The pod's name without what its controller appended to tell replicas apart: the random suffix of
/// a Job or ReplicaSet, the index of a StatefulSet or of an indexed Job, and Kubeflow's role.
[[nodiscard]] std::string_view without_replica_suffix(std::string_view pod);

}  // namespace ncclscope::agent
