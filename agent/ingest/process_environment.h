// SPDX-License-Identifier: Apache-2.0
//
// The NCCL_* variables that plugins tell of their processes. The ranks of a node mostly have the
// same: what is equal is kept once, and what a principal may have of it is bounded.
//   Thread: reactor; what was kept is immutable and may be read by others.   Memory: Limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/ingest/quota.h"

namespace ncclscope::agent {

/// As it came: arbitrary bytes. By name.
struct ProcessEnvironment {
  std::vector<std::pair<std::string, std::string>> variables;
  bool cut = false;  // the plugin left something out

  bool operator==(const ProcessEnvironment&) const = default;
};
using ProcessEnvironmentPtr = std::shared_ptr<const ProcessEnvironment>;

class EnvironmentStore {
 public:
  struct Limits {
    std::size_t bytes = std::size_t{4} << 20;            // of all
    std::size_t principal_bytes = std::size_t{1} << 18;  // of one principal
    std::size_t principal_count = 64;                    // different ones of one principal
  };
  EnvironmentStore() : EnvironmentStore(Limits{}) {}
  explicit EnvironmentStore(const Limits& limits) : limits_(limits) {}

  /// The one that is kept. Null where `principal` has too much already.
  [[nodiscard]] ProcessEnvironmentPtr keep(const std::string& principal,
                                           ProcessEnvironment environment);
  /// Gives back the room of what nobody has any more. Now and then.
  void prune();

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::weak_ptr<const ProcessEnvironment> environment;
    std::size_t bytes = 0;
  };
  struct Holder {
    std::vector<Entry> entries;
    std::size_t bytes = 0;
  };
  void prune(Holder& holder);

  Limits limits_;
  std::map<std::string, Holder> holders_;  // by principal
  std::size_t bytes_ = 0;
};

}  // namespace ncclscope::agent
