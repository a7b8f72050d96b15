// SPDX-License-Identifier: Apache-2.0
//
// Numbers of variable length (LEB128: seven bits a byte, lowest first, the top bit says that more
// follow), and a cursor that reads them from bytes that are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ncclscope::archive {

/// Small magnitudes become small numbers: 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
[[nodiscard]] constexpr std::uint64_t zigzag(std::int64_t value) noexcept {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
[[nodiscard]] constexpr std::int64_t unzigzag(std::uint64_t value) noexcept {
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

inline void put_varint(std::vector<std::byte>& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

/// Reads from a span; once something was missing or wrong, all further reads give 0 and ok() is
/// false.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }
  void fail() noexcept {
    ok_ = false;
    rest_ = {};
  }

  std::uint8_t byte() noexcept {
    const std::span<const std::byte> one = bytes(1);
    return one.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(one[0]);
  }
  std::uint64_t varint() noexcept {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      if (!ok_) return 0;
      if (shift == 63 && next > 1) break;  // beyond 64 bits
      value |= std::uint64_t{next & 0x7Fu} << shift;
      if ((next & 0x80u) == 0) return value;
    }
    fail();
    return 0;
  }
  /// A varint that must not be above `most`.
  std::uint32_t varint32(std::uint32_t most) noexcept {
    const std::uint64_t value = varint();
    if (value > most) fail();
    return ok_ ? static_cast<std::uint32_t>(value) : 0;
  }
  /// Empty (and not ok) if fewer are left.
  std::span<const std::byte> bytes(std::size_t count) noexcept {
    if (count > rest_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> out = rest_.first(count);
    rest_ = rest_.subspan(count);
    return out;
  }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace ncclscope::archive
