// SPDX-License-Identifier: Apache-2.0
//
// Recordings of NCCL's profiler callbacks: a folder holds one gzip-compressed JSON Lines file per
// process and expected.json. Reads one file into memory; line times are nanoseconds relative to the
// first callback. Errors are thrown as std::runtime_error and name file, line and what would be
// right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ncclscope::cli {

enum class Callback : std::uint8_t { kLoad, kUnload, kInit, kStart, kStop, kRecord, kFinalize };

/// No handle: NCCL passed NULL, or the plugin was recorded as answering NULL.
inline constexpr std::int64_t kNoHandle = 0;
/// A parent pointer that was not one of the recorded plugin's.
inline constexpr std::int64_t kForeignHandle = -1;

struct TraceLine {
  std::int64_t t_ns = 0;
  int thread = 0;
  Callback callback = Callback::kLoad;
  int ctx = 0;                            // of init, start, finalize
  std::int64_t handle = kNoHandle;        // of start, stop, record
  std::uint32_t type = 0;                 // of start: one event type bit
  std::int64_t parent = kNoHandle;        // of start
  std::int64_t parent_group = kNoHandle;  // of Coll and P2p from v5 on
  int state = -1;                         // of record
  bool restored = false;                  // not in the file: see restore_null_handles
  nlohmann::json fields;                  // the whole line
};

struct TraceHeader {
  int interface_version = 0;       // 1..7
  std::uint32_t nccl_version = 0;  // as ncclGetVersion says: 22809 = 2.28.9
  std::int64_t pid = 0;
  int process = 0;
  std::string scenario;
  std::uint32_t mask = 0;
  std::uint32_t null_handle_types = 0;
  std::int64_t t0_monotonic_ns = 0;
  std::int64_t t0_realtime_ns = 0;
  std::map<int, std::string> threads;
};

struct Trace {
  TraceHeader header;
  std::vector<TraceLine> lines;
};

/// Reads one process's file.
[[nodiscard]] Trace load_trace(const std::filesystem::path& file);

/// Files rank<r>.jsonl.gz of a folder, by r.
[[nodiscard]] std::vector<std::filesystem::path> trace_files(const std::filesystem::path& folder);

/// "2.28.9" -> 22809; 0 when it is no release.
[[nodiscard]] std::uint32_t parse_release(const std::string& text);

/// A recording in which the plugin answered NULL for some types lacks what NCCL does with handles
/// of those types. Gives these starts handles of their own (negative numbers below kForeignHandle),
/// links children to them and adds the stops and records that NCCL makes. Does nothing to other
/// recordings.
void restore_null_handles(Trace& trace);

}  // namespace ncclscope::cli
