// SPDX-License-Identifier: Apache-2.0
//
// Finds out which job a process belongs to: what the kernel proved when it connected (PeerProof),
// else what the process says of itself, else nothing.
//   Thread: reactor.   Never fails: a process of which nothing is known belongs to the job
//   "unknown".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "agent/identity/job_directory.h"
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

/// Believes what the process says of itself: its job is "claimed".
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

/// Believes the kernel: a job or pod that the peer's cgroup names is the job, whatever the process
/// says, and identity_source is "cgroup". Claims fill in what the kernel cannot say, if they are of
/// that very job. A process whose cgroup names no job goes by its claims.
///
/// job_id is
///   SLURM       the job's id; <array>_<task> and the leader's id of a heterogeneous job where the
///               directory says so, or claims that belong to the proved id
///   Kubernetes  <namespace>/<job>, job = claimed name, else the pod's without its replica suffix;
///               pod:<uid> where the node does not tell the pod's name
class ProofResolver final : public JobResolver {
 public:
  /// `jobs` must outlive it.
  ProofResolver(std::string cluster, const JobDirectory& jobs)
      : cluster_(cluster), jobs_(jobs), claims_resolver_(std::move(cluster)) {}
  [[nodiscard]] ProcessIdentity resolve(const PeerIdentity& peer,
                                        const HelloClaims& claims) override;

 private:
  void describe_slurm_job(const PeerIdentity& peer, const HelloClaims& claims,
                          ProcessIdentity& identity);

  std::string cluster_;
  const JobDirectory& jobs_;
  ClaimsResolver claims_resolver_;
  UserNames users_;
};

/// The pod's name without what its controller appended to tell replicas apart: the random suffix of
/// a Job or ReplicaSet, the index of a StatefulSet or of an indexed Job, and Kubeflow's role.
[[nodiscard]] std::string_view without_replica_suffix(std::string_view pod);

}  // namespace ncclscope::agent
