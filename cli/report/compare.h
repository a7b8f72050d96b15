// SPDX-License-Identifier: Apache-2.0
//
// Two runs side by side: what of the same shape is faster or slower, which algorithm NCCL chose,
// who is late, which software ran. effect.h says how a difference is measured and when it counts.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/effect.h"
#include "cli/report/page.h"
#include "cli/report/pictures.h"

namespace ncclscope::cli::report {

struct ComparedSide {
  std::string label;  // "A", "B"
  std::string where;  // the paths it was read from
  RunHead head;
  std::vector<Insight> insights;
};

/// What can be compared between runs: communicators' identities play no part.
struct ComparedShape {
  std::string collective;
  std::int64_t bytes = 0, ranks = 0, nodes = 0;
  std::string dimension;
  std::uint64_t operations_a = 0, operations_b = 0;
  double share_a = 0, share_b = 0;  // of the time in operations
  /// Bus bandwidth with waiting, mean over the ranks; and of the rank that waited least, which is
  /// the transfer itself (known where all ranks tell of an operation).
  Effect user, transfer;
  std::string algorithms_a, algorithms_b;  // "RING/SIMPLE 98 %, TREE/LL 2 %"
  bool algorithms_changed = false;

  [[nodiscard]] std::string name() const;  // "AllReduce 64 MiB, 8 ranks on 2 nodes (dp)"
};

struct CompareOptions {
  double least_change = 0.03;  // of a bandwidth
  double least_mix = 0.1;      // of the operations of a shape that took another algorithm
  double least_share = 0.01;   // of the time, of shapes that only one run has
  std::size_t shapes = 200;    // those with most time
  std::size_t blocks = 20;     // of time
};

struct Comparison {
  ComparedSide a, b;
  CompareOptions options;
  std::vector<ComparedShape> shapes;  // those with most time first
  std::vector<Insight> changes;       // empty: nothing changed
  Effect step;                        // step time; unknown where no step was found
};

/// @param view_a, view_b  views with the columns of `operations`
[[nodiscard]] Comparison compare_runs(Connection& connection, const std::string& view_a,
                                      const std::string& view_b, ComparedSide a, ComparedSide b,
                                      const CompareOptions& options = {});

[[nodiscard]] std::string comparison_text(const Comparison& comparison, std::size_t rows);
[[nodiscard]] nlohmann::ordered_json comparison_json(const Comparison& comparison);
[[nodiscard]] Page comparison_page(const Comparison& comparison);

}  // namespace ncclscope::cli::report
