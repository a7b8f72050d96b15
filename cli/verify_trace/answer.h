// SPDX-License-Identifier: Apache-2.0
//
// What an agent says about one replayed job, as JSON: the fields of the gRPC messages under their
// own names, numbers as numbers. Stored before expected.json is opened. No thread of its own.
#pragma once

#include <google/protobuf/message.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ncclscope/v1/agent.grpc.pb.h"

namespace ncclscope::cli {

/// All fields, defaults included.
[[nodiscard]] nlohmann::json to_json(const google::protobuf::Message& message);

/// A client of the agent's API. Calls throw std::runtime_error.
class AgentClient {
 public:
  /// @param target  gRPC address, for instance unix:/run/ncclscope/api.sock
  explicit AgentClient(const std::string& target);

  [[nodiscard]] bool ready(std::chrono::milliseconds timeout);
  [[nodiscard]] nlohmann::json books(const std::string& job);
  /// {"operations", "network", "channels", "skipped", "progress", "books", "snapshot"} of the job.
  [[nodiscard]] nlohmann::json answer(const std::string& job);

 private:
  std::unique_ptr<v1::AgentService::Stub> stub_;
};

/// True when the agent holds what the processes say they have written, which is something, from
/// every one of them.
/// @param final_only  also wants every process to have said goodbye or to be gone
[[nodiscard]] bool is_settled(const nlohmann::json& books, const std::vector<std::int64_t>& pids,
                              bool final_only);

}  // namespace ncclscope::cli
