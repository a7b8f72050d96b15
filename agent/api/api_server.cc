// SPDX-License-Identifier: Apache-2.0
//
// Accepts, identifies, hands the connection to gRPC.
#include "agent/api/api_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <string>
#include <thread>
#include <utility>

#include "agent/api/agent_service.h"
#include "agent/api/ingest_service.h"
#include "agent/api/job_service.h"
#include "agent/api/peers.h"
#include "agent/api/server_builder.h"
#include "agent/api/unix_listener.h"

namespace ncclscope::agent {

grpc::Status CallContext::authenticate(const grpc::ServerContext& context, Permission permission,
                                       Caller& caller) const {
  std::string why;
  std::optional<Caller> found = identify(context, why);
  if (!found) return {grpc::StatusCode::UNAUTHENTICATED, why};
  if (std::string no = refusal(*found, permission); !no.empty())
    return {grpc::StatusCode::PERMISSION_DENIED, no};
  caller = std::move(*found);
  return grpc::Status::OK;
}

namespace {

class SocketCallContext final : public CallContext {
 public:
  SocketCallContext(std::size_t max_connections, std::size_t max_per_user)
      : peers(max_connections, max_per_user) {}
  Peers peers;

 private:
  [[nodiscard]] std::optional<Caller> identify(const grpc::ServerContext& context,
                                               std::string& why) const override {
    std::optional<Caller> found = peers.find(context.peer());
    // A call whose connection has closed is cancelled; its descriptor's number may belong to
    // somebody else by now.
    if (context.IsCancelled()) found.reset();
    if (!found) why = "the caller's user could not be determined";
    return found;
  }
};

class GrpcApiServer final : public ApiServer {
 public:
  GrpcApiServer(const ApiServerOptions& options, const ApiServices& services,
                std::shared_ptr<const Authorizer> authorizer)
      : authorizer_(std::move(authorizer)),
        calls_(options.max_connections, options.max_connections_per_user),
        agent_service_(*services.snapshots, *services.tail, services.detail, services.throughput,
                       services.judge, calls_, options.max_tails),
        ingest_service_(services.gateway, calls_, options.max_publishers),
        job_service_(services.jobs, calls_) {}

  ~GrpcApiServer() override { stop(std::chrono::milliseconds(0)); }

  Status start(const ApiServerOptions& options) {
    Result<std::unique_ptr<UnixListener>> listener =
        UnixListener::create(options.socket, options.socket_mode);
    if (!listener.ok()) return listener.status();
    listener_ = std::move(listener).value();

    grpc::ServerBuilder builder;
    set_limits(builder, "ncclscope-api", options.max_threads);
    builder.RegisterService(&agent_service_);
    builder.RegisterService(&ingest_service_);
    builder.RegisterService(&job_service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr)
      return {ErrorCode::kSystem, "API server on " + options.socket + ": gRPC did not start"};
    acceptor_ = std::thread([this] { accept_connections(); });
    return {};
  }

  void stop(std::chrono::milliseconds deadline) override {
    if (server_ == nullptr) return;
    calls_.stopping = true;
    listener_->shutdown();
    if (acceptor_.joinable()) acceptor_.join();
    server_->Shutdown(std::chrono::system_clock::now() + deadline);
    server_->Wait();
    server_.reset();
    path_ = listener_->path();
    listener_.reset();
  }

  [[nodiscard]] const std::string& socket() const override {
    return listener_ ? listener_->path() : path_;
  }

 private:
  void accept_connections() {
    for (;;) {
      ScopedFd connection = listener_->accept();
      if (!connection.valid()) return;
      const std::optional<Caller> caller = authorizer_->identify(connection.get());
      if (!caller) continue;
      ScopedFd admitted = calls_.peers.admit(std::move(connection), *caller);
      if (!admitted.valid()) continue;  // too many: the client sees the connection close
      grpc::AddInsecureChannelFromFd(server_.get(), admitted.release());
    }
  }

  std::shared_ptr<const Authorizer> authorizer_;
  SocketCallContext calls_;
  AgentServiceImpl agent_service_;
  IngestServiceImpl ingest_service_;
  JobServiceImpl job_service_;
  std::unique_ptr<UnixListener> listener_;
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  std::string path_;
};

}  // namespace

Result<std::unique_ptr<ApiServer>> start_api_server(const ApiServerOptions& options,
                                                    const ApiServices& services,
                                                    std::shared_ptr<const Authorizer> authorizer) {
  if (services.snapshots == nullptr || services.tail == nullptr)
    return Status::invalid("the API server needs a snapshot store and an operation tail");
  auto server = std::make_unique<GrpcApiServer>(options, services, std::move(authorizer));
  if (Status status = server->start(options); !status.ok()) return status;
  return Result<std::unique_ptr<ApiServer>>(std::move(server));
}

}  // namespace ncclscope::agent
