// SPDX-License-Identifier: Apache-2.0
//
// NCCL's own RAS status (`ncclras -f json`, NCCL 2.28.7 and later) and what it says of a job that
// stands still. RAS counts launches, not completions: equal counts do not mean that a job is well,
// unequal ones only that somebody is behind, and two samples that it does not move.
//   Errors of parsing are thrown as std::runtime_error.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ncclscope::cli {

struct RasRank {
  std::int32_t rank = -1;  // in the communicator
  std::string host;        // address, as RAS knows it
  std::int64_t pid = 0;
  std::int32_t gpu = -1;  // NVML's index on the node
  // Of ranks that answer:
  std::map<std::string, std::uint64_t> launched;  // by collective, since the communicator's init
  std::int64_t init_state = 0, async_error = 0;   // ncclResult_t; 0 = success
  bool finalizing = false, aborted = false;
  // Of ranks that do not:
  bool unresponsive = false, dead = false;

  [[nodiscard]] std::uint64_t launches() const;
};

struct RasCommunicator {
  std::string hash;  // 16 hex digits, as in ncclscope's label comm
  std::int32_t size = 0;
  std::vector<RasRank> ranks;    // that answered
  std::vector<RasRank> missing;  // that did not
};

struct RasStatus {
  std::string source;  // file or command
  std::string nccl_version, timestamp;
  std::uint64_t timeouts = 0;  // of the collection itself
  std::vector<RasCommunicator> communicators;
};

struct RasFinding {
  /// As classes of hangs in diagnose: process_gone, process_stopped, rank_never_called,
  /// argument_mismatch; and nccl_error.
  std::string kind;
  bool fault = true;       // else it is only told
  std::string confidence;  // high, medium, low
  std::string headline, explanation;
  std::string comm;
  std::vector<RasRank> ranks;  // accused
};

/// Accepts the missing comma that NCCL 2.28.9 leaves out in front of a missing rank's status.
[[nodiscard]] RasStatus parse_ras_status(const std::string& source, const std::string& text);

/// @param earlier  a sample of the same job from before; null: there is only one
[[nodiscard]] std::vector<RasFinding> judge_ras(const RasStatus& now, const RasStatus* earlier);

[[nodiscard]] std::string ras_text(const RasStatus& now, const std::vector<RasFinding>& findings,
                                   bool two_samples);
[[nodiscard]] nlohmann::ordered_json ras_json(const RasStatus& now,
                                              const std::vector<RasFinding>& findings);

}  // namespace ncclscope::cli
