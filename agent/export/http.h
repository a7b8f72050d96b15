// SPDX-License-Identifier: Apache-2.0
//
// Requests and responses without a transport: handlers are pure functions of them, and are tested
// as such.
//   Thread: a handler may be called on several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ncclscope::agent {

/// Compares header names: ASCII letters without case.
struct HeaderNameLess {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const noexcept;
};

enum class ClientCertificate : std::uint8_t { kNone, kVerified, kBad };

struct HttpRequest {
  std::string method;                                          // "GET"
  std::string path;                                            // decoded, without query
  std::map<std::string, std::string, HeaderNameLess> headers;  // repeated ones joined by ", "
  ClientCertificate client_certificate = ClientCertificate::kNone;

  /// Empty when absent.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  /// Sent in place of `body` if set: a page that several responses share.
  std::shared_ptr<const std::string> shared_body;
  std::vector<std::pair<std::string, std::string>>
      headers;  // beyond Content-Type and Content-Length

  [[nodiscard]] const std::string& content() const { return shared_body ? *shared_body : body; }
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

/// Finds the handler of a path. Knows GET and HEAD only: anything else is 405, an unknown path is
/// 404. HEAD is handled as GET; the transport leaves the body out.
class HttpRouter {
 public:
  void add(std::string path, HttpHandler handler);
  [[nodiscard]] HttpResponse handle(const HttpRequest& request) const;

 private:
  std::map<std::string, HttpHandler, std::less<>> handlers_;
};

/// "Basic dTpw" -> {"basic", "dTpw"}: the scheme in lower case. Empty if it has not this form.
struct Authorization {
  std::string scheme, credentials;
};
[[nodiscard]] std::optional<Authorization> parse_authorization(std::string_view header);

/// The user and password in the credentials of the scheme Basic: base64 of "user:password".
struct UserPassword {
  std::string user, password;
};
[[nodiscard]] std::optional<UserPassword> parse_basic_credentials(std::string_view credentials);

/// Weight (0..1000) that an Accept-like header gives to the first of its items that `matches`
/// accepts, best weight wins among several; -1 if there is none. `matches` sees the item without q,
/// lower case, without white space: "text/plain;version=0.0.4".
[[nodiscard]] int accept_weight(std::string_view header,
                                const std::function<bool(std::string_view)>& matches);

/// True if the client takes gzip (q > 0), by name or by "*".
[[nodiscard]] bool accepts_gzip(std::string_view accept_encoding);

}  // namespace ncclscope::agent
