// SPDX-License-Identifier: Apache-2.0
//
// The transport of HTTP: listens, parses, sends. Hands requests to one handler. THE CLIENT IS
// HOSTILE: connections, memory per connection and time are bounded, and request bodies are never
// read.
//   Thread: the server's own; the handler runs on them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/base/result.h"
#include "agent/export/http.h"

namespace ncclscope::agent {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // IPv4 or IPv6 address, no name; "0.0.0.0" or "::" for all
  std::uint16_t port = 0;             // 0: any free one, see HttpServer::port()
  unsigned connection_limit = 64;
  unsigned connection_limit_per_ip = 32;
  std::size_t connection_memory_bytes = 32 * 1024;  // request line and headers
  std::chrono::seconds idle_timeout{30};
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // stops
  /// The port it listens on.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Closes the listening socket and all connections, and waits for running handlers. May be called
  /// again.
  virtual void stop() = 0;
};

/// Starts a server. The handler is called until stop() returns.
[[nodiscard]] Result<std::unique_ptr<HttpServer>> start_http_server(
    const HttpServerOptions& options, HttpHandler handler);

}  // namespace ncclscope::agent
