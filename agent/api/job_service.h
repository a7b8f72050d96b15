// SPDX-License-Identifier: Apache-2.0
//
// JobService: what SLURM's prolog and epilog report of the jobs on this node.
//   Thread: gRPC's, several at once.   Administrators only: the reports name the owner of a job,
//   which decides what its series are called.
#pragma once

#include "agent/api/call_context.h"
#include "agent/identity/job_reports.h"
#include "ncclscope/v1/agent.grpc.pb.h"

namespace ncclscope::agent {

class JobServiceImpl final : public v1::JobService::Service {
 public:
  /// `reports` may be null.
  JobServiceImpl(JobReports* reports, const CallContext& calls)
      : reports_(reports), calls_(calls) {}

  grpc::Status StartJob(grpc::ServerContext* context, const v1::StartJobRequest* request,
                        v1::StartJobResponse* response) override;
  grpc::Status EndJob(grpc::ServerContext* context, const v1::EndJobRequest* request,
                      v1::EndJobResponse* response) override;

 private:
  /// Who calls, whether that may be, and whether the id is one.
  [[nodiscard]] grpc::Status admit(const grpc::ServerContext& context,
                                   const std::string& slurm_job_id) const;

  JobReports* reports_;
  const CallContext& calls_;
};

}  // namespace ncclscope::agent
