// SPDX-License-Identifier: Apache-2.0
#include "agent/page/node_page.h"

#include <cstdint>
#include <functional>
#include <utility>

#include "agent/access/secrets.h"
#include "agent/export/byte_sink.h"
#include "agent/page/node_json.h"

namespace ncclscope::agent {
namespace {

std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto value = [](char c) {
    return static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::string out;
  std::uint32_t bits = 0;
  unsigned held = 0;
  for (const char c : hex) {
    bits = (bits << 4 | value(c)) & 0xFFFF;
    held += 4;
    if (held < 6) continue;
    held -= 6;
    out += kDigits[bits >> held & 63];
  }
  if (held > 0) out += kDigits[bits << (6 - held) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

/// 'sha256-...' of what stands between <tag> and </tag>.
std::string source_hash(std::string_view html, std::string_view tag) {
  const std::string open = "<" + std::string(tag) + ">";
  const std::string close = "</" + std::string(tag) + ">";
  const std::size_t begin = html.find(open) + open.size();
  return "'sha256-" + base64_of_hex(sha256_hex(html.substr(begin, html.find(close) - begin))) + "'";
}

/// What `write` writes. Null: out of memory.
std::shared_ptr<const std::string> compressed(const std::function<void(ByteSink&)>& write) {
  auto out = std::make_shared<std::string>();
  GzipSink sink(*out);
  write(sink);
  if (!sink.finish()) return nullptr;
  out->shrink_to_fit();
  return out;
}

void add_common_headers(HttpResponse& response) {
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  response.headers.emplace_back("Vary", "Accept-Encoding");
}

}  // namespace

std::string content_security_policy(std::string_view html) {
  return "default-src 'none'; script-src " + source_hash(html, "script") + "; style-src " +
         source_hash(html, "style") +
         "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
         "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
}

NodePage::NodePage(const SnapshotStore& store, const BandwidthHistory& history, SelfReader self)
    : store_(store),
      history_(history),
      self_(std::move(self)),
      policy_(content_security_policy(node_page_html())),
      html_(std::make_shared<const std::string>(node_page_html())),
      html_gzip_(compressed([this](ByteSink& sink) { sink.write(*html_); })) {}

HttpResponse NodePage::page(const HttpRequest& request) const {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.shared_body = html_;
  if (html_gzip_ != nullptr && accepts_gzip(request.header("Accept-Encoding"))) {
    response.shared_body = html_gzip_;
    response.headers.emplace_back("Content-Encoding", "gzip");
  }
  response.headers.emplace_back("Content-Security-Policy", policy_);
  response.headers.emplace_back("Cache-Control", "no-cache");
  add_common_headers(response);
  return response;
}

HttpResponse NodePage::data(const HttpRequest& request) {
  HttpResponse response;
  response.content_type = "application/json";
  response.headers.emplace_back("Cache-Control", "no-store");
  add_common_headers(response);
  const SnapshotPtr snapshot = store_.get();
  if (!accepts_gzip(request.header("Accept-Encoding"))) {
    StringSink sink(response.body);
    write_node_json(*snapshot, history_, self_(), sink);
    return response;
  }
  const std::lock_guard lock(mutex_);
  const bool same = !of_.owner_before(snapshot) && !snapshot.owner_before(of_);
  if (!same || json_gzip_ == nullptr) {
    json_gzip_ =
        compressed([&](ByteSink& sink) { write_node_json(*snapshot, history_, self_(), sink); });
    of_ = snapshot;
  }
  if (json_gzip_ == nullptr) {
    response.status = 503;
    response.content_type = "text/plain; charset=utf-8";
    response.body = "Out of memory while compressing.\n";
    return response;
  }
  response.shared_body = json_gzip_;
  response.headers.emplace_back("Content-Encoding", "gzip");
  return response;
}

void NodePage::add_to(HttpRouter& router) {
  router.add("/", [this](const HttpRequest& request) { return page(request); });
  router.add("/api/node.json", [this](const HttpRequest& request) { return data(request); });
}

}  // namespace ncclscope::agent
