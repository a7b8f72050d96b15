// SPDX-License-Identifier: Apache-2.0
//
// AgentService: reads the newest snapshot and the operation tail; hands detail control to the
// reactor.
//   Thread: gRPC's, several at once.   A call sees the jobs of its caller only; an administrator
//   sees all.
#pragma once

#include <cstddef>
#include <string>

#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/settings_judge.h"
#include "agent/aggregate/snapshot_store.h"
#include "agent/aggregate/throughput.h"
#include "agent/api/call_context.h"
#include "agent/ingest/gateway.h"
#include "ncclscope/v1/agent.grpc.pb.h"

namespace ncclscope::agent {

class AgentServiceImpl final : public v1::AgentService::Service {
 public:
  /// `detail`, `throughput` and `judge` may be null.
  AgentServiceImpl(const SnapshotStore& snapshots, const OperationTail& tail, DetailControl* detail,
                   ThroughputReports* throughput, const SettingsJudge* judge,
                   const CallContext& calls, std::size_t max_tails);

  grpc::Status GetSnapshot(grpc::ServerContext* context, const v1::GetSnapshotRequest* request,
                           v1::GetSnapshotResponse* response) override;
  grpc::Status TailOperations(grpc::ServerContext* context,
                              const v1::TailOperationsRequest* request,
                              grpc::ServerWriter<v1::TailOperationsResponse>* writer) override;
  grpc::Status GetProgress(grpc::ServerContext* context, const v1::GetProgressRequest* request,
                           v1::GetProgressResponse* response) override;
  grpc::Status GetBooks(grpc::ServerContext* context, const v1::GetBooksRequest* request,
                        v1::GetBooksResponse* response) override;
  grpc::Status SetDetail(grpc::ServerContext* context, const v1::SetDetailRequest* request,
                         v1::SetDetailResponse* response) override;
  grpc::Status ReportThroughput(grpc::ServerContext* context,
                                const v1::ReportThroughputRequest* request,
                                v1::ReportThroughputResponse* response) override;

 private:
  /// NOT_FOUND unless it is a job here and the caller's to control.
  [[nodiscard]] grpc::Status may_control(const std::string& job_id, const Caller& caller) const;

  const SnapshotStore& snapshots_;
  const OperationTail& tail_;
  DetailControl* detail_;
  ThroughputReports* throughput_;
  const SettingsJudge* judge_;
  const CallContext& calls_;
  StreamLimit tails_;
};

}  // namespace ncclscope::agent
