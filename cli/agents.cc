// SPDX-License-Identifier: Apache-2.0
#include "cli/agents.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "cli/text.h"

namespace ncclscope::cli {

void add_agent_option(CLI::App& command, std::vector<std::string>& addresses) {
  addresses = {std::string(kDefaultAgent)};
  command
      .add_option("--agent", addresses,
                  "An agent's API: unix:/path or /path. Repeat for several nodes (default " +
                      std::string(kDefaultAgent) + ")")
      ->type_name("ADDRESS")
      ->allow_extra_args(false);
}

std::string target_of(std::string_view address) {
  return address.starts_with('/') ? "unix:" + std::string(address) : std::string(address);
}

std::string explain(std::string_view address, const grpc::Status& status) {
  const std::string target = target_of(address);
  std::string out = "ncclscope: agent at " + std::string(address) + ": ";
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
      status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED)
    return out + printable(status.error_message());

  constexpr std::string_view kUnix = "unix:";
  const char* hint =
      "\n  Is ncclscope-agent running on this node? Start it with `systemctl start "
      "ncclscope-agent` or by hand;\n"
      "  name another socket with --agent unix:/path/api.sock.";
  if (target.starts_with(kUnix)) {
    const std::string path = target.substr(kUnix.size());
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0)
      return out + "cannot be reached: " + std::strerror(errno) +
             hint;  // NOLINT(concurrency-mt-unsafe)
    if (!S_ISSOCK(info.st_mode)) return out + "that file is not a socket" + hint;
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
    return out + "no answer within " + std::to_string(Agent::kPatience.count()) +
           " s; it may be overloaded or stopped";
  return out + "cannot be reached: " + printable(status.error_message()) + hint;
}

Agent::Agent(std::string address) : address_(std::move(address)) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      -1);  // snapshots of busy nodes are larger than the default of 4 MiB
  stub_ = v1::AgentService::NewStub(grpc::CreateCustomChannel(
      target_of(address_), grpc::InsecureChannelCredentials(), arguments));
}

bool Agent::check(const grpc::Status& status) const {
  if (status.ok()) return true;
  std::fprintf(stderr, "%s\n", explain(address_, status).c_str());
  return false;
}

bool Agent::node(std::string& name) const {
  v1::GetSnapshotRequest request;
  request.set_job_id("-");  // no job is called so: the answer is short
  v1::GetSnapshotResponse response;
  if (!call(&v1::AgentService::Stub::GetSnapshot, request, response)) return false;
  name = printable(response.node());
  return true;
}

std::vector<Agent> connect(const std::vector<std::string>& addresses) {
  std::vector<Agent> out;
  out.reserve(addresses.size());
  for (const std::string& address : addresses) out.emplace_back(address);
  return out;
}

}  // namespace ncclscope::cli
