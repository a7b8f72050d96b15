// SPDX-License-Identifier: Apache-2.0
//
// Walks the YAML by hand, so that every error has a line.
#include "agent/access/web_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "agent/access/secrets.h"

namespace ncclscope::agent {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  Status read(const YAML::Node& root) {
    if (root.IsNull()) return {};
    return each(root, "this file", [&](const std::string& key, const YAML::Node& value) {
      if (key == "tls_server_config") return tls(value);
      if (key == "basic_auth_users") {
        return each(value, key, [&](const std::string& name, const YAML::Node& hash) {
          return user(name, hash);
        });
      }
      if (key == "bearer_tokens_sha256") {
        return each(value, key, [&](const std::string& name, const YAML::Node& hash) {
          return token(name, hash);
        });
      }
      return unknown(value, key, "tls_server_config, basic_auth_users, bearer_tokens_sha256");
    });
  }

  WebConfig config;

 private:
  using Visit = std::function<Status(const std::string&, const YAML::Node&)>;

  [[nodiscard]] std::string at(const YAML::Node& node) const {
    const int line = node.Mark().line;
    return line < 0 ? path_ : concat(path_, ":", line + 1);
  }
  [[nodiscard]] Status error(const YAML::Node& node, const std::string& what) const {
    return Status::invalid(concat(at(node), ": ", what));
  }
  [[nodiscard]] Status unknown(const YAML::Node& node, const std::string& key,
                               const char* known) const {
    return error(node, concat("unknown key '", key, "'; there are ", known));
  }

  Status each(const YAML::Node& map, const std::string& what, const Visit& visit) const {
    if (map.IsNull()) return {};
    if (!map.IsMap()) return error(map, concat(what, " must be a mapping of keys to values"));
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const YAML::Node& key = entry.first;
      if (!key.IsScalar()) return error(key, concat("a key of ", what, " is not a string"));
      if (!seen.insert(key.Scalar()).second)
        return error(key, concat("the key '", key.Scalar(), "' is there twice"));
      if (Status status = visit(key.Scalar(), entry.second); !status.ok()) return status;
    }
    return {};
  }

  Status text(const YAML::Node& node, const std::string& key, std::string& out) const {
    if (!node.IsScalar()) return error(node, concat(key, " must be a string"));
    out = node.Scalar();
    return {};
  }

  Status file(const YAML::Node& node, const std::string& key, std::string& out) const {
    if (Status status = text(node, key, out); !status.ok()) return status;
    if (!out.empty() && out.front() != '/')
      out = (std::filesystem::path(path_).parent_path() / out).string();
    return {};
  }

  Status tls(const YAML::Node& node) {
    TlsFiles files;
    std::string auth_type;
    Status status = each(
        node, "tls_server_config", [&](const std::string& key, const YAML::Node& value) -> Status {
          if (key == "cert_file") return file(value, key, files.certificate);
          if (key == "key_file") return file(value, key, files.key);
          if (key == "client_ca_file") return file(value, key, files.client_ca);
          if (key == "client_auth_type") return client_auth_type(value);
          if (key == "min_version") return min_version(value);
          return unknown(value, key,
                         "cert_file, key_file, client_auth_type, client_ca_file, min_version");
        });
    if (!status.ok()) return status;
    if (files.certificate.empty() || files.key.empty())
      return error(node, "tls_server_config needs cert_file and key_file");
    const bool asked = config.client_certificates != ClientCertificates::kNotAsked;
    if (asked && files.client_ca.empty())
      return error(node, "client_auth_type needs client_ca_file, whose certificates it trusts");
    if (!asked && !files.client_ca.empty())
      return error(node,
                   "client_ca_file has no effect without client_auth_type "
                   "RequireAndVerifyClientCert or VerifyClientCertIfGiven");
    config.tls = std::move(files);
    return {};
  }

  Status client_auth_type(const YAML::Node& node) {
    std::string value;
    if (Status status = text(node, "client_auth_type", value); !status.ok()) return status;
    if (value == "RequireAndVerifyClientCert") {
      config.client_certificates = ClientCertificates::kRequired;
    } else if (value == "VerifyClientCertIfGiven") {
      config.client_certificates = ClientCertificates::kVerifiedIfGiven;
    } else if (value != "NoClientCert" && !value.empty()) {
      return error(node, concat("client_auth_type '", value,
                                "' is none of NoClientCert, VerifyClientCertIfGiven and "
                                "RequireAndVerifyClientCert; the types that ask for a certificate "
                                "and do not verify it are not supported"));
    }
    return {};
  }

  Status min_version(const YAML::Node& node) {
    std::string value;
    if (Status status = text(node, "min_version", value); !status.ok()) return status;
    if (value != "TLS12" && value != "TLS13")
      return error(node, concat("min_version '", value, "' is neither TLS12 nor TLS13"));
    config.tls13_only = value == "TLS13";
    return {};
  }

  Status user(const std::string& name, const YAML::Node& node) {
    std::string hash;
    if (Status status = text(node, name, hash); !status.ok()) return status;
    if (name.empty() || name.find(':') != std::string::npos)
      return error(node, concat("user '", name, "' must not be empty and have no colon"));
    if (const Status status = check_bcrypt_hash(hash); !status.ok())
      return error(node, concat("the password of user '", name, "' ", status.message()));
    config.users[name] = hash;
    return {};
  }

  Status token(const std::string& name, const YAML::Node& node) {
    std::string hash;
    if (Status status = text(node, name, hash); !status.ok()) return status;
    if (!is_sha256_hex(hash))
      return error(node, concat("the token '", name,
                                "' is not a SHA-256 of 64 hex digits (printf %s \"$TOKEN\" | "
                                "sha256sum)"));
    std::transform(hash.begin(), hash.end(), hash.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
    config.tokens[name] = hash;
    return {};
  }

  const std::string& path_;
};

}  // namespace

Result<WebConfig> parse_web_config(const std::string& text, const std::string& path) {
  Reader reader(path);
  try {
    if (Status status = reader.read(YAML::Load(text)); !status.ok()) return status;
  } catch (const YAML::Exception& error) {
    return Status::invalid(concat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
  return std::move(reader.config);
}

Result<WebConfig> load_web_config(const std::string& path) {
  const Result<std::string> text = read_small_file(path);
  if (!text.ok()) return text.status();
  return parse_web_config(text.value(), path);
}

}  // namespace ncclscope::agent
