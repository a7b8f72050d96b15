// SPDX-License-Identifier: Apache-2.0
#include "cli/agents.h"

#include <grpc/grpc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "cli/channel.h"
#include "cli/text.h"

namespace ncclscope::cli {

namespace {

/// What a host:port must have; a token goes over TLS only (gRPC sees to it).
class BearerToken final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit BearerToken(const std::string& token) : header_("Bearer " + token) {}
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->insert({"authorization", header_});
    return grpc::Status::OK;
  }

 private:
  std::string header_;
};

std::string read_file(const char* option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) throw CLI::ValidationError(option, "cannot read " + path);
  return text.str();
}

std::shared_ptr<grpc::ChannelCredentials> network_credentials(const AgentOptions& options) {
  if (options.cert.empty() != options.key.empty())
    throw CLI::ValidationError(options.cert.empty() ? "--key" : "--cert",
                               "--cert and --key go together");
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = read_file("--ca", options.ca);
  if (!options.cert.empty()) {
    tls.pem_cert_chain = read_file("--cert", options.cert);
    tls.pem_private_key = read_file("--key", options.key);
  }
  std::shared_ptr<grpc::ChannelCredentials> out = grpc::SslCredentials(tls);
  if (options.token_file.empty()) return out;
  std::string token = read_file("--token-file", options.token_file);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty() || token.find_first_of(" \t\r\n") != std::string::npos)
    throw CLI::ValidationError("--token-file",
                               options.token_file + " must hold one token and nothing else");
  return grpc::CompositeChannelCredentials(
      out, grpc::MetadataCredentialsFromPlugin(std::make_unique<BearerToken>(token)));
}

bool is_local(const std::string& address) {
  return target_of(address).starts_with("unix:");
}

}  // namespace

void add_agent_option(CLI::App& command, AgentOptions& options) {
  options.addresses = {std::string(kDefaultAgent)};
  command
      .add_option(
          "--agent", options.addresses,
          "An agent's API: a path (unix:/path, too), or host:port (TLS). Repeat for several nodes "
          "(default " +
              std::string(kDefaultAgent) + ")")
      ->type_name("ADDRESS")
      ->allow_extra_args(false);
  command.add_option("--ca", options.ca, "PEM authorities that sign the agents' certificates")
      ->type_name("FILE");
  command.add_option("--cert", options.cert, "PEM certificate to show to agents")
      ->type_name("FILE");
  command.add_option("--key", options.key, "PEM key of --cert")->type_name("FILE");
  command.add_option("--token-file", options.token_file, "File that holds a bearer token")
      ->type_name("FILE");
}

std::string_view own_jobs_note() {
  return ::geteuid() == 0 ? ""
                          : " (you see your own jobs; root and the group ncclscope-admin see all)";
}

std::string target_of(std::string_view address) {
  // "dns:///node1:9465" is gRPC's own form; "host:port" has no slash.
  const bool scheme = address.starts_with("unix:") || address.find("://") != std::string_view::npos;
  const bool path = !scheme && address.find('/') != std::string_view::npos;
  return (path ? "unix:" : "") + std::string(address);
}

std::string explain(std::string_view address, const grpc::Status& status) {
  const std::string target = target_of(address);
  std::string out = "ncclscope: agent at " + std::string(address) + ": ";
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
      status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED)
    return out + printable(status.error_message());

  constexpr std::string_view kUnix = "unix:";
  const bool local = target.starts_with(kUnix);
  const char* hint =
      local ? "\n  Is ncclscope-agent running on this node? Start it with `systemctl start "
              "ncclscope-agent` or by hand;\n"
              "  name another socket with --agent unix:/path/api.sock."
            : "\n  Does the agent's api_listen serve there? A TLS handshake fails if --ca did not "
              "sign the agent's\n"
              "  certificate, if that is not for this name, or if the agent wants a certificate "
              "(--cert, --key) it trusts.";
  if (local) {
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

Agent::Agent(std::string address, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : address_(std::move(address)) {
  keep_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      -1);  // snapshots of busy nodes are larger than the default of 4 MiB
  // An agent that was restarted is found again soon by who asks again and again.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  stub_ = v1::AgentService::NewStub(
      grpc::CreateCustomChannel(target_of(address_), credentials, arguments));
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

void keep_grpc() {
  static const bool kept = [] {
    grpc_init();
    return true;
  }();
  (void)kept;
}

std::vector<Agent> connect(const AgentOptions& options) {
  std::shared_ptr<grpc::ChannelCredentials> network;
  std::vector<Agent> out;
  out.reserve(options.addresses.size());
  for (const std::string& address : options.addresses) {
    if (is_local(address)) {
      out.emplace_back(address, grpc::InsecureChannelCredentials());
      continue;
    }
    if (options.ca.empty())
      throw CLI::ValidationError(
          "--agent", address +
                         " is served with TLS: name the authority of its certificate with "
                         "--ca (a socket of this node is unix:/path)");
    if (network == nullptr) network = network_credentials(options);
    out.emplace_back(address, network);
  }
  return out;
}

std::shared_ptr<grpc::Channel> open_channel(const AgentOptions& options) {
  if (options.addresses.size() != 1)
    throw CLI::ValidationError("--agent", "exactly one agent is wanted here");
  const std::string& address = options.addresses.front();
  keep_grpc();
  return grpc::CreateChannel(target_of(address), is_local(address)
                                                     ? grpc::InsecureChannelCredentials()
                                                     : network_credentials(options));
}

}  // namespace ncclscope::cli
