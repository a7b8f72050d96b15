// SPDX-License-Identifier: Apache-2.0
//
// The same API for other hosts: gRPC over TCP, with TLS only. THE CLIENT IS HOSTILE.
//   A caller is known by a certificate that the client CA signed, or by a bearer token; what it may
//   do is its role in the AccessList. If a call carries a token, the token alone decides.
//   Connections are accepted here, so that they are bounded in all and per address. Certificates
//   and the list are exchanged without a restart: what came over the old certificate goes on, new
//   connections use the new one. Files that are bad change nothing. Thread: start(), reload and
//   stop() on one; one that accepts, and gRPC's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/access/tls_files.h"
#include "agent/api/api_server.h"
#include "agent/base/clock.h"
#include "agent/base/result.h"

namespace ncclscope::agent {

struct NetworkServerOptions {
  std::string address;     // IPv4 or IPv6 address, no name
  std::uint16_t port = 0;  // 0: any free one
  TlsFiles tls;            // client_ca may be empty if nobody uses certificates
  std::string access_file;
  std::size_t max_connections = 64;
  std::size_t max_connections_per_address = 16;  // IPv6: per /64
  int max_threads = 48;
  std::size_t max_tails = 16;
  std::size_t max_publishers = 16;
};

class NetworkServer {
 public:
  virtual ~NetworkServer() = default;  // stops, with a deadline of 0
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Reads the list, the certificates and the key again.
  virtual Status reload() = 0;
  /// As reload() if one of the files has changed since the last time; logs what came of it.
  virtual void reload_if_changed() = 0;
  /// As ApiServer::stop().
  virtual void stop(std::chrono::milliseconds deadline) = 0;
};

/// Starts nothing without a certificate, its key and somebody who may call. `clock` must outlive
/// it.
[[nodiscard]] Result<std::unique_ptr<NetworkServer>> start_network_server(
    const NetworkServerOptions& options, const ApiServices& services, const Clock& clock);

}  // namespace ncclscope::agent
