// SPDX-License-Identifier: Apache-2.0
//
// The agents a command talks to: the option --agent and those of TLS, connections, and errors that
// say what to do.
//   Thread: one, except that a stub may be used on several.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ncclscope/v1/agent.grpc.pb.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ncclscope::cli {

inline constexpr std::string_view kDefaultAgent = "unix:/run/ncclscope/api.sock";

/// Which agents, and how to reach those on other hosts.
struct AgentOptions {
  std::vector<std::string> addresses;
  std::string ca, cert, key, token_file;  // paths; of host:port only
};

/// Adds --agent (repeatable), --ca, --cert, --key and --token-file, and fills `options`;
/// kDefaultAgent if no agent is given.
void add_agent_option(CLI::App& command, AgentOptions& options);

/// Where nothing is shown: " (you see your own jobs ...)" unless the user is root.
[[nodiscard]] std::string_view own_jobs_note();

/// What gRPC wants: "/run/x.sock", "x/api.sock" and "unix:x.sock" are Unix sockets, what has no
/// slash is host:port.
[[nodiscard]] std::string target_of(std::string_view address);

/// One or two lines: what could not be done, where, and what would help.
[[nodiscard]] std::string explain(std::string_view address, const grpc::Status& status);

class Agent {
 public:
  Agent(std::string address, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] v1::AgentService::Stub& stub() const { return *stub_; }

  /// Calls one of the stub's unary methods with a deadline. On failure prints why to standard
  /// error.
  template <typename Request, typename Response>
  [[nodiscard]] bool call(grpc::Status (v1::AgentService::Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                          const Request& request, Response& response) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return check((stub_.get()->*method)(&context, request, &response));
  }
  /// Prints why to standard error if `status` is not OK.
  [[nodiscard]] bool check(const grpc::Status& status) const;
  /// The node's name; false (and an error is printed) when the agent cannot be reached.
  [[nodiscard]] bool node(std::string& name) const;

  static constexpr std::chrono::seconds kPatience{5};

 private:
  std::string address_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
};

/// Throws CLI::ValidationError (with what is wrong) if a file cannot be read, or host:port lacks
/// --ca.
[[nodiscard]] std::vector<Agent> connect(const AgentOptions& options);

/// gRPC is kept to the end of the process: its last user would join a thread of its that may be in
/// a wait of ten seconds, and a command that has done its work would end as much later.
void keep_grpc();

}  // namespace ncclscope::cli
