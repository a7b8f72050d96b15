// SPDX-License-Identifier: Apache-2.0
//
// Turns chunks into segments: one open per job, flushed after flush_ns, rotated after segment_ns.
//   Thread: one (JobArchive's); it may wait for the disk.
//   Errors: a job whose segment cannot be written loses its operations until it is tried again;
//   they are counted, and others are not touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "agent/archive/archive_stats.h"
#include "agent/archive/chunk.h"
#include "agent/archive/segment_store.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "archive/writer.h"

namespace ncclscope::agent {

class ArchiveWriter {
 public:
  struct Options {
    std::uint64_t flush_ns = 5'000'000'000;
    std::uint64_t segment_ns = 600'000'000'000;
    std::uint64_t segment_bytes = 64u << 20;  // a larger one is rotated too
    int zstd_level = 3;
    std::uint64_t instance = 0;
    /// How long tick() may be late: blocks are written so much before flush_ns is over.
    std::uint64_t margin_ns = 100'000'000;
    std::size_t max_open = 128;               // segments
    std::size_t max_pending_rows = 1u << 17;  // of all jobs
  };
  ArchiveWriter(SegmentStore store, ArchiveStats& stats, const Clock& clock, Options options);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  void take(const ArchiveChunk& chunk);
  /// Writes what is due and deletes what is over the limits. At least every margin_ns.
  void tick();
  /// Completes all segments.
  void finish();

 private:
  struct JobFile;
  struct Target {
    JobFile* job = nullptr;
    std::uint32_t communicator = 0;
  };

  Target target(const ArchivedSource& source);
  JobFile* open(const archive::Job& job);
  void flush(JobFile& job);
  void complete(JobFile& job);
  void give_up(JobFile& job, const std::string& why);
  void make_room_for_open();
  void publish();

  SegmentStore store_;
  ArchiveStats& stats_;
  const Clock& clock_;
  Options options_;
  std::map<std::string, std::unique_ptr<JobFile>> jobs_;  // by id
  std::uint64_t enforced_ns_ = 0;
  LogLimiter errors_;
};

}  // namespace ncclscope::agent
