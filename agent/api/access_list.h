// SPDX-License-Identifier: Apache-2.0
//
// Who may use the API over the network: a TOML file that gives certificates and tokens a role.
//
//   [[certificate]]
//   name = "ops.example.org"     # common name or a subject alternative name
//   role = "operator"            # viewer, operator, ingest, user:NAME or user:UID
//
//   [[token]]
//   name = "grafana"             # for logs
//   sha256 = "5e88..."           # printf %s "$TOKEN" | sha256sum
//   role = "viewer"
//
//   Thread: any, once it is made.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/api/authorizer.h"
#include "agent/base/result.h"

namespace ncclscope::agent {

class AccessList {
 public:
  /// Errors name file, line, value and what would be right. `path` is for messages.
  [[nodiscard]] static Result<AccessList> parse(std::string_view text, const std::string& path);
  [[nodiscard]] static Result<AccessList> load(const std::string& path);

  /// The caller with that token. Takes the same time for every token.
  [[nodiscard]] std::optional<Caller> by_token(std::string_view token) const;
  /// The first entry of the file that is one of `names`, all of which a trusted authority has
  /// signed.
  [[nodiscard]] std::optional<Caller> by_certificate(const std::vector<std::string>& names) const;

  [[nodiscard]] bool has_tokens() const { return !tokens_.empty(); }
  [[nodiscard]] bool has_certificates() const { return !certificates_.empty(); }

 private:
  struct Token {
    std::string sha256;  // lower case hex
    Caller caller;
  };
  struct Certificate {
    std::string name;
    Caller caller;
  };
  std::vector<Token> tokens_;
  std::vector<Certificate> certificates_;
};

/// "viewer", "operator", "ingest", "user:alice", "user:1000". No file gives the administrator's
/// role: that is for users of the node itself.
[[nodiscard]] Result<Caller> parse_role(std::string_view text);

}  // namespace ncclscope::agent
