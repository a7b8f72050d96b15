// SPDX-License-Identifier: Apache-2.0
#include "archive/columns.h"

#include <zstd.h>

#include <algorithm>
#include <bit>
#include <new>

namespace ncclscope::archive {
namespace {

enum class PlaneMode : std::uint8_t { kRaw = 1, kZstd = 2, kConstant = 3 };

/// Below it a frame of its own costs more than it saves: the block is compressed as a whole.
constexpr std::size_t kLeastPlaneToCompress = 256;

}  // namespace

ColumnWriter::ColumnWriter(int zstd_level) : context_(ZSTD_createCCtx()), level_(zstd_level) {
  if (context_ == nullptr) throw std::bad_alloc();
}
ColumnWriter::~ColumnWriter() {
  ZSTD_freeCCtx(context_);
}

void ColumnWriter::compress(std::span<const std::byte> bytes, std::vector<std::byte>& out) {
  const std::size_t before = out.size();
  out.resize(before + ZSTD_compressBound(bytes.size()));
  const std::size_t written = ZSTD_compressCCtx(context_, out.data() + before, out.size() - before,
                                                bytes.data(), bytes.size(), level_);
  // Cannot fail: there is room for the worst case. Should it, nothing was compressed.
  out.resize(before + (ZSTD_isError(written) != 0 ? 0 : written));
}

void ColumnWriter::put_plane(std::span<const std::byte> plane, std::vector<std::byte>& out) {
  const bool constant =
      std::all_of(plane.begin(), plane.end(), [&](std::byte b) { return b == plane.front(); });
  if (constant) {
    out.push_back(static_cast<std::byte>(PlaneMode::kConstant));
    out.push_back(plane.front());
    return;
  }
  const std::size_t before = out.size();
  if (plane.size() >= kLeastPlaneToCompress) {
    std::vector<std::byte> frame;
    compress(plane, frame);
    // What is hardly smaller is not worth decompressing.
    if (!frame.empty() && frame.size() < plane.size() - plane.size() / 32) {
      out.push_back(static_cast<std::byte>(PlaneMode::kZstd));
      put_varint(out, frame.size());
      out.insert(out.end(), frame.begin(), frame.end());
      return;
    }
  }
  out.resize(before);
  out.push_back(static_cast<std::byte>(PlaneMode::kRaw));
  out.insert(out.end(), plane.begin(), plane.end());
}

void ColumnWriter::put(std::uint8_t id, std::span<const std::uint64_t> values,
                       std::vector<std::byte>& out) {
  std::uint64_t used = 0;
  for (const std::uint64_t value : values) used |= value;
  if (used == 0) return;
  const auto shift = static_cast<unsigned>(std::countr_zero(used));
  used >>= shift;
  unsigned planes = 0;
  for (unsigned plane = 0; plane < 8; ++plane) {
    if (((used >> (8 * plane)) & 0xFFu) != 0) planes |= 1u << plane;
  }
  out.push_back(static_cast<std::byte>(id));
  out.push_back(static_cast<std::byte>(planes));
  out.push_back(static_cast<std::byte>(shift));
  plane_.resize(values.size());
  for (unsigned plane = 0; plane < 8; ++plane) {
    if ((planes & (1u << plane)) == 0) continue;
    const unsigned down = shift + 8 * plane;
    for (std::size_t row = 0; row < values.size(); ++row)
      plane_[row] = static_cast<std::byte>(values[row] >> down);
    put_plane(plane_, out);
  }
}

ColumnReader::ColumnReader() : context_(ZSTD_createDCtx()) {
  if (context_ == nullptr) throw std::bad_alloc();
}
ColumnReader::~ColumnReader() {
  ZSTD_freeDCtx(context_);
}

bool ColumnReader::decompress(std::span<const std::byte> frame, std::span<std::byte> out) {
  const std::size_t written =
      ZSTD_decompressDCtx(context_, out.data(), out.size(), frame.data(), frame.size());
  return ZSTD_isError(written) == 0 && written == out.size();
}

bool ColumnReader::read_plane(Cursor& in, std::size_t rows, unsigned shift,
                              std::vector<std::uint64_t>* column) {
  std::span<const std::byte> plane;
  switch (static_cast<PlaneMode>(in.byte())) {
    case PlaneMode::kRaw:
      plane = in.bytes(rows);
      break;
    case PlaneMode::kZstd: {
      const std::uint64_t length = in.varint();
      const std::span<const std::byte> frame = in.bytes(length);
      plane_.resize(rows);
      if (!in.ok() || !decompress(frame, plane_)) return false;
      plane = plane_;
      break;
    }
    case PlaneMode::kConstant: {
      const std::uint8_t value = in.byte();
      plane_.assign(rows, static_cast<std::byte>(value));
      plane = plane_;
      break;
    }
    default:
      return false;
  }
  if (!in.ok()) return false;
  if (column == nullptr) return true;
  for (std::size_t row = 0; row < rows; ++row)
    (*column)[row] |= std::to_integer<std::uint64_t>(plane[row]) << shift;
  return true;
}

bool ColumnReader::read(Cursor& in, std::size_t rows) {
  for (auto& column : columns_) column.clear();
  while (in.ok()) {
    const std::uint8_t id = in.byte();
    if (id == 0) return in.ok();
    const std::uint8_t planes = in.byte();
    const std::uint8_t shift = in.byte();
    if (!in.ok() || shift > 63) return false;
    std::vector<std::uint64_t>* column = id < kMaxColumns ? &columns_[id] : nullptr;
    if (column != nullptr) column->assign(rows, 0);
    for (unsigned plane = 0; plane < 8; ++plane) {
      if ((planes & (1u << plane)) == 0) continue;
      const unsigned up = shift + 8 * plane;
      if (up > 63 || !read_plane(in, rows, up, column)) return false;
    }
  }
  return false;
}

}  // namespace ncclscope::archive
