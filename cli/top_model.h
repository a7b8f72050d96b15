// SPDX-License-Identifier: Apache-2.0
//
// What `ncclscope top` shows: the difference between two snapshots of each node, added up over
// nodes. Pure.
//   Counters that went backwards (the agent was restarted) count from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ncclscope/v1/agent.pb.h"

namespace ncclscope::cli {

struct TopRow {
  std::string job_id, job_name;
  std::string comm, comm_name;
  std::uint32_t nranks = 0;           // 0 = unknown
  std::uint32_t ranks_reporting = 0;  // on the nodes that were asked
  std::string collective, size;
  double operations_per_second = 0;  // of one rank, on average over those reporting
  double bytes_per_second = 0;       // message bytes, all reporting ranks
  double busbw = 0;                  // bytes per second; 0 = no operation had a GPU time
  double busy_ratio =
      0;  // share of the time spent in these operations, mean of the reporting ranks
  double p50_seconds = 0;  // of all operations of this job, collective and size; 0 = unknown
  double p99_seconds = 0;
  // Of (comm, collective), all sizes: who came last, that is, waited least. Only where every rank
  // waits for every other.
  std::int32_t slowest_rank = -1;  // -1 = not known or not meaningful
  std::string slowest_node;
  double others_waited_seconds = 0;  // mean of the others minus that rank, per operation
};

struct TopTotals {
  std::size_t jobs = 0, communicators = 0, ranks = 0;
  double seconds = 0;  // between the snapshots, mean over nodes
};

/// The snapshots of one node at both ends of an interval.
struct TopInterval {
  v1::GetSnapshotResponse before;
  v1::GetSnapshotResponse after;
};

/// The q-quantile (0..1) of a histogram of cumulative counts, linear within a bucket; the last
/// bound where it lies above all bounds, 0 without observations.
[[nodiscard]] double histogram_quantile(double q, const std::vector<double>& bounds,
                                        const std::vector<double>& cumulative);

/// Rows with operations in the interval, busiest first.
[[nodiscard]] std::vector<TopRow> top_rows(const std::vector<TopInterval>& intervals);
[[nodiscard]] TopTotals top_totals(const std::vector<TopInterval>& intervals);

/// The oldest unfinished operation.
struct Oldest {
  double seconds = 0;  // 0 = none
  std::string node, job_id, comm;
  std::int32_t rank = -1;
  std::uint64_t index = 0;
  std::size_t ranks = 0;  // that have one older than `threshold_seconds`
};
[[nodiscard]] Oldest oldest_unfinished(const std::vector<v1::GetProgressResponse>& nodes,
                                       double threshold_seconds);

}  // namespace ncclscope::cli
