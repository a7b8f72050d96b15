// SPDX-License-Identifier: Apache-2.0
// Sequences of frames through the agent's session state machine and aggregation, with a clock that
// the input moves. The input is a list of actions; most frames get a right header, so that the
// fuzzer spends its time behind the framing.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "proto/wire/encode.h"
#include "tests/unit/agent/rig.h"

namespace {

using ncclscope::agent::testing::Packet;
using ncclscope::agent::testing::Rig;
using ncclscope::agent::testing::Wire;
namespace wire = ncclscope::wire;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::span<const std::byte> bytes(std::size_t n) {
    n = std::min(n, size_);
    const std::span<const std::byte> out(reinterpret_cast<const std::byte*>(data_), n);
    data_ += n;
    size_ -= n;
    return out;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

/// Records of the input behind a header that fits them.
Packet framed(Input& in) {
  const std::uint64_t first_index = in.byte();
  const auto body = in.bytes(std::size_t{in.byte()} * 8);
  alignas(8) static std::byte buffer[wire::kMaxFrameBytes];
  wire::FrameWriter w(buffer);
  std::size_t at = 0;
  while (at + 8 <= body.size()) {
    const std::size_t bytes =
        std::max<std::size_t>(1, std::to_integer<std::size_t>(body[at + 1])) * 8;
    alignas(8) std::byte record[wire::kMaxRecordBytes] = {};
    std::memcpy(record, body.data() + at, std::min(bytes, body.size() - at));
    record[1] = static_cast<std::byte>(bytes / 8);
    if (!w.add_bytes({record, bytes})) break;
    at += bytes;
  }
  const auto packet = w.finish(first_index, 1);
  return Packet(packet.begin(), packet.end());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  ncclscope::agent::Aggregator::Options limits;
  Rig rig(limits);
  std::vector<std::unique_ptr<Wire>> wires;
  for (int actions = 0; !in.empty() && actions < 64; ++actions) {
    const std::uint8_t what = in.byte();
    switch (what % 8) {
      case 0:
        if (wires.size() < 4)
          wires.push_back(rig.connect(100 + what / 8 % 3, 1000 + what / 64, what > 200));
        break;
      case 1:
        if (wires.size() < 4) wires.push_back(rig.open(1 + what / 8 % 4, "7", 100 + what / 8 % 4));
        break;
      case 2:
        rig.clock.advance_ms(in.byte() * std::uint64_t{50});
        rig.tick();
        break;
      case 3:
        if (!wires.empty()) wires.erase(wires.begin() + what / 8 % static_cast<int>(wires.size()));
        break;
      case 4: {
        const auto raw = in.bytes(in.byte());
        if (!wires.empty()) wires.back()->feed(Packet(raw.begin(), raw.end()));
        break;
      }
      case 5:
        (void)rig.snapshot();
        break;
      default:
        if (!wires.empty()) {
          auto& wire = wires[static_cast<std::size_t>(what / 8) % wires.size()];
          if (!wire->over()) wire->feed(framed(in));
          wire->burst_end();
        }
        break;
    }
  }
  const auto snapshot = rig.snapshot();
  for (const auto& job : snapshot->jobs) {
    for (const auto& process : job.processes) {
      if (process.records_received > process.highest_index) abort();
    }
  }
  return 0;
}
