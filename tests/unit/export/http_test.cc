// SPDX-License-Identifier: Apache-2.0
#include "agent/export/http.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "agent/export/metrics_endpoint.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

HttpRequest get(std::string path, std::string accept = "", std::string accept_encoding = "") {
  HttpRequest request;
  request.method = "GET";
  request.path = std::move(path);
  if (!accept.empty()) request.headers["Accept"] = std::move(accept);
  if (!accept_encoding.empty()) request.headers["accept-encoding"] = std::move(accept_encoding);
  return request;
}

std::string header_of(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

TEST(HttpRequest, FindsHeadersWithoutCase) {
  const HttpRequest request = get("/", "text/plain");
  EXPECT_EQ(request.header("ACCEPT"), "text/plain");
  EXPECT_EQ(request.header("absent"), "");
}

TEST(Negotiation, PrefersWhatTheScraperPrefers) {
  struct Case {
    const char* accept;
    TextFormat expected;
  };
  constexpr Case kCases[] = {
      {"", TextFormat::kPrometheus},
      {"*/*", TextFormat::kPrometheus},
      {"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TextFormat::kPrometheus},
      {"application/openmetrics-text", TextFormat::kOpenMetrics},
      {"application/openmetrics-text;version=1.0.0", TextFormat::kOpenMetrics},
      {"Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", TextFormat::kOpenMetrics},
      // Prometheus 2.42, and 3.x
      {"application/openmetrics-text;version=1.0.0,application/"
       "openmetrics-text;version=0.0.1;q=0.75,"
       "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
       TextFormat::kOpenMetrics},
      {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
       "application/openmetrics-text;version=0.0.1;q=0.4,text/"
       "plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
       "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
       TextFormat::kOpenMetrics},
      {"application/openmetrics-text;version=0.0.1", TextFormat::kPrometheus},
      {"application/openmetrics-text;version=2.0.0,text/plain;q=0.1", TextFormat::kPrometheus},
      {"application/openmetrics-text;q=0.2,text/plain;version=0.0.4;q=0.9",
       TextFormat::kPrometheus},
      {"application/openmetrics-text;q=0", TextFormat::kPrometheus},
      {"application/openmetrics-textual", TextFormat::kPrometheus},
      {"application/openmetrics-text;q=abc,text/plain;q=0.1", TextFormat::kPrometheus},
      {";;;,,,q=1", TextFormat::kPrometheus},
  };
  for (const Case& c : kCases) EXPECT_EQ(negotiate_format(c.accept), c.expected) << c.accept;
}

TEST(Negotiation, ReadsAcceptEncoding) {
  EXPECT_FALSE(accepts_gzip(""));
  EXPECT_TRUE(accepts_gzip("gzip"));
  EXPECT_TRUE(accepts_gzip("deflate, GZIP;q=0.5"));
  EXPECT_FALSE(accepts_gzip("gzip;q=0"));
  EXPECT_FALSE(accepts_gzip("gzip; q=0.000, *"));
  EXPECT_TRUE(accepts_gzip("*"));
  EXPECT_FALSE(accepts_gzip("*;q=0"));
  EXPECT_FALSE(accepts_gzip("identity"));
  EXPECT_FALSE(accepts_gzip("gzipped"));
}

class Endpoint : public ::testing::Test {
 protected:
  Endpoint() { endpoint_.add_to(router_); }
  SnapshotStore store_;
  MetricsEndpoint endpoint_{store_, golden_self};
  HttpRouter router_;
};

TEST_F(Endpoint, ServesTextByDefault) {
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const HttpResponse response = router_.handle(get("/metrics"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_TRUE(response.content().starts_with("# HELP ncclscope_job_info "));
  EXPECT_EQ(header_of(response, "Vary"), "Accept, Accept-Encoding");
  EXPECT_EQ(header_of(response, "Content-Encoding"), "");
}

TEST_F(Endpoint, ServesOpenMetricsWithGzipWhenAsked) {
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const HttpResponse response =
      router_.handle(get("/metrics", "application/openmetrics-text;version=1.0.0", "gzip"));
  EXPECT_EQ(response.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_EQ(header_of(response, "Content-Encoding"), "gzip");
  EXPECT_TRUE(response.content().starts_with("\x1F\x8B"));
}

TEST_F(Endpoint, CountsItsScrapes) {
  (void)router_.handle(get("/metrics"));
  (void)router_.handle(get("/metrics", "", "gzip"));
  store_.publish(std::make_shared<const Snapshot>());
  const HttpResponse third = router_.handle(get("/metrics"));
  EXPECT_NE(third.content().find("\nncclscope_agent_scrapes_total 2\n"), std::string::npos);
}

TEST_F(Endpoint, MakesACompressedPageOncePerSnapshotAndFormat) {
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const std::string open_metrics = "application/openmetrics-text;version=1.0.0";
  const HttpResponse first = router_.handle(get("/metrics", open_metrics, "gzip"));
  for (int i = 0; i < 40; ++i) {
    const HttpResponse again = router_.handle(get("/metrics", open_metrics, "gzip"));
    EXPECT_EQ(again.shared_body, first.shared_body);
  }
  EXPECT_EQ(endpoint_.pages_made(), 1u);
  EXPECT_NE(router_.handle(get("/metrics", "", "gzip")).content(), first.content());
  EXPECT_NE(router_.handle(get("/metrics", open_metrics)).content(), first.content());
  EXPECT_EQ(endpoint_.pages_made(), 3u);
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const HttpResponse next = router_.handle(get("/metrics", open_metrics, "gzip"));
  EXPECT_NE(next.shared_body, first.shared_body);
  EXPECT_EQ(endpoint_.pages_made(), 4u);
  EXPECT_FALSE(first.content().empty()) << "a page outlives the next one while it is sent";
}

TEST_F(Endpoint, MakesANewPageOfASnapshotThatIsNotRenewedSoThatItsAgeShows) {
  SelfStats self = golden_self();
  MetricsEndpoint endpoint(store_, [&] { return self; });
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const HttpRequest compressed = get("/metrics", "", "gzip");
  const HttpResponse first = endpoint.metrics(compressed);
  self.now_ns += MetricsEndpoint::kMaxPageAgeNs - 1;
  EXPECT_EQ(endpoint.metrics(compressed).shared_body, first.shared_body);
  self.now_ns += 1;
  EXPECT_NE(endpoint.metrics(compressed).shared_body, first.shared_body);
  self.now_ns += 60'000'000'000;
  const HttpResponse later = endpoint.metrics(get("/metrics"));
  const std::string text(later.content());
  const std::string name = "\nncclscope_agent_snapshot_age_seconds ";
  const std::size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos);
  EXPECT_NEAR(std::strtod(text.c_str() + at + name.size(), nullptr), 61.25, 1e-6);
}

TEST_F(Endpoint, IsHealthyAsSoonAsItAnswers) {
  EXPECT_EQ(router_.handle(get("/healthz")).status, 200);
}

TEST_F(Endpoint, IsReadyOnlyWithACurrentSnapshot) {
  EXPECT_EQ(router_.handle(get("/readyz")).status, 503);
  Snapshot snapshot = golden_snapshot();
  store_.publish(std::make_shared<const Snapshot>(snapshot));
  EXPECT_EQ(router_.handle(get("/readyz")).status, 200);
  snapshot.realtime_ns = golden_self().now_ns - 31'000'000'000;
  store_.publish(std::make_shared<const Snapshot>(snapshot));
  const HttpResponse stale = router_.handle(get("/readyz"));
  EXPECT_EQ(stale.status, 503);
  EXPECT_NE(stale.body.find("31 s old"), std::string::npos);
}

TEST_F(Endpoint, RefusesUnknownPathsAndMethods) {
  const HttpResponse missing = router_.handle(get("/nothing"));
  EXPECT_EQ(missing.status, 404);
  EXPECT_NE(missing.body.find("/metrics"), std::string::npos);
  HttpRequest post = get("/metrics");
  post.method = "POST";
  const HttpResponse refused = router_.handle(post);
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(header_of(refused, "Allow"), "GET, HEAD");
  post.method = "HEAD";
  EXPECT_EQ(router_.handle(post).status, 200);
}

}  // namespace
}  // namespace ncclscope::agent
