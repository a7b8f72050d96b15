// SPDX-License-Identifier: Apache-2.0
//
// Names of the node's pods by their uid, from the kubelet's log directories
// (<root>/<namespace>_<pod>_<uid>/), which are there before a pod's first process.
//   Thread: reactor.   Cost: one stat() per lookup that misses; the directory is listed again only
//   when it has changed since, or after kRelistNs. At most kMaxEntries are looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "agent/base/clock.h"

namespace ncclscope::agent {

struct PodName {
  std::string pod_namespace, name;
  bool operator==(const PodName&) const = default;
};

/// nullopt unless it is "<DNS label>_<DNS subdomain>_<uid>". Sets `uid` as in the name.
[[nodiscard]] std::optional<PodName> parse_pod_directory(std::string_view directory,
                                                         std::string& uid);

class PodListing {
 public:
  static constexpr std::uint64_t kRelistNs = 1'000'000'000;
  static constexpr std::size_t kMaxEntries = 8192;

  /// `clock` must outlive it. A root that does not exist is an empty one.
  PodListing(std::string root, const Clock& clock) : root_(std::move(root)), clock_(clock) {}

  /// @param uid  see normal_pod_uid
  [[nodiscard]] std::optional<PodName> find(const std::string& uid);
  [[nodiscard]] std::uint64_t listings() const { return listings_; }  // for tests

 private:
  [[nodiscard]] bool may_have_changed();
  void list();

  std::string root_;
  const Clock& clock_;
  std::map<std::string, PodName, std::less<>>
      pods_;  // by uid; an empty name: two pods claim the uid
  std::uint64_t listings_ = 0;
  std::uint64_t listed_at_ns_ = 0;
  std::int64_t changed_at_ns_ = 0;  // mtime of the root before the last listing
};

}  // namespace ncclscope::agent
