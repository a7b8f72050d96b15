// SPDX-License-Identifier: Apache-2.0
//
// GnuTLS for SHA-256, libcrypt for bcrypt.
#include "agent/access/secrets.h"

#include <crypt.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include <algorithm>
#include <array>
#include <memory>

namespace ncclscope::agent {
namespace {

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_bcrypt_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == '/';
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, 32> digest{};
  if (gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes.data(), bytes.size(), digest.data()) != 0)
    return {};  // equals nothing
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * digest.size());
  for (const unsigned char byte : digest) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex);
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && gnutls_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status check_bcrypt_hash(std::string_view hash) {
  constexpr std::size_t kLength = 60;
  constexpr int kHighestCost = 15;
  const bool form = hash.size() == kLength && hash.starts_with("$2") &&
                    (hash[2] == 'a' || hash[2] == 'b' || hash[2] == 'y') && hash[3] == '$' &&
                    hash[4] >= '0' && hash[4] <= '3' && hash[5] >= '0' && hash[5] <= '9' &&
                    hash[6] == '$' && std::all_of(hash.begin() + 7, hash.end(), is_bcrypt_digit);
  if (!form)
    return Status::invalid(
        "is not a bcrypt hash such as $2y$10$... (60 characters); `htpasswd -nBC 10 NAME` makes "
        "one");
  const int cost = (hash[4] - '0') * 10 + (hash[5] - '0');
  if (cost < 4 || cost > kHighestCost)
    return Status::invalid(
        concat("has bcrypt cost ", cost, "; 4 to ", kHighestCost, " are taken, 10 is usual"));
  return {};
}

bool bcrypt_matches(const std::string& hash, const std::string& password) {
  if (password.find('\0') != std::string::npos) return false;  // libcrypt would stop reading there
  const auto data = std::make_unique<crypt_data>();            // 32 KiB
  const char* made = crypt_r(password.c_str(), hash.c_str(), data.get());
  return made != nullptr && made[0] != '*' && equal_in_constant_time(made, hash);
}

}  // namespace ncclscope::agent
