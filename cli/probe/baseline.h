// SPDX-License-Identifier: Apache-2.0
//
// What the fleet's jobs have reached in communicators of this shape, as a Prometheus with our
// recording rules remembers it (shape:ncclscope_transfer_bus_bytes_per_second:baseline).
//   Thread: pure.   Units: GB/s (10^9 bytes) on the bus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/diagnose/nodes.h"
#include "proto/model/operation.h"
#include "topology/limits.h"

namespace ncclscope::cli::probe {

/// @param cluster  empty: of all clusters
[[nodiscard]] std::string baseline_query(std::uint32_t ranks, std::uint32_t nodes,
                                         const std::string& cluster);
/// Of messages of this size; the best of several algorithms and uses. Not known for AlltoAll, which
/// jobs' telemetry sees as sends and receives.
[[nodiscard]] topology::Limit baseline_of(const std::vector<Prometheus::Sample>& answer,
                                          model::Function collective, std::uint64_t bytes);
/// The label `size` of the agents' metrics.
[[nodiscard]] std::string_view size_label(std::uint64_t bytes) noexcept;

}  // namespace ncclscope::cli::probe
