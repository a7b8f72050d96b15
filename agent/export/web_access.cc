// SPDX-License-Identifier: Apache-2.0
//
// Certificate first, then credentials.
#include "agent/export/web_access.h"

#include <algorithm>
#include <utility>

#include "agent/access/secrets.h"

namespace ncclscope::agent {
namespace {

/// What an unknown user's password is compared with, so that users cannot be told from others by
/// time. Cost 10, of a password that nobody knows.
constexpr const char* kNobodysHash = "$2b$10$CwTycUXWue0Thq9StjUM0uW2JR4lwzI2egQjou5sOGeaOhqA4Adp6";

HttpResponse text_response(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(text);
  return response;
}

}  // namespace

void WebAccess::set(WebConfig config) {
  auto next = std::make_shared<const WebConfig>(std::move(config));
  const std::lock_guard lock(config_mutex_);
  config_.swap(next);
}

std::optional<HttpResponse> WebAccess::refuse(const HttpRequest& request) {
  if (request.path == "/healthz" || request.path == "/readyz") return {};
  std::shared_ptr<const WebConfig> config;
  {
    const std::lock_guard lock(config_mutex_);
    config = config_;
  }
  const bool asked = config->client_certificates != ClientCertificates::kNotAsked;
  if (asked && request.client_certificate == ClientCertificate::kBad)
    return text_response(403, "The client certificate is not trusted or not valid.\n");
  if (config->client_certificates == ClientCertificates::kRequired &&
      request.client_certificate != ClientCertificate::kVerified)
    return text_response(403, "A client certificate is required.\n");
  if (!config->wants_credentials()) return {};

  const auto authorization = parse_authorization(request.header("Authorization"));
  const Verdict verdict = authorization ? judge(*config, *authorization) : Verdict::kWrong;
  if (verdict == Verdict::kRight) return {};
  if (verdict == Verdict::kLater) {
    HttpResponse response = text_response(429, "Too many wrong passwords; try again later.\n");
    response.headers.emplace_back("Retry-After", "1");
    return response;
  }
  HttpResponse response = text_response(401, "Unauthorized\n");
  if (!config->tokens.empty())
    response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"ncclscope\"");
  if (!config->users.empty())
    response.headers.emplace_back("WWW-Authenticate", "Basic realm=\"ncclscope\"");
  return response;
}

WebAccess::Verdict WebAccess::judge(const WebConfig& config, const Authorization& authorization) {
  if (authorization.scheme == "bearer") {
    const std::string hash = sha256_hex(authorization.credentials);
    bool right = false;
    for (const auto& [name, known] : config.tokens) right |= equal_in_constant_time(hash, known);
    return right ? Verdict::kRight : Verdict::kWrong;
  }
  if (authorization.scheme == "basic" && !config.users.empty()) {
    if (const auto given = parse_basic_credentials(authorization.credentials))
      return judge_password(config, *given);
  }
  return Verdict::kWrong;
}

WebAccess::Verdict WebAccess::judge_password(const WebConfig& config, const UserPassword& given) {
  const auto known = config.users.find(given.user);
  const std::string hash = known == config.users.end() ? kNobodysHash : known->second;
  std::string key = hash;
  key.append(1, '\0').append(given.user).append(1, '\0').append(given.password);
  key = sha256_hex(key);
  const std::lock_guard lock(passwords_mutex_);
  const auto same = [&](const std::string& right) { return equal_in_constant_time(right, key); };
  if (std::any_of(right_.begin(), right_.end(), same)) return Verdict::kRight;
  if (!take_check()) return Verdict::kLater;
  ++checked_;
  if (!bcrypt_matches(hash, given.password) || known == config.users.end()) return Verdict::kWrong;
  checks_left_ = std::min(checks_left_ + 1, kCheckBurst);  // only wrong ones count
  right_.push_back(std::move(key));
  if (right_.size() > kRemembered) right_.pop_front();
  return Verdict::kRight;
}

bool WebAccess::take_check() {
  const std::uint64_t now_ns = clock_.monotonic_ns();
  if (refilled_ns_ != 0) {
    const double seconds = static_cast<double>(now_ns - refilled_ns_) * 1e-9;
    checks_left_ = std::min(checks_left_ + seconds * kChecksPerSecond, kCheckBurst);
  }
  refilled_ns_ = now_ns;
  if (checks_left_ < 1) return false;
  checks_left_ -= 1;
  return true;
}

std::uint64_t WebAccess::passwords_checked() const {
  const std::lock_guard lock(passwords_mutex_);
  return checked_;
}

}  // namespace ncclscope::agent
