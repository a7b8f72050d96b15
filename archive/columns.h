// SPDX-License-Identifier: Apache-2.0
//
// Columns of numbers, as a section of a records block holds them:
//   {u8 id, u8 planes, u8 shift}, then for every bit set in `planes`, lowest first, one plane: the
//   byte of that place of every value (after `shift` bits were taken off its low end, which are
//   zeros in all values). A plane is {u8 mode}, and
//     1 raw       rows bytes
//     2 zstd      {varint bytes}, a zstd frame of rows bytes
//     3 constant  one byte, that of all rows
//   Planes without a bit are zeros, and so is a column that is missing. Id 0 ends the list.
// Bytes of the same place are alike, so that each plane gets a code of its own; those of noise are
// kept as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "archive/varint.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace ncclscope::archive {

inline constexpr std::size_t kMaxColumns = 128;  // ids are below it; others are skipped

class ColumnWriter {
 public:
  explicit ColumnWriter(int zstd_level);
  ~ColumnWriter();
  ColumnWriter(const ColumnWriter&) = delete;
  ColumnWriter& operator=(const ColumnWriter&) = delete;

  /// Appends a column; one of zeros is left out.
  void put(std::uint8_t id, std::span<const std::uint64_t> values, std::vector<std::byte>& out);
  static void end(std::vector<std::byte>& out) { out.push_back(std::byte{0}); }
  /// A zstd frame of `bytes`, appended to `out`.
  void compress(std::span<const std::byte> bytes, std::vector<std::byte>& out);

 private:
  void put_plane(std::span<const std::byte> plane, std::vector<std::byte>& out);

  ZSTD_CCtx_s* context_;
  int level_;
  std::vector<std::byte> plane_;
};

class ColumnReader {
 public:
  ColumnReader();
  ~ColumnReader();
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  /// Reads a list of columns of `rows` values each. False: malformed.
  [[nodiscard]] bool read(Cursor& in, std::size_t rows);
  /// Value of a row of the last list; 0 where the column is missing.
  [[nodiscard]] std::uint64_t at(std::size_t id, std::size_t row) const {
    return columns_[id].empty() ? 0 : columns_[id][row];
  }
  /// Decompresses a frame of exactly out.size() bytes.
  [[nodiscard]] bool decompress(std::span<const std::byte> frame, std::span<std::byte> out);

 private:
  [[nodiscard]] bool read_plane(Cursor& in, std::size_t rows, unsigned shift,
                                std::vector<std::uint64_t>* column);

  ZSTD_DCtx_s* context_;
  std::array<std::vector<std::uint64_t>, kMaxColumns> columns_;
  std::vector<std::byte> plane_;
};

}  // namespace ncclscope::archive
