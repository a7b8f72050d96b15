// SPDX-License-Identifier: Apache-2.0
//
// A generation is a gRPC server with one certificate. gRPC cannot be given another, but as it gets
// its connections from us, the next ones simply go to the next generation.
#include "agent/api/network_server.h"

#include <arpa/inet.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "agent/api/access_list.h"
#include "agent/api/agent_service.h"
#include "agent/api/ingest_service.h"
#include "agent/api/peers.h"
#include "agent/api/server_builder.h"
#include "agent/base/log.h"
#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {
namespace {

constexpr int kHandshakeMs = 10'000;
constexpr int kIdleMs = 300'000;
constexpr int kStreamsPerConnection = 16;
constexpr int kMetadataBytes = 8 * 1024;
constexpr std::chrono::hours kRetirement{24};  // what old streams get after a change

/// The list in force; exchanged while calls ask.
class CurrentAccess {
 public:
  void set(std::shared_ptr<const AccessList> next) {
    const std::lock_guard lock(mutex_);
    list_.swap(next);
  }
  [[nodiscard]] std::shared_ptr<const AccessList> get() const {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const AccessList> list_;
};

class NetworkCallContext final : public CallContext {
 public:
  explicit NetworkCallContext(const CurrentAccess& access) : access_(access) {}

 private:
  [[nodiscard]] std::optional<Caller> identify(const grpc::ServerContext& context,
                                               std::string& why) const override {
    const std::shared_ptr<const AccessList> list = access_.get();
    const auto [first, last] = context.client_metadata().equal_range("authorization");
    if (first != last) {
      constexpr std::string_view kScheme = "Bearer ";
      const std::string_view header(first->second.data(), first->second.size());
      why = "this token is not known here";
      if (std::next(first) != last || !header.starts_with(kScheme)) return {};
      return list->by_token(header.substr(kScheme.size()));
    }
    const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
    if (peer == nullptr || !peer->IsPeerAuthenticated()) {
      why = "a client certificate or a token is needed (--cert and --key, or --token-file)";
      return {};
    }
    std::vector<std::string> names;
    for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
      for (const grpc::string_ref& value : peer->FindPropertyValues(property))
        names.emplace_back(value.data(), value.size());
    }
    why = "no name of this client certificate is known here";
    return list->by_certificate(names);
  }

  const CurrentAccess& access_;
};

/// Peers can make gRPC log at will (a handshake that fails is an error to it).
void limit_log_of_grpc() {
  static LogLimiter limiter;
  gpr_set_log_function([](gpr_log_func_args* entry) {
    if (entry->severity != GPR_LOG_SEVERITY_ERROR) return;
    limiter.log(SystemClock().monotonic_ns(), LogLevel::kWarning, concat("gRPC: ", entry->message));
  });
}

class Generation {
 public:
  Generation(const NetworkServerOptions& options, const ApiServices& services,
             const CurrentAccess& access)
      : calls_(access),
        agent_service_(*services.snapshots, *services.tail, services.detail, services.throughput,
                       services.judge, calls_, options.max_tails),
        ingest_service_(services.gateway, calls_, options.max_publishers) {}
  ~Generation() { stop(std::chrono::milliseconds(0)); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  Status start(const NetworkServerOptions& options, const TlsMaterial& material,
               bool only_certificates) {
    grpc::SslServerCredentialsOptions tls(
        material.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
        : only_certificates        ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                   : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = material.client_ca;
    tls.pem_key_cert_pairs.push_back({material.key, material.certificate});
    grpc::ServerBuilder builder;
    set_limits(builder, "ncclscope-network-api", options.max_threads);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
    // A peer that vanished without a word would hold its connection for ever.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    builder.RegisterService(&agent_service_);
    builder.RegisterService(&ingest_service_);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::SslServerCredentials(tls));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return {ErrorCode::kSystem, "gRPC did not start"};
    return {};
  }

  void take(ScopedFd connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.release();
    acceptor_->HandleNewConnection(&parameters);
  }

  /// Asks its clients to connect anew; running streams go on until stop().
  void retire() {
    retirement_ =
        std::thread([this] { server_->Shutdown(std::chrono::system_clock::now() + kRetirement); });
  }

  void stop(std::chrono::milliseconds deadline) {
    if (server_ == nullptr) return;
    calls_.stopping = true;
    if (retirement_.joinable()) {
      retirement_.join();  // streams have ended within their wait
    } else {
      server_->Shutdown(std::chrono::system_clock::now() + deadline);
    }
    server_->Wait();
    server_.reset();
  }

 private:
  NetworkCallContext calls_;
  AgentServiceImpl agent_service_;
  IngestServiceImpl ingest_service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::thread retirement_;
};

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
  sockaddr_storage storage;
};

/// Who a connection is counted for: the address, for IPv6 its /64.
std::string address_group(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.any.sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &address.v4.sin_addr, text.data(), text.size());
    return text.data();
  }
  in6_addr network = address.v6.sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&network)) std::fill(network.s6_addr + 8, network.s6_addr + 16, 0);
  ::inet_ntop(AF_INET6, &network, text.data(), text.size());
  return text.data();
}

