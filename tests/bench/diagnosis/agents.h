// SPDX-License-Identifier: Apache-2.0
//
// The insides of the agents of a job's nodes, without sockets and processes: fed with the records
// that the job's plugins would write, asked for windows as a verdict wants them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/aggregate/snapshot.h"
#include "tests/bench/diagnosis/job_model.h"
#include "tests/bench/diagnosis/scenario.h"
#include "tests/unit/agent/rig.h"
#include "verdict/job.h"

namespace ncclscope::bench {

/// Counters of a job at one moment: what Prometheus would have scraped from all nodes.
struct Scrape {
  struct Key {
    std::uint32_t member;
    verdict::Collective collective;
    auto operator<=>(const Key&) const = default;
  };
  struct Sums {
    std::uint64_t operations = 0;
    double seconds = 0;
    double bus_bytes = 0;
  };
  double seconds = 0;  // when
  std::map<Key, Sums> collectives;
  std::vector<double> other_seconds;  // by GPU
  std::vector<double> queue_seconds;  // by GPU, this and what follows
  std::vector<double> queue_operations;
  std::vector<double> calls;
  std::vector<double> coverage;  // by communicator
};

/// Who is in a job: as agents would tell it.
[[nodiscard]] verdict::Job job_of(const Scenario& scenario, const JobModel& model);

class Agents {
 public:
  Agents(const Scenario& scenario, const JobModel& model);

  [[nodiscard]] const verdict::Job& job() const { return job_; }

  /// Takes in the step that the model has just played.
  void take_step(const JobModel& model);
  /// A node's agent is started anew: its counters begin at 0, its plugins connect again.
  void restart(int node);
  /// All nodes at this moment.
  [[nodiscard]] Scrape scrape(double seconds);
  /// The change between two scrapes. A counter that has fallen began at 0 in between.
  [[nodiscard]] verdict::Window window(const Scrape& before, const Scrape& after) const;
  template <typename Visit>
  void for_each_snapshot(Visit&& visit) {
    for (Node& node : nodes_) visit(*node.rig->snapshot());
  }
  [[nodiscard]] std::uint64_t records() const { return records_; }

 private:
  struct Node {
    std::unique_ptr<agent::testing::Rig> rig;
    std::vector<std::unique_ptr<agent::testing::Wire>> wires;  // by local rank
  };
  struct Counters {
    std::uint64_t collectives[kDimensions] = {};
    std::uint64_t p2p[kDimensions] = {};
    std::uint64_t seen[kDimensions] = {}, recorded[kDimensions] = {};
    std::uint64_t index = 0;         // of the session's records
    std::uint64_t acknowledged = 0;  // before the agent's last start
  };

  void start(int node);
  void connect(int rank);
  void send(int rank, const std::vector<PlayedOperation>& operations);
  [[nodiscard]] std::uint64_t to_ns(double seconds) const;

  Scenario s_;
  const JobModel& model_;
  Random random_;
  std::vector<Node> nodes_;
  std::vector<Counters> counters_;  // by rank
  verdict::Job job_;
  std::map<std::pair<std::string, std::int32_t>, std::uint32_t> members_;  // by (comm, rank)
  std::map<std::string, std::uint32_t> communicators_;
  std::uint64_t records_ = 0;
  double now_ = 0;
};

}  // namespace ncclscope::bench
