// SPDX-License-Identifier: Apache-2.0
//
// The files that people write: the agent's settings, web.yml and the access list. The first byte
// says which. What is accepted must be well-formed; an error must have a message.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "agent/access/secrets.h"
#include "agent/access/web_config.h"
#include "agent/api/access_list.h"
#include "agent/app/config.h"

namespace {

using namespace ncclscope::agent;  // NOLINT(google-build-using-namespace): this is its program

void require(bool holds) {
  if (!holds) std::abort();
}

void web_config(const std::string& text) {
  const Result<WebConfig> read = parse_web_config(text, "w");
  if (!read.ok()) return require(!read.status().message().empty());
  const WebConfig& c = read.value();
  for (const auto& [name, hash] : c.users) require(!name.empty() && check_bcrypt_hash(hash).ok());
  for (const auto& [name, hash] : c.tokens) require(is_sha256_hex(hash));
  if (c.tls) require(!c.tls->certificate.empty() && !c.tls->key.empty());
  require(c.client_certificates == ClientCertificates::kNotAsked ||
          (c.tls && !c.tls->client_ca.empty()));
}

void access_list(const std::string& text) {
  const Result<AccessList> read = AccessList::parse(text, "a");
  if (!read.ok()) return require(!read.status().message().empty());
  require(!read.value().by_token("").has_value() || read.value().has_tokens());
  require(!read.value().by_certificate({}).has_value());
}

/// load_config reads a path, so the text goes through a file of this process.
void settings(const std::string& text) {
  static const std::string path = "/tmp/ncclscope-config-fuzzer-" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  ConfigSources sources;
  sources.file = path;
  sources.environment = [](const std::string&) { return std::nullopt; };
  const Result<Config> read = load_config(sources);
  if (!read.ok()) {
    require(!read.status().message().empty());
  } else {
    require(!read.value().socket.empty());
    // What is printed is read as the same.
    const std::string printed = to_toml(read.value());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << printed;
    const Result<Config> again = load_config(sources);
    require(again.ok() && again.value() == read.value());
  }
  ::unlink(path.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      web_config(text);
      break;
    case 1:
      access_list(text);
      break;
    default:
      settings(text);
  }
  return 0;
}