Result<ScopedFd> listen_on(const NetworkServerOptions& options, std::uint16_t& port) {
  const std::string what = concat("API server on ", options.address, " port ", options.port);
  SocketAddress address{};
  socklen_t bytes = sizeof address.v4;
  if (::inet_pton(AF_INET, options.address.c_str(), &address.v4.sin_addr) == 1) {
    address.v4.sin_family = AF_INET;
    address.v4.sin_port = htons(options.port);
  } else if (::inet_pton(AF_INET6, options.address.c_str(), &address.v6.sin6_addr) == 1) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_port = htons(options.port);
    bytes = sizeof address.v6;
  } else {
    return Status::invalid(concat("api_listen: '", options.address,
                                  "' is not an IPv4 or IPv6 address, such as 0.0.0.0 or ::"));
  }
  ScopedFd out(::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.valid()) return Status::system(what + ": socket");
  const int on = 1;
  const int off = 0;
  ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.any.sa_family == AF_INET6)
    ::setsockopt(out.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // "::" takes IPv4 too
  if (::bind(out.get(), &address.any, bytes) != 0) return Status::system(what + ": bind");
  if (::listen(out.get(), 64) != 0) return Status::system(what + ": listen");
  bytes = sizeof address;
  if (::getsockname(out.get(), &address.any, &bytes) != 0)
    return Status::system(what + ": getsockname");
  port = ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
  return out;
}

class GrpcNetworkServer final : public NetworkServer {
 public:
  GrpcNetworkServer(NetworkServerOptions options, const ApiServices& services, const Clock& clock)
      : options_(std::move(options)),
        services_(services),
        clock_(clock),
        files_{options_.access_file, options_.tls.certificate, options_.tls.key,
               options_.tls.client_ca},
        // Below the numbers of the Unix socket's connections.
        connections_(options_.max_connections, options_.max_connections_per_address,
                     kReservedNumbers) {}
  ~GrpcNetworkServer() override { stop(std::chrono::milliseconds(0)); }

  Status start() {
    if (Status s = reload(); !s.ok()) return s;
    Result<ScopedFd> socket = listen_on(options_, port_);
    if (!socket.ok()) return socket.status();
    socket_ = std::move(socket).value();
    wake_ = ScopedFd(::eventfd(0, EFD_CLOEXEC));
    if (!wake_.valid()) return Status::system("eventfd");
    acceptor_ = std::thread([this] { accept_connections(); });
    return {};
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }

