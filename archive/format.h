// SPDX-License-Identifier: Apache-2.0
//
// Layout of an archive segment: a file header, then blocks up to the end of the file. All numbers
// are little-endian. docs/archive-format.md is the same as prose, byte by byte.
//   Growth: a reader refuses another major version; unknown block types, sections, columns and
//   fields are skipped by length; what is missing is 0 or empty.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ncclscope::archive {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

/// A byte above 127, line ends and an end-of-text character: whoever treats the file as text breaks
/// the first eight bytes already.
inline constexpr std::array<unsigned char, 8> kFileMagic = {0x89, 'N',  'C',  'S',
                                                            'A',  0x0D, 0x0A, 0x1A};
inline constexpr std::uint16_t kMajorVersion = 1;
inline constexpr std::uint16_t kMinorVersion = 0;
inline constexpr std::uint32_t kBlockMagic = 0x4253434Eu;  // bytes "NCSB"

/// Segments are called *.ncsa, and *.ncsa.part as long as they are written to.
inline constexpr const char* kExtension = ".ncsa";
inline constexpr const char* kPartExtension = ".ncsa.part";

struct FileHeader {
  std::array<unsigned char, 8> magic;
  std::uint16_t major;
  std::uint16_t minor;
  std::uint32_t header_bytes;  // 48; a reader skips what is beyond
  std::int64_t created_ns;     // since the epoch
  std::uint64_t writer;        // random, one per run of the program that wrote it
  std::uint32_t segment;       // number among the segments of this writer and job, from 0
  std::uint32_t reserved;
  std::uint32_t reserved2;
  std::uint32_t crc;  // CRC-32C of the bytes before it
};
static_assert(sizeof(FileHeader) == 48 && offsetof(FileHeader, crc) == 44);

enum class BlockType : std::uint8_t {
  kContext = 1,  // who: job, processes, communicators
  kRecords = 2,  // what they did
  kEnd = 3,      // the segment is complete
};
enum class Codec : std::uint8_t { kStored = 0, kZstd = 1 };

struct BlockHeader {
  std::uint32_t magic;
  std::uint8_t type;   // BlockType
  std::uint8_t codec;  // Codec
  std::uint16_t reserved;
  std::uint32_t number;        // 0, 1, 2, ... in this file
  std::uint32_t stored_bytes;  // of the payload behind this header
  std::uint32_t raw_bytes;     // once it is decompressed
  std::uint32_t rows;          // records in it
  std::uint32_t payload_crc;   // CRC-32C of the stored payload
  std::uint32_t header_crc;    // CRC-32C of the 28 bytes before it
};
static_assert(sizeof(BlockHeader) == 32 && offsetof(BlockHeader, header_crc) == 28);

/// Parts of a records block: {u8 type, 3 x u8 0, u32 bytes}, then so many bytes.
enum class Section : std::uint8_t {
  kSources = 1,     // communicators of this block
  kOperations = 2,  // wire::Operation
  kNetwork = 3,     // wire::NetworkPhases
  kChannels = 4,    // wire::ChannelDetail
  kFinalizes = 5,   // wire::CommunicatorFinalize
  kProgress = 6,    // wire::Progress
  kBooks = 7,       // wire::Books
};

// Limits: what a writer never exceeds and a reader refuses.
inline constexpr std::uint32_t kMaxRawBytes = 16u << 20;
inline constexpr std::uint32_t kMaxStoredBytes = kMaxRawBytes + (1u << 18);
inline constexpr std::uint32_t kMaxRows = 1u << 16;            // in a block
inline constexpr std::uint32_t kMaxSources = 1u << 16;         // in a block
inline constexpr std::uint32_t kMaxRecordWords = 255;          // of 8 bytes
inline constexpr std::uint32_t kMaxContexts = 1u << 20;        // in a file, replaced ones included
inline constexpr std::uint64_t kMaxContextBytes = 256u << 20;  // likewise, as stored
inline constexpr std::uint32_t kMaxTextBytes = 4096;           // of a string

}  // namespace ncclscope::archive
