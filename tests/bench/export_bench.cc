// SPDX-License-Identifier: Apache-2.0
//
// Cost of one scrape of a node by number of series: walk, text, gzip. Time is CPU time of the
// rendering thread. Bar: 10,000 series with gzip <= 20 ms.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "agent/base/scoped_fd.h"
#include "agent/export/byte_sink.h"
#include "agent/export/http_server.h"
#include "agent/export/metrics_endpoint.h"
#include "agent/export/prometheus_collectable.h"
#include "agent/export/text_writer.h"
#include "agent/page/bandwidth_history.h"
#include "agent/page/node_json.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

class CountSink final : public ByteSink {
 public:
  void write(std::string_view bytes) override { bytes_ += bytes.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

const SnapshotPtr& snapshot_of(std::int64_t series) {
  static const SnapshotPtr small = std::make_shared<const Snapshot>(large_snapshot(10'000));
  static const SnapshotPtr large = std::make_shared<const Snapshot>(large_snapshot(100'000));
  return series == 10'000 ? small : large;
}

void report(benchmark::State& state, std::size_t bytes, std::uint64_t series) {
  state.counters["series"] = static_cast<double>(series);
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["time_per_series"] = benchmark::Counter(
      static_cast<double>(series),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_ScrapePlain(benchmark::State& state) {
  const SnapshotPtr snapshot = snapshot_of(state.range(0));
  std::size_t bytes = 0;
  VisitCounts counts;
  for (auto _ : state) {
    CountSink sink;
    TextWriter writer(TextFormat::kOpenMetrics, sink);
    counts = visit_metrics(*snapshot, golden_self(), writer);
    writer.finish();
    bytes = sink.bytes();
  }
  report(state, bytes, counts.job_series + counts.agent_series);
}
BENCHMARK(BM_ScrapePlain)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

void BM_ScrapeGzip(benchmark::State& state) {
  const SnapshotPtr snapshot = snapshot_of(state.range(0));
  std::size_t bytes = 0;
  VisitCounts counts;
  for (auto _ : state) {
    std::string body;
    GzipSink sink(body);
    TextWriter writer(TextFormat::kOpenMetrics, sink);
    counts = visit_metrics(*snapshot, golden_self(), writer);
    writer.finish();
    if (!sink.finish()) state.SkipWithError("gzip failed");
    bytes = body.size();
  }
  report(state, bytes, counts.job_series + counts.agent_series);
}
BENCHMARK(BM_ScrapeGzip)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

/// For comparison: the same series through prometheus-cpp's serialiser, without gzip.
void BM_ScrapePrometheusCpp(benchmark::State& state) {
  const SnapshotPtr snapshot = snapshot_of(state.range(0));
  const SnapshotCollectable collectable([&] { return snapshot; }, golden_self);
  std::size_t bytes = 0;
  for (auto _ : state) bytes = prometheus::TextSerializer().Serialize(collectable.Collect()).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_ScrapePrometheusCpp)->Arg(10'000)->Unit(benchmark::kMillisecond);

/// The same through the HTTP server, a connection per scrape: CPU time of the whole process, the
/// client included.
void BM_ScrapeOverHttp(benchmark::State& state) {
  SnapshotStore store;
  const SnapshotPtr snapshot = snapshot_of(state.range(0));
  MetricsEndpoint endpoint(store);
  HttpRouter router;
  endpoint.add_to(router);
  const auto server =
      start_http_server({}, [&](const HttpRequest& request) { return router.handle(request); });
  if (!server.ok()) return state.SkipWithError(server.status().message().c_str());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.value()->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  constexpr std::string_view kRequest =
      "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;version=1.0.0\r\n"
      "Accept-Encoding: gzip\r\nConnection: close\r\n\r\n";
  std::size_t bytes = 0;
  for (auto _ : state) {
    // A new snapshot each time (the same contents under another owner), or the page would be kept.
    store.publish(SnapshotPtr(std::make_shared<int>(), snapshot.get()));
    const ScopedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::send(fd.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0)
      return state.SkipWithError("cannot reach the server");
    char part[65536];
    bytes = 0;
    for (ssize_t got; (got = ::recv(fd.get(), part, sizeof part, 0)) > 0;)
      bytes += static_cast<std::size_t>(got);
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_ScrapeOverHttp)
    ->Arg(10'000)
    ->Arg(100'000)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// What the node's page asks for every five seconds, of a node with that many series: with a full
/// past of every communicator and collective.
void BM_NodePageData(benchmark::State& state) {
  Snapshot snapshot = *snapshot_of(state.range(0));
  BandwidthHistory history;
  for (std::size_t i = 0; i < BandwidthHistory::kSamples; ++i) {
    snapshot.realtime_ns += BandwidthHistory::kIntervalNs;
    snapshot.monotonic_ns += BandwidthHistory::kIntervalNs;
    for (JobSnapshot& job : snapshot.jobs)
      for (CommunicatorSnapshot& communicator : job.communicators)
        for (OperationSumsRow& row : communicator.sums) {
          row.busy_seconds += 1.25;
          row.bus_bytes += 1e11 + 1e9 * static_cast<double>(i % 17);
        }
    history.observe(snapshot);
  }
  std::size_t bytes = 0;
  for (auto _ : state) {
    std::string body;
    GzipSink sink(body);
    write_node_json(snapshot, history, golden_self(), sink);
    if (!sink.finish()) state.SkipWithError("gzip failed");
    bytes = body.size();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_NodePageData)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ncclscope::agent

BENCHMARK_MAIN();
