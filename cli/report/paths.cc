// SPDX-License-Identifier: Apache-2.0
#include "cli/report/paths.h"

#include <array>

#include "cli/report/quantiles.h"
#include "cli/report/schema.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

struct Remark {
  const char* kind;
  const char* text;  // of one communicator; then of several
  const char* texts;
  const char* detail;
};
constexpr std::array<Remark, 3> kRemarks{{
    {"nodes_as_one", "is on several nodes that NCCL takes for one",
     "are on several nodes that NCCL takes for one",
     "As it does where an NVLink domain spans nodes. Class nvlink-only then means this domain, and "
     "nodes counts domains."},
    {"node_as_several", "has ranks on one node that NCCL takes for several nodes",
     "have ranks on one node that NCCL takes for several nodes",
     "Containers with host names of their own do that, and the ranks then talk over the network "
     "instead of NVLink or shared memory: give them the node's host name or one NCCL_HOSTID."},
    {"network_within_node", "is within one node by NCCL's count and uses the network",
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

std::string name_of(const Rows& rows, std::size_t r) {
  const std::string name = printable(rows.text(1, r));
  return name.empty() ? printable(rows.text(0, r)) : name;
}

}  // namespace

void SeenOfCommunicator::merge(const SeenOfCommunicator& other) {
  nodes.insert(other.nodes.begin(), other.nodes.end());
  ranks.insert(other.ranks.begin(), other.ranks.end());
  network_ranks.insert(other.network_ranks.begin(), other.network_ranks.end());
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

PathsSeen::Seen PathsSeen::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

std::string paths_text(const std::set<std::string>& algorithms, bool network) {
  bool nvlink_sharp = false;
  bool network_sharp = false;
  for (const Needs& needs : kNeeds) {
    if (!algorithms.contains(needs.algorithm)) continue;
    nvlink_sharp = nvlink_sharp || needs.nvlink_sharp;
    network_sharp = network_sharp || needs.network_sharp;
    network = network || needs.network;
  }
  std::string text;
  const auto add = [&](bool is_seen, const char* path) {
    if (is_seen) text += (text.empty() ? "" : "+") + std::string(path);
  };
  add(nvlink_sharp, "nvlink-sharp");
  add(network, "network");
  add(network_sharp, "network-sharp");
  return text;
}

std::string remark_of(std::int64_t ranks, std::int64_t nodes, const SeenOfCommunicator& seen) {
  const auto on = static_cast<std::int64_t>(seen.nodes.size());
  if (nodes <= 0 || on == 0) return {};
  if (on > nodes) return "nodes_as_one";
  // Ranks that nothing is known of may be on other nodes.
  if (on < nodes && ranks > 0 && static_cast<std::int64_t>(seen.ranks.size()) == ranks)
    return "node_as_several";
  if (nodes == 1 && !seen.network_ranks.empty()) return "network_within_node";
  return {};
}

void add_paths(Connection& connection, const PathsSeen& paths) {
  const PathsSeen::Seen all = paths.seen();
  std::map<PathsSeen::Key, std::set<std::string>> algorithms;
  for_each_row(connection,
               "SELECT DISTINCT job, communicator, algorithm FROM statistics WHERE algorithm IS "
               "NOT NULL",
               [&](const Rows& rows, std::size_t r) {
                 algorithms[{std::string(rows.text(0, r)), std::string(rows.text(1, r))}].emplace(
                     rows.text(2, r));
               });
  connection.run(
      "CREATE OR REPLACE TEMP TABLE paths (job VARCHAR, communicator VARCHAR, paths_seen VARCHAR, "
      "network_ranks BIGINT, network_bytes BIGINT, remark VARCHAR)");
  TableAppender appender(connection, "paths");
  const auto text = [&](const std::string& value) {
    value.empty() ? appender.null() : appender.text(value);
  };
  for_each_row(
      connection,
      "SELECT job, communicator, coalesce(ranks, 0), coalesce(nodes, 0) FROM "
      "communicators",
      [&](const Rows& rows, std::size_t r) {
        const PathsSeen::Key key{std::string(rows.text(0, r)), std::string(rows.text(1, r))};
        const auto known = all.find(key);
        const SeenOfCommunicator seen = known == all.end() ? SeenOfCommunicator() : known->second;
        appender.text(key.first);
        appender.text(key.second);
        text(paths_text(algorithms[key], !seen.network_ranks.empty()));
        if (seen.network_ranks.empty()) {
          appender.null();
          appender.null();
        } else {
          appender.integer(static_cast<std::int64_t>(seen.network_ranks.size()));
          appender.integer(static_cast<std::int64_t>(seen.network_bytes));
        }
        text(remark_of(rows.integer(2, r), rows.integer(3, r), seen));
        appender.end_row();
      });
  appender.close();
  connection.run(
      "CREATE OR REPLACE TABLE communicators AS SELECT c.*, p.paths_seen, p.network_ranks, "
      "p.network_bytes, p.remark FROM communicators c LEFT JOIN paths p USING (job, communicator) "
      "ORDER BY job, communicator; DROP TABLE paths");
}

std::vector<Insight> path_insights(Connection& connection) {
  std::vector<Insight> out;
  for (const Remark& remark : kRemarks) {
    std::size_t count = 0;
    std::string first;
    for_each_row(connection,
                 "SELECT communicator, communicator_name FROM communicators WHERE remark = " +
                     sql_literal(remark.kind) + " ORDER BY total_seconds DESC NULLS LAST, 1",
                 [&](const Rows& rows, std::size_t r) {
                   if (++count == 1) first = name_of(rows, r);
                 });
    if (count == 0) continue;
    out.push_back({Insight::Weight::kNotice, remark.kind,
                   count == 1 ? "Communicator " + first + " " + remark.text + "."
                              : std::to_string(count) + " communicators, such as " + first + ", " +
                                    remark.texts + ".",
                   remark.detail, 0, 0});
  }
  return out;
}

}  // namespace ncclscope::cli::report
