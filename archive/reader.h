// SPDX-License-Identifier: Apache-2.0
//
// Reads one segment, block by block. THE FILE IS NOT TRUSTED: it may be cut anywhere, or be
// anything.
//   Thread: one per reader.   Memory: one block (at most kMaxRawBytes, and its rows), and the
//   contexts of the file (at most kMaxContextBytes of them).
//   Cut:    a file that ends inside a block, or without an end block (its writer was killed, or is
//   still at work), gives all whole blocks before; truncated() then says so.
//   Refuse: whatever else is not right ends reading with a message that names file and offset;
//   batches given before it are right, they were checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "archive/operation.h"
#include "archive/status.h"

namespace ncclscope::archive {

/// What one block holds. Within a section, records of a process stand together and in the order in
/// which they were received. Valid until the next call of Reader::next().
struct Batch {
  std::vector<OperationRow> operations;
  std::vector<NetworkRow> network;
  std::vector<ChannelRow> channels;
  std::vector<FinalizeRow> finalizes;
  std::vector<ProgressRow> progress;
  std::vector<BooksRow> books;
  std::vector<Source> sources;  // what the rows point to
};

class Reader {
 public:
  /// Opens `path` and reads its header. Null, and `status` says why, if that is not a segment.
  static std::unique_ptr<Reader> open(const std::filesystem::path& path, Status& status);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The next block with records. Null at the end, or where the file is not right: see status().
  [[nodiscard]] const Batch* next();
  /// Of next(): ok at the end of the file, cut or not.
  [[nodiscard]] const Status& status() const;

  /// After next() returned null: there is no end block.
  [[nodiscard]] bool truncated() const;
  /// Bytes of the file that made whole blocks so far.
  [[nodiscard]] std::uint64_t offset() const;
  /// The job as known so far: after the first next(), all of it.
  [[nodiscard]] const Job& job() const;
  [[nodiscard]] const std::filesystem::path& path() const;
  /// Operations given so far.
  [[nodiscard]] std::uint64_t operations() const;

 private:
  struct State;
  explicit Reader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Segments below `path` (itself, if it is a file), complete or not, by folder and name: in the
/// order in which one writer made them. Error: `path` cannot be read.
[[nodiscard]] Status find_segments(const std::filesystem::path& path,
                                   std::vector<std::filesystem::path>& out);

}  // namespace ncclscope::archive
