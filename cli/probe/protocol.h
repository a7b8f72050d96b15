// SPDX-License-Identifier: Apache-2.0
//
// The lines that workers (who call CUDA and NCCL) and the process that conducts them exchange, each
// ended by a newline. From a worker:
//   version NCCL RUNTIME DRIVER      as the libraries number themselves
//   gpu PCI NAME                     one of its GPUs, in the order of its ranks
//   links PCI CAPABILITY ACTIVE C2C C2C_MB N,N,...   NVLink of a GPU of the node, as NVML has it
//   ready
//   id HEX                           the answer to "identify"
//   stage TEXT                       what it is about to do, so that a hang has a name
//   result ROW RANK NS WRONG         mean time of an operation; WRONG elements, - = not checked
//   done | failed TEXT
// To a worker: set NAME=VALUE | identify | start FIRST_RANK RANKS ID PLAN | stop
//   Thread: pure.   Lines come from other machines: what does not parse is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/probe/plan.h"
#include "topology/machine.h"

namespace ncclscope::cli::probe {

inline constexpr std::size_t kLongestLine = 8192;
inline constexpr std::size_t kIdBytes = 128;  // NCCL's unique id

struct Start {
  std::uint32_t first_rank = 0, ranks = 0;
  std::string id;  // kIdBytes of them
  Plan plan;
};
[[nodiscard]] std::string start_line(const Start& start);
[[nodiscard]] std::optional<Start> parse_start(std::string_view line);

struct Result {
  std::uint32_t row = 0, rank = 0;
  std::uint64_t nanoseconds = 0;
  std::optional<std::uint64_t> wrong;
};
[[nodiscard]] std::string result_line(const Result& result);
[[nodiscard]] std::optional<Result> parse_result(std::string_view line);

/// One line per GPU with known NVLinks.
[[nodiscard]] std::vector<std::string> link_lines(const topology::Machine& machine);
/// Adds what a line says to the machine of the same node; false if it does not fit.
bool add_links(topology::Machine& machine, std::string_view line);

[[nodiscard]] std::string to_hex(std::string_view bytes);
[[nodiscard]] std::optional<std::string> from_hex(std::string_view text);

/// The first word, and what follows it.
struct Words {
  std::string_view first, rest;
};
[[nodiscard]] Words split_word(std::string_view line);

}  // namespace ncclscope::cli::probe
