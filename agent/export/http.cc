// SPDX-License-Identifier: Apache-2.0
//
// Routing and content negotiation.
#include "agent/export/http.h"

#include <algorithm>
#include <cstdint>

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

/// -1: not a digit of base64.
int base64_digit(char c) noexcept {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return {};
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xFFFFFF;
    held += 6;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>(bits >> held & 0xFF);
    }
  }
  return out;
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

std::optional<Authorization> parse_authorization(std::string_view header) {
  const std::size_t space = header.find(' ');
  if (space == 0 || space == std::string_view::npos) return {};
  Authorization out;
  for (const char c : header.substr(0, space)) out.scheme += lower(c);
  header.remove_prefix(std::min(header.find_first_not_of(' ', space), header.size()));
  while (header.ends_with(' ')) header.remove_suffix(1);
  if (header.empty() || header.find_first_of(" ,\t") != std::string_view::npos) return {};
  out.credentials = std::string(header);
  return out;
}

std::optional<UserPassword> parse_basic_credentials(std::string_view credentials) {
  const std::optional<std::string> text = decode_base64(credentials);
  if (!text) return {};
  const std::size_t colon = text->find(':');
  if (colon == std::string::npos) return {};
  return UserPassword{text->substr(0, colon), text->substr(colon + 1)};
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
