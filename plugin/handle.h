// SPDX-License-Identifier: Apache-2.0
//
// What the plugin gives to NCCL instead of pointers. A token names a kind, a place in a table and
// that place's generation; every use is checked against the table, so stale, doubled, foreign and
// garbage handles are harmless. Bits: 60..63 kind, 56..59 lane, 48..55 salt of this process, 16..47
// generation, 0..15 index. Kinds are never 0, so a user-space pointer (top bits 0) is never taken
// for a token.
#pragma once

#include <bit>
#include <cstdint>

namespace ncclscope::plugin {

enum class Kind : std::uint8_t {
  kNone = 0,
  kContext = 1,       // communicator
  kOperationApi = 2,  // CollApi, P2pApi: an operation that NCCL has accepted
  kOperation = 3,     // Coll, P2p, CeColl: the same operation, launched
  kKernel = 4,        // KernelCh
  kProxyOp = 5,
  kProxyStep = 6,
  kGroupApi = 7,
  kPlan = 8,       // Group; the generation is the plan's number
  kDropped = 9,    // an operation that was counted but has no slot
  kCaptured = 10,  // API call under graph capture: runs only when replayed
  kIgnored = 11,
};

class Token {
 public:
  constexpr Token() noexcept = default;
  constexpr Token(Kind kind, unsigned lane, std::uint8_t salt, std::uint32_t generation,
                  std::uint32_t index) noexcept
      : bits_((static_cast<std::uint64_t>(kind) << 60) | (std::uint64_t{lane & 15u} << 56) |
              (std::uint64_t{salt} << 48) | (std::uint64_t{generation} << 16) | (index & 0xFFFFu)) {
  }

  [[nodiscard]] static constexpr Token from_bits(std::uint64_t bits) noexcept {
    Token t;
    t.bits_ = bits;
    return t;
  }
  [[nodiscard]] static Token from_handle(const void* handle) noexcept {
    return from_bits(std::bit_cast<std::uint64_t>(handle));
  }
  [[nodiscard]] void* handle() const noexcept { return std::bit_cast<void*>(bits_); }

  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr Kind kind() const noexcept { return static_cast<Kind>(bits_ >> 60); }
  [[nodiscard]] constexpr unsigned lane() const noexcept {
    return static_cast<unsigned>((bits_ >> 56) & 15u);
  }
  [[nodiscard]] constexpr std::uint8_t salt() const noexcept {
    return static_cast<std::uint8_t>(bits_ >> 48);
  }
  [[nodiscard]] constexpr std::uint32_t generation() const noexcept {
    return static_cast<std::uint32_t>(bits_ >> 16);
  }
  [[nodiscard]] constexpr std::uint32_t index() const noexcept {
    return static_cast<std::uint32_t>(bits_ & 0xFFFFu);
  }

 private:
  std::uint64_t bits_ = 0;
};
static_assert(sizeof(void*) == 8, "handles are 64 bits");

}  // namespace ncclscope::plugin
