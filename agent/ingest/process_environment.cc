// SPDX-License-Identifier: Apache-2.0
#include "agent/ingest/process_environment.h"

#include <algorithm>

namespace ncclscope::agent {
namespace {

/// About what it takes of the memory.
std::size_t size_of(const ProcessEnvironment& environment) {
  std::size_t bytes = 256;
  for (const auto& [name, value] : environment.variables)
    bytes += 2 * sizeof(std::string) + name.size() + value.size();
  return bytes;
}

}  // namespace

void EnvironmentStore::prune(Holder& holder) {
  std::erase_if(holder.entries, [&](const Entry& entry) {
    if (!entry.environment.expired()) return false;
    holder.bytes -= entry.bytes;
    bytes_ -= entry.bytes;
    return true;
  });
}

void EnvironmentStore::prune() {
  for (auto it = holders_.begin(); it != holders_.end();) {
    prune(it->second);
    it = it->second.entries.empty() ? holders_.erase(it) : std::next(it);
  }
}

ProcessEnvironmentPtr EnvironmentStore::keep(const std::string& principal,
                                             ProcessEnvironment environment) {
  // The first of a name counts.
  std::stable_sort(environment.variables.begin(), environment.variables.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  environment.variables.erase(
      std::unique(environment.variables.begin(), environment.variables.end(),
                  [](const auto& a, const auto& b) { return a.first == b.first; }),
      environment.variables.end());
  const bool known = holders_.contains(principal);
  Holder& holder = holders_[principal];
  prune(holder);
  for (const Entry& entry : holder.entries) {
    ProcessEnvironmentPtr kept = entry.environment.lock();
    if (kept && *kept == environment) return kept;
  }
  const std::size_t bytes = size_of(environment);
  const bool room = bytes_ + bytes <= limits_.bytes ||
                    within_share(holder.bytes + bytes, limits_.bytes, holders_.size());
  if (!room || holder.bytes + bytes > limits_.principal_bytes ||
      holder.entries.size() >= limits_.principal_count) {
    if (!known) holders_.erase(principal);
    return nullptr;
  }
  auto kept = std::make_shared<const ProcessEnvironment>(std::move(environment));
  holder.entries.push_back({kept, bytes});
  holder.bytes += bytes;
  bytes_ += bytes;
  return kept;
}

}  // namespace ncclscope::agent
