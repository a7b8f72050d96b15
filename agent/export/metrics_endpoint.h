// SPDX-License-Identifier: Apache-2.0
//
// The handlers of the agent's HTTP paths for programs: /metrics, /healthz and /readyz.
//   Thread: any, several at once. They read the newest snapshot and never wait for the reactor.
//   A compressed page is made once per snapshot and format, and then shared: four scrapers cost
//   about what one costs, and see the same.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "agent/aggregate/snapshot_store.h"
#include "agent/export/http.h"
#include "agent/export/text_writer.h"
#include "agent/export/visit.h"

namespace ncclscope::agent {

/// Reads what SelfStats says of this process (time, CPU, memory). Tests give their own.
using SelfReader = std::function<SelfStats()>;

/// SelfStats of the running process: wall clock, getrusage, /proc/self/statm. `start_time_seconds`
/// is when the first call was made.
[[nodiscard]] SelfStats read_self();

/// The format an Accept header asks for: OpenMetrics only if it names it (a browser's */* gets
/// text), and prefers it.
[[nodiscard]] TextFormat negotiate_format(std::string_view accept);

class MetricsEndpoint {
 public:
  explicit MetricsEndpoint(const SnapshotStore& store, SelfReader self = read_self);

  /// What the page says of the agent itself (scrapes, CPU, memory) is as of when it was made.
  [[nodiscard]] HttpResponse metrics(const HttpRequest& request);
  /// Pages made so far; the other scrapes got one that was there.
  [[nodiscard]] std::uint64_t pages_made() const;
  /// The process answers.
  [[nodiscard]] HttpResponse healthz() const;
  /// A snapshot was published and is not older than `kMaxSnapshotAgeSeconds`: the reactor works.
  [[nodiscard]] HttpResponse readyz() const;

  /// Adds all of them. The endpoint must outlive the router.
  void add_to(HttpRouter& router);

  static constexpr double kMaxSnapshotAgeSeconds = 30;
  /// How long a page is given again: a snapshot that is not renewed must show its age.
  static constexpr std::int64_t kMaxPageAgeNs = 1'000'000'000;

 private:
  struct Page {
    std::weak_ptr<const Snapshot> of;  // weak: a page does not keep a snapshot
    std::int64_t made_ns = 0;          // as SelfStats::now_ns
    std::shared_ptr<const std::string> text;
  };
  /// Null: out of memory while compressing.
  [[nodiscard]] std::shared_ptr<const std::string> page(const SnapshotPtr& snapshot,
                                                        TextFormat format, bool gzip);

  const SnapshotStore& store_;
  SelfReader self_;
  mutable std::mutex
      mutex_;  // of what follows; held while a page is made, so that others wait for it
  std::array<Page, 2> pages_;  // compressed, by format
  std::uint64_t pages_made_ = 0;
  std::uint64_t scrapes_ = 0;
  double scrape_cpu_seconds_ = 0;
};

}  // namespace ncclscope::agent
