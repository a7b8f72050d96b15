// SPDX-License-Identifier: Apache-2.0
//
// Snapshots made by hand for tests and benchmarks of what reads them.
#pragma once

#include <cstddef>

#include "agent/aggregate/snapshot.h"
#include "agent/export/visit.h"

namespace ncclscope::agent {

/// Two jobs with a bit of everything: unknown values, nasty names, a vanished rank, two sessions of
/// one pid.
[[nodiscard]] Snapshot golden_snapshot();

/// SelfStats that go with golden_snapshot(): the same in every run.
[[nodiscard]] SelfStats golden_self();

/// A node with about `series` series: jobs of 8 GPUs and 6 communicators per rank, all of them
/// active.
[[nodiscard]] Snapshot large_snapshot(std::size_t series);

}  // namespace ncclscope::agent
