// SPDX-License-Identifier: Apache-2.0
//
// HttpServer on GNU libmicrohttpd: one internal epoll thread does everything, TLS by GnuTLS. The
// library knows idle connections only; a second thread, asleep while there are no connections, cuts
// those that dawdle.
#include "agent/export/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {
namespace {

constexpr int kListenBacklog = 64;

/// "127.0.0.1:9400", "[::1]:9400".
std::string endpoint_text(const HttpServerOptions& options) {
  const bool ipv6 = options.address.find(':') != std::string::npos;
  return (ipv6 ? "[" + options.address + "]" : options.address) + ":" +
         std::to_string(options.port);
}

struct ListenSocket {
  ScopedFd fd;
  std::uint16_t port = 0;
};

Result<ListenSocket> listen_on(const HttpServerOptions& options) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(options.address.c_str(), std::to_string(options.port).c_str(), &hints, &found) !=
      0)
    return Status::invalid("HTTP address \"" + options.address +
                           "\" is not an IPv4 or IPv6 address, such as 127.0.0.1 or ::1");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);

  const std::string what = "HTTP server on " + endpoint_text(options);
  ListenSocket out{
      ScopedFd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), 0};
  if (!out.fd.valid()) return Status::system(what + ": socket");
  const int on = 1;
  setsockopt(out.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (found->ai_family == AF_INET6) {
    const int off = 0;  // "::" takes IPv4 too
    setsockopt(out.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(out.fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    return Status::system(what + ": bind");
  if (::listen(out.fd.get(), kListenBacklog) != 0) return Status::system(what + ": listen");

  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(out.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    return Status::system(what + ": getsockname");
  out.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return out;
}

/// Cuts connections that are over their time. libmicrohttpd's thread reports, a thread of ours cuts
/// by shutdown(), which the other then sees as the end of the connection.
class DawdlerWatch {
 public:
  DawdlerWatch(std::chrono::milliseconds head_timeout, std::chrono::milliseconds answer_timeout)
      : head_timeout_(head_timeout), answer_timeout_(answer_timeout) {}
  ~DawdlerWatch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void start() {
    thread_ = std::thread([this] { watch(); });
  }

  struct Connection {
    int fd = -1;
    std::chrono::steady_clock::time_point deadline;
  };
  using Handle = std::list<Connection>::iterator;

  Handle* opened(int fd) {
    const std::lock_guard lock(mutex_);
    connections_.push_front({fd, std::chrono::steady_clock::now() + head_timeout_});
    if (connections_.size() == 1) changed_.notify_all();
    return new Handle(connections_.begin());
  }
  void head_is_there(Handle* handle) { set(handle, answer_timeout_); }
  void answered(Handle* handle) { set(handle, head_timeout_); }
  /// Before the descriptor is closed.
  void closed(Handle* handle) {
    const std::lock_guard lock(mutex_);
    connections_.erase(*handle);
    delete handle;
  }

 private:
  void set(Handle* handle, std::chrono::milliseconds limit) {
    const std::lock_guard lock(mutex_);
    (*handle)->deadline = std::chrono::steady_clock::now() + limit;
  }

  void watch() {
    const auto interval = std::clamp<std::chrono::milliseconds>(
        std::min(head_timeout_, answer_timeout_) / 4, std::chrono::milliseconds(10),
        std::chrono::milliseconds(2000));
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (connections_.empty()) {
        changed_.wait(lock, [this] { return stopping_ || !connections_.empty(); });
      } else {
        changed_.wait_for(lock, interval, [this] { return stopping_; });
      }
      const auto now = std::chrono::steady_clock::now();
      for (const Connection& connection : connections_) {
        if (connection.deadline < now) ::shutdown(connection.fd, SHUT_RDWR);
      }
    }
  }

  const std::chrono::milliseconds head_timeout_, answer_timeout_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::list<Connection> connections_;
  bool stopping_ = false;
  std::thread thread_;
};

class MicrohttpdServer final : public HttpServer {
 public:
  MicrohttpdServer(HttpServerOptions options, HttpHandler handler, ListenSocket socket)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        socket_(std::move(socket.fd)),
        port_(socket.port),
        watch_(options_.head_timeout, options_.answer_timeout) {}
  ~MicrohttpdServer() override { stop(); }

  Status start() {
    Result<std::unique_ptr<Daemon>> daemon = make_daemon(options_.tls);
    if (!daemon.ok()) return daemon.status();
    current_ = std::move(daemon).value();
    watch_.start();
    return {};
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }

  Status set_tls(const std::optional<HttpTls>& tls) override {
    if (current_ == nullptr || tls == options_.tls) return {};
    Result<std::unique_ptr<Daemon>> daemon = make_daemon(tls);
    if (!daemon.ok()) return daemon.status();
    options_.tls = tls;
    retired_ = std::move(current_);  // ends the one retired before
    current_ = std::move(daemon).value();
    retired_->retiring = true;
    retired_->quiesced = ScopedFd(MHD_quiesce_daemon(retired_->daemon));
    return {};
  }

  void stop() override {
    current_.reset();
    retired_.reset();
    socket_.reset();
  }

 private:
  struct Daemon {
    explicit Daemon(MicrohttpdServer& s) : server(s) {}
    ~Daemon() {
      if (daemon != nullptr) MHD_stop_daemon(daemon);
    }
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    MicrohttpdServer& server;
    bool asks_for_certificates = false;
    std::atomic<bool> retiring{false};
    ScopedFd quiesced;  // closed last: until it has stopped the daemon may look at it
    MHD_Daemon* daemon = nullptr;
  };

  /// Listens on a descriptor of its own, so that two can share the socket for a moment.
  Result<std::unique_ptr<Daemon>> make_daemon(const std::optional<HttpTls>& tls) {
    ScopedFd socket(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
    if (!socket.valid()) return Status::system("HTTP server on " + endpoint_text(options_));
    auto out = std::make_unique<Daemon>(*this);
    std::vector<MHD_OptionItem> more;
    const auto text = [&](MHD_OPTION option, const std::string& value) {
      more.push_back({option, 0, const_cast<char*>(value.c_str())});
    };
    const std::string priorities = tls && tls->tls13_only
                                       ? "NORMAL:-VERS-ALL:+VERS-TLS1.3"
                                       : "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC;
    if (tls) {
      flags |= MHD_USE_TLS;
      text(MHD_OPTION_HTTPS_MEM_CERT, tls->material.certificate);
      text(MHD_OPTION_HTTPS_MEM_KEY, tls->material.key);
      text(MHD_OPTION_HTTPS_PRIORITIES, priorities);
      out->asks_for_certificates = !tls->material.client_ca.empty();
      if (out->asks_for_certificates) text(MHD_OPTION_HTTPS_MEM_TRUST, tls->material.client_ca);
    }
    more.push_back({MHD_OPTION_END, 0, nullptr});
    out->daemon = MHD_start_daemon(
        flags, 0, nullptr, nullptr, &MicrohttpdServer::on_request, out.get(),
        MHD_OPTION_LISTEN_SOCKET, static_cast<MHD_socket>(socket.get()),
        MHD_OPTION_CONNECTION_LIMIT, options_.connection_limit, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        options_.connection_limit_per_ip, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        options_.connection_memory_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
        static_cast<unsigned>(options_.idle_timeout.count()), MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_CONNECTION, &MicrohttpdServer::on_connection, out.get(),
        MHD_OPTION_NOTIFY_COMPLETED, &MicrohttpdServer::on_completed, out.get(), MHD_OPTION_ARRAY,
        more.data(), MHD_OPTION_END);
    if (out->daemon == nullptr)
      return Status(ErrorCode::kSystem,
                    "HTTP server on " + endpoint_text(options_) +
                        ": libmicrohttpd did not start (out of descriptors, threads or memory?)");
    (void)socket.release();  // MHD_stop_daemon closes it
    return out;
  }

  static DawdlerWatch::Handle* handle_of(MHD_Connection* connection) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == nullptr ? nullptr : static_cast<DawdlerWatch::Handle*>(info->socket_context);
  }

  static void on_connection(void* cls, MHD_Connection* connection, void** socket_context,
                            MHD_ConnectionNotificationCode code) {
    DawdlerWatch& watch = static_cast<Daemon*>(cls)->server.watch_;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      const MHD_ConnectionInfo* info =
          MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
      *socket_context = info == nullptr ? nullptr : watch.opened(info->connect_fd);
    } else if (*socket_context != nullptr) {
      watch.closed(static_cast<DawdlerWatch::Handle*>(*socket_context));
      *socket_context = nullptr;
    }
  }

  static void on_completed(void* cls, MHD_Connection* connection, void**,
                           MHD_RequestTerminationCode) {
    if (DawdlerWatch::Handle* handle = handle_of(connection))
      static_cast<Daemon*>(cls)->server.watch_.answered(handle);
  }

  static MHD_Result collect_header(void* cls, MHD_ValueKind, const char* key, const char* value) {
    auto& headers = static_cast<HttpRequest*>(cls)->headers;
    std::string& slot = headers[key];
    if (!slot.empty()) slot += ", ";
    slot += value == nullptr ? "" : value;
    return MHD_YES;
  }

  static ClientCertificate certificate_of(MHD_Connection* connection) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (info == nullptr || info->tls_session == nullptr) return ClientCertificate::kNone;
    auto* session = static_cast<gnutls_session_t>(info->tls_session);
    unsigned count = 0;
    if (gnutls_certificate_get_peers(session, &count) == nullptr || count == 0)
      return ClientCertificate::kNone;
    std::string purpose = GNUTLS_KP_TLS_WWW_CLIENT;
    gnutls_typed_vdata_st data{GNUTLS_DT_KEY_PURPOSE_OID,
                               reinterpret_cast<unsigned char*>(purpose.data()), 0};
    unsigned faults = 0;
    const bool good = gnutls_certificate_verify_peers(session, &data, 1, &faults) == 0;
    return good && faults == 0 ? ClientCertificate::kVerified : ClientCertificate::kBad;
  }

  static MHD_Result send(MHD_Connection* connection, HttpResponse&& response) {
    auto* content = new std::shared_ptr<const std::string>(
        response.shared_body ? std::move(response.shared_body)
                             : std::make_shared<const std::string>(std::move(response.body)));
    MHD_Response* out = MHD_create_response_from_buffer_with_free_callback_cls(
        (*content)->size(), const_cast<char*>((*content)->data()),
        [](void* cls) { delete static_cast<std::shared_ptr<const std::string>*>(cls); }, content);
    if (out == nullptr) {
      delete content;
      return MHD_NO;  // closes the connection
    }
    MHD_add_response_header(out, MHD_HTTP_HEADER_CONTENT_TYPE, response.content_type.c_str());
    for (const auto& [name, value] : response.headers)
      MHD_add_response_header(out, name.c_str(), value.c_str());
    const MHD_Result result =
        MHD_queue_response(connection, static_cast<unsigned>(response.status), out);
    MHD_destroy_response(out);
    return result;
  }

  static MHD_Result refuse(MHD_Connection* connection, int status, const char* why) {
    HttpResponse response;
    response.status = status;
    response.body = why;
    response.headers.emplace_back("Connection", "close");
    return send(connection, std::move(response));
  }

  // Called twice for a request: once its headers are there, and once there is nothing more to read.
  static MHD_Result on_request(void* cls, MHD_Connection* connection, const char* url,
                               const char* method, const char*, const char*,
                               std::size_t* body_bytes, void** seen) {
    try {
      auto* daemon = static_cast<Daemon*>(cls);
      MicrohttpdServer& server = daemon->server;
      if (DawdlerWatch::Handle* handle = handle_of(connection)) server.watch_.head_is_there(handle);
      HttpRequest request;
      request.method = method;
      const bool reads_body = request.method != "GET" && request.method != "HEAD";
      if (*seen == nullptr && !reads_body) {
        *seen = connection;
        const char* length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                         MHD_HTTP_HEADER_CONTENT_LENGTH);
        const bool has_body =
            (length != nullptr && std::string_view(length) != "0") ||
            MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                        MHD_HTTP_HEADER_TRANSFER_ENCODING) != nullptr;
        if (has_body) return refuse(connection, 413, "This server takes no request bodies.\n");
        return MHD_YES;
      }
      if (*body_bytes != 0) return MHD_NO;
      request.path = url;
      MHD_get_connection_values(connection, MHD_HEADER_KIND, &collect_header, &request);
      if (daemon->asks_for_certificates) request.client_certificate = certificate_of(connection);
      HttpResponse response = server.handler_(request);
      if (reads_body || daemon->retiring) response.headers.emplace_back("Connection", "close");
      return send(connection, std::move(response));
    } catch (const std::exception&) {
      return MHD_NO;  // out of memory: the client sees the connection close
    }
  }

  HttpServerOptions options_;
  HttpHandler handler_;
  ScopedFd socket_;
  std::uint16_t port_;
  DawdlerWatch watch_;  // before the daemons, which report to it
  std::unique_ptr<Daemon> current_;
  std::unique_ptr<Daemon> retired_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> start_http_server(const HttpServerOptions& options,
                                                      HttpHandler handler) {
  Result<ListenSocket> socket = listen_on(options);
  if (!socket.ok()) return socket.status();
  auto server =
      std::make_unique<MicrohttpdServer>(options, std::move(handler), std::move(socket).value());
  if (const Status status = server->start(); !status.ok()) return status;
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace ncclscope::agent
