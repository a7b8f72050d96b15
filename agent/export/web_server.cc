// SPDX-License-Identifier: Apache-2.0
//
// Reads first, then changes.
#include "agent/export/web_server.h"

#include <utility>

#include "agent/base/log.h"

namespace ncclscope::agent {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Result<std::unique_ptr<WebServer>> WebServer::start(HttpServerOptions options,
                                                    std::string web_config, const Clock& clock,
                                                    HttpHandler handler) {
  std::unique_ptr<WebServer> out(new WebServer(std::move(web_config), clock));
  Result<Loaded> loaded = out->load();
  if (!loaded.ok()) return loaded.status();
  options.tls = loaded.value().tls;
  out->adopt(std::move(loaded).value());
  WebAccess& access = out->access_;
  Result<std::unique_ptr<HttpServer>> http = start_http_server(
      options, [&access, handler = std::move(handler)](const HttpRequest& request) {
        std::optional<HttpResponse> refused = access.refuse(request);
        return refused ? *std::move(refused) : handler(request);
      });
  if (!http.ok()) return http.status();
  out->http_ = std::move(http).value();
  out->warn_if_open(options.address);
  return out;
}

Result<WebServer::Loaded> WebServer::load() const {
  Loaded out;
  if (web_config_.empty()) return out;
  out.files = {web_config_};
  // Stamps before contents: a change in between is seen the next time.
  out.stamp = stamp_of_files(out.files);
  Result<WebConfig> config = load_web_config(web_config_);
  if (!config.ok()) return config.status();
  out.config = std::move(config).value();
  if (out.config.tls) {
    const TlsFiles& files = *out.config.tls;
    const std::vector<std::string> more = {files.certificate, files.key, files.client_ca};
    out.files.insert(out.files.end(), more.begin(), more.end());
    out.stamp += stamp_of_files(more);
    Result<TlsMaterial> material = read_tls_files(*out.config.tls);
    if (!material.ok()) return material.status();
    out.tls = HttpTls{std::move(material).value(), out.config.tls13_only};
  }
  return out;
}

void WebServer::adopt(Loaded loaded) {
  if (loaded.tls) {
    const std::string warning = expiry_warning(*loaded.config.tls, loaded.tls->material,
                                               clock_.realtime_ns() / 1'000'000'000);
    if (!warning.empty()) log_warning(warning);
  }
  has_tls_ = loaded.tls.has_value();
  wants_credentials_ = loaded.config.wants_credentials();
  files_ = std::move(loaded.files);
  stamp_ = std::move(loaded.stamp);
  access_.set(std::move(loaded.config));
}

void WebServer::warn_if_open(const std::string& address) const {
  if (is_loopback(address)) return;
  if (web_config_.empty()) {
    log_warning(concat("/metrics listens on ", address,
                       " without TLS and without passwords: everybody who reaches it sees all "
                       "jobs; web_config protects it"));
  } else if (wants_credentials_ && !has_tls_) {
    log_warning(concat("passwords and tokens for /metrics travel unencrypted to ", address, "; ",
                       web_config_, " has no tls_server_config"));
  }
}

Status WebServer::reload() {
  if (web_config_.empty()) return {};
  Result<Loaded> loaded = load();
  if (!loaded.ok()) {
    stamp_ = stamp_of_files(files_);  // one message per change
    return loaded.status();
  }
  // Rules before transport: whoever comes in over the new one meets the new ones.
  const std::optional<HttpTls> tls = loaded.value().tls;
  adopt(std::move(loaded).value());
  return http_->set_tls(tls);
}

void WebServer::reload_if_changed() {
  if (web_config_.empty() || stamp_of_files(files_) == stamp_) return;
  if (const Status status = reload(); status.ok()) {
    log_info(concat("/metrics: ", web_config_, " and its certificates have been read again"));
  } else {
    log_error(concat("/metrics goes on as it was: ", status.message()));
  }
}

}  // namespace ncclscope::agent
