// SPDX-License-Identifier: Apache-2.0
//
// Dumps of PyTorch's Flight Recorder (JSON form, one file per rank) as the verdict wants them. A
// dump holds the last collectives of each process group: called, started, completed.
//   Whoever writes a dump may write anything: what is not as documented is an error that names file
//   and entry. Errors are thrown as std::runtime_error.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/diagnose/observation.h"

namespace ncclscope::cli {

/// One operation of a dump.
struct FlightEntry {
  std::int64_t record = 0;  // in the order of recording
  std::string group;        // of FlightGroup::name
  std::string operation;    // "all_reduce", ...: without "nccl:"
  std::int64_t sequence = 0;
  bool point_to_point = false;
  bool started = false, completed = false;
  std::int64_t created_ns = 0;    // since the epoch; 0 = unknown, as of the others
  std::int64_t started_ns = 0;    // when the watchdog saw it
  std::int64_t completed_ns = 0;  // when the watchdog saw it
  double duration_seconds = 0;    // of the GPU; 0 = not measured (TORCH_NCCL_ENABLE_TIMING=0)
  std::uint64_t input_elements = 0, output_elements = 0;
  std::string datatype;   // "Float", ...
  std::string called_at;  // "train.py:44 (step)"; empty where the dump has no stacks
};

struct FlightGroup {
  std::string name, description;
  std::vector<std::int32_t> ranks;  // global, in the order of ranks of the group
};

/// One process's dump.
struct FlightDump {
  std::string file;
  std::string version;  // of the format, "2.10"
  std::string nccl_version;
  std::int32_t rank = -1;  // global
  std::vector<FlightGroup> groups;
  std::vector<FlightEntry> entries;
};

/// The rank at the end of a dump's name ("nccl_trace_rank_12", "12.json"); -1 if there is none.
[[nodiscard]] std::int32_t rank_of_dump(std::string_view file);

/// Pure. @param file  its name: tells the rank, and is named in errors
[[nodiscard]] FlightDump parse_flight_dump(const std::string& file, const std::string& text);

/// Files and folders (all of their files); sorted by rank.
[[nodiscard]] std::vector<FlightDump> read_flight_dumps(const std::vector<std::string>& paths);

/// Bytes of an element of a PyTorch type; 0 = unknown.
[[nodiscard]] std::uint32_t torch_element_bytes(std::string_view datatype);

/// NCCL's name of an operation of PyTorch ("AllReduce"); empty if it is none.
[[nodiscard]] std::string_view nccl_name(std::string_view operation);

/// How far everybody was when the newest entry of any dump was written. Pure.
[[nodiscard]] Observation observe_flight_dumps(const std::vector<FlightDump>& dumps,
                                               const std::string& job_id);

}  // namespace ncclscope::cli
