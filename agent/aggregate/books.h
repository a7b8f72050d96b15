// SPDX-License-Identifier: Apache-2.0
//
// Whether the loss books of a process balance. Pure functions of the snapshot.
//   Plugin:  seen = recorded + dropped (without overwritten) + open.
//   Transit: records written = received + acknowledged to an earlier agent + lost + still on their
//   way.
// The plugin's numbers are a sample and may be older than the agent's; both sides are exact for
// themselves. Once the process has said goodbye nothing is on its way any more, and the equalities
// are strict.
#pragma once

#include <cstdint>
#include <optional>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

struct BooksCheck {
  bool plugin = false;        // the plugin's own identity
  bool transit = false;       // nothing vanished between plugin and agent without being counted
  std::uint64_t pending = 0;  // records written that the agent has not seen yet

  [[nodiscard]] bool balanced() const noexcept { return plugin && transit; }
};

[[nodiscard]] BooksCheck check_books(const ProcessSnapshot& process) noexcept;

/// Operations of a rank of which no record will come.
[[nodiscard]] std::uint64_t missing_operations(const RankSnapshot& rank) noexcept;
/// Share of a communicator's operations that are not missing, local ranks together. Operations in
/// flight count as covered: at a hang they are what matters. Empty if it has had no operation.
[[nodiscard]] std::optional<double> coverage(const CommunicatorSnapshot& communicator) noexcept;

}  // namespace ncclscope::agent
