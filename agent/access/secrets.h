// SPDX-License-Identifier: Apache-2.0
//
// Comparing secrets with their hashes. Files hold hashes only: SHA-256 of tokens, which are long
// and random, and bcrypt of passwords, which are not.
//   Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "agent/base/result.h"

namespace ncclscope::agent {

/// 64 hex digits, lower case.
[[nodiscard]] std::string sha256_hex(std::string_view bytes);
/// 64 hex digits, lower or upper case.
[[nodiscard]] bool is_sha256_hex(std::string_view text);
/// Takes the same time wherever they differ; not the same for other lengths.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

/// "$2y$10$...": what is wrong with a hash, or OK. A cost over 15 is refused: checking one password
/// would take seconds.
[[nodiscard]] Status check_bcrypt_hash(std::string_view hash);
/// Takes the time that the hash's cost says: 50 ms and more. False for a malformed hash.
[[nodiscard]] bool bcrypt_matches(const std::string& hash, const std::string& password);

}  // namespace ncclscope::agent
