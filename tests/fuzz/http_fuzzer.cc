// SPDX-License-Identifier: Apache-2.0
//
// What of a request's head is parsed here: path, Accept, Accept-Encoding and Authorization. The
// input is these four, one per line, after the method.
#include <cstdlib>
#include <string_view>

#include "agent/access/secrets.h"
#include "agent/export/metrics_endpoint.h"
#include "agent/export/web_access.h"

namespace {

using namespace ncclscope::agent;  // NOLINT(google-build-using-namespace): this is its program

void require(bool holds) {
  if (!holds) std::abort();
}

/// The agent's handlers behind a token and a user whose hash is malformed, so that no time is spent
/// on bcrypt.
struct Door {
  Door() {
    endpoint.add_to(router);
    WebConfig config;
    config.tokens["t"] = sha256_hex("token");
    config.users["u"] = "x";
    access.set(config);
  }
  FakeClock clock;
  SnapshotStore store;
  MetricsEndpoint endpoint{store, [] { return SelfStats{}; }};
  HttpRouter router;
  WebAccess access{clock};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Door door;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto line = [&rest] {
    const std::string_view out = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(out.size() + 1, rest.size()));
    return std::string(out);
  };
  HttpRequest request;
  request.method = line();
  request.path = line();
  for (const char* name : {"Accept", "Accept-Encoding", "Authorization"}) {
    std::string value = line();
    if (!value.empty()) request.headers[name] = std::move(value);
  }
  const bool may_pass = !door.access.refuse(request).has_value();
  const auto authorization = parse_authorization(request.header("authorization"));
  const bool open = request.path == "/healthz" || request.path == "/readyz";
  const bool knows_token =
      authorization && authorization->scheme == "bearer" && authorization->credentials == "token";
  require(may_pass == (open || knows_token));
  door.clock.advance_ms(500);

  const HttpResponse response = door.router.handle(request);
  require(response.status == 200 || response.status == 404 || response.status == 405 ||
          response.status == 503);
  const int weight = accept_weight(request.header("accept"), [](std::string_view item) {
    require(!item.empty() && item.find(',') == std::string_view::npos);
    return true;
  });
  require(weight >= -1 && weight <= 1000);
  return 0;
}
