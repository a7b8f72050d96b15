// SPDX-License-Identifier: Apache-2.0
//
// The HTTP server with the web-config file that says how it is protected: TLS, and who may pass.
//   The file and the certificates can be exchanged while it serves: reload(), or
//   reload_if_changed() from a timer. A file that is bad is reported and changes nothing. Thread:
//   one (the reactor); the handler runs on the server's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/result.h"
#include "agent/export/http.h"
#include "agent/export/http_server.h"
#include "agent/export/web_access.h"

namespace ncclscope::agent {

class WebServer {
 public:
  /// `web_config` is a path; empty: plain text for everybody who can connect. `options.tls` is
  /// ignored. `clock` must outlive the server.
  [[nodiscard]] static Result<std::unique_ptr<WebServer>> start(HttpServerOptions options,
                                                                std::string web_config,
                                                                const Clock& clock,
                                                                HttpHandler handler);

  [[nodiscard]] std::uint16_t port() const { return http_->port(); }
  [[nodiscard]] bool has_tls() const { return has_tls_; }
  void stop() { http_->stop(); }

  /// Reads the file and the certificates again.
  Status reload();
  /// As reload() if one of the files has changed since the last time; logs what came of it.
  void reload_if_changed();

 private:
  struct Loaded {
    WebConfig config;
    std::optional<HttpTls> tls;
    std::vector<std::string> files;
    std::string stamp;
  };
  WebServer(std::string web_config, const Clock& clock)
      : web_config_(std::move(web_config)), clock_(clock), access_(clock) {}
  [[nodiscard]] Result<Loaded> load() const;
  void adopt(Loaded loaded);
  void warn_if_open(const std::string& address) const;

  std::string web_config_;
  const Clock& clock_;
  WebAccess access_;  // before the server, whose threads use it
  std::unique_ptr<HttpServer> http_;
  std::vector<std::string> files_;
  std::string stamp_;  // of files_
  bool has_tls_ = false;
  bool wants_credentials_ = false;
};

/// True for 127.0.0.0/8 and ::1, which nobody outside the host reaches.
[[nodiscard]] bool is_loopback(const std::string& address);

}  // namespace ncclscope::agent
