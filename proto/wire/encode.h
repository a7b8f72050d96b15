// SPDX-License-Identifier: Apache-2.0
//
// Writes frames into a caller's buffer. No allocation, no exceptions; one writer, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "proto/wire/frame.h"

namespace ncclscope::wire {

/// Fills the header of a fixed-size record.
template <typename Record>
constexpr void set_header(Record& record, RecordType type,
                          std::size_t total_bytes = sizeof(Record)) noexcept {
  record.header.type = static_cast<std::uint8_t>(type);
  record.header.words = static_cast<std::uint8_t>(total_bytes / 8);
}

/// Collects records of one frame.
///   FrameWriter w(buffer); w.add(record); ... span = w.finish(first_index, now);
class FrameWriter {
 public:
  explicit FrameWriter(std::span<std::byte> buffer) noexcept
      : buffer_(buffer.size() > kMaxFrameBytes ? buffer.first(kMaxFrameBytes) : buffer) {}

  [[nodiscard]] std::size_t room() const noexcept {
    return used_ > buffer_.size() ? 0 : buffer_.size() - used_;
  }
  [[nodiscard]] std::size_t records() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }

  /// Appends a record whose header is set. False (and nothing written) when the frame is full.
  template <typename Record>
  bool add(const Record& record) noexcept {
    static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % 8 == 0);
    return add_bytes({reinterpret_cast<const std::byte*>(&record), sizeof(Record)});
  }

  /// Appends a whole record, header included; its length must be a multiple of 8.
  bool add_bytes(std::span<const std::byte> record) noexcept {
    if (record.size() > room() || record.size() % 8 != 0 || count_ == 0xFFFF) return false;
    std::memcpy(buffer_.data() + used_, record.data(), record.size());
    used_ += record.size();
    ++count_;
    return true;
  }

  /// Writes the frame header and returns the packet. The writer is then empty again.
  std::span<const std::byte> finish(std::uint64_t first_index, std::uint64_t now_ns) noexcept {
    FrameHeader h{};
    h.magic = kMagic;
    h.major = kMajorVersion;
    h.header_bytes = sizeof(FrameHeader);
    h.frame_bytes = static_cast<std::uint32_t>(used_);
    h.record_count = static_cast<std::uint16_t>(count_);
    h.first_index = first_index;
    h.send_time_ns = now_ns;
    std::memcpy(buffer_.data(), &h, sizeof h);
    const std::span<const std::byte> packet = buffer_.first(used_);
    used_ = sizeof(FrameHeader);
    count_ = 0;
    return packet;
  }

 private:
  std::span<std::byte> buffer_;
  std::size_t used_ = sizeof(FrameHeader);
  std::size_t count_ = 0;
};

/// Builds a record that ends in strings (Hello, CommunicatorInit). `Head` has header and
/// string_bytes.
template <typename Head>
class StringRecordWriter {
 public:
  explicit StringRecordWriter(const Head& head, RecordType type) noexcept : type_(type) {
    std::memcpy(bytes_, &head, sizeof(Head));
  }
  /// Strings longer than kMaxStringBytes are cut; strings that no longer fit are left out (returns
  /// false).
  bool add(StringKey key, std::string_view text) noexcept {
    if (text.size() > kMaxStringBytes) text = text.substr(0, kMaxStringBytes);
    const std::size_t padded = (sizeof(StringHeader) + text.size() + 3) / 4 * 4;
    if (used_ + padded > kMaxRecordBytes - 8) return false;
    const StringHeader h{static_cast<std::uint16_t>(key), static_cast<std::uint16_t>(text.size())};
    std::memcpy(bytes_ + used_, &h, sizeof h);
    std::memcpy(bytes_ + used_ + sizeof h, text.data(), text.size());
    used_ += padded;
    return true;
  }
  std::span<const std::byte> finish() noexcept {
    Head head;
    std::memcpy(&head, bytes_, sizeof(Head));
    head.string_bytes = static_cast<std::uint32_t>(used_ - sizeof(Head));
    const std::size_t total = (used_ + 7) / 8 * 8;
    set_header(head, type_, total);
    std::memcpy(bytes_, &head, sizeof(Head));
    return {bytes_, total};
  }

 private:
  alignas(8) std::byte bytes_[kMaxRecordBytes] = {};
  std::size_t used_ = sizeof(Head);
  RecordType type_;
};

}  // namespace ncclscope::wire