  Status reload() override {
    stamp_ = stamp_of_files(files_);  // first: a change in between is seen the next time
    Result<AccessList> list = AccessList::load(options_.access_file);
    if (!list.ok()) return list.status();
    if (!list.value().has_tokens() && !list.value().has_certificates())
      return Status::invalid(concat(options_.access_file,
                                    ": has no [[token]] and no [[certificate]]: nobody could use "
                                    "the API over the network"));
    if (list.value().has_certificates() && options_.tls.client_ca.empty())
      return Status::invalid(concat(options_.access_file,
                                    ": a [[certificate]] needs api_client_ca_file, whose "
                                    "certificates are trusted"));
    Result<TlsMaterial> material = read_tls_files(options_.tls);
    if (!material.ok()) return material.status();
    const std::string warning =
        expiry_warning(options_.tls, material.value(), clock_.realtime_ns() / 1'000'000'000);
    if (!warning.empty()) log_warning(warning);

    const bool only_certificates = !list.value().has_tokens();
    access_.set(std::make_shared<const AccessList>(std::move(list).value()));
    if (current_ != nullptr && material.value() == material_ &&
        only_certificates == only_certificates_)
      return {};
    auto next = std::make_shared<Generation>(options_, services_, access_);
    if (Status s = next->start(options_, material.value(), only_certificates); !s.ok()) return s;
    material_ = std::move(material).value();
    only_certificates_ = only_certificates;
    {
      const std::lock_guard lock(mutex_);
      current_.swap(next);
    }
    if (next != nullptr) {
      next->retire();
      retired_ = std::move(next);  // ends the one retired before
    }
    return {};
  }

  void reload_if_changed() override {
    if (stamp_of_files(files_) == stamp_) return;
    if (const Status status = reload(); status.ok()) {
      log_info(concat("API over TCP: ", options_.access_file,
                      " and the certificates have been read again"));
    } else {
      log_error(concat("API over TCP goes on as it was: ", status.message()));
    }
  }

  void stop(std::chrono::milliseconds deadline) override {
    if (acceptor_.joinable()) {
      const std::uint64_t one = 1;
      (void)!::write(wake_.get(), &one, sizeof one);
      acceptor_.join();
    }
    socket_.reset();
    if (current_ != nullptr) current_->stop(deadline);
    retired_.reset();
    current_.reset();
  }

 private:
  static constexpr std::size_t kReservedNumbers = 256;

  void accept_connections() {
    for (;;) {
      std::array<pollfd, 2> ready{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
      if (::poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) return;
      if (ready[1].revents != 0) return;
      if (ready[0].revents == 0) continue;
      SocketAddress address{};
      socklen_t bytes = sizeof address;
      ScopedFd connection(
          ::accept4(socket_.get(), &address.any, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection.valid()) {
        // Nothing to be done but to wait for others to close.
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
          ::poll(&ready[1], 1, 100);
        continue;
      }
      const int on = 1;
      ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      Caller peer;
      peer.name = address_group(address);
      ScopedFd admitted = connections_.admit(std::move(connection), peer);
      if (!admitted.valid()) continue;  // too many: the client sees the connection close
      const std::lock_guard lock(mutex_);
      current_->take(std::move(admitted));
    }
  }

  const NetworkServerOptions options_;
  const ApiServices services_;
  const Clock& clock_;
  const std::vector<std::string> files_;
  std::string stamp_;  // of files_
  TlsMaterial material_;
  bool only_certificates_ = false;
  CurrentAccess access_;
  Peers connections_;
  std::mutex mutex_;  // of current_, between reload() and the thread that accepts
  std::shared_ptr<Generation> current_;
  std::shared_ptr<Generation> retired_;
  ScopedFd socket_;
  ScopedFd wake_;
  std::uint16_t port_ = 0;
  std::thread acceptor_;
};

}  // namespace

Result<std::unique_ptr<NetworkServer>> start_network_server(const NetworkServerOptions& options,
                                                            const ApiServices& services,
                                                            const Clock& clock) {
  if (services.snapshots == nullptr || services.tail == nullptr)
    return Status::invalid("the API server needs a snapshot store and an operation tail");
  if (options.tls.certificate.empty() || options.tls.key.empty() || options.access_file.empty())
    return Status::invalid(
        "the API over TCP needs api_cert_file, api_key_file and api_access_file");
  limit_log_of_grpc();
  auto server = std::make_unique<GrpcNetworkServer>(options, services, clock);
  if (Status status = server->start(); !status.ok()) return status;
  return Result<std::unique_ptr<NetworkServer>>(std::move(server));
}

}  // namespace ncclscope::agent
