// SPDX-License-Identifier: Apache-2.0
// The frame decoder on any bytes: nothing outside the packet is read, and what is delivered lies
// inside it.
#include <cstdlib>

#include "proto/wire/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ncclscope::wire;
  const std::span<const std::byte> packet(reinterpret_cast<const std::byte*>(data), size);
  FrameHeader header;
  std::size_t strings = 0;
  const DecodeError error = read_frame(
      packet, header, [&](std::uint8_t type, std::span<const std::byte> record, std::uint64_t) {
        if (record.data() < packet.data() ||
            record.data() + record.size() > packet.data() + packet.size())
          abort();
        if (type == static_cast<std::uint8_t>(RecordType::kHello)) {
          Hello hello;
          return read_record(record, hello) &&
                 read_strings(record, sizeof hello, hello.string_bytes,
                              [&](StringKey, std::string_view text) { strings += text.size(); });
        }
        Operation operation;
        return type != static_cast<std::uint8_t>(RecordType::kOperation) ||
               read_record(record, operation);
      });
  if (error == DecodeError::kNone && header.frame_bytes != size) abort();
  return 0;
}
