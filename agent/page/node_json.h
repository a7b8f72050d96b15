// SPDX-License-Identifier: Apache-2.0
//
// What the node's page shows, as JSON: a function of a snapshot and the recent past. Numbers in
// base units; what is unknown is null. Strings are as in the snapshot, whatever a tenant named
// things: whoever shows them must escape them.
//   Thread: any.
#pragma once

#include <cstddef>

#include "agent/aggregate/snapshot.h"
#include "agent/export/byte_sink.h"
#include "agent/export/visit.h"
#include "agent/page/bandwidth_history.h"

namespace ncclscope::agent {

/// An operation that has been in flight for as long counts as hung on the page. The alert's
/// threshold is at least this, and higher for jobs that wait long now and then.
inline constexpr double kHungAfterSeconds = 60;

/// Communicators beyond so many are counted and not listed: a page is for reading.
inline constexpr std::size_t kMaxListedCommunicators = 1000;
inline constexpr std::size_t kMaxListedProcesses = 1000;

/// Writes piece by piece: neither the whole text nor a tree of it is ever in memory.
void write_node_json(const Snapshot& snapshot, const BandwidthHistory& history,
                     const SelfStats& self, ByteSink& sink);

}  // namespace ncclscope::agent
