// SPDX-License-Identifier: Apache-2.0
// Sequences of frames through the agent's session state machine and aggregation, with a clock that
// the input moves. The input is a list of actions; most frames get a right header, so that the
// fuzzer spends its time behind the framing. A polite session of another user sends one operation
// after each action: whatever the input does, it is served and its sums are exactly its own.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "proto/wire/encode.h"
#include "tests/unit/agent/rig.h"

namespace {

using ncclscope::agent::testing::make_hello;
using ncclscope::agent::testing::make_init;
using ncclscope::agent::testing::Packet;
using ncclscope::agent::testing::PacketBuilder;
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

/// Variables are NCCL's, and no more and no longer than they may be.
bool is_bounded(const ncclscope::agent::ProcessEnvironment& environment) {
  const auto fits = [](const auto& variable) {
    return variable.first.starts_with("NCCL_") &&
           variable.first.size() + 1 + variable.second.size() <= wire::kMaxVariableBytes;
  };
  return environment.variables.size() <= wire::kMaxVariables &&
         std::all_of(environment.variables.begin(), environment.variables.end(), fits);
}

constexpr std::int64_t kVictim = 1;  // a uid that the input cannot have

/// The polite session.
class Victim {
 public:
  explicit Victim(Rig& rig) : wire_(rig.connect(4711, kVictim)) {
    require(wire_->feed(PacketBuilder()
                            .hello(make_hello(kSession), {{wire::StringKey::kSlurmJobId, "victim"}})
                            .init(make_init(0, 0xabc, 0, 2))
                            .finish()));
  }
  void step() {
    ++operations_;
    require(wire_->feed(
        PacketBuilder().operation({.count = 1000, .duration_ns = 1 << 20}).finish(operations_)));
  }
  void check(const ncclscope::agent::Snapshot& snapshot) const {
    std::size_t jobs = 0;
    for (const auto& job : snapshot.jobs) {
      if (job.identity.uid != kVictim) continue;
      ++jobs;
      require(job.identity.job_id == "victim");
      require(job.processes.size() == 1 && job.processes[0].records_received == operations_);
      require(job.processes[0].records_lost == 0 && job.processes[0].connected);
      require(job.communicators.size() == 1 && job.communicators[0].ranks.size() == 1);
      if (operations_ == 0) continue;
      const auto& communicator = job.communicators[0];
      require(communicator.sums.size() == 1 && communicator.rank_sums.size() == 1);
      const auto& row = communicator.sums[0];
      require(row.timed_operations == operations_ && row.bytes_by_timing[1] == operations_ * 4000);
      const double seconds = static_cast<double>(operations_ << 20) * 1e-9;
      require(std::abs(row.busy_seconds - seconds) <= 1e-9 * seconds);
      require(communicator.rank_sums[0].operations == operations_);
    }
    require(jobs == 1);
  }

 private:
  static constexpr std::uint64_t kSession = 3;  // one that the input uses too
  static void require(bool holds) {
    if (!holds) abort();
  }
  std::unique_ptr<Wire> wire_;
  std::uint64_t operations_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  // Limits that an input can reach.
  ncclscope::agent::Aggregator::Options limits;
  limits.max_jobs = 4;
  limits.jobs_per_principal = 2;
  limits.max_communicators = 16;
  limits.communicators_per_principal = 8;
  limits.max_pending_items = 64;
  Rig rig(limits);
  Victim victim(rig);
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
    victim.step();
  }
  const auto snapshot = rig.snapshot();
  victim.check(*snapshot);
  for (const auto& job : snapshot->jobs) {
    for (const auto& process : job.processes) {
      if (process.records_received > process.highest_index) abort();
      if (process.environment != nullptr && !is_bounded(*process.environment)) abort();
    }
  }
  return 0;
}
