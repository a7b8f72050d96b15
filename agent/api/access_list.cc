// SPDX-License-Identifier: Apache-2.0
//
// Reads with toml++.
#include "agent/api/access_list.h"

#include <pwd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <toml++/toml.h>

#include "agent/access/secrets.h"
#include "agent/access/tls_files.h"

namespace ncclscope::agent {
namespace {

std::optional<std::int64_t> uid_of(const std::string& user) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(user.data(), user.data() + user.size(), number);
  if (error == std::errc() && end == user.data() + user.size() &&
      number != std::numeric_limits<std::uint32_t>::max())
    return number;
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(16'384);
  if (::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return {};
  return found->pw_uid;
}

class Entry {
 public:
  Entry(const toml::node& node, const std::string& path)
      : table_(*node.as_table()), where_(concat(path, ":", node.source().begin.line)) {}

  /// All keys, each a string that is not empty, and no others.
  Status read(std::initializer_list<std::pair<std::string_view, std::string*>> keys) const {
    for (const auto& entry : table_) {
      const std::string_view name = entry.first.str();
      if (std::none_of(keys.begin(), keys.end(), [name](auto& key) { return key.first == name; }))
        return error(concat("unknown key '", name, "'"));
    }
    for (const auto& [key, out] : keys) {
      const auto value = table_[key].value_exact<std::string>();
      if (!value || value->empty())
        return error(concat(key, " is missing, or not a string that says something"));
      *out = *value;
    }
    return {};
  }
  [[nodiscard]] Status error(const std::string& what) const {
    return Status::invalid(concat(where_, ": ", what));
  }

 private:
  const toml::table& table_;
  std::string where_;
};

}  // namespace

Result<Caller> parse_role(std::string_view text) {
  Caller out;
  if (text == "viewer") {
    out.role = Role::kViewer;
  } else if (text == "operator") {
    out.role = Role::kOperator;
  } else if (text == "ingest") {
    out.role = Role::kIngest;
  } else if (text.starts_with("user:")) {
    const std::string user(text.substr(5));
    const std::optional<std::int64_t> uid = user.empty() ? std::nullopt : uid_of(user);
    if (!uid) return Status::invalid(concat("there is no user '", user, "' here; a uid does, too"));
    out.uid = *uid;
  } else {
    return Status::invalid(
        concat("role '", text, "' is none of viewer, operator, ingest, user:NAME, user:UID"));
  }
  return out;
}

Result<AccessList> AccessList::parse(std::string_view text, const std::string& path) {
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return Status::invalid(concat(path, ":", error.source().begin.line, ": ", error.description()));
  }
  AccessList out;
  for (const auto& [key, node] : root) {
    const std::string where = concat(path, ":", key.source().begin.line);
    const bool tokens = key.str() == "token";
    if (!tokens && key.str() != "certificate")
      return Status::invalid(concat(where, ": unknown key '", key.str(),
                                    "'; there are [[token]] and [[certificate]]"));
    if (!node.is_array_of_tables())
      return Status::invalid(concat(where, ": write [[", key.str(), "]], once per entry"));
    for (const toml::node& element : *node.as_array()) {
      const Entry entry(element, path);
      std::string name;
      std::string role;
      std::string sha256;
      if (Status s = tokens ? entry.read({{"name", &name}, {"role", &role}, {"sha256", &sha256}})
                            : entry.read({{"name", &name}, {"role", &role}});
          !s.ok())
        return s;
      Result<Caller> caller = parse_role(role);
      if (!caller.ok()) return entry.error(caller.status().message());
      caller.value().name = concat(key.str(), ":", name);
      if (!tokens) {
        out.certificates_.push_back({name, std::move(caller).value()});
        continue;
      }
      if (!is_sha256_hex(sha256))
        return entry.error("sha256 must be 64 hex digits (printf %s \"$TOKEN\" | sha256sum)");
      std::transform(sha256.begin(), sha256.end(), sha256.begin(), [](char c) {
        return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
      });
      out.tokens_.push_back({sha256, std::move(caller).value()});
    }
  }
  return out;
}

Result<AccessList> AccessList::load(const std::string& path) {
  const Result<std::string> text = read_small_file(path);
  if (!text.ok()) return text.status();
  return parse(text.value(), path);
}

std::optional<Caller> AccessList::by_token(std::string_view token) const {
  const std::string hash = sha256_hex(token);
  const Token* found = nullptr;
  for (const Token& known : tokens_) {
    if (equal_in_constant_time(hash, known.sha256) && found == nullptr) found = &known;
  }
  return found == nullptr ? std::nullopt : std::optional(found->caller);
}

std::optional<Caller> AccessList::by_certificate(const std::vector<std::string>& names) const {
  for (const Certificate& known : certificates_) {
    if (std::find(names.begin(), names.end(), known.name) != names.end()) return known.caller;
  }
  return {};
}

}  // namespace ncclscope::agent
