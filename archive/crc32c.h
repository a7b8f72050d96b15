// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli, reflected, as in iSCSI and ext4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ncclscope::archive {

/// Of the ASCII digits 1 to 9: 0xE3069283.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept;

}  // namespace ncclscope::archive
