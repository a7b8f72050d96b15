// SPDX-License-Identifier: Apache-2.0
//
// Routing and content negotiation.
#include "agent/export/http.h"

#include <algorithm>

namespace ncclscope::agent {
namespace {

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Thousandths of a q-value ("1", "0.5", "0.75"); malformed ones count as 0, as nothing is known of
/// them.
int parse_weight(std::string_view text) noexcept {
  if (text.empty() || (text[0] != '0' && text[0] != '1')) return 0;
  int weight = (text[0] - '0') * 1000;
  if (text.size() == 1) return weight;
  if (text[1] != '.' || text.size() > 5) return 0;
  int unit = 100;
  for (const char digit : text.substr(2)) {
    if (digit < '0' || digit > '9') return 0;
    weight += (digit - '0') * unit;
    unit /= 10;
  }
  return std::min(weight, 1000);
}

}  // namespace

bool HeaderNameLess::operator()(std::string_view a, std::string_view b) const noexcept {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](char x, char y) { return lower(x) < lower(y); });
}

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

void HttpRouter::add(std::string path, HttpHandler handler) {
  handlers_.insert_or_assign(std::move(path), std::move(handler));
}

HttpResponse HttpRouter::handle(const HttpRequest& request) const {
  if (request.method != "GET" && request.method != "HEAD") {
    HttpResponse response;
    response.status = 405;
    response.headers.emplace_back("Allow", "GET, HEAD");
    response.body = "Method not allowed: only GET and HEAD are.\n";
    return response;
  }
  const auto it = handlers_.find(request.path);
  if (it != handlers_.end()) return it->second(request);
  HttpResponse response;
  response.status = 404;
  response.body = "Not found. There is:";
  for (const auto& [path, handler] : handlers_) response.body.append(" ").append(path);
  response.body += '\n';
  return response;
}

int accept_weight(std::string_view header, const std::function<bool(std::string_view)>& matches) {
  int best = -1;
  while (!header.empty()) {
    const std::size_t comma = std::min(header.find(','), header.size());
    std::string_view rest = header.substr(0, comma);
    header.remove_prefix(std::min(comma + 1, header.size()));

    std::string item;
    int weight = 1000;
    while (!rest.empty()) {
      const std::size_t semicolon = std::min(rest.find(';'), rest.size());
      std::string part;
      for (const char c : rest.substr(0, semicolon))
        if (c != ' ' && c != '\t') part += lower(c);
      rest.remove_prefix(std::min(semicolon + 1, rest.size()));
      if (part.starts_with("q=")) {
        weight = parse_weight(std::string_view(part).substr(2));
      } else if (!part.empty()) {
        if (!item.empty()) item += ';';
        item += part;
      }
    }
    if (!item.empty() && matches(item)) best = std::max(best, weight);
  }
  return best;
}

bool accepts_gzip(std::string_view accept_encoding) {
  const int named = accept_weight(
      accept_encoding, [](std::string_view item) { return item == "gzip" || item == "x-gzip"; });
  if (named >= 0) return named > 0;
  return accept_weight(accept_encoding, [](std::string_view item) { return item == "*"; }) > 0;
}

}  // namespace ncclscope::agent
