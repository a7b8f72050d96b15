// SPDX-License-Identifier: Apache-2.0
//
// The page without a browser: its data, headers and bounds. tests/e2e/page shows it in one.
#include "agent/page/node_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "agent/page/node_json.h"
#include "tests/unit/export/golden.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

using Json = nlohmann::json;

HttpRequest get(std::string path, std::string encoding = "") {
  HttpRequest request;
  request.method = "GET";
  request.path = std::move(path);
  if (!encoding.empty()) request.headers["Accept-Encoding"] = std::move(encoding);
  return request;
}

std::string header_of(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

class Page : public ::testing::Test {
 protected:
  Page() { page_.add_to(router_); }
  SnapshotStore store_;
  BandwidthHistory history_;
  NodePage page_{store_, history_, golden_self};
  HttpRouter router_;
};

/// What a tenant may call things, in the golden snapshot's two jobs, over two intervals.
Snapshot later(const Snapshot& before) {
  Snapshot after = before;
  after.realtime_ns += BandwidthHistory::kIntervalNs;
  after.monotonic_ns += BandwidthHistory::kIntervalNs;
  for (JobSnapshot& job : after.jobs) {
    for (CommunicatorSnapshot& communicator : job.communicators) {
      for (OperationSumsRow& row : communicator.sums) {
        row.bus_bytes *= 2;
        row.busy_seconds *= 2;
        for (std::uint64_t& count : row.operations_by_timing) count *= 2;
      }
      for (RankSumsRow& row : communicator.rank_sums) {
        row.operations *= 2;
        row.seconds *= 2;
      }
    }
  }
  return after;
}

std::string node_json(const Snapshot& snapshot, const BandwidthHistory& history,
                      const SelfStats& self) {
  std::string text;
  StringSink sink(text);
  write_node_json(snapshot, history, self, sink);
  return text;
}

TEST(NodeJson, EqualsTheGoldenFile) {
  const Snapshot first = golden_snapshot();
  const Snapshot second = later(first);
  BandwidthHistory history;
  history.observe(first);
  history.observe(second);
  Json json = Json::parse(node_json(second, history, golden_self()));
  EXPECT_GT(json["agent"]["series"], 100);
  json["agent"]["series"] = 0;  // changes with every new metric
  expect_golden(NCCLSCOPE_SOURCE_DIR "/tests/data/golden/node.json", json.dump(1) + "\n");
}

TEST(NodeJson, IsValidWhateverTenantsCallThings) {
  Snapshot snapshot = golden_snapshot();
  snapshot.jobs[0].identity.job_name = "</script><script>alert(1)</script>\xC3\x28\x01\"\\";
  const Json json = Json::parse(node_json(snapshot, {}, golden_self()));
  EXPECT_EQ(json["jobs"][0]["job_name"], "</script><script>alert(1)</script>\xEF\xBF\xBD(\x01\"\\");
}

TEST(NodeJson, ListsABoundedNumber) {
  Snapshot snapshot;
  snapshot.jobs.resize(3);
  for (JobSnapshot& job : snapshot.jobs) {
    job.communicators.resize(kMaxListedCommunicators / 2);
    job.processes.resize(kMaxListedProcesses / 2);
  }
  const Json json = Json::parse(node_json(snapshot, {}, golden_self()));
  std::size_t communicators = 0, processes = 0;
  for (const Json& job : json["jobs"]) {
    communicators += job["communicators"].size();
    processes += job["processes"].size();
    EXPECT_EQ(job["communicators_total"], kMaxListedCommunicators / 2);
  }
  EXPECT_EQ(communicators, kMaxListedCommunicators);
  EXPECT_EQ(processes, kMaxListedProcesses);
}

TEST_F(Page, IsOneFileWithoutOutsideAssets) {
  const HttpResponse response = router_.handle(get("/"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "text/html; charset=utf-8");
  const std::string& html = response.content();
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_LT(html.size(), 40'000u);
  EXPECT_FALSE(std::regex_search(html, std::regex("https?://(?!www\\.w3\\.org/2000/svg)")));
  for (const char* bad :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("})
    EXPECT_EQ(html.find(bad), std::string::npos) << bad;
  EXPECT_EQ(router_.handle(get("/", "gzip")).content().substr(0, 2), "\x1F\x8B");
}

TEST_F(Page, AllowsItsOwnScriptAndStyleOnly) {
  const std::string policy = header_of(router_.handle(get("/")), "Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-")) << policy;
  for (const char* part : {"style-src 'sha256-", "connect-src 'self'", "base-uri 'none'",
                           "form-action 'none'", "frame-ancestors 'none'"})
    EXPECT_NE(policy.find(part), std::string::npos) << part;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  // SHA-256 of "alert(1)" and of nothing, in base64, from openssl.
  const std::string known = content_security_policy("<style></style><script>alert(1)</script>");
  EXPECT_NE(known.find("script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"),
            std::string::npos)
      << known;
  EXPECT_NE(known.find("style-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"),
            std::string::npos)
      << known;
  EXPECT_EQ(header_of(router_.handle(get("/")), "X-Content-Type-Options"), "nosniff");
}

TEST_F(Page, MakesItsDataOncePerSnapshot) {
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  const HttpResponse first = router_.handle(get("/api/node.json", "gzip"));
  EXPECT_EQ(first.content_type, "application/json");
  EXPECT_EQ(header_of(first, "Content-Encoding"), "gzip");
  EXPECT_EQ(header_of(first, "Cache-Control"), "no-store");
  EXPECT_EQ(router_.handle(get("/api/node.json", "gzip")).shared_body, first.shared_body);
  store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
  EXPECT_NE(router_.handle(get("/api/node.json", "gzip")).shared_body, first.shared_body);
  const Json plain = Json::parse(router_.handle(get("/api/node.json")).content());
  EXPECT_EQ(plain["node"], "nid001");
}

TEST_F(Page, IsReadOnly) {
  for (const char* path : {"/", "/api/node.json"}) {
    HttpRequest request = get(path);
    request.method = "POST";
    EXPECT_EQ(router_.handle(request).status, 405) << path;
    request.method = "HEAD";
    EXPECT_EQ(router_.handle(request).status, 200) << path;
  }
}

}  // namespace
}  // namespace ncclscope::agent
