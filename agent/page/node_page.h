// SPDX-License-Identifier: Apache-2.0
//
// The agent's own page: "/" is one HTML file with style and script in it, which asks for
// "/api/node.json". Both are read-only and behind the same access rules as /metrics.
//   THE NAMES IN IT ARE HOSTILE: jobs and communicators are called what tenants like. The script
//   sets text and never HTML, and a Content-Security-Policy allows exactly this script and this
//   style (by hash), no other origin, and no HTML made from text.
//   Thread: handlers on any, several at once; they read the newest snapshot and never wait for the
//   reactor. The JSON is made once per snapshot, and then shared.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "agent/aggregate/snapshot_store.h"
#include "agent/export/http.h"
#include "agent/export/metrics_endpoint.h"
#include "agent/page/bandwidth_history.h"

namespace ncclscope::agent {

/// The page as it is in the repository.
[[nodiscard]] std::string_view node_page_html() noexcept;

/// Allows the one <script> and the one <style> of `html`, and requests to the page's own origin.
[[nodiscard]] std::string content_security_policy(std::string_view html);

class NodePage {
 public:
  /// `store` and `history` must outlive it.
  NodePage(const SnapshotStore& store, const BandwidthHistory& history,
           SelfReader self = read_self);

  [[nodiscard]] HttpResponse page(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse data(const HttpRequest& request);

  /// Adds both. The page must outlive the router.
  void add_to(HttpRouter& router);

 private:
  const SnapshotStore& store_;
  const BandwidthHistory& history_;
  SelfReader self_;
  std::string policy_;
  std::shared_ptr<const std::string> html_, html_gzip_;
  std::mutex mutex_;                  // of what follows; held while the JSON is made
  std::weak_ptr<const Snapshot> of_;  // weak: the JSON does not keep a snapshot
  std::shared_ptr<const std::string> json_gzip_;
};

}  // namespace ncclscope::agent
