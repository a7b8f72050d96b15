// SPDX-License-Identifier: Apache-2.0
//
// The archive as the agent sees it: a sink to put before the aggregator, and a thread of its own
// that writes. A disk that hangs stops the thread and nothing else.
//   Thread: reactor, but for what runs inside.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/aggregate/aggregator.h"
#include "agent/archive/archive_sink.h"
#include "agent/archive/archive_writer.h"
#include "agent/base/clock.h"
#include "agent/base/result.h"

namespace ncclscope::agent {

class JobArchive {
 public:
  struct Options {
    SegmentStore::Options store;
    ArchiveWriter::Options writer;
    ArchiveSink::Options sink;
    std::size_t max_chunks = 200;  // waiting for the disk: 16 MiB
    std::chrono::milliseconds wake{100};
  };
  /// `aggregator` and `clock` must outlive it.
  static Result<std::unique_ptr<JobArchive>> create(Aggregator& aggregator, const Clock& clock,
                                                    const Options& options);
  /// stop() with no patience.
  ~JobArchive();
  JobArchive(const JobArchive&) = delete;
  JobArchive& operator=(const JobArchive&) = delete;

  [[nodiscard]] RecordSink& sink() { return *sink_; }
  void tick() { sink_->tick(); }
  [[nodiscard]] ArchiveCounts counts() const;
  /// Completes all segments; gives up (and says so) if the disk takes longer than `patience`.
  void stop(std::chrono::milliseconds patience);

 private:
  struct Shared;
  JobArchive() = default;

  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive us if the disk hangs
  std::unique_ptr<ArchiveSink> sink_;
  std::uint64_t limit_bytes_ = 0;
  bool stopped_ = false;
};

}  // namespace ncclscope::agent
