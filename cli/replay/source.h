// SPDX-License-Identifier: Apache-2.0
//
// Where replayed frames come from: segments of an archive, or Inspector logs. One track per writer
// (an agent's segments of a job, an Inspector log file): its frames come in the order of their
// times.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "archive/reader.h"
#include "cli/inspector_log/line_parser.h"
#include "cli/inspector_log/line_reader.h"
#include "cli/replay/session.h"

namespace ncclscope::cli {

/// What is told of a source besides its frames.
struct SourceNotes {
  std::vector<std::string> lines;  // a file was cut, ...
};

class ReplayTrack {
 public:
  virtual ~ReplayTrack() = default;
  /// The next frames, or false at the end. Throws std::runtime_error (with file and place).
  virtual bool next(std::vector<ReplayedFrame>& out, SourceNotes& notes) = 0;
  [[nodiscard]] virtual std::vector<ReplayedSession*> sessions() = 0;
};

/// Segments of one writer, oldest first.
class ArchiveTrack final : public ReplayTrack {
 public:
  /// @param job  what to call the job; empty: as the archive does
  ArchiveTrack(std::vector<std::filesystem::path> segments, std::string job)
      : segments_(segments.begin(), segments.end()), job_(std::move(job)) {}
  bool next(std::vector<ReplayedFrame>& out, SourceNotes& notes) override;
  [[nodiscard]] std::vector<ReplayedSession*> sessions() override;

 private:
  void make_frames(const archive::Batch& batch, std::vector<ReplayedFrame>& out);
  ReplayedSession& session(const archive::Source& source, std::uint64_t first_index);

  std::deque<std::filesystem::path> segments_;
  std::string job_;
  std::unique_ptr<archive::Reader> reader_;
  std::map<std::uint64_t, std::unique_ptr<ReplayedSession>>
      sessions_;  // by their id in the archive
};

/// One log of the NCCL Inspector. Its lines tell no indexes and no start times: indexes are
/// counted, and an operation is taken to have ended when its line was written, or where that is
/// told (verbose lines), to have begun when it was called.
class InspectorTrack final : public ReplayTrack {
 public:
  InspectorTrack(std::filesystem::path file, std::string job);
  ~InspectorTrack() override;
  bool next(std::vector<ReplayedFrame>& out, SourceNotes& notes) override;
  [[nodiscard]] std::vector<ReplayedSession*> sessions() override;

 private:
  struct Communicator;
  struct Process;
  using Makers = std::map<Process*, std::unique_ptr<FrameMaker>>;
  void add(const inspector_log::Performance& operation, Makers& makers,
           std::vector<ReplayedFrame>& out);
  void note_end(SourceNotes& notes);

  std::filesystem::path file_;
  std::string job_;
  std::unique_ptr<inspector_log::LineReader> reader_;
  std::unique_ptr<inspector_log::LineParser> parser_;
  std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<Process>> processes_;
  std::uint64_t skipped_ = 0;
  bool cut_ = false;
  bool over_ = false;
};

/// Tracks of everything below `path`. Throws std::runtime_error.
[[nodiscard]] std::vector<std::unique_ptr<ReplayTrack>> open_tracks(
    const std::filesystem::path& path, const std::string& job);

}  // namespace ncclscope::cli
