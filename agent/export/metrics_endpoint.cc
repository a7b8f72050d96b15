// SPDX-License-Identifier: Apache-2.0
//
// Renders the newest snapshot for HTTP.
#include "agent/export/metrics_endpoint.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace ncclscope::agent {
namespace {

std::int64_t clock_ns(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::uint64_t resident_bytes() {
  // statm counts pages: size resident ...
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  char text[128] = {};
  const bool read = std::fgets(text, sizeof text, file) != nullptr;
  std::fclose(file);
  const char* space = read ? std::strchr(text, ' ') : nullptr;
  std::uint64_t pages = 0;
  if (space == nullptr || std::from_chars(space + 1, text + sizeof text, pages).ec != std::errc())
    return 0;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

}  // namespace

SelfStats read_self() {
  static const std::int64_t first_call_ns = clock_ns(CLOCK_REALTIME);
  SelfStats self;
  self.now_ns = clock_ns(CLOCK_REALTIME);
  self.start_time_seconds = static_cast<double>(first_call_ns) * 1e-9;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  self.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  self.resident_bytes = resident_bytes();
  return self;
}

TextFormat negotiate_format(std::string_view accept) {
  const auto starts = [](std::string_view item, std::string_view type, std::string_view version) {
    if (!item.starts_with(type)) return false;
    const std::string_view parameters = item.substr(type.size());
    if (!parameters.empty() && parameters[0] != ';') return false;
    const std::size_t at = parameters.find(";version=");
    if (at == std::string_view::npos) return true;
    std::string_view asked = parameters.substr(at + std::string_view(";version=").size());
    asked = asked.substr(0, asked.find(';'));
    if (asked.size() >= 2 && asked.front() == '"') asked = asked.substr(1, asked.size() - 2);
    return asked == version;
  };
  const int open_metrics = accept_weight(accept, [&](std::string_view item) {
    return starts(item, "application/openmetrics-text", "1.0.0");
  });
  const int text = accept_weight(accept, [&](std::string_view item) {
    return starts(item, "text/plain", "0.0.4") || item == "text/*" || item == "*/*";
  });
  return open_metrics > 0 && open_metrics >= text ? TextFormat::kOpenMetrics
                                                  : TextFormat::kPrometheus;
}

MetricsEndpoint::MetricsEndpoint(const SnapshotStore& store, SelfReader self)
    : store_(store), self_(std::move(self)) {
  (void)self_();  // the process starts now, not at the first scrape
}

HttpResponse MetricsEndpoint::metrics(const HttpRequest& request) {
  const std::int64_t begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const SnapshotPtr snapshot = store_.get();
  const TextFormat format = negotiate_format(request.header("Accept"));
  const bool gzip = accepts_gzip(request.header("Accept-Encoding"));

  const std::lock_guard lock(mutex_);
  HttpResponse response;
  response.shared_body = page(snapshot, format, gzip);
  if (response.shared_body == nullptr) {
    response.status = 503;
    response.body = "Out of memory while compressing the metrics.\n";
    return response;
  }
  response.content_type = content_type(format);
  response.headers.emplace_back("Vary", "Accept, Accept-Encoding");
  if (gzip) response.headers.emplace_back("Content-Encoding", "gzip");
  ++scrapes_;
  scrape_cpu_seconds_ += static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns) * 1e-9;
  return response;
}

std::shared_ptr<const std::string> MetricsEndpoint::page(const SnapshotPtr& snapshot,
                                                         TextFormat format, bool gzip) {
  Page& kept = pages_[format == TextFormat::kOpenMetrics ? 1u : 0u];
  const bool same = !kept.of.owner_before(snapshot) && !snapshot.owner_before(kept.of);
  SelfStats self = self_();
  const std::int64_t age_ns = self.now_ns - kept.made_ns;
  if (gzip && same && kept.text != nullptr && age_ns >= 0 && age_ns < kMaxPageAgeNs)
    return kept.text;
  // Pages of earlier snapshots are nobody's use: not even in formats that nobody asks for any more.
  for (Page& other : pages_) {
    if (other.of.owner_before(snapshot) || snapshot.owner_before(other.of)) other = {};
  }
  self.scrapes = scrapes_;
  self.scrape_cpu_seconds = scrape_cpu_seconds_;
  auto text = std::make_shared<std::string>();
  const auto write_to = [&](ByteSink& sink) {
    TextWriter writer(format, sink);
    visit_metrics(*snapshot, self, writer);
    writer.finish();
  };
  if (gzip) {
    GzipSink sink(*text);
    write_to(sink);
    if (!sink.finish()) return nullptr;
  } else {
    StringSink sink(*text);
    write_to(sink);
  }
  ++pages_made_;
  // Uncompressed pages are for people and ten times as large: not kept.
  if (gzip) {
    text->shrink_to_fit();
    kept = {snapshot, self.now_ns, text};
  }
  return text;
}

std::uint64_t MetricsEndpoint::pages_made() const {
  const std::lock_guard lock(mutex_);
  return pages_made_;
}

HttpResponse MetricsEndpoint::healthz() const {
  HttpResponse response;
  response.body = "ok\n";
  return response;
}

HttpResponse MetricsEndpoint::readyz() const {
  HttpResponse response;
  const SnapshotPtr snapshot = store_.get();
  const double age_seconds = static_cast<double>(self_().now_ns - snapshot->realtime_ns) * 1e-9;
  if (snapshot->realtime_ns == 0) {
    response.status = 503;
    response.body = "not ready: no snapshot has been published yet\n";
  } else if (age_seconds > kMaxSnapshotAgeSeconds) {
    response.status = 503;
    response.body = "not ready: the newest snapshot is " +
                    std::to_string(static_cast<std::int64_t>(age_seconds)) + " s old, at most " +
                    std::to_string(static_cast<int>(kMaxSnapshotAgeSeconds)) + " s are allowed\n";
  } else {
    response.body = "ready\n";
  }
  return response;
}

void MetricsEndpoint::add_to(HttpRouter& router) {
  router.add("/metrics", [this](const HttpRequest& request) { return metrics(request); });
  router.add("/healthz", [this](const HttpRequest&) { return healthz(); });
  router.add("/readyz", [this](const HttpRequest&) { return readyz(); });
}

}  // namespace ncclscope::agent
