// SPDX-License-Identifier: Apache-2.0
//
// IngestService: frames as bytes into the gateway, the agent's frames back.
//   Thread: gRPC's; one more per open stream forwards what the agent sends on its own.
#pragma once

#include <cstddef>

#include "agent/api/call_context.h"
#include "agent/ingest/gateway.h"
#include "ncclscope/v1/ingest.grpc.pb.h"

namespace ncclscope::agent {

class IngestServiceImpl final : public v1::IngestService::Service {
 public:
  /// `gateway` may be null.
  IngestServiceImpl(IngestGateway* gateway, const CallContext& calls, std::size_t max_publishers);

  grpc::Status Publish(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>* stream) override;

 private:
  IngestGateway* gateway_;
  const CallContext& calls_;
  StreamLimit publishers_;
};

}  // namespace ncclscope::agent
