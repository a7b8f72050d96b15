// SPDX-License-Identifier: Apache-2.0
//
// Who may scrape, in the file format of Prometheus exporters (web.yml), with bearer tokens added:
//
//   tls_server_config:
//     cert_file: server.crt                  # relative paths: from the directory of this file
//     key_file: server.key
//     client_auth_type: RequireAndVerifyClientCert   # NoClientCert, VerifyClientCertIfGiven
//     client_ca_file: clients.crt
//     min_version: TLS13                     # or TLS12, the default
//   basic_auth_users:
//     prometheus: $2y$10$...                 # bcrypt
//   bearer_tokens_sha256:
//     grafana-agent: 5e88...                 # SHA-256 of the token, 64 hex digits
//
//   Nothing of a key that is not known here is ignored: it is an error with file and line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/access/tls_files.h"
#include "agent/base/result.h"

namespace ncclscope::agent {

enum class ClientCertificates : std::uint8_t { kNotAsked, kVerifiedIfGiven, kRequired };

struct WebConfig {
  std::optional<TlsFiles> tls;
  ClientCertificates client_certificates = ClientCertificates::kNotAsked;
  bool tls13_only = false;
  std::map<std::string, std::string> users;   // name -> bcrypt hash
  std::map<std::string, std::string> tokens;  // name -> SHA-256, lower case hex

  [[nodiscard]] bool wants_credentials() const { return !users.empty() || !tokens.empty(); }
};

/// `path` is for messages and relative paths. Reads no other file.
[[nodiscard]] Result<WebConfig> parse_web_config(const std::string& text, const std::string& path);
[[nodiscard]] Result<WebConfig> load_web_config(const std::string& path);

}  // namespace ncclscope::agent
