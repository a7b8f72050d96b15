// SPDX-License-Identifier: Apache-2.0
//
// The pictures of one run, from the view `operations` (docs/parquet-schema.md). DuckDB aggregates:
// whatever the size of the run, a picture has some thousand points at most.
//   Every number of a picture stands in its table, unrounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/duckdb.h"
#include "cli/report/picture.h"

namespace ncclscope::cli::report {

/// What the head of the report tells.
struct RunHead {
  std::vector<std::string> jobs, clusters, nodes, nccl_versions, plugin_versions, sources;
  std::int64_t first_ns = 0, last_ns = 0;  // since 1970; 0 = unknown
  std::uint64_t files = 0, processes = 0, communicators = 0;
  std::uint64_t operations = 0, timed = 0;  // timed: with a duration
  double bytes = 0;                         // of all operations, each once per rank
  double seconds = 0;                       // in operations, over all ranks
};

/// Bounds of what is drawn.
struct PictureLimits {
  std::size_t collectives = 6;    // of the most time
  std::size_t shapes = 24;        // box plots: (collective, size, algorithm, protocol)
  std::size_t scatter = 3000;     // points
  std::size_t sizes = 200;        // rows of the table of sizes
  std::size_t buckets = 120;      // of time
  std::size_t heat_buckets = 60;  // of a heat map
  std::size_t heat_ranks = 64;
  std::size_t communicators = 4;  // heat maps
  std::size_t stragglers = 32;
};

/// @param view  the name of the view
[[nodiscard]] RunHead run_head(Connection& connection, const std::string& view);

[[nodiscard]] std::vector<Picture> make_pictures(Connection& connection, const std::string& view,
                                                 const PictureLimits& limits = {});

/// SQL's list of the collectives in which every rank waits for every other, in parentheses.
[[nodiscard]] const std::string& synchronising_list();

}  // namespace ncclscope::cli::report
