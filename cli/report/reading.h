// SPDX-License-Identifier: Apache-2.0
//
// Input files as an OperationSource, and the account of what could not be read. Damage is local: a
// bad line costs that line, a cut or damaged file what comes after; each is counted, and the first
// are told by file and line.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cli/report/inputs.h"
#include "cli/report/operations.h"
#include "cli/report/paths.h"

namespace ncclscope::cli::report {

struct ReadCounts {
  std::uint64_t files = 0;
  std::uint64_t lines = 0;  // of logs
  std::uint64_t operations = 0;
  std::uint64_t bad_lines = 0;       // could not be understood (of an archive: blocks)
  std::uint64_t bad_files = 0;       // could not be read, or not to their end
  std::uint64_t cut_files = 0;       // end in the middle, as those of a killed process do
  std::uint64_t lost_by_writer = 0;  // operations that the writer said it had to drop
};

/// Any thread.
class ReadAccount {
 public:
  static constexpr std::size_t kMessages = 20;

  void add(const ReadCounts& counts);
  /// As new.
  void reset();
  /// `message` names file and line.
  void tell(const std::string& message);
  /// Of the file in hand; for progress.
  void advance(std::uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  [[nodiscard]] ReadCounts counts() const;
  /// The first kMessages of those told.
  [[nodiscard]] std::vector<std::string> messages() const;
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  ReadCounts counts_;
  std::vector<std::string> messages_;
  std::atomic<std::uint64_t> bytes_{0};
};

class InputSource : public OperationSource {
 public:
  /// All must outlive this.
  InputSource(std::span<const Input> inputs, StringPool& pool, ReadAccount& account,
              PathsSeen& paths)
      : inputs_(inputs), pool_(pool), account_(account), paths_(paths) {}

  [[nodiscard]] std::unique_ptr<OperationStream> next() override;

 private:
  std::span<const Input> inputs_;
  std::atomic<std::size_t> taken_{0};
  StringPool& pool_;
  ReadAccount& account_;
  PathsSeen& paths_;
};

/// Of one log of NCCL Inspector, of one segment of an archive.
[[nodiscard]] std::unique_ptr<OperationStream> open_inspector_log(const Input& input,
                                                                  StringPool& pool,
                                                                  ReadAccount& account);

[[nodiscard]] std::unique_ptr<OperationStream> open_archive(const Input& input, StringPool& pool,
                                                            ReadAccount& account, PathsSeen& paths);

}  // namespace ncclscope::cli::report
