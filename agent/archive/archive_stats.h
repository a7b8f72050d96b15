// SPDX-License-Identifier: Apache-2.0
//
// Counters of the archive.   Thread: written by the reactor (dropped_queue) and the writer, read by
// the reactor.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "agent/aggregate/snapshot.h"

namespace ncclscope::agent {

struct ArchiveStats {
  std::atomic<std::uint64_t> operations{0}, written_bytes{0};
  std::atomic<std::uint64_t> dropped_queue{0}, dropped_disk{0};
  std::atomic<std::uint64_t> stored_bytes{0}, segments{0};
  std::array<std::atomic<std::uint64_t>, 3> deleted{};

  [[nodiscard]] ArchiveCounts counts() const {
    ArchiveCounts out;
    out.operations = operations;
    out.written_bytes = written_bytes;
    out.dropped_queue = dropped_queue;
    out.dropped_disk = dropped_disk;
    out.stored_bytes = stored_bytes;
    out.segments = segments;
    for (std::size_t i = 0; i < deleted.size(); ++i) out.deleted[i] = deleted[i];
    return out;
  }
};

}  // namespace ncclscope::agent
