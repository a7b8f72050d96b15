// SPDX-License-Identifier: Apache-2.0
//
// Makes a recording's callbacks into a plugin in their recorded order, one OS thread per recorded
// thread (a baton goes round), in recorded time, and obeys the plugin's mask and NULL handles as
// NCCL does. Knows for every line whether the plugin got it: what a recording holds beyond the
// plugin's mask is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/verify_trace/trace.h"

namespace ncclscope::cli {

/// What became of a line. Characters, so that a report holds one string per process.
enum class Delivery : char {
  kDelivered = '1',
  kAnsweredNull = 'N',  // delivered; the plugin answered with NULL
  kMask = 'm',          // the mask in force leaves the type out
  kNullHandle = 'n',    // stop or record of a start that the plugin answered with NULL
  kGroupHandle = 'g',   // NCCL <= 2.27: NULL for the Group leaves out its tasks
  kUndelivered = 'u',   // stop or record of a start that was left out
  kDropped = 'd',       // left out on purpose, see ReplayOptions::drop_line and until_ns
  kNotCallback = '-',   // load, unload
};

struct ReplayOptions {
  std::string plugin;           // path of the shared object
  std::uint64_t seed = 1;       // of undefined bytes
  std::int64_t drop_line = -1;  // index of a line to leave out, -1 = none
  /// Lines after this recorded time are left out: the process stands still from here on.
  std::int64_t until_ns = std::numeric_limits<std::int64_t>::max();
};

struct ReplayReport {
  std::string delivery;              // one Delivery per line
  std::vector<std::uint32_t> masks;  // mask in force after each init
  std::uint64_t callbacks = 0;       // calls made into the plugin
  std::uint64_t null_handles = 0;    // starts answered with NULL
  std::uint32_t final_mask = 0;
  bool ends_with_exit = false;  // the recorded process exited without unloading the plugin
};

/// Replays the whole trace; returns when all its threads have ended. Throws std::runtime_error.
[[nodiscard]] ReplayReport replay(const Trace& trace, const ReplayOptions& options);

}  // namespace ncclscope::cli
