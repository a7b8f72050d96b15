// SPDX-License-Identifier: Apache-2.0
//
// tests/data/trace-limits.json: where a plugin cannot say what expected.json says, because the
// interface, the release or the mask does not carry it. A difference between truth and what is
// carried needs an entry here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ncclscope::cli {

/// Where a field is compared.
struct LimitContext {
  std::string scenario;  // folder name
  int interface_version = 0;
  std::uint32_t nccl_version = 0;
  std::string function;   // collective, empty where the field belongs to no operation
  std::string visible;    // task, api, ce, none
  std::string mask_mode;  // default, recorded
};

struct Limit {
  std::string field;
  std::vector<std::string> scenarios;  // globs, any of them
  std::vector<int> interfaces;         // empty = all
  std::uint32_t nccl_from = 0, nccl_below = ~0u;
  std::vector<std::string> functions;  // empty = all
  std::vector<std::string> visible;    // empty = all
  std::string mask_mode;               // empty = both
  std::string instead;                 // what is reported, in words
  std::string why;
  std::string section;  // of the interface's description
  std::size_t used = 0;
};

class Limits {
 public:
  /// Throws std::runtime_error when the file is missing or malformed.
  static Limits load(const std::filesystem::path& file);

  /// True (and counted) when an entry allows `field` to differ from expected.json there.
  [[nodiscard]] bool allows(const std::string& field, const LimitContext& where);
  [[nodiscard]] const std::vector<Limit>& entries() const { return entries_; }
  void add_uses(const Limits& other);

 private:
  std::vector<Limit> entries_;
};

}  // namespace ncclscope::cli
