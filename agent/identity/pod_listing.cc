// SPDX-License-Identifier: Apache-2.0
//
// Directory names only: nothing in the pods' directories is opened.
#include "agent/identity/pod_listing.h"

#include <dirent.h>
#include <sys/stat.h>

#include <memory>
#include <utility>

#include "agent/identity/cgroup_text.h"

namespace ncclscope::agent {
namespace {

constexpr std::size_t kMaxLabel = 63, kMaxSubdomain = 253;  // RFC 1123, as Kubernetes checks names

bool is_dns_label(std::string_view text) {
  return !text.empty() && text.size() <= kMaxLabel && text.front() != '-' && text.back() != '-' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

bool is_dns_subdomain(std::string_view text) {
  if (text.size() > kMaxSubdomain) return false;
  for (;;) {
    const std::size_t dot = text.find('.');
    if (!is_dns_label(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

std::optional<PodName> parse_pod_directory(std::string_view directory, std::string& uid) {
  const std::size_t first = directory.find('_');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = directory.find('_', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view pod_namespace = directory.substr(0, first);
  const std::string_view name = directory.substr(first + 1, second - first - 1);
  uid = directory.substr(second + 1);
  if (!is_dns_label(pod_namespace) || !is_dns_subdomain(name) || normal_pod_uid(uid) != uid ||
      uid.empty()) {
    return std::nullopt;
  }
  return PodName{std::string(pod_namespace), std::string(name)};
}

std::optional<PodName> PodListing::find(const std::string& uid) {
  auto it = pods_.find(uid);
  if (it == pods_.end() && may_have_changed()) {
    list();
    it = pods_.find(uid);
  }
  if (it == pods_.end() || it->second.name.empty()) return std::nullopt;
  return it->second;
}

bool PodListing::may_have_changed() {
  const std::uint64_t now = clock_.monotonic_ns();
  // The time stamps of a file system are coarser than it seems, hence the listing by age.
  const bool old = listings_ == 0 || now - listed_at_ns_ >= kRelistNs;
  struct stat info {};
  if (::stat(root_.c_str(), &info) != 0) return old;
  const std::int64_t changed_at =
      std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  const bool changed = std::exchange(changed_at_ns_, changed_at) != changed_at;
  return old || changed;
}

void PodListing::list() {
  ++listings_;
  listed_at_ns_ = clock_.monotonic_ns();
  pods_.clear();
  const std::unique_ptr<DIR, CloseDirectory> directory(::opendir(root_.c_str()));
  if (directory == nullptr) return;
  for (std::size_t entries = 0; entries < kMaxEntries; ++entries) {
    const dirent* entry = ::readdir(directory.get());  // NOLINT(concurrency-mt-unsafe): own stream
    if (entry == nullptr) return;
    std::string uid;
    std::optional<PodName> pod = parse_pod_directory(entry->d_name, uid);
    if (!pod) continue;
    const auto [it, added] = pods_.emplace(std::move(uid), *pod);
    if (!added && it->second != *pod) it->second = {};
  }
}

}  // namespace ncclscope::agent
