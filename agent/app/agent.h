// SPDX-License-Identifier: Apache-2.0
//
// Puts the parts together. No logic of its own beyond starting, ticking and stopping them.
//   Thread: create(), run() and the destructor on one thread (the reactor); stop(), reload() and
//   the readers
//           (snapshots, tail, gateway) on any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/snapshot_store.h"
#include "agent/app/config.h"
#include "agent/base/clock.h"
#include "agent/base/result.h"
#include "agent/base/service_manager.h"
#include "agent/ingest/gateway.h"

namespace ncclscope::agent {

/// "0.1.0".
[[nodiscard]] const char* agent_version();

class Agent {
 public:
  /// Opens the plugins' door. `config` has been checked; `clock` must outlive the agent; `passed`
  /// comes from the service manager.
  static Result<std::unique_ptr<Agent>> create(const Config& config, const Clock& clock,
                                               std::vector<PassedDescriptor> passed = {});
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// SIGTERM and SIGINT stop the agent; SIGHUP calls `reload_config`. Before other threads are
  /// started.
  Status handle_signals(std::function<Result<Config>()> reload_config);
  /// Starts HTTP and the API, writes the ready file and says that the agent is ready.
  Status start_servers();
  /// Serves until stop(). Then takes what is queued (at most a second), acknowledges it, publishes
  /// the last snapshot and removes the sockets.
  void run();
  void stop();

  /// "127.0.0.1:43127"; empty without HTTP.
  [[nodiscard]] const std::string& http_address() const;
  /// The same of the API over TCP.
  [[nodiscard]] const std::string& api_address() const;
  [[nodiscard]] const SnapshotStore& snapshots() const;
  [[nodiscard]] const OperationTail& tail() const;
  [[nodiscard]] IngestGateway& gateway();
  [[nodiscard]] DetailControl& detail();
  /// Builds and publishes a snapshot now; returns when it is there.
  void publish_now();

 private:
  struct Parts;
  explicit Agent(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ncclscope::agent
