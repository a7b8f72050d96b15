// SPDX-License-Identifier: Apache-2.0
//
// The archive's directory: names of segments, who else writes there, and what gives way to the
// limits.
//   Layout: <directory>/<job>/<node>-<UTC time>-<agent>-<number>.ncsa. A segment that is being
//           written to ends in .part. <directory>/<node>.lock is held by the node's agent: nodes
//           may share a directory, and each agent counts and deletes its own node's segments only.
//   Thread: the archive's writer (create(): any, before).
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <string>
#include <string_view>

#include "agent/base/result.h"
#include "agent/base/scoped_fd.h"

namespace ncclscope::agent {

/// `text` as a name of a file or folder: letters, digits, '.', '-' and '_' stay (a '.' in front
/// does not), other bytes become %XX; long ones are cut and end in a hash. Never empty, ".", ".."
/// or the lock of a node.
[[nodiscard]] std::string file_name_of(std::string_view text);

class SegmentStore {
 public:
  struct Options {
    std::filesystem::path directory;
    std::string node;
    bool group_readable = false;
    std::uint64_t job_bytes = 0;    // that a job may take, with the segment being written to
    std::uint64_t total_bytes = 0;  // that all may
    std::int64_t age_ns = 0;        // after which a segment goes, since it was written to last
    std::uint64_t instance = 0;     // of the agent
  };
  /// Why segments were deleted.
  enum class Reason : std::uint8_t { kAge, kJob, kTotal };
  static constexpr std::size_t kReasons = 3;

  /// Makes the directory, takes the lock, looks at what is there, and completes the names of
  /// segments that an agent of this node left behind when it was killed.
  static Result<SegmentStore> create(const Options& options);

  /// Where the next segment of `job_id` goes (its folder is made).
  Result<std::filesystem::path> next(std::string_view job_id, std::int64_t now_ns);
  /// A segment of next() has this size now. Before finish() it is never deleted.
  void grown(const std::filesystem::path& path, std::uint64_t bytes);
  /// It is complete, or given up; `path` is its name without ".part", `there` whether it has that
  /// name now.
  void finished(const std::filesystem::path& path, std::uint64_t bytes, std::int64_t now_ns,
                bool there);
  /// Deletes oldest segments first until the limits hold. Of what is open nothing is deleted.
  void enforce(std::int64_t now_ns);

  [[nodiscard]] std::uint64_t bytes() const { return total_; }
  [[nodiscard]] std::size_t segments() const { return segments_.size(); }
  [[nodiscard]] std::uint64_t deleted(Reason reason) const {
    return deleted_[static_cast<std::size_t>(reason)];
  }
  /// Of deletions that failed.
  [[nodiscard]] std::uint64_t failures() const { return failures_; }
  [[nodiscard]] unsigned file_mode() const { return options_.group_readable ? 0640 : 0600; }

 private:
  struct Segment {
    std::filesystem::path path;  // as it is called now
    std::string job;             // name of the folder
    std::uint64_t bytes = 0;
    std::int64_t written_ns = 0;
    bool open = false;
  };
  using Segments = std::list<Segment>;  // oldest first

  explicit SegmentStore(Options options) : options_(std::move(options)) {}
  Status lock();
  Status look();
  Segments::iterator find(const std::filesystem::path& path);
  bool remove(Segments::iterator it, Reason reason);
  [[nodiscard]] unsigned folder_mode() const { return options_.group_readable ? 0750 : 0700; }

  Options options_;
  std::string prefix_;  // of this node's files
  ScopedFd lock_;
  Segments segments_;
  std::map<std::string, std::uint64_t> bytes_of_job_;  // by folder
  std::uint64_t total_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t deleted_[kReasons] = {};
  std::uint64_t failures_ = 0;
};

}  // namespace ncclscope::agent
