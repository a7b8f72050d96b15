// SPDX-License-Identifier: Apache-2.0
//
// Segments of the archive that are anything. Checksums would keep the fuzzer out, so that they are
// put right in what it makes: the first byte says whether, the rest is the file. Every batch that a
// reader gives is read to the end; whatever it holds, its memory is the reader's.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "archive/crc32c.h"
#include "archive/format.h"
#include "archive/reader.h"

namespace {

namespace archive = ncclscope::archive;

/// Walks headers as a reader does, and makes them fit.
void put_right(std::vector<std::byte>& file) {
  archive::FileHeader header;
  if (file.size() < sizeof header) return;
  std::memcpy(&header, file.data(), sizeof header);
  header.magic = archive::kFileMagic;
  header.major = archive::kMajorVersion;
  header.header_bytes = sizeof header;
  header.crc = archive::crc32c(
      {reinterpret_cast<const std::byte*>(&header), offsetof(archive::FileHeader, crc)});
  std::memcpy(file.data(), &header, sizeof header);
  std::size_t at = sizeof header;
  for (std::uint32_t number = 0; file.size() - at >= sizeof(archive::BlockHeader); ++number) {
    archive::BlockHeader block;
    std::memcpy(&block, file.data() + at, sizeof block);
    const std::size_t left = file.size() - at - sizeof block;
    block.magic = archive::kBlockMagic;
    block.number = number;
    if (block.stored_bytes > left) block.stored_bytes = static_cast<std::uint32_t>(left);
    if (block.codec == 0) block.raw_bytes = block.stored_bytes;
    block.payload_crc = archive::crc32c({file.data() + at + sizeof block, block.stored_bytes});
    block.header_crc = archive::crc32c(
        {reinterpret_cast<const std::byte*>(&block), offsetof(archive::BlockHeader, header_crc)});
    std::memcpy(file.data() + at, &block, sizeof block);
    at += sizeof block + block.stored_bytes;
  }
}

template <typename Row>
std::uint64_t use(const std::vector<Row>& rows) {
  std::uint64_t sum = 0;
  for (const Row& row : rows) {
    sum += row.source->communicator->comm.size() + row.source->process->session_id +
           row.source->job->job_id.size();
    unsigned char bytes[sizeof row.record];
    std::memcpy(bytes, &row.record, sizeof bytes);
    for (const unsigned char b : bytes) sum += b;
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(begin + 1, begin + size);
  if ((data[0] & 1) != 0) put_right(file);
  const int fd = memfd_create("segment", MFD_CLOEXEC);
  if (fd < 0 || write(fd, file.data(), file.size()) != static_cast<ssize_t>(file.size())) abort();
  archive::Status status;
  if (const auto reader = archive::Reader::open("/proc/self/fd/" + std::to_string(fd), status)) {
    std::uint64_t sum = 0;
    while (const archive::Batch* batch = reader->next()) {
      if (batch->operations.size() > archive::kMaxRows) abort();
      for (const auto& row : batch->operations)
        sum += row.bytes() + static_cast<std::uint64_t>(row.start_epoch_ns().value_or(0));
      sum += use(batch->operations) + use(batch->network) + use(batch->channels) +
             use(batch->finalizes) + use(batch->progress) + use(batch->books);
    }
    if (reader->offset() > file.size()) abort();
    // Sum is used, so that nothing of it is left out.
    if (sum == 1 && size == 1) abort();
  } else if (status.ok()) {
    abort();
  }
  close(fd);
  return 0;
}
