// SPDX-License-Identifier: Apache-2.0
//
// What lies below the paths that were given: logs of NCCL Inspector and segments of the agent's
// archive, told by content. Reads the first bytes of candidates; follows links to files, not to
// folders.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ncclscope::cli::report {

/// Nothing to read, or a path that is not what it should be; the message names it.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class InputKind : std::uint8_t { kInspectorLog, kArchive };

struct Input {
  InputKind kind = InputKind::kInspectorLog;
  std::string path;
  std::string name;  // column `file`
  std::string job;   // "unknown" where neither content nor path says
  std::string step;  // empty = unknown
  std::uint64_t bytes = 0;
  bool traces = false;  // of a log: its first line is a verbose one
};

struct Inputs {
  std::vector<Input> files;           // by job, then by path
  std::vector<std::string> left_out;  // "path: reason", files of the right name with other content
};

/// @param job  of Inspector logs, whatever their path says; empty = from the path
/// Throws InputError: a path that does not exist, a named file that is neither, or nothing at all.
[[nodiscard]] Inputs find_inputs(const std::vector<std::string>& paths, const std::string& job);

/// The job and step that a log's path tells: .../nccl-inspector-<job>/x.log, or
/// .../<job>/<step>/<host>-pid<pid>.log.
struct JobStep {
  std::string job, step;
};
[[nodiscard]] JobStep job_of_log(const std::string& path);

}  // namespace ncclscope::cli::report
