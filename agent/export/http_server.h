// SPDX-License-Identifier: Apache-2.0
//
// The transport of HTTP and HTTPS: listens, parses, sends. Hands requests to one handler. THE
// CLIENT IS HOSTILE: connections, memory per connection and time are bounded, and request bodies
// are never read.
//   Thread: the server's own; the handler runs on them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent/access/tls_files.h"
#include "agent/base/result.h"
#include "agent/export/http.h"

namespace ncclscope::agent {

struct HttpTls {
  TlsMaterial material;     // asks for client certificates if it has a client CA
  bool tls13_only = false;  // else 1.2 too

  bool operator==(const HttpTls&) const = default;
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // IPv4 or IPv6 address, no name; "0.0.0.0" or "::" for all
  std::uint16_t port = 0;             // 0: any free one, see HttpServer::port()
  unsigned connection_limit = 64;
  unsigned connection_limit_per_ip = 32;
  std::size_t connection_memory_bytes = 32 * 1024;  // request line and headers
  std::chrono::seconds idle_timeout{30};            // without a byte either way
  /// From the connection, or the last answer, to the end of the request's head: a client that sends
  /// it byte by byte holds a connection no longer than that.
  std::chrono::milliseconds head_timeout{30'000};
  std::chrono::milliseconds answer_timeout{120'000};  // for a client to take an answer
  std::optional<HttpTls> tls;                         // nothing: plain text
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // stops
  /// The port it listens on.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// New connections use `tls` (nothing: plain text) from now on; requests of the others are still
  /// answered, and then their connections closed. On an error all stays as it was. Not on the
  /// server's threads.
  virtual Status set_tls(const std::optional<HttpTls>& tls) = 0;
  /// Closes the listening socket and all connections, and waits for running handlers. May be called
  /// again.
  virtual void stop() = 0;
};

/// Starts a server. The handler is called until stop() returns, on two threads for a while after
/// set_tls().
[[nodiscard]] Result<std::unique_ptr<HttpServer>> start_http_server(
    const HttpServerOptions& options, HttpHandler handler);

}  // namespace ncclscope::agent
