// SPDX-License-Identifier: Apache-2.0
//
// Reads frames. THE SENDER IS HOSTILE: any process on the node may connect and send anything.
//   Memory: never allocates; every length is copied to a local, then checked, then used.
//   Bounds: a frame is at most kMaxFrameBytes; a record never reaches past its frame.
//   Growth: unknown record types are skipped and counted; longer bodies are read up to what is
//   known. Values inside records are not judged here: enums may be out of range, strings may be any
//   bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "proto/wire/frame.h"

namespace ncclscope::wire {

enum class DecodeError : std::uint8_t {
  kNone = 0,
  kTooShort,  // shorter than a frame header
  kBadMagic,
  kBadVersion,  // another major version
  kBadHeader,   // header length impossible
  kBadLength,   // frame_bytes is not the packet's size, or above the limit
  kBadRecord,   // a record ends past the frame, has no length, or is shorter than its type needs
  kBadCount,    // record_count does not match
  kBadString,   // a string ends past its record or is too long
};
[[nodiscard]] constexpr std::string_view name(DecodeError e) noexcept {
  constexpr std::string_view kNames[] = {"none",        "too_short",  "bad_magic",
                                         "bad_version", "bad_header", "bad_length",
                                         "bad_record",  "bad_count",  "bad_string"};
  return kNames[static_cast<std::size_t>(e)];
}

/// The length with which a type of record was first published: no writer's are shorter.
template <typename Record>
inline constexpr std::size_t kFirstBytes = sizeof(Record);  // NOLINT(bugprone-dynamic-*): constant
template <>
inline constexpr std::size_t kFirstBytes<Books> = kBooksFirstBytes;

/// Copies the known part of a record; what an older writer does not send becomes 0. False when the
/// record is shorter than the type's first published length.
template <typename Record>
[[nodiscard]] bool read_record(std::span<const std::byte> bytes, Record& out) noexcept {
  if (bytes.size() < kFirstBytes<Record>) return false;
  if constexpr (kFirstBytes<Record> < sizeof(Record)) out = {};
  std::memcpy(&out, bytes.data(), std::min(bytes.size(), sizeof(Record)));
  return true;
}

/// Calls sink(StringKey, std::string_view) for each string behind `head_bytes` of a record. The
/// views point into the frame and hold arbitrary bytes. False: malformed.
template <typename Sink>
[[nodiscard]] bool read_strings(std::span<const std::byte> record, std::size_t head_bytes,
                                std::uint32_t string_bytes, Sink&& sink) noexcept {
  if (head_bytes > record.size() || string_bytes > record.size() - head_bytes) return false;
  std::span<const std::byte> rest = record.subspan(head_bytes, string_bytes);
  while (!rest.empty()) {
    StringHeader h;
    if (rest.size() < sizeof h) return false;
    std::memcpy(&h, rest.data(), sizeof h);
    const std::size_t padded = (sizeof h + std::size_t{h.bytes} + 3) / 4 * 4;
    if (h.bytes > kMaxStringBytes || padded > rest.size()) return false;
    sink(static_cast<StringKey>(h.key),
         std::string_view(reinterpret_cast<const char*>(rest.data() + sizeof h), h.bytes));
    rest = rest.subspan(padded);
  }
  return true;
}

/// Checks a packet's frame header.
[[nodiscard]] inline DecodeError read_header(std::span<const std::byte> packet,
                                             FrameHeader& header) noexcept {
  if (packet.size() < sizeof(FrameHeader)) return DecodeError::kTooShort;
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != kMagic) return DecodeError::kBadMagic;
  if (header.major != kMajorVersion) return DecodeError::kBadVersion;
  if (header.header_bytes < sizeof(FrameHeader) || header.header_bytes % 8 != 0 ||
      header.header_bytes > packet.size())
    return DecodeError::kBadHeader;
  if (packet.size() > kMaxFrameBytes || header.frame_bytes != packet.size() ||
      packet.size() % 8 != 0)
    return DecodeError::kBadLength;
  return DecodeError::kNone;
}

/// Walks the records of one packet: sink(std::uint8_t type, std::span<const std::byte> record,
/// std::uint64_t index); index is the record's index for indexed types, else 0. The sink returns
/// false to stop (reported as kBadRecord). Nothing is delivered from a packet whose framing is
/// wrong anywhere: it is checked as a whole first.
template <typename Sink>
[[nodiscard]] DecodeError read_frame(std::span<const std::byte> packet, FrameHeader& header,
                                     Sink&& sink) noexcept {
  if (const DecodeError e = read_header(packet, header); e != DecodeError::kNone) return e;
  std::size_t at = header.header_bytes;
  std::uint32_t count = 0;
  while (at < packet.size()) {
    const std::size_t words = std::to_integer<std::size_t>(packet[at + 1]);
    if (words == 0 || words * 8 > packet.size() - at) return DecodeError::kBadRecord;
    at += words * 8;
    ++count;
  }
  if (count != header.record_count) return DecodeError::kBadCount;
  std::uint64_t index = header.first_index;
  for (at = header.header_bytes; at < packet.size();) {
    const auto type = std::to_integer<std::uint8_t>(packet[at]);
    const std::size_t bytes = std::to_integer<std::size_t>(packet[at + 1]) * 8;
    const bool indexed = is_indexed(type);
    if (!sink(type, packet.subspan(at, bytes), indexed ? index : std::uint64_t{0}))
      return DecodeError::kBadRecord;
    if (indexed) ++index;
    at += bytes;
  }
  return DecodeError::kNone;
}

}  // namespace ncclscope::wire
