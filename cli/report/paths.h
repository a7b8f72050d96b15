// SPDX-License-Identifier: Apache-2.0
//
// What is really known of the way a communicator's data took, beside Inspector's class, which
// counts ranks and nodes only: the algorithm names NVLink SHARP or SHARP of the network, network
// phases in archives show who used a NIC, and the agents' nodes whether NCCL counted as they do.
// What the records do not tell (NVLink, PCIe or shared memory within a node, InfiniBand or sockets
// between nodes) is not guessed.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/picture.h"

namespace ncclscope::cli::report {

/// Of one communicator, from archives alone.
struct SeenOfCommunicator {
  std::set<std::string> nodes;              // where the agents say that its ranks are
  std::vector<std::int32_t> ranks;          // that any record is of, ascending
  std::vector<std::int32_t> network_ranks;  // that sent or received over the network, ascending
  std::uint64_t network_bytes = 0;  // sent, in the operations whose network phases are known

  void add_rank(std::int32_t rank);
  void add_network_rank(std::int32_t rank);
  void merge(const SeenOfCommunicator& other);
};

/// By job and communicator. Any thread.
class PathsSeen {
 public:
  using Key = std::pair<std::string, std::string>;
  using Seen = std::map<Key, SeenOfCommunicator>;

  void add(const Seen& seen);
  void clear();
  /// Nothing of a communicator that is not known.
  [[nodiscard]] SeenOfCommunicator of(const Key& key) const;

 private:
  mutable std::mutex mutex_;
  Seen seen_;
};

/// What data certainly went over.
struct PathsTaken {
  bool nvlink_sharp = false, network = false, network_sharp = false;

  /// What an algorithm of NCCL's needs by its nature.
  void add_algorithm(std::string_view algorithm);
  /// "nvlink-sharp+network", ...; empty if nothing is known.
  [[nodiscard]] std::string text() const;
};

/// Where the records contradict what ranks and nodes suggest.
enum class Remark : std::uint8_t { kNone, kNodesAsOne, kNodeAsSeveral, kNetworkWithinNode };

/// Pure.
/// @param ranks, nodes  as NCCL says, 0 = unknown
[[nodiscard]] Remark remark_of(std::int64_t ranks, std::int64_t nodes,
                               const SeenOfCommunicator& seen);
/// "nodes_as_one" (NCCL takes several nodes for one), "node_as_several", "network_within_node";
/// empty for kNone.
[[nodiscard]] std::string_view remark_name(Remark remark);

struct Statistics;

/// The remarks of the communicators in words, alike ones together.
[[nodiscard]] std::vector<Insight> path_insights(const Statistics& statistics);

}  // namespace ncclscope::cli::report
