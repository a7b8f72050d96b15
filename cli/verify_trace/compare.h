// SPDX-License-Identifier: Apache-2.0
//
// Compares an agent's stored answer with a recording's expected.json: per communicator and rank, in
// program order. Truth comes from expected.json; what the interface or the mask does not carry
// comes from the recording's own lines, and each such exception must be listed in
// trace-limits.json. Times in nanoseconds. Single-threaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/verify_trace/limits.h"

namespace ncclscope::cli {

struct Difference {
  std::string folder;
  int rank = -1;
  std::string comm;
  std::string op;  // "AllReduce #3", empty where the field belongs to no operation
  std::string field;
  std::string expected;
  std::string got;
};

/// A value of the answer that was compared, for tests of the comparison itself.
struct ComparedValue {
  std::string field;
  nlohmann::json::json_pointer where;
};

struct Comparison {
  std::vector<Difference> differences;
  std::vector<ComparedValue> compared;
  std::size_t ranks = 0;
  std::size_t operations = 0;
};

/// One folder replayed once.
struct ReplayedFolder {
  std::filesystem::path folder;
  std::string mask_mode;  // default, recorded
  nlohmann::json
      answer;  // {"workers": [{"file", "pid", "report"}], "operations": ..., see AgentClient}
};

/// @param expected  content of expected.json
[[nodiscard]] Comparison compare(const ReplayedFolder& replayed, const nlohmann::json& expected,
                                 Limits& limits);

/// One line for people.
[[nodiscard]] std::string to_line(const Difference& d);

}  // namespace ncclscope::cli
