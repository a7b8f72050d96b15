// SPDX-License-Identifier: Apache-2.0
//
// What a diagnosis can rest on beside the agents: dumps of PyTorch's Flight Recorder and NCCL's RAS
// status, from files or asked of `ncclras`. Errors are thrown as std::runtime_error.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/diagnose/observation.h"
#include "cli/diagnose/ras.h"
#include "cli/diagnose/report.h"
#include "verdict/judge.h"

namespace ncclscope::cli {

struct OtherSourceOptions {
  std::vector<std::string> flight_recorder;  // files and folders; empty = none
  std::vector<std::string> ras;              // files, the oldest first; one or two
  std::string ncclras;                       // "local", host or host:port; empty = not asked
  std::string ncclras_program = "ncclras";
  std::chrono::milliseconds between_samples{5000};  // of ncclras
  std::chrono::milliseconds limit{10'000};          // of one run of ncclras

  [[nodiscard]] bool any() const {
    return !flight_recorder.empty() || !ras.empty() || !ncclras.empty();
  }
};

struct OtherSources {
  std::optional<Observation> flight;
  std::vector<verdict::Finding> flight_findings;
  std::optional<RasStatus> ras;
  std::vector<RasFinding> ras_findings;
  bool two_ras_samples = false;

  /// The worst of both.
  [[nodiscard]] Outcome outcome() const;
};

[[nodiscard]] OtherSources look_at(const OtherSourceOptions& options, const std::string& job_id,
                                   const verdict::JudgeOptions& settings);

/// @param rows  of each table
[[nodiscard]] std::string text_of(const OtherSources& sources, std::size_t rows);
/// Members "flight_recorder" and "ras", as far as they were asked.
void add_json(const OtherSources& sources, nlohmann::ordered_json& out);

/// ncclras with its arguments. Throws if the address is none.
[[nodiscard]] std::vector<std::string> ncclras_command(const std::string& program,
                                                       const std::string& address);

}  // namespace ncclscope::cli
