// SPDX-License-Identifier: Apache-2.0
//
// The gRPC API on a Unix socket: AgentService, IngestService and JobService.
//   Connections are accepted here, not by gRPC: so the peer's uid is known from the kernel before a
//   byte is read, an abandoned socket is told from a living agent, and connections are bounded.
//   Thread: one that accepts, gRPC's own (bounded), and one per open Publish stream.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/settings_judge.h"
#include "agent/aggregate/snapshot_store.h"
#include "agent/aggregate/throughput.h"
#include "agent/api/authorizer.h"
#include "agent/base/result.h"
#include "agent/identity/job_reports.h"
#include "agent/ingest/gateway.h"

namespace ncclscope::agent {

struct ApiServerOptions {
  std::string socket = "/run/ncclscope/api.sock";  // its directory must exist
  unsigned socket_mode = 0666;  // everybody may connect; the Authorizer decides what they see
  std::size_t max_connections = 64;
  std::size_t max_connections_per_user = 16;  // administrators excepted
  int max_threads = 48;                       // gRPC's; each running call holds one
  std::size_t max_tails = 16;                 // TailOperations at once; a quarter of it per caller
  std::size_t max_publishers = 16;            // Publish at once; half of it per caller
};

/// What the services work on. All must outlive the server; from `gateway` on they may be null (then
/// UNIMPLEMENTED, if nothing else is said).
struct ApiServices {
  const SnapshotStore* snapshots = nullptr;
  const OperationTail* tail = nullptr;
  IngestGateway* gateway = nullptr;
  DetailControl* detail = nullptr;
  JobReports* jobs = nullptr;
  ThroughputReports* throughput = nullptr;
  const SettingsJudge* judge = nullptr;  // null: environments are told unjudged
};

class ApiServer {
 public:
  virtual ~ApiServer() = default;  // stops, with a deadline of 0
  /// Takes no new calls, ends streams, waits for running calls until the deadline, then cancels
  /// them. Removes the socket. May be called again.
  virtual void stop(std::chrono::milliseconds deadline) = 0;
  [[nodiscard]] virtual const std::string& socket() const = 0;
};

[[nodiscard]] Result<std::unique_ptr<ApiServer>> start_api_server(
    const ApiServerOptions& options, const ApiServices& services,
    std::shared_ptr<const Authorizer> authorizer = std::make_shared<PeerCredentialsAuthorizer>());

}  // namespace ncclscope::agent
