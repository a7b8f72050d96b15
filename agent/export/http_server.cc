// SPDX-License-Identifier: Apache-2.0
//
// HttpServer on GNU libmicrohttpd: one internal epoll thread does everything.
#include "agent/export/http_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <exception>
#include <utility>

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

class MicrohttpdServer final : public HttpServer {
 public:
  MicrohttpdServer(HttpHandler handler, std::uint16_t port)
      : handler_(std::move(handler)), port_(port) {}
  ~MicrohttpdServer() override { stop(); }

  Status start(const HttpServerOptions& options, ScopedFd socket) {
    const auto timeout = static_cast<unsigned>(options.idle_timeout.count());
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, nullptr, nullptr, &MicrohttpdServer::on_request, this,
        MHD_OPTION_LISTEN_SOCKET, static_cast<MHD_socket>(socket.get()),
        MHD_OPTION_CONNECTION_LIMIT, options.connection_limit, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        options.connection_limit_per_ip, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        options.connection_memory_bytes, MHD_OPTION_CONNECTION_TIMEOUT, timeout, MHD_OPTION_END);
    if (daemon_ == nullptr)
      return Status(ErrorCode::kSystem,
                    "HTTP server on " + endpoint_text(options) +
                        ": libmicrohttpd did not start (out of descriptors, threads or memory?)");
    (void)socket.release();  // MHD_stop_daemon closes it
    return {};
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }

  void stop() override {
    if (daemon_ != nullptr) MHD_stop_daemon(std::exchange(daemon_, nullptr));
  }

 private:
  static MHD_Result collect_header(void* cls, MHD_ValueKind, const char* key, const char* value) {
    auto& headers = static_cast<HttpRequest*>(cls)->headers;
    std::string& slot = headers[key];
    if (!slot.empty()) slot += ", ";
    slot += value == nullptr ? "" : value;
    return MHD_YES;
  }

  static MHD_Result send(MHD_Connection* connection, HttpResponse&& response) {
    auto* body = new std::string(std::move(response.body));
    MHD_Response* out = MHD_create_response_from_buffer_with_free_callback_cls(
        body->size(), body->data(), [](void* cls) { delete static_cast<std::string*>(cls); }, body);
    if (out == nullptr) {
      delete body;
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
      const auto* server = static_cast<MicrohttpdServer*>(cls);
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
      HttpResponse response = server->handler_(request);
      if (reads_body) response.headers.emplace_back("Connection", "close");
      return send(connection, std::move(response));
    } catch (const std::exception&) {
      return MHD_NO;  // out of memory: the client sees the connection close
    }
  }

  HttpHandler handler_;
  std::uint16_t port_;
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> start_http_server(const HttpServerOptions& options,
                                                      HttpHandler handler) {
  Result<ListenSocket> socket = listen_on(options);
  if (!socket.ok()) return socket.status();
  auto server = std::make_unique<MicrohttpdServer>(std::move(handler), socket.value().port);
  if (const Status status = server->start(options, std::move(socket.value().fd)); !status.ok())
    return status;
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace ncclscope::agent
