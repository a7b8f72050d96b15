// SPDX-License-Identifier: Apache-2.0
//
// The payload of a records block: what is pending becomes bytes, bytes become a batch.
//   Operations are coded against what is expected of them: per communicator the next index, per
//   process that it calls when the call before has returned, and that a kernel starts when the one
//   before has stopped. What is equal from step to step (shapes) is in a table. What is left is
//   noise of times.
//   Decoding trusts nothing: every length is checked, every number bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "archive/columns.h"
#include "archive/format.h"
#include "archive/reader.h"
#include "proto/wire/frame.h"

namespace ncclscope::archive {

/// How a GPU's clock relates to the host's, as far as it is known: D = host - GPU.
struct ClockBounds {
  std::optional<std::int64_t> lower;  // D is at least it
  std::optional<std::int64_t> upper;  // and at most it
};

/// A record as it waits: its bytes as words of 8.
template <std::size_t Words>
struct PendingRow {
  std::uint32_t source = 0;  // place in PendingBlock::sources
  std::uint64_t record_index = 0;
  std::uint64_t words[Words] = {};
};

struct PendingOperation {
  std::uint32_t source = 0;
  std::uint64_t record_index = 0;
  wire::Operation record;
};

struct PendingSource {
  std::uint32_t communicator = 0;  // id in the file
  std::uint32_t process = 0;       // likewise
  ClockBounds clock;
};

/// Rows of one process, in the order in which they came.
struct PendingProcess {
  std::vector<PendingOperation> operations;
};

struct PendingBlock {
  std::vector<PendingSource> sources;
  std::vector<PendingProcess> processes;  // those without operations are left out
  std::vector<PendingRow<7>> network, channels, finalizes;
  std::vector<PendingRow<sizeof(wire::Progress) / 8>> progress;
  std::vector<PendingRow<sizeof(wire::Books) / 8>> books;
};

class RecordsEncoder {
 public:
  explicit RecordsEncoder(int zstd_level);
  /// Appends the payload. `rows` is the number of records in it.
  void encode(const PendingBlock& block, std::vector<std::byte>& out, std::uint32_t& rows);
  ColumnWriter& columns() { return columns_; }

 private:
  void encode_operations(const PendingBlock& block, std::size_t rows, std::vector<std::byte>& out);
  template <std::size_t Words>
  void encode_words(Section section, const std::vector<PendingRow<Words>>& rows,
                    std::size_t sources, std::vector<std::byte>& out);

  ColumnWriter columns_;
  std::vector<std::vector<std::uint64_t>> scratch_;  // columns of operations
  std::vector<std::uint32_t> shape_of_row_;
};

class RecordsDecoder {
 public:
  /// Gives the source with this id in the file, without its clock; false if there is none.
  using Lookup = std::function<bool(std::uint32_t communicator, Source& out)>;

  /// Fills `batch`, whose old content is lost. False: malformed, `batch` is then worth nothing.
  [[nodiscard]] bool decode(std::span<const std::byte> payload, const Lookup& lookup, Batch& batch);
  ColumnReader& columns() { return columns_; }

 private:
  [[nodiscard]] bool decode_sources(Cursor in, const Lookup& lookup, Batch& batch);
  [[nodiscard]] bool decode_operations(Cursor in, Batch& batch);
  template <typename Row>
  [[nodiscard]] bool decode_words(Cursor in, const std::vector<Source>& sources,
                                  std::vector<Row>& rows);

  ColumnReader columns_;
};

}  // namespace ncclscope::archive
