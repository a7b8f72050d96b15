// SPDX-License-Identifier: Apache-2.0
#include "cli/report/paths.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/report/statistics.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

struct RemarkText {
  Remark remark;
  const char* name;
  const char* text;  // of one communicator; then of several
  const char* texts;
  const char* detail;
};
constexpr std::array<RemarkText, 3> kRemarks{{
    {Remark::kNodesAsOne, "nodes_as_one", "is on several nodes that NCCL takes for one",
     "are on several nodes that NCCL takes for one",
     "As it does where an NVLink domain spans nodes. Class nvlink-only then means this domain, and "
     "nodes counts domains."},
    {Remark::kNodeAsSeveral, "node_as_several",
     "has ranks on one node that NCCL takes for several nodes",
     "have ranks on one node that NCCL takes for several nodes",
     "Containers with host names of their own do that, and the ranks then talk over the network "
     "instead of NVLink or shared memory: give them the node's host name or one NCCL_HOSTID."},
    {Remark::kNetworkWithinNode, "network_within_node",
     "is within one node by NCCL's count and uses the network",
     "are within one node by NCCL's count and use the network",
     "Its ranks reach each other neither directly nor through shared memory (NCCL_P2P_DISABLE, "
     "NCCL_SHM_DISABLE, no common /dev/shm), or NCCL holds the NICs for faster."},
}};

/// What an algorithm of NCCL's needs by its nature.
struct Needs {
  const char* algorithm;
  bool nvlink_sharp, network_sharp, network;
};
constexpr std::array<Needs, 4> kNeeds{{
    {"NVLS", true, false, false},
    {"NVLS_TREE", true, false, true},  // only chosen between several nodes
    {"COLLNET_DIRECT", false, true, true},
    {"COLLNET_CHAIN", false, true, true},
}};

void insert(std::vector<std::int32_t>& ascending, std::int32_t rank) {
  const auto place = std::lower_bound(ascending.begin(), ascending.end(), rank);
  if (place == ascending.end() || *place != rank) ascending.insert(place, rank);
}

}  // namespace

void SeenOfCommunicator::add_rank(std::int32_t rank) {
  insert(ranks, rank);
}

void SeenOfCommunicator::add_network_rank(std::int32_t rank) {
  insert(network_ranks, rank);
}

void SeenOfCommunicator::merge(const SeenOfCommunicator& other) {
  nodes.insert(other.nodes.begin(), other.nodes.end());
  for (const std::int32_t rank : other.ranks) insert(ranks, rank);
  for (const std::int32_t rank : other.network_ranks) insert(network_ranks, rank);
  network_bytes += other.network_bytes;
}

void PathsSeen::add(const Seen& seen) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, value] : seen) seen_[key].merge(value);
}

void PathsSeen::clear() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
}

SeenOfCommunicator PathsSeen::of(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto known = seen_.find(key);
  return known == seen_.end() ? SeenOfCommunicator() : known->second;
}

void PathsTaken::add_algorithm(std::string_view algorithm) {
  for (const Needs& needs : kNeeds) {
    if (algorithm != needs.algorithm) continue;
    nvlink_sharp = nvlink_sharp || needs.nvlink_sharp;
    network_sharp = network_sharp || needs.network_sharp;
    network = network || needs.network;
  }
}

std::string PathsTaken::text() const {
  std::string text;
  const auto add = [&](bool is_seen, const char* path) {
    if (is_seen) text += (text.empty() ? "" : "+") + std::string(path);
  };
  add(nvlink_sharp, "nvlink-sharp");
  add(network, "network");
  add(network_sharp, "network-sharp");
  return text;
}

Remark remark_of(std::int64_t ranks, std::int64_t nodes, const SeenOfCommunicator& seen) {
  const auto on = static_cast<std::int64_t>(seen.nodes.size());
  if (nodes <= 0 || on == 0) return Remark::kNone;
  if (on > nodes) return Remark::kNodesAsOne;
  // Ranks that nothing is known of may be on other nodes.
  if (on < nodes && ranks > 0 && static_cast<std::int64_t>(seen.ranks.size()) == ranks)
    return Remark::kNodeAsSeveral;
  if (nodes == 1 && !seen.network_ranks.empty()) return Remark::kNetworkWithinNode;
  return Remark::kNone;
}

std::string_view remark_name(Remark remark) {
  for (const RemarkText& text : kRemarks) {
    if (text.remark == remark) return text.name;
  }
  return {};
}

std::vector<Insight> path_insights(const Statistics& statistics) {
  struct Found {
    std::size_t count = 0;
    CommunicatorRow most;  // with most time
  };
  std::map<Remark, Found> all;
  statistics.communicators.for_each([&](const CommunicatorRow& row) {
    if (row.remark == Remark::kNone) return;
    Found& found = all[row.remark];
    // NaN is less than any.
    if (found.count++ == 0 || !(row.total_seconds <= found.most.total_seconds)) {
      if (found.count == 1 || !std::isnan(row.total_seconds)) found.most = row;
    }
  });
  std::vector<Insight> out;
  for (const RemarkText& remark : kRemarks) {
    const auto known = all.find(remark.remark);
    if (known == all.end()) continue;
    const auto& [count, most] = known->second;
    const std::string name = printable(statistics.texts.text(most.name));
    const std::string first =
        name.empty() ? printable(statistics.texts.text(most.communicator)) : name;
    out.push_back({Insight::Weight::kNotice, remark.name,
                   count == 1 ? "Communicator " + first + " " + remark.text + "."
                              : std::to_string(count) + " communicators, such as " + first + ", " +
                                    remark.texts + ".",
                   remark.detail, 0, 0});
  }
  return out;
}

}  // namespace ncclscope::cli::report
